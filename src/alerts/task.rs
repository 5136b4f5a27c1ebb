//! The loop of one member: it judges the fleet, if that is its part, and tells what it has claimed.
//!
//! **Invariant:** a member judges from where the log was last read, by itself or by another one. A claim is told while the
//! session lasts in which it was made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use artel_hub::notify::Alert;
use tokio::sync::watch;

use super::here::Here;
use super::judge::{Facts, Memory, Verdict, judge};
use super::rule::{AlertRule, Condition};
use super::sinks::Sink;
use super::step::{Claim, Stepped, TIMEOUT, Telling, step};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::history::{History, LogEntry};
use crate::id::MemberId;
use crate::json_time::since_1970_ms;
use crate::member::MemberParts;
use crate::membership::Session;
use crate::store::{Call, StoreError};

/// How often the rules are judged.
const EVERY: Duration = Duration::from_secs(1);
/// Pause between two looks whether all is told.
const PAUSE: Duration = Duration::from_millis(50);
/// After so many turns that failed in a row the log says so.
const FAILURES_TOLD: u32 = 3;

pub(super) struct Task {
    here: Here,
    fleet: FleetJudge,
}

/// What is judged with the help of Redis.
struct FleetJudge {
    rules: Vec<AlertRule>,
    sinks: Arc<[Sink]>,
    fleet: Fleet,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    /// The session in which this member judges the fleet.
    judges_in: Option<MemberId>,
    /// How far the common log was read, by this member or by another one. Empty if that is not known yet.
    cursor: String,
    memory: Memory,
    telling: Telling,
    /// How many turns failed in a row.
    failures: u32,
}

fn odd(error: Error) -> StoreError {
    StoreError::odd(error.to_string())
}

/// The session, while it can be relied on.
fn held(sessions: &watch::Receiver<Option<Arc<Session>>>) -> Option<Arc<Session>> {
    sessions.borrow().clone().filter(|session| session.trust.holds())
}

/// Waits for the next turn, or for the end.
async fn next_turn(ended: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = tokio::time::sleep(EVERY) => {}
        _ = ended.wait_for(|over| *over) => {}
    }
}

impl Task {
    pub(super) fn new(rules: Vec<AlertRule>, sinks: Vec<Sink>, parts: MemberParts) -> Task {
        Task {
            here: Here::new(&rules, sinks.len(), parts.hub),
            fleet: FleetJudge {
                rules: rules.into_iter().filter(|rule| !rule.condition.is_local()).collect(),
                sinks: sinks.into(),
                fleet: parts.fleet,
                sessions: parts.sessions,
                judges_in: None,
                cursor: String::new(),
                memory: Memory::default(),
                telling: Telling::default(),
                failures: 0,
            },
        }
    }

    /// Judges until it ends, and then waits for what is being told.
    pub(super) async fn run(self, ended: watch::Receiver<bool>) {
        let Task { mut here, mut fleet } = self;
        let (name, sinks) = (fleet.fleet.name().to_owned(), fleet.sinks.clone());
        let (sessions, mut over) = (fleet.sessions.clone(), ended.clone());
        // Apart from the other: a Redis that does not answer delays only those who ask it.
        let own = async {
            while !*over.borrow() {
                here.judge(&name, held(&sessions).is_some(), &sinks);
                next_turn(&mut over).await;
            }
            while !here.is_idle() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::join!(own, fleet.run(ended));
    }
}

impl FleetJudge {
    async fn run(&mut self, mut ended: watch::Receiver<bool>) {
        while !self.rules.is_empty() && !*ended.borrow() {
            match held(&self.sessions) {
                Some(session) => {
                    let turn = self.turn(&session).await;
                    self.report(turn);
                }
                // Another member may judge meanwhile, and does not know what this one remembers.
                None => self.judges_in = None,
            }
            next_turn(&mut ended).await;
        }
        while !self.telling.is_idle() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Says in the log that the fleet is not judged, once, and that it is again.
    fn report(&mut self, turn: Result<(), StoreError>) {
        match turn {
            Ok(()) if self.failures >= FAILURES_TOLD => tracing::info!("alerts are judged again"),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "alerts were not judged");
                self.failures = self.failures.saturating_add(1);
                if self.failures == FAILURES_TOLD {
                    tracing::warn!(%error, "alerts are not judged; `artel doctor` may say why");
                }
                return;
            }
        }
        self.failures = 0;
    }

    /// One turn: judges the fleet, if it is this member's part.
    async fn turn(&mut self, session: &Arc<Session>) -> Result<(), StoreError> {
        // In another session it begins anew: the Redis of before may be lost.
        if self.judges_in.as_ref() != Some(&session.id) && !self.begin(session).await? {
            return Ok(());
        }
        let mut log = History::from(&self.fleet, &self.cursor);
        let news = log.page().await.map_err(odd)?;
        let next = news.last().map_or_else(|| self.cursor.clone(), |entry| entry.id.clone());
        let numbers = self.fleet.numbers().await.map_err(odd)?;
        let facts = Facts { numbers: &numbers, news: &news };
        let now = Instant::now();
        self.memory.count(now, &numbers);
        let mut call = self.step(session, &next);
        for rule in &self.rules {
            let (verdict, text) = match judge(rule, &facts, &self.memory, now) {
                Verdict::Fires(text) => ("1", text),
                Verdict::Calm(text) => ("0", text),
                Verdict::Unknown => ("?", String::new()),
            };
            let kind = if rule.condition.is_event() { "e" } else { "c" };
            call = call.arg(rule.text()).arg(kind).arg(verdict);
            call = call.arg(rule.hold.as_millis() as u64).arg(rule.cooldown.as_millis() as u64);
            call = call.arg(text.chars().take(500).collect::<String>());
        }
        match self.send(call).await? {
            Stepped::Ok(open, claims) => {
                self.memory.read(now, &news);
                self.cursor = next;
                self.telling.learn(&open);
                claims.into_iter().for_each(|claim| self.tell(session, claim));
            }
            Stepped::Moved(cursor) => self.cursor = cursor,
            Stepped::Held(_) => self.judges_in = None,
        }
        Ok(())
    }

    fn step(&self, session: &Session, next: &str) -> Call {
        let cursors = (self.cursor.as_str(), next);
        step(&self.fleet.store, session, cursors, &self.sinks, &self.telling)
    }

    async fn send(&self, call: Call) -> Result<Stepped, StoreError> {
        self.fleet.store.work.call(&call.reading(Stepped::read), TIMEOUT).await
    }

    /// Asks whether it is this member's turn to judge, and reads what it must know for that.
    async fn begin(&mut self, session: &Session) -> Result<bool, StoreError> {
        for _ in 0..3 {
            let call = self.step(session, &self.cursor);
            match self.send(call).await? {
                Stepped::Held(None) => return Ok(false),
                Stepped::Held(Some((cursor, open))) => {
                    self.cursor = cursor;
                    self.telling.learn(&open);
                    return Ok(false);
                }
                Stepped::Moved(cursor) => self.cursor = cursor,
                Stepped::Ok(open, _) => {
                    self.telling.learn(&open);
                    self.remember().await?;
                    self.judges_in = Some(session.id.clone());
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads the elections that rules look back to: the member that judged before knew them.
    async fn remember(&mut self) -> Result<(), StoreError> {
        self.memory = Memory::default();
        let window = |rule: &AlertRule| match rule.condition {
            Condition::Flapping(_, over) => Some(over),
            _ => None,
        };
        let Some(window) = self.rules.iter().filter_map(window).max() else { return Ok(()) };
        let ms: u64 = self.cursor.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
        let from = ms.saturating_sub(window.as_millis() as u64);
        let mut log = History::from(&self.fleet, &format!("{from}-0"));
        let now = Instant::now();
        loop {
            let page = log.page().await.map_err(odd)?;
            let is_old = |entry: &&LogEntry| since_1970_ms(entry.time) <= ms;
            for entry in page.iter().filter(is_old).filter(|entry| entry.kind == "elected") {
                let ago = ms.saturating_sub(since_1970_ms(entry.time));
                self.memory.election(now, Duration::from_millis(ago));
            }
            if page.is_empty() {
                return Ok(());
            }
        }
    }

    /// Tells what this member has claimed, and then notes it.
    fn tell(&self, session: &Arc<Session>, claim: Claim) {
        let Some(sink) = self.sinks.iter().find(|sink| sink.name == claim.sink) else { return };
        // A rule that is not set any more has an end, too.
        let rule = self.rules.iter().find(|rule| rule.text() == claim.rule).cloned();
        let Some(rule) = rule.or_else(|| claim.rule.parse().ok()) else { return };
        let source = format!("{}/{}", self.fleet.name(), rule.name());
        let mut alert = Alert::new(rule.severity, source, claim.text.clone());
        alert.is_resolved = claim.is_resolved();
        alert.is_repeat = claim.is_repeat;
        alert.at_ms = claim.at_ms;
        self.telling.begin(&session.id, &claim);
        let (store, telling, me) =
            (self.fleet.store.clone(), self.telling.clone(), session.id.clone());
        let runtime = tokio::runtime::Handle::current();
        let then = Box::new(move |told| {
            runtime.spawn(async move {
                claim.note(told, &me, &store, &telling).await;
            });
        });
        sink.tell(alert, Some(session.clone()), then);
    }
}
