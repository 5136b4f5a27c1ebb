//! [`Moving`]: for how long the slot of the fleet has been on its way to another node.
//!
//! **Invariant:** it is reported once, when it has lasted for [`TOLD`], whatever other calls are answered meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::StoreError;

/// A slot that is moved in a shorter time is nothing to report.
const TOLD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Moving {
    since: Option<Instant>,
    is_told: bool,
}

impl Moving {
    /// A heartbeat, or a join, was refused in this way. For how long, if that must be reported now.
    pub(super) fn refused(&mut self, error: &StoreError) -> Option<Duration> {
        if !error.is_moving() {
            return None;
        }
        let after = self.since.get_or_insert_with(Instant::now).elapsed();
        let is_due = after >= TOLD && !std::mem::replace(&mut self.is_told, after >= TOLD);
        is_due.then_some(after)
    }

    /// One was answered.
    pub(super) fn answered(&mut self) {
        *self = Moving::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_reported_once_for_each_time() {
        let refused = StoreError::Server { code: "TRYAGAIN".to_owned(), text: String::new() };
        let mut moving = Moving::default();
        for _ in 0..2 {
            assert_eq!(moving.refused(&refused), None);
            tokio::time::advance(TOLD).await;
            assert_eq!(moving.refused(&StoreError::Silent(TOLD)), None);
            assert_eq!(moving.refused(&refused), Some(TOLD));
            assert_eq!(moving.refused(&refused), None);
            moving.answered();
        }
    }
}
