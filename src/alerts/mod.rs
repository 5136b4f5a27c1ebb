//! Alerts: rules about the fleet and about this process, and those who are told.
//!
//! **Invariant:** while Redis answers, one member judges the fleet, and each sink is told once when an alert fires and once
//! when it is resolved, whoever dies meanwhile. What a member was telling when it died is told again, and marked. While Redis
//! does not answer, each process tells only what it sees itself.

mod judge;
mod rule;
mod sinks;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use artel_hub::notify::{Alert, Send};
use artel_hub::{EventHub, Severity};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::fleet::Fleet;
use crate::history::{History, LogEntry};
use crate::json_time::since_1970_ms;
use crate::member::Member;
use crate::membership::Session;
use crate::outcome::{MemberStatus, Status};
use crate::store::{Call, Reply, Script, StoreError};
use judge::{Change, Facts, Local, Memory, Verdict, judge};
use rule::Condition;
pub use rule::{AlertRule, BadRule};
use sinks::Sink;

static STEP: Script = Script::new("alert_step", include_str!("alert_step.lua"));
static TOLD: Script = Script::new("alert_told", include_str!("alert_told.lua"));

/// How often the rules are judged.
const EVERY: Duration = Duration::from_secs(1);
/// How long Redis may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is noted that an alert was told, if Redis does not answer.
const NOTE_TRIES: u32 = 30;
/// A subscriber of the hub fails for this long after its last error.
const ERRORS_LAST: Duration = Duration::from_secs(60);
/// The most rules, and the most sinks.
const RULES_MAX: usize = 32;
const SINKS_MAX: usize = 8;
/// The longest name of a sink.
const NAME_MAX: usize = 40;

/// What must be told to whom. It works while it is [started](Alerts::start).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::hub::notify::{Alert, Send, SendError};
/// use artel::{AlertRule, Alerts};
///
/// struct Screen;
/// impl Send for Screen {
///     fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
///         println!("{alert}");
///         Ok(())
///     }
/// }
///
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let rules = vec!["no_generator > 10s".parse::<AlertRule>()?, "member_lost".parse()?];
/// let alerting = Alerts::new(rules).to("screen", Screen).start(&member)?;
/// member.shutdown().await;
/// alerting.stop().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nobody is told before `start`"]
pub struct Alerts {
    rules: Vec<AlertRule>,
    sinks: Vec<(String, Box<dyn Send>)>,
}

impl Alerts {
    /// With these rules, at most 32. Give the same rules and sinks to all members: any of them may have to tell.
    pub fn new(rules: Vec<AlertRule>) -> Alerts {
        Alerts { rules, sinks: Vec::new() }
    }

    /// Adds a sink, at most 8. Its name says which one it is, in all members alike: letters, digits, `-`, `_` and `.`.
    pub fn to(self, name: &str, sink: impl Send) -> Alerts {
        self.to_boxed(name, Box::new(sink))
    }

    /// The same, with a sink that is in a box.
    pub fn to_boxed(mut self, name: &str, sink: Box<dyn Send>) -> Alerts {
        self.sinks.push((name.to_owned(), sink));
        self
    }

    /// Could they be started?
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there are too many rules or sinks, if one is there twice, or if a name cannot be used.
    pub fn validate(&self) -> Result<(), Error> {
        let bad = |field, problem: String| Err(Error::Config { field, problem });
        if self.rules.len() > RULES_MAX {
            return bad("alert", format!("has more than {RULES_MAX} rules"));
        }
        if self.sinks.len() > SINKS_MAX {
            return bad("alert_to", format!("has more than {SINKS_MAX} sinks"));
        }
        let mut known = HashSet::new();
        if let Some(twice) = self.rules.iter().find(|rule| !known.insert(rule.text())) {
            return bad("alert", format!("has the rule `{twice}` twice"));
        }
        known.clear();
        for (name, _) in &self.sinks {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
                let problem = format!("must have 1 to {NAME_MAX} letters, digits, `-`, `_` or `.`");
                return bad("alert_to", format!("{problem}, not {name:?}"));
            }
            if !known.insert(name) {
                return bad("alert_to", format!("has the sink {name} twice"));
            }
        }
        Ok(())
    }

    /// Judges and tells, until the result is stopped or dropped.
    ///
    /// # Errors
    ///
    /// Those of [`validate`](Alerts::validate).
    pub fn start(self, member: &Member) -> Result<Alerting, Error> {
        self.validate()?;
        let parts = member.parts();
        let sinks = self.sinks.into_iter();
        let sinks =
            sinks.map(|(name, sink)| Sink::start(name, sink, parts.meter.clone())).collect();
        let (over, ended) = watch::channel(false);
        let task = Task {
            local: self.rules.iter().map(|_| Local::default()).collect(),
            rules: self.rules,
            sinks,
            fleet: parts.fleet,
            sessions: parts.sessions,
            hub: parts.hub,
            cursor: None,
            memory: Memory::default(),
            busy: Arc::default(),
            errors: (HashMap::new(), None),
        };
        Ok(Alerting { over, task: tokio::spawn(task.run(ended)) })
    }
}

impl std::fmt::Debug for Alerts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alerts").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Alerts that are judged and told. Made by [`Alerts::start`].
///
/// ```
/// # fn stop(alerting: artel::Alerting) -> impl Future<Output = ()> {
/// alerting.stop() // waits for what is being told
/// # }
/// ```
#[derive(Debug)]
#[must_use = "alerts end when this is dropped"]
pub struct Alerting {
    over: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Alerting {
    /// Ends judging, waits a few seconds for what is being told, and returns.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped early, what is being told may be told again by another member, marked.
    pub async fn stop(mut self) {
        self.over.send_replace(true);
        let _ = tokio::time::timeout(Duration::from_secs(5), &mut self.task).await;
    }
}

impl Drop for Alerting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The claims that are being told now.
type Busy = Arc<Mutex<HashSet<String>>>;

fn locked(busy: &Busy) -> std::sync::MutexGuard<'_, HashSet<String>> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    rules: Vec<AlertRule>,
    local: Vec<Local>,
    sinks: Vec<Sink>,
    fleet: Fleet,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    hub: Arc<OnceLock<EventHub>>,
    /// How far the common log was read. `None` while another member judges.
    cursor: Option<String>,
    memory: Memory,
    busy: Busy,
    /// The errors of the hub's subscribers, and when one of them last failed.
    errors: (HashMap<String, u64>, Option<Instant>),
}

/// What Redis answers to a step.
enum Stepped {
    Ok(Vec<Claim>),
    Moved(String),
    Held,
}

/// What this member must tell.
struct Claim {
    sink: String,
    rule: String,
    what: String,
    episode: String,
    is_repeat: bool,
    text: String,
}

impl Stepped {
    fn read(reply: Reply) -> Result<Stepped, StoreError> {
        match reply.tag() {
            "held" | "gone" => return Ok(Stepped::Held),
            "moved" => return Ok(Stepped::Moved(reply.text(0)?)),
            "ok" => {}
            _ => return Err(reply.unexpected()),
        }
        let parts = reply.into_parts().into_iter().skip(1).map(Reply::into_text);
        let parts: Vec<String> = parts.collect::<Result<_, _>>()?;
        let claim = |part: &[String]| Claim {
            sink: part[0].clone(),
            rule: part[1].clone(),
            what: part[2].clone(),
            episode: part[3].clone(),
            is_repeat: part[4] == "1",
            text: part[5].clone(),
        };
        Ok(Stepped::Ok(parts.chunks_exact(6).map(claim).collect()))
    }
}

impl Task {
    async fn run(mut self, mut ended: watch::Receiver<bool>) {
        while !*ended.borrow_and_update() {
            self.judge_here();
            let session = self.sessions.borrow().clone();
            match session.filter(|session| session.trust.holds()) {
                Some(session) => {
                    if let Err(error) = self.turn(&session).await {
                        tracing::debug!(%error, "alerts were not judged");
                    }
                }
                // Another member may judge meanwhile, and does not know what this one remembers.
                None => self.cursor = None,
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = ended.changed() => {}
            }
        }
        while !locked(&self.busy).is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// One turn: judges the fleet, if it is this member's part.
    async fn turn(&mut self, session: &Session) -> Result<(), StoreError> {
        let cursor = match self.cursor.clone() {
            Some(cursor) => cursor,
            None => match self.begin(session).await? {
                Some(cursor) => cursor,
                None => return Ok(()),
            },
        };
        let mut log = History::from(&self.fleet, &cursor);
        let news = log.page().await.map_err(|error| StoreError::odd(error.to_string()))?;
        let next = news.last().map_or_else(|| cursor.clone(), |entry| entry.id.clone());
        let numbers = self.fleet.numbers().await;
        let numbers = numbers.map_err(|error| StoreError::odd(error.to_string()))?;
        let is_leaderless = !numbers.has_generator && self.is_leaderless().await;
        let facts = Facts { numbers: &numbers, is_leaderless, news: &news };
        let now = Instant::now();
        self.memory.note(now, &facts);
        let mut call = self.call(session, &cursor, &next);
        for rule in self.rules.iter().filter(|rule| !rule.condition.is_local()) {
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
        match self.fleet.store.work.call(&call.reading(Stepped::read), TIMEOUT).await? {
            Stepped::Ok(claims) => {
                self.cursor = Some(next);
                claims.into_iter().for_each(|claim| self.tell(session, claim));
            }
            Stepped::Moved(cursor) => self.cursor = Some(cursor),
            Stepped::Held => self.cursor = None,
        }
        Ok(())
    }

    /// Asks whether it is this member's turn to judge, and reads what it must know for that.
    async fn begin(&mut self, session: &Session) -> Result<Option<String>, StoreError> {
        let mut cursor = String::new();
        for _ in 0..3 {
            let next = match cursor.is_empty() {
                true => self.newest().await?,
                false => cursor.clone(),
            };
            let call = self.call(session, &cursor, &next).reading(Stepped::read);
            match self.fleet.store.work.call(&call, TIMEOUT).await? {
                Stepped::Held => return Ok(None),
                Stepped::Moved(known) => cursor = known,
                Stepped::Ok(_) => {
                    self.remember(&next).await?;
                    self.cursor = Some(next.clone());
                    return Ok(Some(next));
                }
            }
        }
        Ok(None)
    }

    /// The last entry of the common log.
    async fn newest(&self) -> Result<String, StoreError> {
        let call = Call::plain("XREVRANGE").arg(self.fleet.store.keys.notices());
        let call = call.arg("+").arg("-").arg("COUNT").arg(1);
        let reply = self.fleet.store.work.call(&call, TIMEOUT).await?;
        let first = reply.into_list()?.into_iter().next();
        let Some(first) = first else { return Ok("0-0".to_owned()) };
        let id = first.into_list()?.into_iter().next();
        id.map_or_else(|| Ok("0-0".to_owned()), Reply::into_text)
    }

    /// Reads the elections that rules look back to: the member that judged before knew them.
    async fn remember(&mut self, until: &str) -> Result<(), StoreError> {
        self.memory = Memory::default();
        let window = |rule: &AlertRule| match rule.condition {
            Condition::Flapping(_, over) => Some(over),
            _ => None,
        };
        let Some(window) = self.rules.iter().filter_map(window).max() else { return Ok(()) };
        let ms: u64 = until.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
        let from = ms.saturating_sub(window.as_millis() as u64);
        let mut log = History::from(&self.fleet, &format!("{from}-0"));
        let now = Instant::now();
        loop {
            let page = log.page().await.map_err(|error| StoreError::odd(error.to_string()))?;
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

    /// Could somebody lead?
    async fn is_leaderless(&self) -> bool {
        let status = self.fleet.status().await;
        let could = |status: Status| {
            let able = |member: &MemberStatus| member.can_lead && !member.is_drained;
            status.generator.is_none() && status.members.iter().any(able)
        };
        status.is_ok_and(could)
    }

    /// A step without rules.
    fn call(&self, session: &Session, cursor: &str, next: &str) -> Call {
        let keys = &self.fleet.store.keys;
        let call = STEP.call(&[keys.members(), keys.alerts()]).arg(session.id.as_str());
        let call = call.arg(u8::from(session.speaks())).arg(cursor).arg(next);
        let mut call = call.arg(self.sinks.len());
        for sink in &self.sinks {
            call.push_arg(&sink.name);
        }
        let busy = locked(&self.busy);
        call.push_arg(busy.len());
        for claim in &*busy {
            call.push_arg(claim);
        }
        call
    }

    /// Tells what this member has claimed, and then notes it.
    fn tell(&self, session: &Session, claim: Claim) {
        let Some(sink) = self.sinks.iter().find(|sink| sink.name == claim.sink) else { return };
        let Some(rule) = self.rules.iter().find(|rule| rule.text() == claim.rule) else { return };
        let mut alert = self.alert(rule, claim.text.clone());
        alert.is_resolved = claim.what == "resolved";
        alert.is_repeat = claim.is_repeat;
        let name = format!("{}:{}", claim.sink, claim.rule);
        locked(&self.busy).insert(name.clone());
        let (store, busy, me) = (self.fleet.store.clone(), self.busy.clone(), session.id.clone());
        let runtime = tokio::runtime::Handle::current();
        sink.tell(
            alert,
            Box::new(move |told| {
                runtime.spawn(async move {
                    let call = TOLD.call(&[store.keys.alerts()]).arg(me.as_str());
                    let call = call.arg(&claim.sink).arg(&claim.rule).arg(&claim.what);
                    let call = call.arg(&claim.episode).arg(u8::from(told));
                    for _ in 0..NOTE_TRIES {
                        if store.work.call(&call, TIMEOUT).await.is_ok() {
                            break;
                        }
                        tokio::time::sleep(EVERY).await;
                    }
                    locked(&busy).remove(&name);
                });
            }),
        );
    }

    fn alert(&self, rule: &AlertRule, text: String) -> Alert {
        let severity: Severity = rule.severity;
        Alert::new(severity, format!("{}/{}", self.fleet.name(), rule.name()), text)
    }

    /// Judges what this process sees of itself.
    fn judge_here(&mut self) {
        let now = Instant::now();
        let redis = {
            let session = self.sessions.borrow();
            session.as_ref().is_some_and(|session| session.trust.holds())
        };
        let stats = self.hub.get().map(EventHub::stats);
        if let Some(stats) = &stats {
            for one in &stats.subscribers {
                let known = self.errors.0.insert(one.name.clone(), one.errors);
                if known.is_some_and(|known| one.errors > known) {
                    self.errors.1 = Some(now);
                }
            }
        }
        let failing = self.errors.1.is_some_and(|at| now.duration_since(at) < ERRORS_LAST);
        let lag =
            stats.as_ref().and_then(|stats| stats.subscribers.iter().max_by_key(|one| one.lag));
        for at in 0..self.rules.len() {
            let rule = &self.rules[at];
            let (holds, text, calm) = match rule.condition {
                Condition::RedisDown => {
                    (!redis, "Redis does not answer".to_owned(), "Redis answers again")
                }
                Condition::HubLag(most) => {
                    let (name, lag) = lag.map_or(("", 0), |one| (&one.name, one.lag));
                    (lag > most, format!("{lag} events wait for {name}"), "fewer events wait")
                }
                Condition::HubErrors => {
                    (failing, "a subscriber of the hub fails".to_owned(), "no subscriber fails")
                }
                Condition::SubscriberFailed => {
                    let failed = stats.as_ref().map_or(0, |stats| stats.failed);
                    (failed > 0, format!("{failed} subscribers were stopped"), "")
                }
                _ => continue,
            };
            let Some(change) = self.local[at].step(holds, rule, now) else { continue };
            let text = if change == Change::Firing { text } else { calm.to_owned() };
            let mut alert = self.alert(rule, format!("{text} ({})", crate::process::who()));
            alert.is_resolved = change == Change::Resolved;
            for sink in &self.sinks {
                sink.tell(alert.clone(), Box::new(|_| {}));
            }
        }
    }
}
