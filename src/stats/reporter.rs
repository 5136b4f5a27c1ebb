//! [`Reporter`]: answers when the fleet is asked for its numbers.
//!
//! **Invariant:** it runs on the thread of the session, so a process whose handlers are busy answers
//! as fast as an idle one. Whoever does not answer is frozen, cut off or gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{MemberStats, millis};
use crate::fleet::Role;
use crate::membership::{Exercise, Session};
use crate::store::{Call, Link, Script, Store, StoreError};
use crate::sync::Flag;

static ANSWER: Script = Script::new("answer", include_str!("answer.lua"));

/// How long an answer is kept.
const TTL: Duration = Duration::from_secs(10);
/// How often the question is looked for when nothing was heard.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an answer is given that Redis does not take.
const TRIES: u32 = 5;
/// Pause after something went wrong.
const RETRY: Duration = Duration::from_millis(200);

/// Tells the numbers of this process.
pub(crate) struct Reporter {
    pub(crate) store: Store,
    /// Of the session, on whose thread it runs.
    pub(crate) link: Arc<Link>,
    /// The question.
    pub(crate) flag: Arc<Flag>,
    pub(crate) sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(crate) roles: watch::Receiver<Role>,
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) began: Instant,
}

impl Reporter {
    /// Answers every round, from the one that is open when it begins; again under a new session.
    pub(crate) async fn run(mut self) {
        let (mut round, mut sessions) = (0, self.sessions.clone());
        loop {
            tokio::select! {
                asked = self.flag.wait_past(round, CONSUMER_TIMEOUT) => match asked {
                    Ok(next) => round = next,
                    Err(error) => {
                        tracing::debug!(%error, "waiting to be asked for numbers");
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                },
                changed = sessions.changed() => if changed.is_err() {
                    return;
                },
            }
            for _ in 0..TRIES {
                let session = self.sessions.borrow_and_update().clone();
                let Some(session) = session.filter(|_| round > 0) else { break };
                match self.answer(&session, round).await {
                    Ok(()) => break,
                    Err(error) => tracing::debug!(%error, "telling our numbers"),
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn answer(&self, session: &Session, round: u64) -> Result<(), StoreError> {
        let (link, timeout) = (&self.link, session.call_timeout());
        let sent = Instant::now();
        link.call(&Call::plain("PING"), timeout).await?;
        let numbers = self.numbers(session, sent.elapsed());
        let numbers =
            serde_json::to_string(&numbers).map_err(|e| StoreError::odd(e.to_string()))?;
        let keys = &self.store.keys;
        let call = ANSWER
            .call(&[keys.members(), keys.stats(round)])
            .arg(session.id.as_str())
            .arg(numbers)
            .arg(TTL.as_millis() as u64);
        link.call(&call, timeout).await.map(|_| ())
    }

    fn numbers(&self, session: &Session, rtt: Duration) -> MemberStats {
        let term = match session.exercise() {
            Exercise::Leading(term, _) => Some(term.get()),
            _ => None,
        };
        let role = match *self.roles.borrow() {
            Role::Generator => "generator",
            Role::Standby => "standby",
            Role::Observer => "observer",
            Role::Worker | Role::Outside => "worker",
        };
        MemberStats {
            id: session.id.to_string(),
            label: self.label.clone(),
            host: self.host.clone(),
            pid: std::process::id(),
            role: role.to_owned(),
            term,
            done: session.done.load(Ordering::Relaxed),
            failed: session.failed.load(Ordering::Relaxed),
            in_flight: session.in_flight.load(Ordering::Relaxed),
            uptime_ms: self.began.elapsed().as_millis() as u64,
            memory_bytes: memory_bytes(),
            handler_p50_ms: session.timings.percentile(50).map(millis),
            handler_p99_ms: session.timings.percentile(99).map(millis),
            redis_rtt_ms: millis(rtt),
        }
    }
}

/// Memory of this process that is in use, where the system tells.
fn memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
