//! [`Shutdown`]: the stop signal, its deadline, and the order in which a member leaves.
//!
//! **Invariant:** one signal stops everything, and everything together gets one grace: a Redis that
//! is away, or handlers that do not end, cannot hold up a stop for longer than that and the time a
//! few last calls take.
//!
//! The order, and why: stop generating and **resign** (a successor starts at once, before we are
//! even gone); stop **claiming** and hand back what no handler has started (others start on it now);
//! let running handlers **finish** until the deadline and record their outcomes; **leave** (what is
//! left becomes an orphan, counted, and is adopted); close Redis.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    pub(crate) token: CancellationToken,
    begun: Arc<OnceLock<Instant>>,
    grace: Duration,
}

impl Shutdown {
    pub(crate) fn new(grace: Duration) -> Shutdown {
        Shutdown { token: CancellationToken::new(), begun: Arc::default(), grace }
    }

    /// Begins the stop; the grace counts from the first call.
    pub(crate) fn begin(&self) {
        self.begun.get_or_init(Instant::now);
        self.token.cancel();
    }

    /// How much of the grace is left, once the stop has begun.
    pub(crate) fn left(&self) -> Duration {
        self.begun.get().map_or(self.grace, |begun| self.grace.saturating_sub(begun.elapsed()))
    }

    /// Waits until the stop has begun and its grace is over.
    pub(crate) async fn overdue(&self) {
        self.token.cancelled().await;
        tokio::time::sleep(self.left()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_stages_share_one_grace() {
        let shutdown = Shutdown::new(Duration::from_secs(10));
        assert_eq!(shutdown.left(), Duration::from_secs(10));
        shutdown.begin();
        tokio::time::sleep(Duration::from_secs(4)).await;
        shutdown.begin();
        assert_eq!(shutdown.left(), Duration::from_secs(6));
        shutdown.overdue().await;
        assert_eq!(shutdown.left(), Duration::ZERO);
    }
}
