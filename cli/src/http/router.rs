//! The answer of each path, behind the [`Access`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use artel::{Fleet, MetricsSource, Readiness};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::Peer;
use super::access::{Access, Known, leaves_a_trace};
use super::answer::{Answer, Fresh, Problem, unnamed};
use super::api::{self, Api};
use super::limits::{Limits, What};
use super::page;
use super::source::Source;

/// Requests that may wait for the fleet at the same time.
const WAITING_MAX: usize = 32;
/// An answer is reused for this long.
const FRESH: Duration = Duration::from_millis(250);

/// The sources of the answers of what has no version.
#[derive(Clone)]
struct View {
    fleet: Fleet,
    readiness: Option<Readiness>,
    metrics: Arc<[MetricsSource]>,
    waiting: Arc<Semaphore>,
    numbers: Arc<Fresh>,
}

impl View {
    fn new(source: &Source) -> View {
        View {
            fleet: source.fleets[0].clone(),
            readiness: source.readiness.clone(),
            metrics: source.metrics.clone(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            numbers: Arc::new(Fresh::new(FRESH)),
        }
    }
}

/// What stands before every path.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) access: Access,
    pub(super) limits: Limits,
    /// What a proxy leaves before every path, such as `/artel`; or nothing.
    pub(super) base: Arc<str>,
}

/// All paths.
pub(super) fn router(source: Source, gate: Gate, over: &CancellationToken) -> Router {
    let view = View::new(&source);
    let numbers = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/gather_stats", get(gather_stats))
        .route("/metrics", get(metrics))
        .with_state(view);
    let paths = numbers
        .nest("/api/v1", api::router(Api::new(source, over)))
        .merge(page::router())
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(gate.clone(), at_the_gate));
    if gate.base.is_empty() {
        return paths;
    }
    // Outside, so that paths are found by what is left of them.
    let base = gate.base;
    Router::new()
        .fallback(move |request: Request| without_base(paths.clone(), base.clone(), request))
}

/// Takes the base off the path of a request.
async fn without_base(mut paths: Router, base: Arc<str>, mut request: Request) -> Response {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let rest =
        path.strip_prefix(&*base).filter(|rest| rest.starts_with(['/', '?']) || rest.is_empty());
    match rest {
        // Relative addresses on the page need the slash.
        Some(rest) if rest.is_empty() || rest.starts_with('?') => {
            let to = [(header::LOCATION, format!("{base}/"))];
            return (StatusCode::PERMANENT_REDIRECT, to).into_response();
        }
        Some(rest) => match rest.parse::<Uri>() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return Problem::bad("this path is wrong").into_response(),
        },
        // Probes come past the proxy.
        None => {}
    }
    match Service::call(&mut paths, request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

/// The process runs, whatever Redis does.
async fn livez() -> &'static str {
    "ok\n"
}

/// This process takes part in its fleet.
async fn readyz(State(view): State<View>) -> Response {
    match view.readiness.and_then(|readiness| readiness.problem()) {
        None => "ok\n".into_response(),
        Some(problem) => unavailable(problem).into_response(),
    }
}

/// The fleet is asked once at a time. Requests that wait meanwhile get the same answer.
async fn gather_stats(State(view): State<View>) -> Result<Answer, Problem> {
    let Ok(_one) = view.waiting.try_acquire() else { return Err(unavailable(BUSY)) };
    let stats = async {
        let stats = view.fleet.gather_stats().await;
        Answer::of(stats.map_err(|error| unavailable(&unnamed(&error))))
    };
    Ok(view.numbers.get(stats).await)
}

/// The numbers for Prometheus. They are served whatever Redis does.
async fn metrics(State(view): State<View>) -> Result<Response, Problem> {
    let Ok(_one) = view.waiting.try_acquire() else { return Err(unavailable(BUSY)) };
    let headers = [
        (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, MetricsSource::pages(&view.metrics).await).into_response())
}

const BUSY: &str = "too many requests wait for the fleet at the moment";

fn unavailable(reason: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

async fn unknown() -> Problem {
    Problem::missing(
        "no such path: try /, /livez, /readyz, /gather_stats, /metrics or /api/v1/openapi.json",
    )
}

async fn other_method(method: Method) -> Problem {
    let what = match method {
        Method::GET | Method::HEAD => "this path changes something: it wants POST",
        _ => "this path can only be read (GET)",
    };
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, what)
}

async fn at_the_gate(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let (now, peer) = (Instant::now(), request.extensions().get::<Peer>().map(|peer| peer.0));
    let slower = |what: &str| {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, what).into_response();
        ([(header::RETRY_AFTER, "1")], problem).into_response()
    };
    // Whoever knows a token is let through, however many others guess from the same address.
    let is_guess = gate.access.knows(request.headers()) == Known::Wrong;
    if is_guess && peer.is_some_and(|peer| !gate.limits.uses(What::WrongToken, peer, now)) {
        return slower("too many wrong tokens: wait a second");
    }
    match gate.access.lets(request.method(), request.uri(), request.headers()) {
        Ok(level) => {
            let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
            let changes = !reads || leaves_a_trace(request.uri().path());
            if changes && peer.is_some_and(|peer| !gate.limits.uses(What::Change, peer, now)) {
                return slower("too many changes from this address: wait a second");
            }
            request.extensions_mut().insert(level);
            next.run(request).await
        }
        Err((code, why)) => {
            let problem = Problem::new(code, why).into_response();
            match code {
                StatusCode::UNAUTHORIZED => {
                    ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response()
                }
                _ => problem,
            }
        }
    }
}
