//! Alerts: rules about the fleet and about this process, and those who are told.
//!
//! **Invariant:** while Redis answers, one member judges the fleet, and each sink is told once when an alert fires and once
//! when it is resolved, whichever member dies meanwhile. What a member was telling when it died is told again, and marked. If
//! Redis loses its data, the members remember what must still be told to end. While Redis does not answer, each process tells
//! only what it sees itself.

mod here;
mod judge;
mod local;
mod rule;
mod sinks;
mod step;
mod task;

use std::collections::HashSet;
use std::time::Duration;

use artel_hub::notify::Send;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::member::Member;
pub use rule::{AlertRule, BadRule};
use sinks::Sink;
use task::Task;

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
        let task = Task::new(self.rules, sinks, parts);
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
