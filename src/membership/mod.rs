//! Stage 0: who is here. Hands on: [`Session`].
//!
//! **Invariant:** only an id in the set `members` may lead, claim or settle. Only `join` adds one,
//! only `look` (the judge) and `leave` (the member itself) remove one, and an id that was removed
//! never comes back: a process that lost its session returns as a new member.
//!
//! ```text
//!            join(new id)                    reply refreshed it
//!   outside ──────────────▶ trusted ◀───────────────────────────┐
//!      ▲                      │ 2/3 lease since the last answered │
//!      │                      │ call was *sent*                   │
//!      │        gone          ▼          still a member           │
//!      └────────────────── in doubt ──────────────────────────────┘
//! ```
//!
//! *In doubt* the process starts no handler, pushes nothing and refreshes nothing. It only asks "am I
//! still a member?". So a generator that gets no replies cannot stay in office.
//!
//! Failure cases:
//!
//! * Redis is down: the session is in doubt. Then it goes on under the same id if nobody else could
//!   look.
//! * The process was frozen for longer than the lease: it is gone when it wakes. Everything that it had
//!   claimed belongs to others by now.
//! * Presence is lost but Redis is reachable: the session is refreshed ten times a second until its
//!   presence is visible again.

mod ask;
mod heartbeat;
mod heartbeat_reply;
mod held_blocks;
mod judge;
mod look;
mod member_info;
mod moving;
mod odometer;
mod orders;
mod session;
mod session_task;
mod tally;
mod trust;
mod view;

pub(crate) use ask::{AskError, Instead, Part, Patience};
pub(crate) use held_blocks::HeldBlocks;
pub(crate) use member_info::{MemberInfo, another_handles, somebody_idle};
pub(crate) use orders::Orders;
pub(crate) use session::{End, Session};
pub(crate) use session_task::{Profile, SessionHandle};
pub(crate) use tally::Tally;
pub(crate) use trust::Trust;
pub(crate) use view::{Due, FleetView, Holder, Views};

use crate::Error;
use crate::id::MemberId;
use crate::store::{ONCE_TIMEOUT, Store};

impl Store {
    /// Reads what a member reports about itself.
    pub(crate) async fn member_info(&self, id: &MemberId) -> Result<MemberInfo, Error> {
        let info = MemberInfo::read(&self.work, &self.keys, id, ONCE_TIMEOUT).await;
        info.map_err(|error| self.explain(error))
    }
}
