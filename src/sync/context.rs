//! [`SyncContext`]: what all locks, permits and arrivals of one member share.
//!
//! **Invariant:** everything it hands out depends on the current session, and may be relied on only as
//! long as that session. Within this process tasks wait for each other here, in the order in which they
//! came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, watch};

use super::holds::{Holds, compare_on_change};
use crate::Error;
use crate::clock::Moment;
use crate::fleet::Fleet;
use crate::membership::Session;
use crate::store::{SessionLink, StoreError};

/// How long to wait for tasks that are giving something back.
const LEAVING_MAX: Duration = Duration::from_secs(1);
/// After two leases and this time it is decided whether an overdue member is dead, also on a busy
/// machine.
const DECIDED_MAX: Duration = Duration::from_secs(30);
/// How often a holder checks whether it is still the holder.
const CHECK: Duration = Duration::from_millis(50);

/// What all locks, permits and arrivals of one member share.
pub(crate) struct SyncContext {
    pub(super) fleet: Fleet,
    pub(super) session_link: Arc<SessionLink>,
    pub(super) sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(super) holds: Arc<Holds>,
    /// The lines of tasks inside this process, by name.
    lines: Mutex<HashMap<String, Arc<Line>>>,
}

/// The line in which the tasks of this process that want the same thing wait.
#[derive(Default)]
pub(super) struct Line {
    /// The task that holds this may ask Redis.
    pub(super) turn: Arc<Turn<()>>,
    /// How many tasks are giving something back, in the background.
    leaving: watch::Sender<usize>,
}

/// A task gives something back until this is dropped.
pub(super) struct Leaving(Arc<Line>);

impl Line {
    pub(super) fn leave(self: &Arc<Line>) -> Leaving {
        self.leaving.send_modify(|count| *count += 1);
        Leaving(self.clone())
    }

    /// Waits until no task of this process is giving something back. The time is bounded, because Redis
    /// may be down.
    pub(super) async fn all_left(&self) {
        let mut leaving = self.leaving.subscribe();
        let _ = tokio::time::timeout(LEAVING_MAX, leaving.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.send_modify(|count| *count -= 1);
    }
}

/// How long it may take until an overdue member is judged dead or refreshes its session.
pub(super) fn decided_within(session: &Session) -> Duration {
    session.trust.lease() * 2 + DECIDED_MAX
}

impl SyncContext {
    pub(crate) fn new(
        fleet: Fleet,
        sessions: watch::Receiver<Option<Arc<Session>>>,
    ) -> Result<Arc<SyncContext>, Error> {
        let session_link = fleet.store.session_link()?;
        let (holds, lines) = (Arc::default(), Mutex::default());
        let context = Arc::new(SyncContext { fleet, session_link, sessions, holds, lines });
        context.session_link.spawn(compare_on_change(Arc::downgrade(&context)));
        Ok(context)
    }

    /// How long the locks and permits of a session can be relied on without another answer from Redis.
    pub(super) fn time_left(&self, session: &Session) -> Duration {
        match session.over.is_cancelled() {
            true => Duration::ZERO,
            false => session.trust.secure_until(&self.session_link.link).since(Moment::now()),
        }
    }

    /// Waits until the locks and permits of a session can no longer be relied on.
    pub(super) async fn until_in_doubt(&self, session: &Session) {
        loop {
            let left = self.time_left(session);
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = session.over.cancelled() => return,
                // In small steps: timers stand still while a machine sleeps, and presence may be lost.
                () = tokio::time::sleep(left.min(CHECK)) => {}
            }
        }
    }

    /// The line of tasks of this process with this name.
    pub(super) fn line(&self, name: &str) -> Arc<Line> {
        let mut lines = self.lines.lock().expect("never poisoned");
        if lines.len().is_power_of_two() {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        lines.entry(name.to_owned()).or_default().clone()
    }

    /// Waits until this member has stopped: there will be no further session.
    pub(super) async fn stopped(&self) {
        let _ = self.sessions.clone().wait_for(|_| false).await;
    }

    /// The session, if it may act at this instant.
    pub(super) fn session_now(&self) -> Result<Arc<Session>, Error> {
        let session = self.sessions.borrow().clone();
        match session.filter(|session| session.trust.holds()) {
            Some(session) => Ok(session),
            None if self.sessions.has_changed().is_err() => Err(Error::Stopping),
            None => {
                let reason = "this process has no session to rely on at the moment".to_owned();
                Err(self.fleet.store.explain(StoreError::Unconnected(reason)))
            }
        }
    }

    /// A session that may act, as soon as there is one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        if let Ok(session) = self.session_now() {
            return Ok(session);
        }
        let mut sessions = self.sessions.clone();
        loop {
            let session = match sessions.wait_for(Option::is_some).await {
                Ok(session) => session.clone(),
                Err(_) => None,
            };
            let session = session.ok_or(Error::Stopping)?;
            if session.trust.wait().await {
                return Ok(session);
            }
            // It is over, and there is no next session yet.
            if sessions.changed().await.is_err() {
                return Err(Error::Stopping);
            }
        }
    }
}
