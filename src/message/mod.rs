//! Messages, their ids, and the envelope they travel in.
//!
//! **Invariant:** an envelope is readable in `redis-cli`, carries its own version, and gives back
//! exactly the payload that went in. Without headers it costs at most 56 bytes beside the payload.
//!
//! ```text
//! <version><lane letter><flag>|<id>|<tries>|<ms>|[<length>:<headers JSON>]<payload>
//! 1g-|1794710083943807-12|1|1794710083950|hello
//! 1hh|s5f0c2d9a1b3e4f60-1|3.2.0|1794710083950|16:{"kind":"order"}hello
//! ```
//!
//! The second one is in its third run, after two retries.

mod headers;
mod new;
mod tries;

use std::time::SystemTime;

use bytes::Bytes;
use serde::de::DeserializeOwned;

pub(crate) use headers::{HeaderFlag, RETRIES_MAX};
use headers::{Headers, split_headers};
pub(crate) use new::AHEAD_MAX;
pub use new::NewMessage;
pub(crate) use tries::Tries;

use crate::id::MessageId;
use crate::json_time::at_ms;
use crate::lane::Lane;

const VERSION: u8 = b'1';

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
    pub(crate) tries: Tries,
    pub(crate) generated_ms: u64,
    pub(crate) payload: Bytes,
    lane: Lane,
    flag: HeaderFlag,
    headers: Option<Box<Headers>>,
}

impl Message {
    /// Its id, the same over all attempts.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// 1 for the first attempt; more if it was retried or snoozed, or if workers died while they held it.
    pub fn attempt(&self) -> u32 {
        self.tries.runs
    }

    /// How often it was retried before this attempt.
    pub fn retry(&self) -> u32 {
        self.tries.retries
    }

    /// How often a member that got it had no handler for its kind.
    pub(crate) fn waits(&self) -> u32 {
        self.tries.waits
    }

    /// How often it was snoozed before this attempt.
    pub fn snoozed(&self) -> u32 {
        self.tries.snoozes
    }

    /// How often it may be retried, if its maker said so.
    pub(crate) fn retries_max(&self) -> Option<u32> {
        self.headers.as_deref()?.retries
    }

    /// When it is no longer worth a run, Redis ms.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        self.headers.as_deref()?.expires
    }

    /// Does its end mean something to others, so that its outcome must be named?
    pub(crate) fn has_duties(&self) -> bool {
        self.flag == HeaderFlag::Duties
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
        let is_whole = |head: &Head| {
            head.tries == Tries::FIRST
                && head.flag != HeaderFlag::Duties
                && head.id.has_following(count as u64)
        };
        Head::read(text).filter(|(head, _)| is_whole(head))
    }

    /// A new message as a worker would get it, made without Redis.
    pub(crate) fn received(new: NewMessage, lane: Lane) -> Message {
        let (payload, headers) = new.into_parts();
        Message {
            id: MessageId::sent("test", 1),
            tries: Tries::FIRST,
            generated_ms: 0,
            payload: payload.into(),
            lane,
            flag: headers.as_deref().map_or(HeaderFlag::Bare, Headers::flag),
            headers,
        }
    }

    /// Stands in for an envelope that could not be read, so that it can be failed and kept.
    pub(crate) fn unreadable(envelope: impl Into<Bytes>) -> Message {
        let (id, payload) = (MessageId::unreadable(), envelope.into());
        let (tries, lane, flag) = (Tries::FIRST, Lane::Normal, HeaderFlag::Bare);
        Message { id, tries, generated_ms: 0, payload, lane, flag, headers: None }
    }
}

/// What stands before the body of an envelope, or before the bodies of a pack.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: MessageId,
    tries: Tries,
    generated_ms: u64,
    lane: Lane,
    flag: HeaderFlag,
}

impl Head {
    /// Reads it, and where the body begins.
    fn read(text: &[u8]) -> Option<(Head, usize)> {
        let (head, rest) = split(text)?;
        let &[VERSION, lane, flag] = head else { return None };
        let (id, rest) = split(rest)?;
        let (tries, rest) = split(rest)?;
        let (ms, rest) = split(rest)?;
        let head = Head {
            id: MessageId::from_redis(std::str::from_utf8(id).ok()?)?,
            tries: Tries::read(tries)?,
            generated_ms: std::str::from_utf8(ms).ok()?.parse().ok()?,
            lane: Lane::of_letter(lane)?,
            flag: HeaderFlag::read(flag)?,
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
        let Head { tries, generated_ms, lane, flag, .. } = *self;
        let (headers, payload) = match flag {
            HeaderFlag::Bare => (None, body),
            HeaderFlag::Headers | HeaderFlag::Duties => match split_headers(&body) {
                Some((headers, start)) => (headers, body.slice(start..)),
                None => return Err(body),
            },
        };
        Ok(Message { id, tries, generated_ms, payload, lane, flag, headers })
    }
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
            b"1gx|5-1|1|9|x",
            b"1g-|5-1|1.2|9|x",
        ] {
            assert_eq!(Message::parse(bytes.to_vec()), Err(bytes.to_vec()));
        }
    }

    #[test]
    fn a_generated_id_tells_its_term() {
        assert_eq!(id().term().map(crate::term::Term::get), Some(1794710083943807));
    }
}
