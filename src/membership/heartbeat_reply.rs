//! [`Heartbeat`]: what Redis answers to a heartbeat.
//!
//! **Invariant:** an answer that is too short, or that has something else where a number belongs, is an error, and nothing of it is
//! used.

use std::time::Duration;

use super::Orders;
use crate::id::MemberId;
use crate::store::{Reply, StoreError};
use crate::tenure::held_locks;
use crate::term::{Term, Token};

/// What Redis answers to a heartbeat.
pub(super) struct Heartbeat {
    /// The holder of the lease, its term, and how long its session lasts unless it is refreshed.
    pub(super) holder: Option<(MemberId, Term, Duration)>,
    /// How long ago a member last looked.
    pub(super) looked_ago: Duration,
    pub(super) has_orphans: bool,
    pub(super) members: usize,
    /// Redis and the worker disagree about the worker's blocks.
    pub(super) is_stray: bool,
    /// What can no longer be granted: `term`, `token`.
    pub(super) spent: Vec<String>,
    pub(super) lease_ms: u64,
    pub(super) grace_ms: u64,
    /// Our presence is visible.
    pub(super) is_seen: bool,
    /// The sum of all counts of the fleet, and how much of it was forgotten since the server that we come from.
    pub(super) steps: u64,
    pub(super) forgotten: u64,
    pub(super) locks: Vec<(String, Option<Token>)>,
    pub(super) orders: Orders,
}

impl Heartbeat {
    pub(super) fn read(reply: Reply, me: &MemberId) -> Result<Heartbeat, StoreError> {
        let ms = |at| reply.number(at).map(|ms| Duration::from_millis(ms.max(0) as u64));
        let left = ms(1)?;
        let lease = reply.text(0)?;
        let holder = lease.split_once('|').and_then(|(member, term)| {
            Some((MemberId::from_redis(member)?, Term::parse(term)?, left))
        });
        let (looked_ago, has_orphans) = (ms(2)?, reply.number(3)? > 0);
        let (members, is_stray) = (reply.number(4)? as usize, reply.number(5)? == 1);
        let spent = reply.text(6)?.split_whitespace().map(str::to_owned).collect();
        let (lease_ms, grace_ms) = (reply.number(7)? as u64, reply.number(8)? as u64);
        let is_seen = reply.number(9)? == 1;
        let (steps, forgotten) = (reply.number(10)? as u64, reply.number(11)? as u64);
        let mut rest = reply.into_parts().into_iter().skip(12);
        let mut next =
            || rest.next().ok_or_else(|| StoreError::odd("a heartbeat that is too short"));
        Ok(Heartbeat {
            holder,
            looked_ago,
            has_orphans,
            members,
            is_stray,
            spent,
            lease_ms,
            grace_ms,
            is_seen,
            steps,
            forgotten,
            locks: held_locks(next()?)?,
            orders: Orders::read(next()?, me)?,
        })
    }
}
