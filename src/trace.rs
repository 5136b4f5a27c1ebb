//! Traces: spans of `tracing` from the sending of a message to its outcome, across processes.
//!
//! **Invariant:** a message carries the context of the span that sent it, so the span that handles it can follow that one in
//! another process. The span of a handler ends when its outcome is recorded. While nobody listens to the target
//! [`TARGET`], there are no spans, and messages get no bytes more.
//!
//! The spans are `send` (one for each batch) and `process` (one for each run of a handler), at the level `debug`. Their fields
//! are named as the conventions of OpenTelemetry for messaging say, so any subscriber can export them. How a span is written
//! as a `traceparent` is known only to the subscriber that gives it an id: a program that exports spans says it once, with
//! [`set_propagator`].
//!
//! ```
//! use artel::trace::{Propagator, set_propagator};
//! use tracing::Span;
//!
//! /// With `tracing-opentelemetry` both are a line or two.
//! struct Nothing;
//!
//! impl Propagator for Nothing {
//!     fn traceparent(&self, _span: &Span) -> Option<String> {
//!         None // `span.context()` knows it
//!     }
//!     fn follow(&self, _span: &Span, _traceparent: &str) {} // `span.set_parent(…)`, `span.add_link(…)`
//! }
//!
//! assert!(set_propagator(Nothing), "once in a process");
//! assert_eq!(artel::trace::traceparent(), None);
//! ```

use std::borrow::Cow;
use std::sync::OnceLock;

use tracing::Span;
use tracing::field::Empty;

use crate::id::MessageId;
use crate::message::{Message, NewMessage};

/// The target of all spans of messages.
pub const TARGET: &str = "artel::trace";

/// Translates between spans and the W3C trace context that messages carry.
pub trait Propagator: Send + Sync + 'static {
    /// The `traceparent` of this span; `None` if it is not recorded.
    fn traceparent(&self, span: &Span) -> Option<String>;

    /// Has this span follow the one with this `traceparent`. It was made a moment ago and not entered.
    fn follow(&self, span: &Span, traceparent: &str);
}

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();

/// Sets how spans and messages are brought together in this process. False if it was set before: then nothing has changed.
pub fn set_propagator(propagator: impl Propagator) -> bool {
    PROPAGATOR.set(Box::new(propagator)).is_ok()
}

/// The `traceparent` of the span that is entered now, such as that of a handler: for calls to other services.
pub fn traceparent() -> Option<String> {
    PROPAGATOR.get()?.traceparent(&Span::current())
}

/// The span of a batch that is being sent.
pub(crate) fn send(lane: &str, count: usize) -> Span {
    tracing::debug_span!(
        target: TARGET,
        "send",
        otel.kind = "producer",
        messaging.system = "redis",
        messaging.operation.type = "send",
        messaging.destination.name = lane,
        messaging.batch.message_count = count,
        messaging.message.id = Empty,
    )
}

/// Notes the id of the first message that was sent.
pub(crate) fn sent(span: &Span, id: Option<&MessageId>) {
    if let Some(id) = id.filter(|_| !span.is_disabled()) {
        span.record("messaging.message.id", id.as_str());
    }
}

/// Has these messages carry the context of the span that sends them, unless they carry one already.
pub(crate) fn carry(span: &Span, messages: &mut Cow<'_, [NewMessage]>) {
    let Some(traceparent) = context_of(span) else { return };
    for message in messages.to_mut() {
        message.carry(&traceparent);
    }
}

/// What messages must carry, if this span is recorded.
pub(crate) fn context_of(span: &Span) -> Option<String> {
    if span.is_disabled() {
        return None;
    }
    PROPAGATOR.get()?.traceparent(span)
}

/// The span of one run of a handler. `None` if nobody listens.
pub(crate) fn process(message: &Message) -> Option<Box<Span>> {
    let span = tracing::debug_span!(
        target: TARGET,
        "process",
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = "redis",
        messaging.operation.type = "process",
        messaging.destination.name = message.lane().name(),
        messaging.message.id = message.id.as_str(),
        artel.kind = message.kind(),
        artel.attempt = message.attempt(),
        artel.outcome = Empty,
    );
    if span.is_disabled() {
        return None;
    }
    if let (Some(propagator), Some(traceparent)) = (PROPAGATOR.get(), message.traceparent()) {
        propagator.follow(&span, traceparent);
    }
    Some(Box::new(span))
}

/// Its outcome is recorded: the span ends.
pub(crate) fn ended(span: Option<Box<Span>>, outcome: &'static str) {
    if let Some(span) = span {
        span.record("artel.outcome", outcome);
        if outcome == "failed" || outcome == "lost" {
            span.record("otel.status_code", "ERROR");
        }
    }
}
