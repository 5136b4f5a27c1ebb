//! [`LagWatcher`]: tells when too few replicas have what is done, and when that is over.
//!
//! **Invariant:** each is told once. While it has lasted for a lease, no handler is started: this primary may be one that was
//! replaced, and then others are handling the same messages.

use std::time::Duration;

use tokio::time::Instant;

use super::{Duty, Means};
use crate::config::Durability;
use crate::notice::Notice;
use crate::store::Replication;

/// How often it is looked whether it has lasted for a lease.
const LOOK: Duration = Duration::from_millis(100);

pub(super) struct LagWatcher {
    means: Means,
}

impl LagWatcher {
    pub(super) fn new(means: Means) -> LagWatcher {
        LagWatcher { means }
    }

    /// No handler of the present session is started, or they are again.
    fn stand_still(&self, since: Option<Instant>) {
        if let Some(session) = &*self.means.sessions.borrow() {
            let trust = &session.trust;
            trust.stand_still(since.is_some_and(|since| since.elapsed() >= trust.lease()));
        }
    }
}

impl Duty for LagWatcher {
    const ON_SESSION_THREAD: bool = true;

    async fn run(self) {
        let (replication, durability) =
            (self.means.store.replication(), self.means.store.durability());
        if durability == Durability::Local {
            return;
        }
        let (mut lacks, mut since) = (replication.follow(), None);
        loop {
            let lack = *lacks.borrow_and_update();
            let short = lack.filter(|lack| Replication::is_short(lack, durability));
            match (since, short) {
                (None, Some(lack)) => {
                    since = Some(lack.since);
                    let (replicas, wanted) = (lack.replicas, lack.wanted);
                    self.means.board.publish(Notice::Unreplicated { replicas, wanted });
                }
                (Some(began), None) => {
                    since = None;
                    self.means.board.publish(Notice::Replicated { after: began.elapsed() });
                }
                _ => {}
            }
            self.stand_still(since);
            tokio::select! {
                changed = lacks.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = tokio::time::sleep(LOOK), if since.is_some() => {}
            }
        }
    }
}
