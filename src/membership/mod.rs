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
//! *In doubt* the process starts no handler, pushes nothing and refreshes nothing; it only asks
//! "am I still a member?". So a link that loses only replies cannot keep a deaf leader in office.
//!
//! Failure cases: Redis away (doubt, then go on under the same id if nobody else could look);
//! frozen past the lease (gone on waking: everything claimed belongs to somebody else by now);
//! presence lost but Redis reachable (refreshes ten times a second until it is visible again).

mod card;
mod judge;
mod keeper;
mod pulse;
mod right;
mod session;
mod watch;

use std::fmt;

use crate::Error;
use crate::store::{ONCE_TIMEOUT, Store, is_id};

pub(crate) use card::{Card, another_handles, somebody_idle};
pub(crate) use keeper::{Keeper, Profile};
pub(crate) use right::{Rights, held_locks, release_call, resign_call};
pub(crate) use session::{End, Exercise, Holder, Session, Standing};

/// How the ids of members begin that neither work nor lead.
const OBSERVER: char = 'o';

/// A session's name: random, and new for every session, so that an id is itself a claim token.
///
/// Ranks count by id, and the ids of observers begin with a letter behind all others: however many
/// there are, none of them delays an election or keeps watch while somebody else can.
#[derive(Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd, serde::Serialize)]
pub struct MemberId(String);

impl MemberId {
    pub(crate) fn new(observes: bool) -> MemberId {
        let random = rand::random::<u128>();
        match observes {
            true => MemberId(format!("{OBSERVER}{:023x}", random >> 36)),
            false => MemberId(format!("{:024x}", random >> 32)),
        }
    }

    #[cfg(test)]
    pub(crate) fn random() -> MemberId {
        MemberId::new(false)
    }

    /// Is it the id of a member that neither works nor leads?
    pub fn is_observer(&self) -> bool {
        self.0.starts_with(OBSERVER)
    }

    /// What stands in Redis, if it is an id.
    pub(crate) fn from_redis(text: &str) -> Option<MemberId> {
        is_id(text).then(|| MemberId(text.to_owned()))
    }

    /// The id as it stands in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Store {
    /// What a member tells about itself.
    pub(crate) async fn card(&self, id: &MemberId) -> Result<Card, Error> {
        let card = Card::read(&self.work, &self.keys, id, ONCE_TIMEOUT).await;
        card.map_err(|error| self.explain(error))
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
