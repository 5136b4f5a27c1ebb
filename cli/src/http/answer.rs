//! Answers: a document, or what is wrong and what to try.
//!
//! **Invariant:** no answer names the address of Redis, a path or a secret, none is stored on its way, and what comes from
//! outside is harmless in a terminal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use artel::Error;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Mutex;

use crate::exit::Failure;
use crate::harmless::harmless_json;

/// What did not happen, why, and what to try.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) code: StatusCode,
    error: String,
    hint: Option<String>,
}

impl Problem {
    pub(super) fn new(code: StatusCode, error: impl Into<String>) -> Problem {
        Problem { code, error: error.into(), hint: None }
    }

    /// The request is wrong.
    pub(super) fn bad(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, error)
    }

    /// What it is about does not exist, or no longer.
    pub(super) fn missing(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, error)
    }

    /// Something stands against it.
    pub(super) fn conflict(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, error)
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn text(&self) -> String {
        let document = match &self.hint {
            Some(hint) => json!({ "v": 1, "error": self.error, "hint": hint }),
            None => json!({ "v": 1, "error": self.error }),
        };
        harmless_json(&document.to_string()) + "\n"
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let code = match &error {
            Error::Config { .. } => StatusCode::BAD_REQUEST,
            Error::PayloadTooLarge { .. } | Error::BatchTooLarge { .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = match &error {
            Error::Config { .. }
            | Error::PayloadTooLarge { .. }
            | Error::BatchTooLarge { .. }
            | Error::Full { .. }
            | Error::Unreplicated { .. }
            | Error::Forgotten { .. }
            | Error::SlotMoving { .. }
            | Error::InDoubt { .. } => Problem::new(code, error.to_string()),
            error => Problem::new(code, unnamed(error)),
        };
        match &error {
            Error::Full { .. } => problem.hint("repeat the request later: nothing was added"),
            Error::Forgotten { .. } => problem.hint("repeat the request: nothing of it was added"),
            Error::InDoubt { under_key: true, .. } => {
                problem.hint("repeat the request under the same Idempotency-Key")
            }
            Error::InDoubt { .. } | Error::Unreplicated { .. } => {
                problem.hint("with the header Idempotency-Key such a request can be repeated")
            }
            _ => problem,
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        let problem = Problem::bad(failure.error);
        Problem { hint: failure.hint, ..problem }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        answer_with(self.code, self.text())
    }
}

/// The problem without the address of Redis, which the client need not know.
pub(super) fn unnamed(error: &Error) -> String {
    let known = match error {
        Error::Unreachable { .. } => "cannot reach Redis",
        Error::NoAnswer { .. } => "Redis does not answer",
        Error::Denied { .. } => "Redis denies access",
        Error::Protocol { .. } => "the fleet runs with another protocol",
        _ => "cannot ask the fleet",
    };
    format!("{known}: see the log of this process")
}

/// A document as an answer.
pub(super) fn document(document: &impl Serialize) -> Response {
    Answer::of(Ok(document)).into_response()
}

pub(super) fn answer_with(code: StatusCode, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (code, headers, text).into_response()
}

/// An answer that can be sent more than once.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    code: StatusCode,
    text: Arc<str>,
}

impl Answer {
    pub(super) fn of(answer: Result<impl Serialize, Problem>) -> Answer {
        let (code, text) = match answer {
            Ok(document) => match serde_json::to_string(&document) {
                Ok(text) => (StatusCode::OK, harmless_json(&text) + "\n"), // people use curl
                Err(error) => {
                    let problem =
                        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
                    (problem.code, problem.text())
                }
            },
            Err(problem) => (problem.code, problem.text()),
        };
        Answer { code, text: text.into() }
    }

    /// The document; `None` if it is a problem.
    pub(super) fn document(&self) -> Option<&Arc<str>> {
        (self.code == StatusCode::OK).then_some(&self.text)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        answer_with(self.code, self.text.as_ref().to_owned())
    }
}

/// An answer that is asked for once at a time, and that is reused while it is fresh.
#[derive(Debug)]
pub(super) struct Fresh {
    time: Duration,
    last: Mutex<Option<(Instant, Answer)>>,
}

impl Fresh {
    pub(super) fn new(time: Duration) -> Fresh {
        Fresh { time, last: Mutex::default() }
    }

    /// The answer. Those who ask meanwhile get the same one.
    pub(super) async fn get(&self, ask: impl Future<Output = Answer>) -> Answer {
        let mut last = self.last.lock().await;
        match &*last {
            Some((when, answer)) if when.elapsed() < self.time => answer.clone(),
            _ => last.insert((Instant::now(), ask.await)).1.clone(),
        }
    }
}
