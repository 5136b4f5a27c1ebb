//! [`Shutdown`]: the stop signal, its deadline, and the order in which a member leaves.
//!
//! **Invariant:** one signal stops everything, and everything together gets one grace. If Redis is
//! down, or handlers do not end, the stop takes no longer than that and the time of a few last calls.
//!
//! The order, and why:
//!
//! 1. Stop generating and **resign**: a successor starts at once, before we have left.
//! 2. Stop **claiming** and give back the messages that no handler has started: others start on them
//!    now.
//! 3. Let running handlers **finish** until the deadline, and record their outcomes.
//! 4. **Leave**: what is left becomes an orphan, is counted, and is adopted.
//! 5. Close the connections to Redis.

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

    /// Begins the stop. The grace counts from the first call.
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
