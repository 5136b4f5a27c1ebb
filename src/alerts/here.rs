//! What this process sees of itself: Redis does not answer, its hub is late or fails.
//!
//! **Invariant:** it needs no Redis: each process tells it for itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use artel_hub::EventHub;
use artel_hub::notify::Alert;

use super::local::{Change, Local, Said};
use super::rule::{AlertRule, Condition};
use super::sinks::Sink;

/// Trouble in the hub lasts for this long after the last of it.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// One rule that this process judges for itself.
struct Own {
    rule: AlertRule,
    local: Local,
    /// What is told when it fires, and when it ends.
    begin: Option<Alert>,
    end: Option<Alert>,
    /// What each sink was told.
    said: Arc<Mutex<Vec<Said>>>,
}

/// The rules that this process judges for itself.
pub(super) struct Here {
    rules: Vec<Own>,
    hub: Arc<OnceLock<EventHub>>,
    /// The errors of the hub's subscribers, and when one of them last failed.
    errors: HashMap<String, u64>,
    failed: Option<Instant>,
    /// How many subscribers were stopped, and when the last of them was.
    stopped: u64,
    stopped_at: Option<Instant>,
}

impl Here {
    pub(super) fn new(rules: &[AlertRule], sinks: usize, hub: Arc<OnceLock<EventHub>>) -> Here {
        let own = rules.iter().filter(|rule| rule.condition.is_local()).map(|rule| Own {
            rule: rule.clone(),
            local: Local::default(),
            begin: None,
            end: None,
            said: Arc::new(Mutex::new(vec![Said::default(); sinks])),
        });
        Here {
            rules: own.collect(),
            hub,
            errors: HashMap::new(),
            failed: None,
            stopped: 0,
            stopped_at: None,
        }
    }

    /// Is nothing being told?
    pub(super) fn is_idle(&self) -> bool {
        self.rules.iter().all(|own| {
            let said = own.said.lock().unwrap_or_else(PoisonError::into_inner);
            !said.iter().any(Said::is_busy)
        })
    }

    /// Judges what this process sees now, and tells what is new.
    pub(super) fn judge(&mut self, fleet: &str, redis_answers: bool, sinks: &[Sink]) {
        let now = Instant::now();
        let stats = self.hub.get().map(EventHub::stats);
        let subscribers = stats.as_ref().map_or(&[][..], |stats| &stats.subscribers[..]);
        for one in subscribers {
            let known = self.errors.insert(one.name.clone(), one.errors);
            if known.is_some_and(|known| one.errors > known) {
                self.failed = Some(now);
            }
        }
        let stopped = stats.as_ref().map_or(0, |stats| stats.failed);
        if stopped > self.stopped {
            (self.stopped, self.stopped_at) = (stopped, Some(now));
        }
        let lasts =
            |last: Option<Instant>| last.is_some_and(|at| now.duration_since(at) < TROUBLE_LASTS);
        let (is_failing, is_stopping) = (lasts(self.failed), lasts(self.stopped_at));
        let latest = subscribers.iter().max_by_key(|one| one.lag);
        for own in &mut self.rules {
            let (holds, text, calm) = match own.rule.condition {
                Condition::RedisDown => {
                    (!redis_answers, "Redis does not answer".to_owned(), "Redis answers again")
                }
                Condition::HubLag(most) => {
                    let (name, lag) = latest.map_or(("", 0), |one| (&one.name, one.lag));
                    (lag > most, format!("{lag} events wait for {name}"), "fewer events wait")
                }
                Condition::HubErrors => {
                    (is_failing, "a subscriber of the hub fails".to_owned(), "no subscriber fails")
                }
                Condition::SubscriberFailed => (
                    is_stopping,
                    format!("{stopped} subscribers of the hub were stopped, see the log"),
                    "no other subscriber of the hub was stopped",
                ),
                _ => continue,
            };
            own.judge(fleet, holds, &text, calm, now);
            own.tell(sinks);
        }
    }
}

impl Own {
    fn judge(&mut self, fleet: &str, holds: bool, text: &str, calm: &str, now: Instant) {
        let alert = |text: &str| {
            let text = format!("{text} ({})", crate::process::who());
            Alert::new(self.rule.severity, format!("{fleet}/{}", self.rule.name()), text)
        };
        match self.local.step(holds, &self.rule, now) {
            Some(Change::Firing) => self.begin = Some(alert(text)),
            Some(Change::Resolved) => {
                let mut alert = alert(calm);
                alert.is_resolved = true;
                self.end = Some(alert);
            }
            None => {}
        }
    }

    fn tell(&self, sinks: &[Sink]) {
        for (at, sink) in sinks.iter().enumerate().filter(|(_, sink)| !sink.rests()) {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((change, episode, is_repeat)) = said[at].begin(&self.local) else { continue };
            drop(said);
            let alert = match change {
                Change::Firing => &self.begin,
                Change::Resolved => &self.end,
            };
            let Some(mut alert) = alert.clone() else { continue };
            alert.is_repeat = is_repeat;
            let said = self.said.clone();
            let then = Box::new(move |told| {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said[at].end(change, episode, told);
            });
            sink.tell(alert, None, then);
        }
    }
}
