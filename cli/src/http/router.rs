//! The answer of each path.

use std::sync::Arc;
use std::time::{Duration, Instant};

use artel::{Error, Fleet, Member, MetricsSource, Readiness};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Mutex, Semaphore};

use super::access::Access;
use crate::harmless::harmless_json;

/// Requests that may wait for the fleet at the same time.
const WAITING_MAX: usize = 32;
/// How long reading the books may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
/// An answer is reused for this long.
const FRESH: Duration = Duration::from_millis(250);

/// The sources of the answers.
#[derive(Clone)]
pub(super) struct View {
    fleet: Fleet,
    readiness: Readiness,
    metrics: MetricsSource,
    waiting: Arc<Semaphore>,
    /// The last numbers of the fleet, and when they were gathered.
    numbers: Arc<Mutex<Option<(Instant, Answer)>>>,
}

/// An answer that can be sent more than once.
type Answer = (StatusCode, Arc<str>);

impl View {
    pub(super) fn new(member: &Member) -> View {
        View {
            fleet: member.fleet().clone(),
            readiness: member.readiness(),
            metrics: member.metrics(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            numbers: Arc::default(),
        }
    }
}

/// All paths, behind the [`Access`].
pub(super) fn router(view: View, access: Access) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/gather_stats", get(gather_stats))
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .fallback(unknown)
        .method_not_allowed_fallback(only_get)
        .layer(middleware::from_fn_with_state(access, at_the_door))
        .with_state(view)
}

/// The process runs, whatever Redis does.
async fn livez() -> &'static str {
    "ok\n"
}

/// This process takes part in its fleet.
async fn readyz(State(view): State<View>) -> Response {
    match view.readiness.problem() {
        None => "ok\n".into_response(),
        Some(problem) => unavailable(problem),
    }
}

/// The fleet is asked once at a time. Requests that wait meanwhile get the same answer.
async fn gather_stats(State(view): State<View>) -> Response {
    let Ok(_one) = view.waiting.try_acquire() else { return unavailable(BUSY) };
    let mut numbers = view.numbers.lock().await;
    let (code, text) = match &*numbers {
        Some((when, answer)) if when.elapsed() < FRESH => answer.clone(),
        _ => {
            let answer = document(view.fleet.gather_stats().await, unnamed);
            numbers.insert((Instant::now(), answer)).1.clone()
        }
    };
    drop(numbers);
    answer_with(code, &text)
}

/// The numbers for Prometheus. They are served whatever Redis does.
async fn metrics(State(view): State<View>) -> Response {
    let Ok(_one) = view.waiting.try_acquire() else { return unavailable(BUSY) };
    let headers = [
        (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, view.metrics.page().await).into_response()
}

async fn status(State(view): State<View>) -> Response {
    let Ok(_one) = view.waiting.try_acquire() else { return unavailable(BUSY) };
    let status = tokio::time::timeout(STATUS_TIMEOUT, view.fleet.status()).await;
    let status = status.unwrap_or(Err(Error::NoAnswer { after: STATUS_TIMEOUT }));
    let (code, text) = document(status, |error| error.to_string());
    answer_with(code, &text)
}

const BUSY: &str = "too many requests wait for the fleet at the moment";

fn document(answer: Result<impl Serialize, Error>, say: fn(&Error) -> String) -> Answer {
    match answer {
        Ok(document) => match serde_json::to_string(&document) {
            Ok(text) => (StatusCode::OK, (harmless_json(&text) + "\n").into()), // people use curl
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, problem(&error.to_string())),
        },
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, problem(&say(&error))),
    }
}

/// The problem without the address of Redis, which the client need not know.
fn unnamed(error: &Error) -> String {
    let known = match error {
        Error::Unreachable { .. } => "cannot reach Redis",
        Error::NoAnswer { .. } => "Redis does not answer",
        Error::Denied { .. } => "Redis denies access",
        _ => "cannot ask the fleet",
    };
    format!("{known}: see the log of this process")
}

fn problem(reason: &str) -> Arc<str> {
    format!("{}\n", json!({ "v": 1, "error": reason })).into()
}

fn unavailable(reason: &str) -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn refuse(code: StatusCode, reason: &str) -> Response {
    answer_with(code, &problem(reason))
}

fn answer_with(code: StatusCode, text: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (code, headers, text.to_owned()).into_response()
}

async fn unknown() -> Response {
    let known = "no such path: try /livez, /readyz, /gather_stats, /metrics or /api/v1/status";
    refuse(StatusCode::NOT_FOUND, known)
}

async fn only_get() -> Response {
    refuse(StatusCode::METHOD_NOT_ALLOWED, "this path can only be read (GET)")
}

async fn at_the_door(State(access): State<Access>, request: Request, next: Next) -> Response {
    match access.lets(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((code, why)) => refuse(code, why),
    }
}
