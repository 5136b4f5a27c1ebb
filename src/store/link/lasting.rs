//! Answers that must last before they are told.
//!
//! **Invariant:** such an answer is handed out only if enough replicas have what it tells, and if its connection lived until
//! that was known. Otherwise it is as good as none: the caller makes the same call again.

use tokio::time::Instant;

use super::{Link, Replication};
use crate::config::Durability;
use crate::store::StoreError;

impl Link {
    /// The same connection. Answers that are told to a user wait until they last.
    pub(in crate::store) fn lasting(
        &self,
        durability: Durability,
        replication: &Replication,
    ) -> Link {
        Link { shared: self.shared.clone(), durability, replication: Some(replication.clone()) }
    }

    /// Waits until enough replicas have what this answer tells, while its connection lives.
    pub(super) async fn covered(
        &self,
        generation: u64,
        until: Option<Instant>,
    ) -> Result<(), StoreError> {
        let Some(replication) = &self.replication else { return Ok(()) };
        let changed =
            || StoreError::Broken("the connection ended before replicas had it".to_owned());
        let epoch = 2 * generation;
        let server = self.history_in(epoch).ok_or_else(changed)?;
        tokio::select! {
            covered = replication.cover(server, self.durability) => {
                // The server may have another history than this connection was told.
                if covered.is_err() {
                    self.shared.over(generation);
                }
                covered?;
            }
            () = self.past(epoch) => return Err(changed()),
            () = pending_until(until) => return Err(replication.unreplicated(self.durability)),
        }
        match self.epoch() == epoch {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// The server to which the connection of this epoch leads, and its history.
    pub(crate) fn history_in(&self, epoch: u64) -> Option<String> {
        let state = self.shared.state();
        let found = state.live.as_ref().filter(|_| 2 * state.generation == epoch)?;
        Some(format!("{} {}", found.server, found.history))
    }

    /// How many replicas the sentinels know; 0 without them.
    pub(in crate::store) fn replicas_told(&self) -> u32 {
        self.shared.client.place().replicas()
    }

    /// Asks where the primary is, although this connection lives.
    pub(in crate::store) fn doubt(&self) {
        let spot = self.shared.state().live.as_ref().map(|found| found.spot.clone());
        let place = self.shared.client.place();
        if let Some(spot) = spot.filter(|_| place.has_others()) {
            self.reset();
            place.lost(&spot);
        }
    }
}

/// Never, if there is no end.
async fn pending_until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}
