//! [`Reporter`]: answers the question for this member's numbers.
//!
//! **Invariant:** it runs on the session thread, so a process whose handlers are busy answers as fast
//! as an idle one. A member that does not answer is frozen, cut off or gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use artel_hub::EventHub;

use super::{Duty, Means};
use crate::Error;
use crate::membership::{AskError, Patience, Session};
use crate::process;
use crate::role::Role;
use crate::stats::{HubSubscriber, MemberStats};
use crate::store::{Call, Link, Script, StoreError};

static ANSWER: Script = Script::new("answer", include_str!("answer.lua"));

/// How long an answer is kept.
const TTL: Duration = Duration::from_secs(10);
/// How often to read the question again if no message arrived.
const REREAD_EVERY: Duration = Duration::from_secs(5);
/// How often an answer is sent if Redis does not accept it.
const TRIES: u32 = 5;
/// How many subscribers of a hub are told.
const SUBSCRIBERS_MAX: usize = 32;
/// Pause after an error.
const RETRY: Duration = Duration::from_millis(200);

/// Reports the numbers of this process.
pub(super) struct Reporter {
    means: Means,
    /// The session connection, on whose thread it runs.
    link: Arc<Link>,
}

impl Reporter {
    pub(super) fn new(means: Means) -> Result<Reporter, Error> {
        let link = means.store.session_link()?.link.clone();
        Ok(Reporter { means, link })
    }
}

impl Duty for Reporter {
    const ON_SESSION_THREAD: bool = true;

    /// Answers every round, beginning with the one that is open at its start; and again under a new
    /// session.
    async fn run(mut self) {
        let (mut round, mut sessions) = (0, self.means.sessions.clone());
        loop {
            tokio::select! {
                asked = self.means.question.wait_past(round, REREAD_EVERY) => match asked {
                    Ok(next) => round = next,
                    Err(error) => {
                        tracing::debug!(%error, "waiting for the question for numbers failed");
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                },
                changed = sessions.changed() => if changed.is_err() {
                    return;
                },
            }
            for _ in 0..TRIES {
                let session = self.means.sessions.borrow_and_update().clone();
                let Some(session) = session.filter(|_| round > 0) else { break };
                match self.answer(&session, round).await {
                    Ok(()) => break,
                    Err(AskError::Failed(error)) => {
                        tracing::debug!(%error, "sending our numbers failed")
                    }
                    Err(AskError::Over | AskError::Gone) => {}
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The subscribers of a hub, at most [`SUBSCRIBERS_MAX`] of them.
fn subscribers(hub: &EventHub) -> Vec<HubSubscriber> {
    let all = hub.stats().subscribers.into_iter().take(SUBSCRIBERS_MAX);
    let one = |one: artel_hub::SubscriberStats| HubSubscriber {
        name: one.name,
        processed: one.processed,
        lag: one.lag,
        errors: one.errors,
        restarts: one.restarts,
        dropped: one.dropped,
    };
    all.map(one).collect()
}

impl Reporter {
    async fn answer(&self, session: &Session, round: u64) -> Result<(), AskError> {
        let sent = Instant::now();
        let timeout = session.trust.call_timeout();
        self.link.call(&Call::plain("PING"), timeout).await.map_err(AskError::Failed)?;
        let numbers = serde_json::to_string(&self.numbers(session, sent.elapsed()));
        let numbers =
            numbers.map_err(|error| AskError::Failed(StoreError::odd(error.to_string())))?;
        let keys = &self.means.store.keys;
        let call = ANSWER
            .call(&[keys.members(), keys.stats(round)])
            .arg(session.id.as_str())
            .arg(numbers)
            .arg(TTL.as_millis() as u64);
        session.ask(&self.link, Patience::ONCE, call).await.map(|_| ())
    }

    fn numbers(&self, session: &Session, rtt: Duration) -> MemberStats {
        let role = match *self.means.roles.borrow() {
            Role::Outside => Role::Worker, // a session has just begun
            role => role,
        };
        MemberStats {
            id: session.id.clone(),
            label: self.means.label.clone(),
            host: self.means.host.clone(),
            pid: std::process::id(),
            role,
            term: session.tenures.lease.term(),
            done: session.tally.done.load(Ordering::Relaxed),
            failed: session.tally.failed.load(Ordering::Relaxed),
            in_flight: session.tally.in_flight.load(Ordering::Relaxed),
            uptime: self.means.began.elapsed(),
            memory_bytes: process::memory_bytes(),
            handler_p50: session.tally.timings.percentile(50),
            handler_p99: session.tally.timings.percentile(99),
            redis_rtt: rtt,
            hub: self.means.hub.get().map(subscribers).unwrap_or_default(),
        }
    }
}
