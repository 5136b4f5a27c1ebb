//! Adding messages, from any language.
//!
//! **Invariant:** a request adds all of its messages or none. Under an `Idempotency-Key` it adds them once, however often and
//! to whichever process it is sent.

use std::time::{Duration, UNIX_EPOCH};

use artel::{Lane, NewMessage, Sender};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::super::answer::{Problem, document};
use super::act::note;
use super::ask::{Ask, Body};
use super::bounded::Bounded;

/// The header that names a request.
const KEY: &str = "idempotency-key";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    /// `normal`, unless another one is named.
    lane: Option<String>,
    messages: Bounded<Message, { Sender::BATCH_MAX }>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    /// A text as it is; anything else as JSON, as it is written.
    payload: Option<Box<RawValue>>,
    /// Bytes that are no text.
    payload_b64: Option<String>,
    kind: Option<String>,
    retries: Option<u32>,
    in_ms: Option<u64>,
    at_ms: Option<u64>,
    expires_ms: Option<u64>,
}

impl Message {
    fn read(self) -> Result<NewMessage, String> {
        let mut message = match (self.payload, self.payload_b64) {
            (Some(json), None) => match serde_json::from_str::<String>(json.get()) {
                Ok(text) => NewMessage::from(text),
                Err(_) => NewMessage::from(json.get()),
            },
            (None, Some(text)) => {
                let bytes = base64::prelude::BASE64_STANDARD.decode(text);
                NewMessage::from(bytes.map_err(|_| "`payload_b64` is no Base64")?)
            }
            _ => return Err("either `payload` or `payload_b64` must be given".to_owned()),
        };
        message = match (self.in_ms, self.at_ms) {
            (None, None) => message,
            (Some(ms), None) => message.after(Duration::from_millis(ms)),
            (None, Some(ms)) => {
                let at = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
                message.at(at.ok_or("`at_ms` is no time")?)
            }
            _ => return Err("`in_ms` and `at_ms` cannot be used together".to_owned()),
        };
        if let Some(kind) = self.kind {
            message = message.with_kind(kind);
        }
        if let Some(retries) = self.retries {
            message = message.retries(retries);
        }
        if let Some(ms) = self.expires_ms {
            message = message.expires_in(Duration::from_millis(ms));
        }
        Ok(message)
    }
}

pub(super) async fn send(
    headers: HeaderMap,
    ask: Ask,
    Body(batch): Body<Batch>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let key = match headers.get(KEY).map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) if !key.is_empty() => Some(key),
        Some(_) => return Err(Problem::bad("the header Idempotency-Key must be a text")),
    };
    if batch.messages.items.is_empty() {
        return Err(Problem::bad("there is no message in `messages`"));
    }
    if batch.messages.is_too_long() {
        let (count, most) = (batch.messages.count, Sender::BATCH_MAX);
        let error = format!("a batch of {count} messages is too large: at most {most} at once");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error));
    }
    let lane: Lane = batch.lane.as_deref().map_or(Ok(Lane::Normal), str::parse)?;
    let mut messages = Vec::with_capacity(batch.messages.items.len());
    for (number, message) in batch.messages.items.into_iter().enumerate() {
        let wrong = |why| Problem::bad(format!("message {}: {why}", number + 1));
        messages.push(message.read().map_err(wrong)?);
    }
    let (fleet, sender) = (ask.acting(), ask.fleet().sender().lane(lane));
    let ids = match key {
        Some(key) => sender.send_all_once(key, &messages).await.map_err(|error| match error {
            // The key was used for something else.
            artel::Error::Config { field: "key", problem } => {
                let what = format!("the Idempotency-Key {problem}");
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what)
            }
            error => error.into(),
        })?,
        None => sender.send_all(&messages).await?,
    };
    let ids: Vec<&str> = ids.iter().map(artel::MessageId::as_str).collect();
    // A program sends all the time; a person sends one from the page.
    if ids.len() == 1 && headers.contains_key("sec-fetch-site") {
        note(&fleet, &format!("sent the message {}", ids[0])).await;
    }
    Ok(document(&json!({ "v": 1, "ids": ids })))
}
