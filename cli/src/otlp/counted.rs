//! Counts spans on their way, so that none is lost silently.
//!
//! **Invariant:** every span that was not sent is told: when the receiver fails first, when it answers again, and at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

/// How many spans ended, and what became of them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    ended: AtomicU64,
    sent: AtomicU64,
    is_failing: AtomicBool,
}

impl Counts {
    /// Spans that ended and were not sent: they wait, or they are lost.
    pub(super) fn unsent(&self) -> u64 {
        self.ended.load(Ordering::Relaxed).saturating_sub(self.sent.load(Ordering::Relaxed))
    }
}

/// Counts the spans that end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) inner: BatchSpanProcessor,
    pub(super) counts: Arc<Counts>,
}

impl SpanProcessor for Ending {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.counts.ended.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts the spans that are sent, and tells when the receiver fails and when it answers again.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) inner: opentelemetry_otlp::SpanExporter,
    pub(super) counts: Arc<Counts>,
}

impl SpanExporter for Sending {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.inner.export(batch).await;
        let is_failing = result.is_err();
        let was_failing = self.counts.is_failing.swap(is_failing, Ordering::Relaxed);
        match (&result, was_failing) {
            (Err(error), false) => {
                tracing::warn!(%error, spans, "traces are not sent: does the receiver of --otlp answer?");
            }
            (Ok(()), true) => {
                self.counts.sent.fetch_add(spans, Ordering::Relaxed);
                tracing::info!(unsent = self.counts.unsent(), "traces are sent again");
            }
            (Ok(()), false) => {
                self.counts.sent.fetch_add(spans, Ordering::Relaxed);
            }
            (Err(_), true) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
