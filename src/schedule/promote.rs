//! Letting go what is due.
//!
//! **Invariant:** one script moves a message from the schedule to its lane, so it is never in neither and never in both. Many
//! members may do this at once: each takes what it finds.

use crate::membership::Session;
use crate::store::{Call, Reply, Script, Store, StoreError};

static PROMOTE: Script = Script::new("promote", include_str!("promote.lua"));

/// How many messages and bytes one call may move: a bound on how long Redis is busy with it.
pub(crate) const PROMOTE_MAX: u64 = 500;
const BYTES_MAX: usize = 1 << 20;
/// How many lines one call looks at.
const LINES: usize = 1;

/// What one call let go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Promoted {
    pub(crate) moved: u64,
    /// In how many ms the next one is due.
    pub(crate) next_ms: Option<i64>,
}

pub(crate) fn promote(store: &Store, session: &Session) -> Call<Promoted> {
    PROMOTE
        .call(&store.keys.jobs())
        .arg(session.id.as_str())
        .arg(session.trust.lease_ms())
        .arg(PROMOTE_MAX)
        .arg(BYTES_MAX)
        .arg(LINES)
        .refreshing(&["ok"])
        .reading(read)
}

fn read(reply: Reply) -> Result<Promoted, StoreError> {
    match reply.tag() {
        "ok" => {
            Ok(Promoted { moved: reply.number(0)? as u64, next_ms: reply.text(1)?.parse().ok() })
        }
        _ => Err(reply.unexpected()),
    }
}
