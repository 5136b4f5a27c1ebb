//! [`Handler`]: what a subscriber does with an event, and how it reports a failure.

use std::future::Future;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::event::AnyEvent;

/// How bad a problem is. A worse severity compares greater.
///
/// ```
/// use artel_hub::Severity;
///
/// assert!(Severity::Critical > Severity::Error && Severity::Error > Severity::Warning);
/// assert_eq!(Severity::Critical.to_string(), "critical");
/// assert_eq!(serde_json::to_value(Severity::Warning)?, "warning");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Should be looked at some time.
    Warning,
    /// Something was not done.
    Error,
    /// Somebody has to act.
    Critical,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Critical => "critical",
        })
    }
}

/// What to do about an event that could not be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    Retry,
    Skip,
    Fatal,
    /// The handler took too long. Treated as fatal, and the event is not tried again.
    Late,
}

/// Why an event was not handled, and what to do about it.
///
/// Every error type converts into a `HandlerError` that is retried, so `?` works inside handlers.
/// Boxed errors and texts need `.map_err(HandlerError::retry)`.
///
/// ```
/// use artel_hub::{HandlerError, Severity};
///
/// fn parse(text: &str) -> Result<u64, HandlerError> {
///     // A retry would not help: keep the event as a dead letter and continue.
///     text.parse().map_err(HandlerError::skip)
/// }
/// let error = parse("x").unwrap_err().with_severity(Severity::Warning);
/// assert_eq!(error.to_string(), "invalid digit found in string");
/// ```
#[derive(Debug)]
pub struct HandlerError {
    pub(crate) remedy: Remedy,
    pub(crate) severity: Severity,
    reason: String,
}

impl HandlerError {
    /// Try this event again after a pause. The pause grows with each attempt. After too many
    /// attempts the event becomes a dead letter.
    pub fn retry(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Retry, Severity::Warning, reason)
    }

    /// Keep this event as a dead letter and continue with the next one.
    pub fn skip(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Skip, Severity::Error, reason)
    }

    /// The handler cannot continue. Create a new handler and try this event again with it.
    pub fn fatal(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Fatal, Severity::Error, reason)
    }

    /// Sets the severity. Default: warning for `retry`, error for the others.
    pub fn with_severity(mut self, severity: Severity) -> HandlerError {
        self.severity = severity;
        self
    }

    fn new(remedy: Remedy, severity: Severity, reason: impl std::fmt::Display) -> HandlerError {
        HandlerError { remedy, severity, reason: reason.to_string() }
    }
}

impl std::fmt::Display for HandlerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        HandlerError::retry(error)
    }
}

/// An event, delivered to one subscriber. It dereferences to the payload.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
/// const LINES: Topic<String> = Topic::new("lines/en");
///
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let _reader = hub.subscribe(&LINES).inline(move |line: Delivery<'_, String>| {
///     send.send((line.to_uppercase(), line.event().key().to_string(), line.attempt()))
/// })?;
/// hub.blocking_publish(&LINES, "hello".into())?;
/// assert_eq!(received.recv()?, ("HELLO".to_string(), "lines/en".to_string(), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Delivery<'a, T> {
    pub(crate) event: &'a AnyEvent,
    pub(crate) payload: &'a T,
    pub(crate) attempt: u32,
    pub(crate) lagged: u64,
}

impl<'a, T> Delivery<'a, T> {
    /// The whole event: its key, sequence number and time. Clone it to keep it.
    pub fn event(&self) -> &'a AnyEvent {
        self.event
    }

    /// The payload. The reference is valid while the handler runs.
    pub fn get(&self) -> &'a T {
        self.payload
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How many events this subscriber lost since the previous one because its queue was full.
    pub fn lagged(&self) -> u64 {
        self.lagged
    }
}

impl<T> Deref for Delivery<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.payload
    }
}

/// What a subscriber does with its events, one after the other.
///
/// A closure is a handler if it takes a [`Delivery`] and returns `()`, or a `Result` whose error
/// converts into a [`HandlerError`]. Implement this trait for handlers that await, and for handlers
/// whose state must be created again after a failure.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, Handler, HandlerError, Topic};
/// # const LINES: Topic<String> = Topic::new("lines");
///
/// struct Auditor { seen: usize }
///
/// impl Handler<String> for Auditor {
///     async fn handle(&mut self, line: Delivery<'_, String>) -> Result<(), HandlerError> {
///         self.seen += line.len();
///         Ok(())
///     }
/// }
/// # let hub = EventHub::new();
/// let auditor = hub.subscribe(&LINES).on(Context::Thread).spawn_with(|| Auditor { seen: 0 })?;
/// hub.blocking_publish(&LINES, "hello".into())?;
/// hub.blocking_idle();
/// assert_eq!(auditor.stats().processed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Handler<T>: Send + 'static {
    /// Handles one event. The next event is delivered when this one is done.
    ///
    /// # Cancel safety
    ///
    /// If the subscriber is stopped and its time to drain has passed, the future is dropped before
    /// it is ready. The event then becomes a dead letter.
    fn handle(
        &mut self,
        delivery: Delivery<'_, T>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// How many events the handler collects before [`Handler::commit`]. 0 means that it does not
    /// collect. If the handler fails, uncommitted events are delivered again to the next handler.
    /// Collected events do not count as waiting in the queue.
    fn collects(&self) -> usize {
        0
    }

    /// Commits the collected events. Called when [`Handler::collects`] events are handled, or when
    /// no event waits.
    ///
    /// If it fails, it is called again after a pause, until it succeeds. No single event is to
    /// blame, so attempts are not counted, and `skip` means the same as `retry`. After a fatal
    /// error or a panic, the next handler gets all collected events again. When the restart budget
    /// is spent, they become dead letters. If a commit exceeds the handler's time-out, all of them
    /// become dead letters at once, because it is unknown whether they are committed.
    fn commit(&mut self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether [`Handler::immediate`] is implemented. Closures never await, so they need no future.
    #[doc(hidden)]
    const IMMEDIATE: bool = false;

    #[doc(hidden)]
    fn immediate(&mut self, _: Delivery<'_, T>) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<T, F, R> Handler<T> for F
where
    F: FnMut(Delivery<'_, T>) -> R + Send + 'static,
    R: IntoOutcome,
{
    fn handle(
        &mut self,
        delivery: Delivery<'_, T>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(self(delivery).into_outcome())
    }

    const IMMEDIATE: bool = true;

    #[inline]
    fn immediate(&mut self, delivery: Delivery<'_, T>) -> Result<(), HandlerError> {
        self(delivery).into_outcome()
    }
}

/// What a handler closure may return: `()` or a `Result`.
///
/// ```
/// use artel_hub::{Delivery, EventHub, IntoOutcome, Topic};
/// const NUMBERS: Topic<String> = Topic::new("numbers");
///
/// let hub = EventHub::new();
/// let parser = hub.subscribe(&NUMBERS).attempts(1);
/// let parser = parser.inline(|text: Delivery<'_, String>| text.parse::<u64>().map(drop))?;
/// hub.blocking_publish(&NUMBERS, "7".into())?;
/// hub.blocking_publish(&NUMBERS, "seven".into())?;
/// assert_eq!((parser.stats().processed, parser.stats().letters), (1, 1));
/// assert!(().into_outcome().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler closure must return `()` or `Result<(), E>`, not `{Self}`",
    note = "a handler that waits is a type that implements `Handler` with an `async fn handle`",
    note = "boxed errors and texts become a `HandlerError` with `.map_err(HandlerError::retry)`"
)]
pub trait IntoOutcome {
    /// Converts it into the result of a handler.
    fn into_outcome(self) -> Result<(), HandlerError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Into<HandlerError>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(Into::into)
    }
}
