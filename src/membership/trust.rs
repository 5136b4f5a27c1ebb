//! [`Trust`]: how long this process may act on its session.
//!
//! **Invariant:** `holds()` is true only until two thirds of a lease after the last answered call was
//! *sent*. A slow answer shortens trust and never stretches it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::mutant::{Rule, disabled};
use crate::store::{CALLS, Link};

/// The trust of one process in its session.
#[derive(Debug)]
pub(crate) struct Trust {
    /// The fleet's lease and grace, ms. They may change while all members are observers.
    lease_ms: AtomicU64,
    grace_ms: AtomicU64,
    until: AtomicU64,
    refreshed: AtomicU64,
    back: Notify,
    /// What is done now is not on enough replicas: no handler is started.
    stands_still: AtomicBool,
    /// The epoch of the session connection in which it is subscribed.
    present_in: AtomicU64,
    /// Cancelled when the session is over.
    over: CancellationToken,
}

impl Trust {
    /// The trust in a session that Redis opened with a call sent at `sent`.
    pub(super) fn new(
        lease: Duration,
        grace: Duration,
        sent: Moment,
        over: CancellationToken,
    ) -> Trust {
        let trust = Trust {
            lease_ms: AtomicU64::new(lease.as_millis() as u64),
            grace_ms: AtomicU64::new(grace.as_millis() as u64),
            until: AtomicU64::new(0),
            refreshed: AtomicU64::new(0),
            back: Notify::new(),
            stands_still: AtomicBool::new(false),
            present_in: AtomicU64::new(0),
            over,
        };
        trust.refresh(sent);
        trust
    }

    /// How long the session lasts without a refresh.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Acquire))
    }

    /// The same in milliseconds, for scripts.
    pub(crate) fn lease_ms(&self) -> u64 {
        self.lease_ms.load(Ordering::Acquire)
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.load(Ordering::Acquire))
    }

    /// Uses the lease and the grace with which Redis has just refreshed the session.
    pub(super) fn follow(&self, lease_ms: u64, grace_ms: u64) {
        self.lease_ms.store(lease_ms, Ordering::Release);
        self.grace_ms.store(grace_ms, Ordering::Release);
    }

    /// How long a call of this session waits for its answer.
    pub(crate) fn call_timeout(&self) -> Duration {
        (self.lease() / 3).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }

    /// How often the session is refreshed.
    pub(super) fn beat(&self) -> Duration {
        self.lease() / 6
    }

    /// Notes that a call sent at `sent` was answered and has refreshed the session.
    pub(super) fn refresh(&self, sent: Moment) {
        let sent = if disabled(Rule::TrustFromSending) { Moment::now() } else { sent };
        let until = (sent + self.lease() * 2 / 3).as_micros();
        tracing::trace!(target: CALLS, until, "trusted");
        self.refreshed.fetch_max(sent.as_micros(), Ordering::AcqRel);
        if self.until.fetch_max(until, Ordering::AcqRel) <= Moment::now().as_micros() {
            self.back.notify_waiters();
        }
    }

    /// When the last answered call that refreshed the session was sent.
    pub(super) fn refreshed_at(&self) -> Moment {
        Moment::from_micros(self.refreshed.load(Ordering::Acquire))
    }

    /// The end of trust, unless the session is refreshed before.
    pub(super) fn until(&self) -> Moment {
        Moment::from_micros(self.until.load(Ordering::Acquire))
    }

    /// May this process still act on its session at this instant?
    pub(crate) fn holds(&self) -> bool {
        Moment::now() < self.until() && !self.over.is_cancelled()
    }

    /// For too long too few replicas have what is done, or that is over.
    pub(crate) fn stand_still(&self, stands_still: bool) {
        if self.stands_still.swap(stands_still, Ordering::AcqRel) && !stands_still {
            self.back.notify_waiters();
        }
    }

    /// May a handler be started?
    pub(crate) fn may_start(&self) -> bool {
        self.holds() && !self.stands_still.load(Ordering::Acquire)
    }

    /// Waits until trust holds. Returns false if the session is over.
    pub(crate) async fn wait(&self) -> bool {
        self.wait_until(Trust::holds).await
    }

    /// Waits until a handler may be started. Returns false if the session is over.
    pub(crate) async fn wait_to_start(&self) -> bool {
        self.wait_until(Trust::may_start).await
    }

    async fn wait_until(&self, holds: fn(&Trust) -> bool) -> bool {
        if holds(self) {
            return true;
        }
        loop {
            let mut back = std::pin::pin!(self.back.notified());
            back.as_mut().enable();
            if self.over.is_cancelled() {
                return false;
            }
            if holds(self) {
                return true;
            }
            tokio::select! {
                () = back => {}
                () = self.over.cancelled() => return false,
            }
        }
    }

    /// Our presence is visible in this epoch of the session connection.
    pub(super) fn present_in(&self, epoch: u64) {
        self.present_in.store(epoch, Ordering::Release);
    }

    /// Until when the process may rely on a lock of this session without another answer from Redis.
    /// Without presence that is shorter than the grace, because Redis sees the end of our presence as
    /// soon as we do. If Redis itself is down, it judges no member. After its return it judges no
    /// member for one lease.
    pub(crate) fn secure_until(&self, link: &Link) -> Moment {
        let trusted = self.until();
        if link.epoch() == self.present_in.load(Ordering::Acquire) || link.is_refused() {
            return trusted;
        }
        secure_until(trusted, link.ended_at().max(self.refreshed_at()), self.grace())
    }
}

/// The end of that time without presence. The judge lets a suspect live for `grace` after its last
/// refresh, and we stop before that.
fn secure_until(trusted: Moment, heard: Moment, grace: Duration) -> Moment {
    trusted.min(heard + grace * 2 / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(sent: Moment) -> Trust {
        Trust::new(Duration::from_secs(3), Duration::ZERO, sent, CancellationToken::new())
    }

    #[test]
    fn trust_counts_from_before_the_call_was_sent() {
        let now = Moment::now();
        let trust = trust(now);
        assert_eq!(trust.until(), now + Duration::from_secs(2));
        trust.refresh(Moment::from_micros(now.as_micros() - 1_000_000));
        assert_eq!(trust.until(), now + Duration::from_secs(2), "never shortened");
        assert!(trust.holds());
    }

    #[test]
    fn absence_shortens_what_may_be_relied_on_and_never_lengthens_it() {
        let (now, grace) = (Moment::now(), Duration::from_millis(300));
        let ms = Duration::from_millis;
        assert_eq!(secure_until(now + ms(2000), now, grace), now + ms(200));
        assert_eq!(secure_until(now + ms(100), now, grace), now + ms(100));
    }

    #[test]
    fn an_old_refresh_gives_no_trust() {
        let long_ago = Moment::from_micros(Moment::now().as_micros() - 2_100_000);
        assert!(!trust(long_ago).holds());
    }

    #[test]
    fn a_session_that_is_over_is_not_trusted() {
        let trust = trust(Moment::now());
        trust.over.cancel();
        assert!(!trust.holds());
    }
}
