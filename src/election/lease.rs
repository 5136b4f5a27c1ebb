//! [`Lease`], and the arithmetic of taking over.
//!
//! **Invariant:** nothing here reads Redis. A lease proves that Redis granted a term once, and every
//! use of it is checked there again.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::membership::Session;
use crate::tenure::Grant;
use crate::term::Term;

/// No standby waits longer than this for its turn, however many ranks are before it.
const TURN_MAX: Duration = Duration::from_secs(2);

/// The permission to add generated messages: borrowed by every push.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) term: Term,
    pub(crate) session: Arc<Session>,
    /// Cancelled when the term is over for us.
    pub(crate) over: CancellationToken,
    /// Messages the fleet had generated when the lease was granted.
    pub(crate) generated: u64,
    /// The state that the previous generator kept, with the last push that was accepted.
    pub(crate) state: Arc<[u8]>,
    /// For how long nobody led before.
    pub(crate) gap: Option<Duration>,
    granted: Moment,
    granted_redis_ms: u64,
    pushed_redis_ms: u64,
}

impl Lease {
    pub(super) fn new(session: Arc<Session>, granted: Moment, grant: Grant) -> Lease {
        Lease {
            term: grant.term,
            over: session.over.child_token(),
            session,
            generated: grant.generated,
            state: grant.state.into(),
            gap: grant.gap,
            granted,
            granted_redis_ms: grant.now_ms,
            pushed_redis_ms: grant.pushed_ms,
        }
    }

    /// Redis time, estimated from the moment when the lease was granted. For display only.
    pub(crate) fn redis_ms(&self) -> u64 {
        self.granted_redis_ms + Moment::now().since(self.granted).as_millis() as u64
    }

    /// How long until the tick after the fleet's last message is due.
    pub(crate) fn first_tick(&self, interval: Duration) -> Duration {
        let age = self.granted_redis_ms.saturating_sub(self.pushed_redis_ms);
        interval.saturating_sub(Duration::from_millis(age))
    }
}

/// How long a standby of this rank waits before it tries to take a free lease, so that a thousand
/// of them do not try at once. `jitter` is between 0 and 1.
pub(super) fn turn(rank: usize, step: Duration, jitter: f64) -> Duration {
    if rank == 0 {
        return Duration::ZERO;
    }
    let turn = step.saturating_mul(u32::try_from(rank).unwrap_or(u32::MAX)).min(TURN_MAX);
    turn + step.mul_f64(jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    #[test]
    fn the_lowest_rank_does_not_wait() {
        assert_eq!(turn(0, STEP, 0.9), Duration::ZERO);
    }

    #[test]
    fn ranks_wait_in_order_and_never_long() {
        assert_eq!(turn(1, STEP, 0.0), STEP);
        assert!(turn(1, STEP, 0.999) < turn(2, STEP, 0.0));
        assert!(turn(100_000, STEP, 1.0) <= TURN_MAX + STEP);
    }
}
