//! Alerts: send problems to an administrator, by webhook or by mail.
//!
//! **Invariant:** alerts have their own thread and their own queue, which drops the newest and
//! counts them. So nothing waits for the network. The same trouble is sent once per cooldown. The
//! next alert says how often it was repeated in between.
//!
//! ```
//! use artel_hub::notify::{ALERTS, Alert, Notifier, Send, SendError};
//! use artel_hub::{EventHub, Severity};
//!
//! /// Your own way to send. For webhooks and mail there are the features `webhook` and `mail`.
//! struct Screen(std::sync::mpsc::Sender<String>);
//!
//! impl Send for Screen {
//!     fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
//!         self.0.send(alert.to_string()).map_err(SendError::new)
//!     }
//! }
//!
//! let (send, received) = std::sync::mpsc::channel();
//! let hub = EventHub::new();
//! let alerts = Notifier::new().at_least(Severity::Error).to(Screen(send)).start(&hub)?;
//!
//! // The hub's own notices are sent, too. This alert is yours.
//! hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "billing", "card refused"))?;
//! assert_eq!(received.recv()?, "critical: billing: card refused");
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

/// The topic on which your program publishes alerts for an administrator.
///
/// ```
/// use artel_hub::notify::{ALERTS, Alert};
/// use artel_hub::{EventHub, Severity};
///
/// let hub = EventHub::new();
/// let alert = Alert::new(Severity::Critical, "billing", "the card is refused");
/// let receipt = hub.try_publish(&ALERTS, alert)?;
/// assert_eq!(receipt.matched, 0); // without a `Notifier` nothing is sent
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const ALERTS: Topic<Alert> = Topic::json("artel-hub/alerts");

/// How many alerts may wait by default.
const WAITING: usize = 256;
/// How often an alert is tried before it becomes a dead letter. This takes about half a minute.
const ATTEMPTS: u32 = 10;
/// The default cooldown.
const COOLDOWN: Duration = Duration::from_secs(300);
/// The maximum length of a text, in characters.
const TEXT_MAX: usize = 2000;
/// The maximum length of a source, in characters.
const SOURCE_MAX: usize = 200;

/// A message for an administrator.
///
/// ```
/// use artel_hub::Severity;
/// use artel_hub::notify::Alert;
///
/// let alert = Alert::new(Severity::Error, "billing", "the card is refused");
/// assert_eq!(alert.to_string(), "error: billing: the card is refused");
/// assert_eq!(alert.repeated, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Alert {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about. Alerts with the same source and severity are sent once per cooldown.
    pub source: String,
    /// What happened.
    pub text: String,
    /// How many similar alerts were held back since the last one was sent.
    #[serde(default)]
    pub repeated: u64,
    /// It is over: what it is about has ended.
    #[serde(default)]
    pub is_resolved: bool,
    /// It may have been sent before: its sender died meanwhile, or got no answer.
    #[serde(default)]
    pub is_repeat: bool,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Alert {
    /// An alert about something that just happened.
    pub fn new(severity: Severity, source: impl Into<String>, text: impl Into<String>) -> Alert {
        let at_ms = millis(SystemTime::now());
        Alert {
            severity,
            source: source.into(),
            text: text.into(),
            repeated: 0,
            is_resolved: false,
            is_repeat: false,
            at_ms,
        }
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
        match self.is_resolved {
            true => write!(f, "resolved: {}: {}", self.source, self.text)?,
            false => write!(f, "{}: {}: {}", self.severity, self.source, self.text)?,
        }
        if self.is_repeat {
            write!(f, " (repeat)")?;
        }
        match self.repeated {
            0 => Ok(()),
            times => write!(f, " (and {times} more like it since the last alert)"),
        }
    }
}

/// Why an alert was not sent. Does not contain the address, which may be a secret.
///
/// ```
/// use artel_hub::notify::SendError;
///
/// let error = SendError::new("the printer is out of paper");
/// assert_eq!(error.to_string(), "not sent: the printer is out of paper");
/// ```
#[derive(Debug, thiserror::Error)]
#[error("not sent: {reason}")]
pub struct SendError {
    reason: String,
}

impl SendError {
    /// An error with this reason.
    pub fn new(reason: impl std::fmt::Display) -> SendError {
        SendError { reason: reason.to_string() }
    }
}

/// A way to reach an administrator. It has its own thread, so it may block.
///
/// ```
/// use artel_hub::Severity;
/// use artel_hub::notify::{Alert, Send, SendError};
///
/// struct Log<W>(W);
///
/// impl<W: std::io::Write + std::marker::Send + 'static> Send for Log<W> {
///     fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
///         writeln!(self.0, "{alert}").map_err(SendError::new)
///     }
/// }
/// let mut log = Log(Vec::new()); // or a file
/// log.send(&Alert::new(Severity::Critical, "billing", "no connection"))?;
/// assert_eq!(log.0, b"critical: billing: no connection\n");
/// # Ok::<(), SendError>(())
/// ```
pub trait Send: std::marker::Send + 'static {
    /// Sends one alert. After an error it is called again, a few times.
    fn send(&mut self, alert: &Alert) -> Result<(), SendError>;
}

/// Sends alerts: the hub's notices, and what you publish on [`ALERTS`].
///
/// ```
/// use artel_hub::notify::{ALERTS, Alert, Notifier};
/// use artel_hub::{EventHub, Severity};
/// # struct Screen(std::sync::mpsc::Sender<String>);
/// # impl artel_hub::notify::Send for Screen {
/// #     fn send(&mut self, alert: &Alert) -> Result<(), artel_hub::notify::SendError> {
/// #         self.0.send(alert.to_string()).map_err(artel_hub::notify::SendError::new)
/// #     }
/// # }
/// let hub = EventHub::new();
/// let hour = std::time::Duration::from_secs(3600);
/// # let (send, received) = std::sync::mpsc::channel();
/// let alerts = Notifier::new().at_least(Severity::Error).cooldown(hour).to(Screen(send));
/// let alerts = alerts.start(&hub)?;
/// for text in ["no connection", "no connection"] {
///     hub.blocking_publish(&ALERTS, Alert::new(Severity::Error, "billing", text))?;
/// }
/// alerts.blocking_stop(std::time::Duration::from_secs(5))?;
/// assert_eq!(received.try_iter().count(), 1); // the second one was held back
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "alerts are not sent before `start`"]
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
    /// Sends critical alerts only, with a cooldown of five minutes. It has no recipient yet.
    pub fn new() -> Notifier {
        let channels = Vec::new();
        Notifier { at_least: Severity::Critical, cooldown: COOLDOWN, waiting: WAITING, channels }
    }

    /// Sends only alerts of at least this severity. Default: critical.
    pub fn at_least(mut self, severity: Severity) -> Notifier {
        self.at_least = severity;
        self
    }

    /// How long alerts of the same source and severity are held back after one was sent. Default:
    /// five minutes.
    pub fn cooldown(mut self, time: Duration) -> Notifier {
        self.cooldown = time;
        self
    }

    /// How many alerts may wait to be sent. Default: 256. When the queue is full, the newest are
    /// dropped and counted in the statistics of `artel-hub/notifier`.
    pub fn waiting(mut self, alerts: usize) -> Notifier {
        self.waiting = alerts;
        self
    }

    /// Adds a recipient.
    pub fn to(mut self, channel: impl Send) -> Notifier {
        self.channels.push(Box::new(channel));
        self
    }

    /// Subscribes. A second notifier needs its own [name](Notifier::start_as).
    pub fn start(self, hub: &EventHub) -> Result<Subscription, SubscribeError> {
        self.start_as(hub, "artel-hub/notifier")
    }

    /// Subscribes under this name.
    pub fn start_as(self, hub: &EventHub, name: &str) -> Result<Subscription, SubscribeError> {
        let at_least = self.at_least;
        // The channels and their state must outlive a handler.
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
    /// Which channels have sent the current alert, and how many similar ones were held back.
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
        // Losing dead letters and waiting to write them are different troubles.
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
        // If a channel fails, the others still send. Channels that have sent the alert do not send
        // it again.
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
