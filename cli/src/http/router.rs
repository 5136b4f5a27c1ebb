//! Which path is answered how.

use std::sync::Arc;
use std::time::Duration;

use artel::{Address, Error, Fleet, Readiness, Redis, Status};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::exit::{Failure, USAGE};
use crate::settings::Place;

/// Requests that may wait for the fleet at the same time.
const WAITING_MAX: usize = 32;
/// How long a look at the books may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
const TOKEN_BYTES_MIN: usize = 16;

/// What whoever asks for more than numbers must know.
#[derive(Clone)]
pub(crate) struct Token(Arc<str>);

impl Token {
    /// The token of this process, `ARTEL_HTTP_TOKEN`.
    pub(crate) fn of_this_process() -> Result<Option<Token>, Failure> {
        match std::env::var("ARTEL_HTTP_TOKEN").ok().filter(|token| !token.is_empty()) {
            Some(token) if token.len() < TOKEN_BYTES_MIN => {
                let error = format!("ARTEL_HTTP_TOKEN must have at least {TOKEN_BYTES_MIN} bytes");
                Err(Failure::new(USAGE, error).hint("`openssl rand -hex 16` makes a good one"))
            }
            token => Ok(token.map(|token| Token(token.into()))),
        }
    }

    /// Does this header carry it? Takes as long for a wrong one as for the right one.
    fn is_in(&self, header: Option<&[u8]>) -> bool {
        let scheme =
            |header: &&[u8]| header.get(..7).is_some_and(|s| s.eq_ignore_ascii_case(b"bearer "));
        let given = header.filter(scheme).map_or(&[][..], |header| &header[7..]);
        let (own, mut differ) = (self.0.as_bytes(), self.0.len() ^ given.len());
        for (at, byte) in own.iter().enumerate() {
            differ |= usize::from(byte ^ given.get(at).copied().unwrap_or(0));
        }
        differ == 0
    }
}

/// What the answers are made from.
#[derive(Clone)]
pub(super) struct View {
    redis: Redis,
    address: Address,
    fleet: String,
    readiness: Readiness,
    waiting: Arc<Semaphore>,
}

impl View {
    pub(super) fn new(place: &Place, fleet: &Fleet) -> View {
        View {
            redis: fleet.redis(),
            address: place.redis.clone(),
            fleet: place.fleet.clone(),
            readiness: fleet.readiness(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

/// All paths; those that need a token only if `api` says with which, if any.
pub(super) fn router(view: View, api: Option<Option<Token>>) -> Router {
    let mut router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/gather_stats", get(gather_stats));
    router = match api {
        Some(token) => router.merge(
            Router::new()
                .route("/api/v1/status", get(status))
                .route_layer(middleware::from_fn_with_state(token, authorized)),
        ),
        None => router.route("/api/v1/{*path}", get(not_served)),
    };
    router.fallback(unknown).method_not_allowed_fallback(only_get).with_state(view)
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

async fn gather_stats(State(view): State<View>) -> Response {
    let Ok(_one) = view.waiting.try_acquire() else { return unavailable(BUSY) };
    document(view.redis.gather_stats().await)
}

async fn status(State(view): State<View>) -> Response {
    let Ok(_one) = view.waiting.try_acquire() else { return unavailable(BUSY) };
    let status = Status::read(&view.address, &view.fleet);
    let status = tokio::time::timeout(STATUS_TIMEOUT, status).await;
    document(status.unwrap_or(Err(Error::NoAnswer { after: STATUS_TIMEOUT })))
}

const BUSY: &str = "too many requests wait for the fleet at the moment";

fn document(answer: Result<impl Serialize, Error>) -> Response {
    match answer {
        Ok(document) => match serde_json::to_string(&document) {
            Ok(text) => answer_with(StatusCode::OK, text + "\n"),
            Err(error) => unavailable(&error.to_string()),
        },
        Err(error) => unavailable(&error.to_string()),
    }
}

fn unavailable(reason: &str) -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn refuse(code: StatusCode, reason: &str) -> Response {
    answer_with(code, format!("{}\n", json!({ "v": 1, "error": reason })))
}

fn answer_with(code: StatusCode, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (code, headers, text).into_response()
}

async fn unknown() -> Response {
    let known = "no such path: try /livez, /readyz, /gather_stats or /api/v1/status";
    refuse(StatusCode::NOT_FOUND, known)
}

async fn not_served() -> Response {
    let why = "this is not served off loopback without a token: set ARTEL_HTTP_TOKEN";
    refuse(StatusCode::FORBIDDEN, why)
}

async fn only_get() -> Response {
    refuse(StatusCode::METHOD_NOT_ALLOWED, "this path can only be read (GET)")
}

/// Lets through whoever knows the token; without one, everybody on this machine.
async fn authorized(State(token): State<Option<Token>>, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    match token {
        Some(token) if !token.is_in(header) => {
            refuse(StatusCode::UNAUTHORIZED, "send the header `Authorization: Bearer <token>`")
        }
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_let_through() {
        let token = Token("0123456789abcdef".into());
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef")));
        assert!(token.is_in(Some(b"bearer 0123456789abcdef")));
        for wrong in ["", "Bearer ", "Bearer 0123456789abcdeX", "0123456789abcdef"] {
            assert!(!token.is_in(Some(wrong.as_bytes())), "{wrong:?}");
        }
        for wrong in ["Bearer 0123456789abcdef0", "Bearer 0123456789abcde"] {
            assert!(!token.is_in(Some(wrong.as_bytes())), "{wrong:?}");
        }
        assert!(!token.is_in(None));
    }
}
