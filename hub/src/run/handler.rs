//! [`Handler`]: what a subscriber does with an event, and how it says that it could not.

use std::future::Future;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::event::AnyEvent;

/// How bad something is. A worse one compares greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth a look some day.
    Warning,
    /// Something was not done.
    Error,
    /// Somebody has to do something.
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

/// What is to be done about an event that could not be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    Retry,
    Skip,
    Fatal,
    /// It took too long: as if it were fatal, and the event is not tried again.
    Late,
}

/// Why an event was not handled, and what to do about it.
///
/// Every error type converts into one that is retried, so `?` works inside handlers; boxed errors and
/// texts do with `.map_err(HandlerError::retry)`.
///
/// ```
/// use artel_hub::{HandlerError, Severity};
///
/// fn parse(text: &str) -> Result<u64, HandlerError> {
///     // No later attempt would do better: keep the event as a dead letter and go on.
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
    /// Try this event again, after a pause that grows; it becomes a dead letter when it has
    /// failed too often.
    pub fn retry(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Retry, Severity::Warning, reason)
    }

    /// Keep this event as a dead letter and go on with the next.
    pub fn skip(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Skip, Severity::Error, reason)
    }

    /// The handler cannot go on: make a new one and try this event again with that.
    pub fn fatal(reason: impl std::fmt::Display) -> HandlerError {
        HandlerError::new(Remedy::Fatal, Severity::Error, reason)
    }

    /// How bad it is: a warning for `retry`, an error for the others unless said here.
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

/// An event, given to one subscriber. It is the payload as far as one can see.
#[derive(Debug)]
pub struct Delivery<'a, T> {
    pub(crate) event: &'a AnyEvent,
    pub(crate) payload: &'a T,
    pub(crate) attempt: u32,
    pub(crate) lagged: u64,
}

impl<'a, T> Delivery<'a, T> {
    /// The whole event: its key, number and time. Clone it to keep it.
    pub fn event(&self) -> &'a AnyEvent {
        self.event
    }

    /// The payload, for as long as the handler runs.
    pub fn get(&self) -> &'a T {
        self.payload
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How many events this subscriber lost since the one before, because its queue was full.
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
/// Every closure that takes a [`Delivery`] and returns nothing, or a `Result` whose error is or
/// becomes a [`HandlerError`], is one. Implement it for state that is to be made anew after a
/// failure, and for handlers that wait.
///
/// ```
/// use artel_hub::{Delivery, Handler, HandlerError};
///
/// struct Auditor {
///     seen: u64,
/// }
///
/// impl Handler<String> for Auditor {
///     async fn handle(&mut self, line: Delivery<'_, String>) -> Result<(), HandlerError> {
///         self.seen += line.len() as u64;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler<T>: Send + 'static {
    /// Handles one event. The next comes when this one is done.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped in the middle when the subscriber is stopped and its time to drain
    /// has passed; the event is then a dead letter.
    fn handle(
        &mut self,
        delivery: Delivery<'_, T>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// A handler that collects says how many events it takes before [`Handler::commit`]; what is
    /// not committed is given again to the next handler if this one fails. Collected events are not
    /// counted among those that wait in its queue. 0: it does not collect.
    fn collects(&self) -> usize {
        0
    }

    /// Called when as many were handled as [`Handler::collects`] says, or when none is waiting. One
    /// that fails is called again after a pause, until it succeeds: no single event is to blame, so
    /// attempts are not counted, and `skip` means what `retry` means. After a fatal error or a panic
    /// the next handler is given all of them again; when the budget is spent they become dead
    /// letters. If it takes longer than it may, all of them become dead letters at once: whether
    /// they are committed nobody knows.
    fn commit(&mut self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether [`Handler::immediate`] does it: closures never wait, so no future is made for them.
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

/// What a closure may return: nothing, or a result.
#[diagnostic::on_unimplemented(
    message = "a handler closure must return `()` or `Result<(), E>`, not `{Self}`",
    note = "a handler that waits is a type that implements `Handler` with an `async fn handle`",
    note = "boxed errors and texts become a `HandlerError` with `.map_err(HandlerError::retry)`"
)]
pub trait IntoOutcome {
    /// As a result.
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
