//! Stage 3: where messages wait. Takes: `&Lease` and [`NewMessage`]s. Hands on: [`Claim`]s.
//!
//! **Invariant:** a message is in exactly one place: a lane, a block, `scheduled`, or counted as done or
//! failed.
//! Scripts move it whole, so nothing falls between two steps.
//!
//! ```text
//!             push                fetch                   settle
//! generator ───────▶ generated ──────────▶ block of a ──────────────▶ done | failed
//!    anybody ──────▶ high, normal,  ▲       worker                        ▲    │
//!             send   low ◀──────────│──────── │ ──────────────────────────│────┘ requeue
//!                        ▲          │         │ the worker died           │ attempts
//!              give back │          └ returned ◀──────── adopt ───────────┘ used up
//! ```

mod adopt;
mod block;
mod claims;
mod delivery;
mod forgotten;
mod group;
mod keyed;
mod lanes;
mod pack;
mod post;
mod push;
mod send;

pub use adopt::PutBack;
pub(crate) use adopt::{adopt_messages, disown_strays};
pub(crate) use block::{ALONE_FROM, Fetch, Fetched, RETURNED_MAX, Unread, give_back, named};
pub(crate) use claims::{Block, Claim, Claims, NewBlock};
pub(crate) use lanes::Turns;
pub(crate) use push::{Ending, Pusher, TermNumbers, Unpushed, ending_of};
pub use send::{Sender, Sent};
