//! Stage 1: who leads. Takes: a [`Session`](crate::membership::Session). Hands on: [`Lease`].
//!
//! **Invariant:** at most one member's term is accepted. Terms only grow. Redis itself refuses a write
//! under an older term. A lease is valid exactly as long as its holder's session.
//!
//! ```text
//!              lease free, my turn: acquire = won
//!   standby ────────────────────────────────────────▶ generator
//!      ▲                                                  │
//!      └── fenced · resigned · stalled · session over ────┘
//! ```
//!
//! Redis is the authority. Local time bounds *trust*: a generator stops acting on its lease two
//! thirds of a lease after the last answered call was sent, before anybody else can be elected by
//! deadline. Ranks and timers only decide which member tries first. A wrong one costs time, never
//! safety.

mod elector;
mod lease;

pub(crate) use elector::Elector;
pub(crate) use lease::Lease;
