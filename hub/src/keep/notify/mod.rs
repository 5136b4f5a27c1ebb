//! Alerts: telling an administrator what went wrong, by webhook or by mail.
//!
//! **Invariant:** alerts have a queue of their own that drops the newest, by count, and a thread of
//! their own: whatever the network does, nobody else waits. One and the same trouble is told once
//! per cooldown, the next time with how often it happened between.
//!
//! ```
//! use artel_hub::notify::{ALERTS, Alert, Notifier, Send, SendError};
//! use artel_hub::{EventHub, Severity};
//!
//! /// Anything can be told; webhooks and mail come with the features of these names.
//! struct Screen(std::sync::mpsc::Sender<String>);
//!
//! impl Send for Screen {
//!     fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
//!         self.0.send(alert.to_string()).map_err(SendError::new)
//!     }
//! }
//!
//! let (tell, told) = std::sync::mpsc::channel();
//! let hub = EventHub::new();
//! let alerts = Notifier::new().at_least(Severity::Error).to(Screen(tell)).start(&hub)?;
//!
//! // The hub's own troubles are told without being asked; these are yours.
//! hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "billing", "the card is refused"))?;
//! assert_eq!(told.recv()?, "critical: billing: the card is refused");
//! alerts.blocking_stop(std::time::Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cooldown;
#[cfg(feature = "mail")]
mod mail;
#[cfg(feature = "webhook")]
mod webhook;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use self::cooldown::{Cooldown, Decision};
#[cfg(feature = "mail")]
pub use mail::{Mail, MailError};
#[cfg(feature = "webhook")]
pub use webhook::{Webhook, WebhookError};

use crate::error::SubscribeError;
use crate::event::AnyEvent;
use crate::hub::EventHub;
use crate::keep::dead_letter::millis;
use crate::key::Keys;
use crate::notice::{HubNotice, NOTICES};
use crate::run::context::Context;
use crate::run::handler::{Delivery, Handler, HandlerError, Severity};
use crate::run::restart::{Backoff, Restart};
use crate::run::subscriber::Stage;
use crate::run::subscription::Subscription;
use crate::topic::Topic;
use crate::wait::overflow::{Overflow, Queue};

/// Where your program publishes what an administrator should know.
pub const ALERTS: Topic<Alert> = Topic::json("artel-hub/alerts");

/// Alerts that may wait to be sent.
const WAITING: usize = 256;
/// How often an alert is tried, over about half a minute, before it is a dead letter.
const ATTEMPTS: u32 = 10;
/// How long the same trouble is not told again, unless said otherwise.
const COOLDOWN: Duration = Duration::from_secs(300);
/// The longest text that is sent, in characters.
const TEXT_MAX: usize = 2000;
/// The longest source, in characters.
const SOURCE_MAX: usize = 200;

/// Something an administrator should know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Alert {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about. One source's alerts of one severity are told once per cooldown.
    pub source: String,
    /// What happened.
    pub text: String,
    /// How often the like happened since it was last told.
    #[serde(default)]
    pub repeated: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Alert {
    /// Something that just happened.
    pub fn new(severity: Severity, source: impl Into<String>, text: impl Into<String>) -> Alert {
        let at_ms = millis(SystemTime::now());
        Alert { severity, source: source.into(), text: text.into(), repeated: 0, at_ms }
    }

    fn of(event: &AnyEvent) -> Option<Alert> {
        let mut alert = match (event.payload::<HubNotice>(), event.payload::<Alert>()) {
            (Some(notice), _) => {
                let source = notice.subscriber().unwrap_or("hub");
                Alert::new(notice.severity(), source, notice.to_string())
            }
            (_, Some(alert)) => alert.clone(),
            _ => return None,
        };
        for (text, most) in [(&mut alert.text, TEXT_MAX), (&mut alert.source, SOURCE_MAX)] {
            if let Some((end, _)) = text.char_indices().nth(most) {
                text.truncate(end);
            }
        }
        alert.at_ms = millis(event.at());
        Some(alert)
    }
}

impl std::fmt::Display for Alert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.source, self.text)?;
        match self.repeated {
            0 => Ok(()),
            times => write!(f, " (and {times} more like it since the last alert)"),
        }
    }
}

/// Why an alert did not get through. Never says where to: addresses may be secrets.
#[derive(Debug, thiserror::Error)]
#[error("not sent: {reason}")]
pub struct SendError {
    reason: String,
}

impl SendError {
    /// For this reason.
    pub fn new(reason: impl std::fmt::Display) -> SendError {
        SendError { reason: reason.to_string() }
    }
}

/// A way to reach an administrator. It may block; it has a thread.
pub trait Send: std::marker::Send + 'static {
    /// Sends one alert. An error is tried again, a few times.
    fn send(&mut self, alert: &Alert) -> Result<(), SendError>;
}

/// Listens to the hub's notices and to [`ALERTS`], and tells.
#[must_use = "nobody is told before `start`"]
pub struct Notifier {
    at_least: Severity,
    cooldown: Duration,
    waiting: usize,
    channels: Vec<Box<dyn Send>>,
}

impl Default for Notifier {
    fn default() -> Notifier {
        Notifier::new()
    }
}

impl Notifier {
    /// Tells nobody yet, of what is critical, every five minutes at most.
    pub fn new() -> Notifier {
        let channels = Vec::new();
        Notifier { at_least: Severity::Critical, cooldown: COOLDOWN, waiting: WAITING, channels }
    }

    /// Only what is at least this bad.
    pub fn at_least(mut self, severity: Severity) -> Notifier {
        self.at_least = severity;
        self
    }

    /// How long the same source is not told again with the same severity.
    pub fn cooldown(mut self, time: Duration) -> Notifier {
        self.cooldown = time;
        self
    }

    /// Alerts that may wait to be sent, 256 unless said here; the newest are dropped, and counted in
    /// the statistics of `artel-hub/notifier`.
    pub fn waiting(mut self, alerts: usize) -> Notifier {
        self.waiting = alerts;
        self
    }

    /// Tells this one as well.
    pub fn to(mut self, channel: impl Send) -> Notifier {
        self.channels.push(Box::new(channel));
        self
    }

    /// Subscribes. A second one needs its own [name](Notifier::start_as).
    pub fn start(self, hub: &EventHub) -> Result<Subscription, SubscribeError> {
        self.start_as(hub, "artel-hub/notifier")
    }

    /// Subscribes under a name of your own.
    pub fn start_as(self, hub: &EventHub, name: &str) -> Result<Subscription, SubscribeError> {
        let at_least = self.at_least;
        // Which channels are there, and what they were told, outlives a handler.
        let state = Arc::new(Mutex::new(Sending {
            channels: self.channels,
            cooldown: Cooldown::new(self.cooldown),
            told: Vec::new(),
            repeated: 0,
        }));
        let backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));
        hub.subscribe(Keys::any([NOTICES.key(), ALERTS.key()])?)
            .name(name)
            .on(Context::Thread)
            .stage(Stage::Alert)
            .queue(Queue::bounded(self.waiting).on_full(Overflow::DropNewest))
            .restart(Restart::times(u32::MAX).backoff(backoff))
            .attempts(ATTEMPTS)
            .filter(move |event: &AnyEvent| {
                Alert::of(event).is_some_and(|alert| alert.severity >= at_least)
            })
            .spawn_with(move || AlertSender { state: state.clone() })
    }
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").field("at_least", &self.at_least).finish_non_exhaustive()
    }
}

struct Sending {
    channels: Vec<Box<dyn Send>>,
    cooldown: Cooldown,
    /// Which channels have the alert in hand, and how often the like of it was held back.
    told: Vec<bool>,
    repeated: u64,
}

struct AlertSender {
    state: Arc<Mutex<Sending>>,
}

impl Handler<AnyEvent> for AlertSender {
    async fn handle(&mut self, event: Delivery<'_, AnyEvent>) -> Result<(), HandlerError> {
        let Some(mut alert) = Alert::of(&event) else { return Ok(()) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Sending { channels, cooldown, told, repeated } = &mut *state;
        // Losing letters is another trouble than waiting to write them.
        let kind = event.payload::<HubNotice>().map_or("alert", HubNotice::kind);
        let key = (alert.severity, alert.source.clone(), kind);
        if event.attempt() == 1 {
            match cooldown.decide(&key, Instant::now()) {
                Decision::Hold => return Ok(()),
                Decision::Tell { repeated: held } => {
                    *told = vec![false; channels.len()];
                    *repeated = held;
                }
            }
        }
        alert.repeated += *repeated;
        // One that fails keeps it from nobody, and those that have it are not told again.
        let mut failure = None;
        for (channel, told) in channels.iter_mut().zip(told.iter_mut()).filter(|(_, told)| !**told)
        {
            match channel.send(&alert) {
                Ok(()) => {
                    *told = true;
                    cooldown.told(&key, Instant::now());
                }
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            return Err(error.into());
        }
        Ok(())
    }
}
