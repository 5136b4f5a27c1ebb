//! [`ErrorRecord`]: a failed message as it is kept.
//!
//! **Invariant:** a record is stored as the message's envelope and a reason. Readers get the documented
//! JSON. Fields of later versions are ignored.

use std::time::SystemTime;

use base64::Engine;
use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::id::{MemberId, MessageId};
use crate::json_time::{at_ms, since_1970_ms};
use crate::message::Message;
use crate::store::{Reply, StoreError};

/// A failed message as it is kept.
///
/// Serialized it is the documented record: `v`, `id`, `payload` (or `payload_b64` if it is not
/// UTF-8), `reason`, `cause`, `member`, `label`, `attempt`, `generated_ms`, `failed_ms`, and, where
/// there is one, `kind` and `origin`.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// use artel::{Cause, Cursor};
///
/// let page = fleet.errors().page(&mut Cursor::default(), 10).await?;
/// let record = &page[0];
/// assert_eq!((record.cause, record.reason.as_str()), (Cause::Handler, "no such customer"));
/// assert_eq!(record.payload, b"order 7");
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The message's id.
    pub id: MessageId,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Why it failed, in words.
    pub reason: String,
    /// Why it failed.
    pub cause: Cause,
    /// The session that held it, if it is known.
    pub member: Option<MemberId>,
    /// That member's label.
    pub label: String,
    /// The attempt that failed.
    pub attempt: u32,
    /// When it was added, Redis time.
    pub generated_at: SystemTime,
    /// When it failed, Redis time.
    pub failed_at: SystemTime,
    /// Its kind, if its maker set one.
    pub kind: Option<String>,
    /// The id under which it had failed before, if it was put back to work.
    pub origin: Option<MessageId>,
    /// Where it is stored.
    pub(super) position: String,
}

impl ErrorRecord {
    /// About how many bytes it has in Redis.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len() + self.reason.len()
    }

    /// Where it is stored. A page can go on after it.
    pub fn position(&self) -> &str {
        &self.position
    }
}

impl Serialize for ErrorRecord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (payload, payload_b64) = match std::str::from_utf8(&self.payload) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(base64::prelude::BASE64_STANDARD.encode(&self.payload))),
        };
        #[derive(Serialize)]
        struct Record<'a> {
            v: u8,
            id: &'a MessageId,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload_b64: Option<String>,
            reason: &'a str,
            cause: Cause,
            member: &'a str,
            label: &'a str,
            attempt: u32,
            generated_ms: u64,
            failed_ms: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            kind: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            origin: Option<&'a MessageId>,
        }
        Record {
            v: 1,
            id: &self.id,
            payload,
            payload_b64,
            reason: &self.reason,
            cause: self.cause,
            member: self.member.as_ref().map_or("", MemberId::as_str),
            label: &self.label,
            attempt: self.attempt,
            generated_ms: since_1970_ms(self.generated_at),
            failed_ms: since_1970_ms(self.failed_at),
            kind: self.kind.as_deref(),
            origin: self.origin.as_ref(),
        }
        .serialize(serializer)
    }
}

/// What is stored beside the envelope. Unknown fields of later versions are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    cause: Option<Cause>,
    reason: String,
    member: String,
    label: String,
}

pub(crate) fn record(entry: Reply) -> Result<ErrorRecord, StoreError> {
    let mut entry = entry.into_list()?.into_iter();
    let mut part = || entry.next().ok_or_else(|| StoreError::odd("a record that is too short"));
    let (position, fields) = (part()?.into_text()?, part()?.into_pairs()?);
    record_of(position, fields)
}

/// A record at this position with these fields.
pub(crate) fn record_of(
    position: String,
    fields: Vec<(String, Reply)>,
) -> Result<ErrorRecord, StoreError> {
    let (mut envelope, mut info, mut failed_ms) = (Vec::new(), Info::default(), None);
    for (name, value) in fields {
        match name.as_str() {
            "m" => envelope = value.into_bytes()?,
            "e" => info = serde_json::from_slice(&value.into_bytes()?).unwrap_or_default(),
            "t" => failed_ms = value.into_text()?.parse().ok(),
            _ => {}
        }
    }
    let message = Message::parse(envelope).unwrap_or_else(Message::unreadable);
    let stored_ms = position.split('-').next().and_then(|ms| ms.parse().ok());
    Ok(ErrorRecord {
        id: message.id().clone(),
        attempt: message.attempt(),
        generated_at: message.generated_at(),
        kind: message.kind().map(str::to_owned),
        origin: message.origin().and_then(MessageId::from_redis),
        payload: message.into_payload(),
        reason: info.reason,
        cause: info.cause.unwrap_or(Cause::Handler),
        member: MemberId::from_redis(&info.member),
        label: info.label,
        failed_at: at_ms(failed_ms.or(stored_ms).unwrap_or(0)),
        position,
    })
}
