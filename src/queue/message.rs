//! Messages, their ids, and the envelope they travel in.
//!
//! **Invariant:** an envelope is readable in `redis-cli`, carries its own version, and gives back
//! exactly the payload that went in. Without headers it costs at most 56 bytes beside the payload.
//!
//! ```text
//! <version><lane letter><flags>|<id>|<attempt>|<ms>|<payload>
//! 1g-|1794710083943807-12|1|1794710083950|hello
//! ```

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::term::Term;

const VERSION: u8 = b'1';
/// Flag: `<length>:<headers JSON>` stands before the payload.
const HEADERS: u8 = b'h';

/// The lanes in which messages wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Lane {
    /// Messages of the generator, fenced by its term.
    Generated,
}

impl Lane {
    pub(crate) fn letter(self) -> char {
        match self {
            Lane::Generated => 'g',
        }
    }
}

/// A message's name: `<term>-<seq>`, with `seq` dense within a term. It stays the same over all
/// attempts, so it serves as an idempotency key for effects outside Redis.
#[derive(Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// The id as it stands in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The term under which the message was generated.
    pub fn term(&self) -> Option<Term> {
        Term::parse(self.0.split_once('-')?.0)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A message that is still to be added.
///
/// ```
/// # use artel::NewMessage;
/// let text = NewMessage::from("hello");
/// let json = NewMessage::json(&serde_json::json!({"order": 7}))?;
/// assert_eq!(json.payload(), br#"{"order":7}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewMessage {
    payload: Vec<u8>,
}

impl NewMessage {
    /// A message whose payload is this value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<NewMessage, serde_json::Error> {
        Ok(NewMessage { payload: serde_json::to_vec(value)? })
    }

    /// What it will carry.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Writes its envelope into `buffer`, over whatever was there: one buffer serves a whole push.
    pub(crate) fn envelope(
        &self,
        buffer: &mut Vec<u8>,
        lane: Lane,
        id: impl fmt::Display,
        ms: u64,
    ) {
        buffer.clear();
        // Writing to a vector cannot fail.
        let _ = write!(buffer, "{}{}-|{id}|1|{ms}|", VERSION as char, lane.letter());
        buffer.extend_from_slice(&self.payload);
    }
}

impl From<Vec<u8>> for NewMessage {
    fn from(payload: Vec<u8>) -> NewMessage {
        NewMessage { payload }
    }
}

impl From<String> for NewMessage {
    fn from(text: String) -> NewMessage {
        NewMessage { payload: text.into_bytes() }
    }
}

impl From<&str> for NewMessage {
    fn from(text: &str) -> NewMessage {
        NewMessage { payload: text.as_bytes().to_vec() }
    }
}

/// A message a worker has claimed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) generated_ms: u64,
    pub(crate) payload: Vec<u8>,
}

impl Message {
    /// Its name, the same over all attempts.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// 1 for the first time it is handed out, more if workers died while they held it.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When it was added, in milliseconds of Redis time.
    pub fn generated_ms(&self) -> u64 {
        self.generated_ms
    }

    /// What it carries.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What it carries, without copying it.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// What it carries, as text; invalid UTF-8 is replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.payload)
    }

    /// What it carries, read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// Reads an envelope; gives it back if it is not one of ours.
    pub(crate) fn parse(mut envelope: Vec<u8>) -> Result<Message, Vec<u8>> {
        match Message::head(&envelope) {
            Some((mut message, start)) => {
                envelope.drain(..start);
                message.payload = envelope;
                Ok(message)
            }
            None => Err(envelope),
        }
    }

    /// Everything but the payload, and where that begins.
    fn head(envelope: &[u8]) -> Option<(Message, usize)> {
        let (head, rest) = split(envelope)?;
        let &[VERSION, _lane, flags] = head else { return None };
        let (id, rest) = split(rest)?;
        let (attempt, rest) = split(rest)?;
        let (ms, mut rest) = split(rest)?;
        if flags == HEADERS {
            let colon = rest.iter().position(|&byte| byte == b':')?;
            let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
            rest = rest.get(colon + 1 + length..)?;
        }
        let message = Message {
            id: MessageId(std::str::from_utf8(id).ok()?.into()),
            attempt: std::str::from_utf8(attempt).ok()?.parse().ok()?,
            generated_ms: std::str::from_utf8(ms).ok()?.parse().ok()?,
            payload: Vec::new(),
        };
        Some((message, envelope.len() - rest.len()))
    }

    /// Stands in for an envelope that could not be read, so that it can be failed and kept.
    pub(crate) fn unreadable(envelope: Vec<u8>) -> Message {
        let id = MessageId("unreadable".into());
        Message { id, attempt: 1, generated_ms: 0, payload: envelope }
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
        MessageId("1794710083943807-12".into())
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
            assert_eq!(message.generated_ms(), 1794710083950);
        }
    }

    #[test]
    fn an_envelope_is_readable_and_small() {
        let envelope = envelope(b"hello");
        assert_eq!(envelope, b"1g-|1794710083943807-12|1|1794710083950|hello");
        assert!(envelope.len() - 5 <= 45);
    }

    #[test]
    fn headers_of_a_later_version_are_skipped() {
        let message =
            Message::parse(b"1gh|5-1|2|9|12:{\"kind\":\"x\"}body".to_vec()).expect("ours");
        assert_eq!((message.payload(), message.attempt()), (&b"body"[..], 2));
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        for bytes in [&b""[..], b"hello", b"2g-|5-1|1|9|x", b"1g-|5-1|one|9|x", b"1gh|5-1|1|9|99:x"]
        {
            assert_eq!(Message::parse(bytes.to_vec()), Err(bytes.to_vec()));
        }
    }

    #[test]
    fn a_generated_id_tells_its_term() {
        assert_eq!(id().term().map(Term::get), Some(1794710083943807));
    }
}
