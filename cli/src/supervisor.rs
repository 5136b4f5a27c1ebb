//! What a supervisor such as systemd is told: that this process is ready, what it does, that it lives, that it stops.
//!
//! **Invariant:** without a supervisor this does nothing, and telling never fails a member.

use std::time::Duration;

use artel::{Member, Role};
use sd_notify::NotifyState;
use tokio::task::JoinHandle;

/// How often the role is told, if it changed.
const EVERY: Duration = Duration::from_secs(1);

/// Tells the supervisor, until this is dropped.
pub(crate) struct Supervised {
    telling: JoinHandle<()>,
}

impl Supervised {
    /// This process has joined its fleet.
    pub(crate) fn start(member: &Member) -> Supervised {
        tell(&[NotifyState::Ready]);
        let follow = member.roles();
        // On the runtime of the handlers: if that stands still, the supervisor must know.
        let every = sd_notify::watchdog_enabled().map_or(EVERY, |within| (within / 3).min(EVERY));
        let telling = tokio::spawn(async move {
            let mut told = None;
            loop {
                let role: Role = follow.now();
                if told != Some(role) {
                    told = Some(role);
                    tell(&[NotifyState::Status(&role.to_string())]);
                }
                tell(&[NotifyState::Watchdog]);
                tokio::time::sleep(every).await;
            }
        });
        Supervised { telling }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.telling.abort();
    }
}

/// This process stops: it finishes what it has started.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the supervisor was not told");
    }
}
