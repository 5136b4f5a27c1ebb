//! Traces of messages, sent to a receiver of OTLP over HTTP.
//!
//! **Invariant:** a receiver that is away, slow or wrong holds up nobody: spans wait in a bounded queue, have a thread of their own
//! to be sent by, and are dropped when there are too many. The end of the program waits for them only for a moment.

mod counted;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use artel::trace::{Propagator, TARGET, set_propagator};
use base64::Engine;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

use crate::args::TraceArgs;
use crate::exit::{Failure, USAGE};
use crate::layers;
use counted::{Counts, Ending, Sending};

/// What makes spans of messages into traces, beside the log.
pub(crate) type Traces = Box<dyn Layer<LogRegistry> + Send + Sync>;
/// The registry, with the log on it.
type LogRegistry = tracing_subscriber::layer::Layered<
    tracing_subscriber::filter::Filtered<
        Box<dyn Layer<Registry> + Send + Sync>,
        tracing_subscriber::EnvFilter,
        Registry,
    >,
    Registry,
>;

/// Spans that may wait to be sent.
const WAITING_MAX: usize = 8192;
/// How often they are sent.
const SEND_EVERY: Duration = Duration::from_millis(1000);
/// How long the receiver may take.
const SEND_WITHIN: Duration = Duration::from_secs(5);
/// How long the end of the program waits for what is still to be sent.
const END_WITHIN: Duration = Duration::from_secs(2);

static PROVIDER: OnceLock<(SdkTracerProvider, Arc<Counts>)> = OnceLock::new();

/// Sends spans of messages to the receiver, if one is named.
pub(crate) fn start(args: &TraceArgs, fleet: &str) -> Result<Option<Traces>, Failure> {
    let Some(written) = &args.otlp else { return Ok(None) };
    let (url, headers) = endpoint(written)?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client()?)
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(url.as_str())
        .with_headers(headers)
        .with_timeout(SEND_WITHIN)
        .build()
        .map_err(|_| refused("the receiver cannot be used"))?;
    let batch = BatchConfigBuilder::default()
        .with_max_queue_size(WAITING_MAX)
        .with_scheduled_delay(SEND_EVERY)
        .build();
    let resource = Resource::builder()
        .with_service_name("artel")
        .with_attribute(KeyValue::new("artel.fleet", fleet.to_owned()))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
        .build();
    let counts = Arc::<Counts>::default();
    let sending = Sending { inner: exporter, counts: counts.clone() };
    let waiting = BatchSpanProcessor::builder(sending).with_batch_config(batch).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Ending { inner: waiting, counts: counts.clone() })
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(args.otlp_share))))
        .with_resource(resource)
        .build();
    let tracer = provider.tracer("artel");
    let _ = PROVIDER.set((provider, counts));
    set_propagator(W3c);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false);
    let only_messages = Targets::new().with_target(TARGET, tracing::Level::DEBUG);
    Ok(Some(Box::new(layer.with_filter(only_messages))))
}

/// Sends what waits. The process is about to end.
pub(crate) fn end() {
    if let Some((provider, counts)) = PROVIDER.get() {
        let _ = provider.shutdown_with_timeout(END_WITHIN);
        let spans = counts.unsent();
        if spans > 0 {
            tracing::warn!(spans, "spans were not sent");
        }
    }
}

fn refused(why: &str) -> Failure {
    Failure::new(USAGE, format!("{}: {why}", layers::name_of("--otlp")))
        .hint("name a receiver of OTLP over HTTP, such as `--otlp http://localhost:4318`")
}

/// Posts spans. A redirect counts as a failure: spans and their address are for the receiver alone.
fn client() -> Result<reqwest::blocking::Client, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let nowhere = reqwest::redirect::Policy::none();
    let builder = reqwest::blocking::Client::builder().timeout(SEND_WITHIN).redirect(nowhere);
    // A blocking client must not be made in async code.
    let made = std::thread::spawn(move || builder.build()).join();
    made.ok().and_then(Result::ok).ok_or_else(|| refused("no client can be made"))
}

/// Could a receiver be written so?
pub(crate) fn check(args: &TraceArgs) -> Result<(), Failure> {
    args.otlp.as_deref().map_or(Ok(()), |written| endpoint(written).map(|_| ()))
}

/// Where spans are posted, and the headers of a user and a password. Its path is `/v1/traces`, unless another one is given.
fn endpoint(written: &str) -> Result<(url::Url, HashMap<String, String>), Failure> {
    let mut url = url::Url::parse(written).map_err(|_| refused("it is not a URL"))?;
    if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
        return Err(refused("it must begin with http:// or https://"));
    }
    if ["", "/"].contains(&url.path()) {
        url.set_path("/v1/traces");
    }
    let mut headers = HashMap::new();
    if !url.username().is_empty() || url.password().is_some() {
        let plain = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
        let password = url.password().unwrap_or_default();
        let pair = [&plain(url.username())[..], b":", &plain(password)].concat();
        let pair = base64::prelude::BASE64_STANDARD.encode(pair);
        headers.insert("authorization".to_owned(), format!("Basic {pair}"));
        let _ = (url.set_username(""), url.set_password(None));
    }
    Ok((url, headers))
}

/// What may be shown of a receiver: neither its user and password nor what stands behind its path.
pub(crate) fn without_secrets(written: &str) -> String {
    match endpoint(written) {
        Ok((url, _)) => format!("{}{}", url.origin().ascii_serialization(), url.path()),
        Err(_) => "…".to_owned(),
    }
}

/// The W3C trace context of spans.
struct W3c;

impl Propagator for W3c {
    fn traceparent(&self, span: &Span) -> Option<String> {
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        let is_recorded = context.is_valid() && context.is_sampled();
        is_recorded.then(|| format!("00-{}-{}-01", context.trace_id(), context.span_id()))
    }

    fn follow(&self, span: &Span, traceparent: &str) {
        let Some(sender) = parsed(traceparent) else { return };
        span.add_link(sender.clone());
        // In the same trace, too: so that both are recorded or neither is.
        let _ = span.set_parent(Context::new().with_remote_span_context(sender));
    }
}

/// Reads `00-<trace id>-<span id>-<flags>`.
fn parsed(traceparent: &str) -> Option<SpanContext> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [version, trace, span, flags, ..] = parts[..] else { return None };
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits
            && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    };
    if !is_hex(version, 2) || version == "ff" || (version == "00" && parts.len() > 4) {
        return None;
    }
    if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trace_context_is_one() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parsed(good).expect("good");
        assert!(context.is_sampled() && context.is_remote());
        assert!(!parsed(&good.replace("-01", "-00")).expect("good").is_sampled());
        assert!(parsed(&good.replacen("00-", "01-", 1).replace("-01", "-01-more")).is_some());
        for wrong in [
            "",
            "00",
            "nonsense",
            &good[..54],
            &good.replacen("00-", "ff-", 1),
            &format!("{good}-more"),
            &good.to_uppercase(),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-é0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
        ] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_receiver_is_a_url() {
        let path = |written: &str| endpoint(written).map(|(url, _)| url.to_string()).ok();
        assert_eq!(
            path("http://localhost:4318").as_deref(),
            Some("http://localhost:4318/v1/traces")
        );
        assert_eq!(path("https://h/own").as_deref(), Some("https://h/own"));
        let (url, headers) = endpoint("http://me:p%40ss@h").expect("good");
        assert_eq!(url.as_str(), "http://h/v1/traces");
        assert_eq!(headers["authorization"], "Basic bWU6cEBzcw==");
        for wrong in ["", "localhost:4318", "grpc://h:4317", "http://"] {
            let failure = endpoint(wrong).expect_err(wrong);
            assert_eq!(failure.code, USAGE);
        }
    }
}
