//! Messages, their ids, and the envelope they travel in.
//!
//! **Invariant:** an envelope is readable in `redis-cli`, carries its own version, and gives back
//! exactly the payload that went in. Without headers it costs at most 56 bytes beside the payload.
//!
//! ```text
//! <version><lane letter><flags>|<id>|<attempt>|<ms>|[<length>:<headers JSON>]<payload>
//! 1g-|1794710083943807-12|1|1794710083950|hello
//! 1hh|s5f0c2d9a1b3e4f60-1|1|1794710083950|16:{"kind":"order"}hello
//! ```

use std::fmt;
use std::io::Write;
use std::time::SystemTime;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::id::MessageId;
use crate::json_time::at_ms;
use crate::lane::Lane;

const VERSION: u8 = b'1';
/// Flag: `<length>:<headers JSON>` stands before the payload.
const HEADERS: u8 = b'h';
/// The most bytes of one header.
const HEADER_BYTES_MAX: usize = 200;

/// The headers of a message. Fields of later versions are ignored.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Headers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
}

/// A message that is not added yet.
///
/// ```
/// # use artel::NewMessage;
/// let text = NewMessage::from("hello");
/// let json = NewMessage::json(&serde_json::json!({"order": 7}))?.with_kind("order");
/// assert_eq!(json.payload(), br#"{"order":7}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewMessage {
    payload: Vec<u8>,
    headers: Option<Box<Headers>>,
}

impl NewMessage {
    fn new(payload: Vec<u8>) -> NewMessage {
        NewMessage { payload, headers: None }
    }

    /// A message whose payload is this value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<NewMessage, serde_json::Error> {
        serde_json::to_vec(value).map(NewMessage::new)
    }

    /// Sets its kind. A member can have a handler for each kind.
    pub fn with_kind(mut self, kind: impl Into<String>) -> NewMessage {
        self.headers.get_or_insert_default().kind = Some(kind.into());
        self
    }

    /// Sets the W3C trace context of its maker.
    pub fn with_traceparent(mut self, traceparent: impl Into<String>) -> NewMessage {
        self.headers.get_or_insert_default().traceparent = Some(traceparent.into());
        self
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Refuses a payload that is too large, and headers that are not allowed.
    pub(crate) fn check(&self, payload_bytes_max: usize) -> Result<(), Error> {
        if self.payload.len() > payload_bytes_max {
            return Err(Error::PayloadTooLarge {
                bytes: self.payload.len(),
                max: payload_bytes_max,
            });
        }
        let Some(headers) = &self.headers else { return Ok(()) };
        for (field, value) in [("kind", &headers.kind), ("traceparent", &headers.traceparent)] {
            let odd = |value: &String| {
                value.len() > HEADER_BYTES_MAX || value.chars().any(char::is_control)
            };
            if value.as_ref().is_some_and(odd) {
                let problem =
                    format!("must have at most {HEADER_BYTES_MAX} bytes and no control characters");
                return Err(Error::Config { field, problem });
            }
        }
        Ok(())
    }

    /// Writes its envelope into `buffer`, in place of the old content: one buffer serves a whole push.
    pub(crate) fn envelope(
        &self,
        buffer: &mut Vec<u8>,
        lane: Lane,
        id: impl fmt::Display,
        ms: u64,
    ) {
        buffer.clear();
        NewMessage::head(buffer, lane, self.has_headers(), id, ms);
        if self.has_headers() {
            self.write_headers(buffer);
        }
        buffer.extend_from_slice(&self.payload);
    }

    /// Writes the head of an envelope or of a pack.
    pub(crate) fn head(
        buffer: &mut Vec<u8>,
        lane: Lane,
        headers: bool,
        id: impl fmt::Display,
        ms: u64,
    ) {
        let flags = if headers { HEADERS as char } else { '-' };
        // Writing to a vector cannot fail.
        let _ = write!(buffer, "{}{}{flags}|{id}|1|{ms}|", VERSION as char, lane.letter());
    }

    pub(crate) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    /// Writes its headers, with their length before them.
    pub(crate) fn write_headers(&self, buffer: &mut Vec<u8>) {
        let json = self.headers.as_deref().and_then(|headers| serde_json::to_vec(headers).ok());
        let json = json.unwrap_or_else(|| b"{}".to_vec());
        let _ = write!(buffer, "{}:", json.len());
        buffer.extend_from_slice(&json);
    }
}

impl From<Vec<u8>> for NewMessage {
    fn from(payload: Vec<u8>) -> NewMessage {
        NewMessage::new(payload)
    }
}

impl From<String> for NewMessage {
    fn from(text: String) -> NewMessage {
        NewMessage::new(text.into_bytes())
    }
}

impl From<&str> for NewMessage {
    fn from(text: &str) -> NewMessage {
        NewMessage::new(text.as_bytes().to_vec())
    }
}

/// A message a worker has claimed.
///
/// ```
/// use artel::{NewMessage, testing};
///
/// #[derive(serde::Deserialize)]
/// struct Order { number: u32 }
///
/// let message = testing::message(NewMessage::from(r#"{"number":7}"#).with_kind("order"));
/// assert_eq!((message.kind(), message.attempt()), (Some("order"), 1));
/// assert_eq!(message.json::<Order>()?.number, 7);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) generated_ms: u64,
    pub(crate) payload: Bytes,
    lane: Lane,
    headers: Option<Box<Headers>>,
}

impl Message {
    /// Its id, the same over all attempts.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// 1 for the first attempt, more if workers died while they held it.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When it was added, Redis time.
    pub fn generated_at(&self) -> SystemTime {
        at_ms(self.generated_ms)
    }

    /// The lane it was added to.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Its kind, if its maker set one.
    pub fn kind(&self) -> Option<&str> {
        self.headers.as_deref()?.kind.as_deref()
    }

    /// The W3C trace context of its maker, if it was set.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.as_deref()?.traceparent.as_deref()
    }

    /// The id under which it failed before, if it was put back to work.
    pub fn origin(&self) -> Option<&str> {
        self.headers.as_deref()?.origin.as_deref()
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Its payload, as bytes of its own.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload.into()
    }

    /// Its payload as text. Invalid UTF-8 is replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.payload)
    }

    /// Its payload, read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// Reads an envelope. Gives it back if it is not one of ours.
    pub(crate) fn parse(envelope: Vec<u8>) -> Result<Message, Vec<u8>> {
        let Some((head, start)) = Head::read(&envelope) else { return Err(envelope) };
        let envelope = Bytes::from(envelope);
        head.message(head.id.clone(), envelope.slice(start..)).map_err(|_| envelope.into())
    }

    /// Reads the head of a pack of this many messages: what they share, and where they begin.
    pub(crate) fn pack_head(text: &[u8], count: usize) -> Option<(Head, usize)> {
        let is_whole = |head: &Head| head.attempt == 1 && head.id.has_following(count as u64);
        Head::read(text).filter(|(head, _)| is_whole(head))
    }

    /// A new message as a worker would get it, made without Redis.
    pub(crate) fn received(new: NewMessage, lane: Lane) -> Message {
        let NewMessage { payload, headers } = new;
        Message {
            id: MessageId::sent("test", 1),
            attempt: 1,
            generated_ms: 0,
            payload: payload.into(),
            lane,
            headers,
        }
    }

    /// Stands in for an envelope that could not be read, so that it can be failed and kept.
    pub(crate) fn unreadable(envelope: impl Into<Bytes>) -> Message {
        let (id, payload) = (MessageId::unreadable(), envelope.into());
        let lane = Lane::Normal;
        Message { id, attempt: 1, generated_ms: 0, payload, lane, headers: None }
    }
}

/// What stands before the body of an envelope, or before the bodies of a pack.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: MessageId,
    attempt: u32,
    generated_ms: u64,
    lane: Lane,
    has_headers: bool,
}

impl Head {
    /// Reads it, and where the body begins.
    fn read(text: &[u8]) -> Option<(Head, usize)> {
        let (head, rest) = split(text)?;
        let &[VERSION, lane, flags] = head else { return None };
        let (id, rest) = split(rest)?;
        let (attempt, rest) = split(rest)?;
        let (ms, rest) = split(rest)?;
        let head = Head {
            id: MessageId::from_redis(std::str::from_utf8(id).ok()?)?,
            attempt: std::str::from_utf8(attempt).ok()?.parse().ok()?,
            generated_ms: std::str::from_utf8(ms).ok()?.parse().ok()?,
            lane: Lane::of_letter(lane)?,
            has_headers: flags == HEADERS,
        };
        Some((head, text.len() - rest.len()))
    }

    /// The same head, which shares nothing with this one.
    pub(crate) fn apart(&self) -> Head {
        Head { id: self.id.apart(), ..*self }
    }

    /// The message `count` places behind the first one of a pack, with this body. Gives the body back if it is not one
    /// of ours.
    pub(crate) fn following(&self, count: u64, body: Bytes) -> Result<Message, Bytes> {
        self.message(self.id.following(count), body)
    }

    fn message(&self, id: MessageId, body: Bytes) -> Result<Message, Bytes> {
        let Head { attempt, generated_ms, lane, .. } = *self;
        let (headers, payload) = match self.has_headers {
            false => (None, body),
            true => match split_headers(&body) {
                Some((headers, start)) => (headers, body.slice(start..)),
                None => return Err(body),
            },
        };
        Ok(Message { id, attempt, generated_ms, payload, lane, headers })
    }
}

/// The headers at the beginning of a body, and where the payload begins.
fn split_headers(body: &[u8]) -> Option<(Option<Box<Headers>>, usize)> {
    let colon = body.iter().position(|&byte| byte == b':')?;
    let length: usize = std::str::from_utf8(&body[..colon]).ok()?.parse().ok()?;
    let (json, payload) = body[colon + 1..].split_at_checked(length)?;
    Some((serde_json::from_slice(json).ok(), body.len() - payload.len()))
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let bar = bytes.iter().position(|&byte| byte == b'|')?;
    Some((&bytes[..bar], &bytes[bar + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> MessageId {
        MessageId::from_redis("1794710083943807-12").expect("an id")
    }

    fn envelope(payload: &[u8]) -> Vec<u8> {
        let mut buffer = b"what was there before".to_vec();
        NewMessage::from(payload.to_vec()).envelope(
            &mut buffer,
            Lane::Generated,
            id(),
            1794710083950,
        );
        buffer
    }

    #[test]
    fn an_envelope_gives_back_what_went_in() {
        for payload in [&b""[..], b"hello", b"a|b|c", b"\xff\x00|\n"] {
            let message = Message::parse(envelope(payload)).expect("ours");
            assert_eq!(message.payload(), payload);
            assert_eq!(message.id(), &id());
            assert_eq!(message.attempt(), 1);
            assert_eq!(message.generated_at(), at_ms(1794710083950));
        }
    }

    #[test]
    fn an_envelope_is_readable_and_small() {
        let envelope = envelope(b"hello");
        assert_eq!(envelope, b"1g-|1794710083943807-12|1|1794710083950|hello");
        assert!(envelope.len() - 5 <= 45);
    }

    #[test]
    fn headers_travel_beside_the_payload() {
        let mut buffer = Vec::new();
        let new = NewMessage::from("hello").with_kind("order").with_traceparent("00-1-2-01");
        new.envelope(&mut buffer, Lane::High, "s5f-1", 9);
        let message = Message::parse(buffer).expect("ours");
        assert_eq!((message.text().as_ref(), message.lane()), ("hello", Lane::High));
        assert_eq!((message.kind(), message.traceparent()), (Some("order"), Some("00-1-2-01")));
        assert_eq!((message.origin(), message.id().term()), (None, None));
    }

    #[test]
    fn headers_of_a_later_version_are_skipped() {
        let message = Message::parse(b"1gh|5-1|2|9|20:{\"kind\":\"x\",\"new\":1}body".to_vec())
            .expect("ours");
        assert_eq!((message.payload(), message.attempt()), (&b"body"[..], 2));
        assert_eq!(message.kind(), Some("x"));
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        for bytes in [
            &b""[..],
            b"hello",
            b"2g-|5-1|1|9|x",
            b"1g-|5-1|one|9|x",
            b"1gh|5-1|1|9|99:x",
            b"1z-|5-1|1|9|x",
        ] {
            assert_eq!(Message::parse(bytes.to_vec()), Err(bytes.to_vec()));
        }
    }

    #[test]
    fn a_generated_id_tells_its_term() {
        assert_eq!(id().term().map(crate::term::Term::get), Some(1794710083943807));
    }
}
