//! The JSON API: what the page shows and does, and what programs in other languages ask for and send.
//!
//! **Invariant:** every operation is in `openapi.json`. What many may ask for at once is asked of the fleet once. A change is
//! made in the name of who asked for it, and the common log says who that was. No request may wait for ever.

mod about; // this process, its hub, and what endangers the promise
mod act; // orders, events
mod ask; // what a request asks for
mod bounded; // lists in a body
mod errors; // failed messages
mod jobs; // messages that wait for a time, and periodic entries
mod lists; // messages that wait or are claimed
mod live; // what changes, as it happens
mod log; // the common log
mod send; // adding messages
mod shown; // a payload, as much of it as is shown
mod takings; // failed messages that somebody is about to get
mod trends; // the last minutes

use std::sync::Arc;
use std::time::Duration;

use artel::Fleet;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::answer::{Fresh, Problem};
use super::source::Source;
use live::Live;
use takings::Takings;
use trends::Trends;

/// The largest body of a request.
const BODY_BYTES_MAX: usize = 16 << 20;
/// How long a request may take.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Requests that may wait for a fleet at the same time.
const WAITING_MAX: usize = 32;
/// Requests that may search at the same time, beside those.
const SEARCHES_MAX: usize = 8;
/// Exports that may be under way at the same time.
const EXPORTS_MAX: usize = 4;
/// The largest body of a request that sends no messages.
const SMALL_BODY_BYTES_MAX: usize = 256 << 10;
/// Pages that may be open at the same time.
const STREAMS_MAX: usize = 64;

/// One fleet that is served.
pub(super) struct Served {
    pub(super) fleet: Fleet,
    live: Live,
    trends: Trends,
    takings: Takings,
    stats: Fresh,
    findings: Fresh,
}

impl Served {
    fn new(fleet: Fleet, over: &CancellationToken) -> Served {
        Served {
            live: Live::new(fleet.clone(), over.clone()),
            trends: Trends::start(fleet.clone(), over.clone()),
            takings: Takings::default(),
            stats: Fresh::new(Duration::from_secs(1)),
            findings: Fresh::new(Duration::from_secs(10)),
            fleet,
        }
    }
}

/// Everything that is served.
#[derive(Clone)]
pub(super) struct Api {
    fleets: Arc<[Served]>,
    source: Source,
    waiting: Arc<Semaphore>,
    searches: Arc<Semaphore>,
    exports: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Api {
    pub(super) fn new(source: Source, over: &CancellationToken) -> Api {
        Api {
            fleets: source.fleets.iter().map(|fleet| Served::new(fleet.clone(), over)).collect(),
            source,
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }
}

/// All operations.
pub(super) fn router(api: Api) -> Router {
    let reading = Router::new()
        .route("/about", get(about::about))
        .route("/openapi.json", get(about::openapi))
        .route("/status", get(about::status))
        .route("/stats", get(about::stats))
        .route("/trends", get(trends::trends))
        .route("/findings", get(about::findings))
        .route("/hub", get(about::hub))
        .route("/log", get(log::log))
        .route("/messages", get(lists::messages).post(send::send))
        .route("/messages/{id}", get(lists::message))
        .route("/messages/{id}/payload", get(lists::payload))
        .route("/errors", get(errors::list))
        .route("/errors/count", get(errors::count))
        .route("/errors/export", get(errors::export))
        .route("/errors/{position}/payload", get(errors::payload))
        .route("/scheduled", get(jobs::scheduled))
        .route("/scheduled/{id}/payload", get(jobs::payload))
        .route("/crons", get(jobs::crons))
        .route("/events", get(act::events))
        .route("/locks", get(act::locks));
    let changing = Router::new()
        .route("/errors/requeue", post(errors::requeue))
        .route("/errors/drop", post(errors::drop_them))
        .route("/errors/take", post(takings::take))
        .route("/errors/takings/{taking}/confirm", post(takings::confirm))
        .route("/errors/takings/{taking}/release", post(takings::release))
        .route("/scheduled/{id}/{act}", post(jobs::alter))
        .route("/crons/{name}/{act}", post(jobs::cron))
        .route("/events/{name}/{act}", post(act::event))
        .route("/step-down", post(act::step_down))
        .route("/pause", post(act::pause))
        .route("/resume", post(act::resume))
        .route("/lanes/{lane}/{act}", post(act::lane))
        .route("/members/{member}/{act}", post(act::member))
        .layer(DefaultBodyLimit::max(SMALL_BODY_BYTES_MAX));
    let asked = reading.merge(changing).layer(middleware::from_fn_with_state(api.clone(), in_time));
    // A stream lasts as long as somebody listens.
    asked
        .route("/stream", get(live::stream))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}

/// Bounds how many requests wait for a fleet, and for how long.
async fn in_time(
    axum::extract::State(api): axum::extract::State<Api>,
    request: Request,
    next: Next,
) -> Response {
    // Who searches takes nobody's place who only looks.
    let path = request.uri().path();
    let lists = ["/errors", "/messages", "/scheduled", "/log"];
    let searches =
        *request.method() == Method::GET && lists.iter().any(|list| path.starts_with(list));
    let places = if searches { &api.searches } else { &api.waiting };
    let Ok(_one) = places.try_acquire() else {
        let busy = "too many requests wait for the fleet at the moment";
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
    };
    let answered = tokio::time::timeout(TIME_MAX, next.run(request)).await;
    let mut answer = answered.unwrap_or_else(|_| {
        let late =
            format!("no answer within {} s: a change may have been made", TIME_MAX.as_secs());
        Problem::new(StatusCode::GATEWAY_TIMEOUT, late).into_response()
    });
    // Some refusals come from the framework, as plain text.
    let is_plain = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| {
        kind.as_bytes().starts_with(b"text/plain") && answer.status().is_client_error()
    });
    if is_plain {
        let code = answer.status();
        let why = code.canonical_reason().unwrap_or("refused").to_lowercase();
        answer = Problem::new(code, why).into_response();
    }
    answer
}
