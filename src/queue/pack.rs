//! Packs: many messages under one head, as one string that no script looks into.
//!
//! **Invariant:** a pack gives back exactly the messages that went in, in their order, with numbers that go up by one.
//! A text that is not a whole pack gives back none.
//!
//! ```text
//! <version><lane letter><flags>|<first id>|1|<ms>|<length>:<body><length>:<body>…
//! 1g-|1794710083943807-12|1|1794710083950|5:hello5:world
//! ```
//!
//! With the flag for headers every body begins with its headers, `<length>:<headers JSON>`, also if it has none (`2:{}`).

use std::fmt;
use std::io::Write;

use bytes::Bytes;

use super::message::{Lane, Message, NewMessage};
use crate::id::MessageId;
use crate::store::Call;

/// From this many messages, or this many bytes, on a pack costs less than single messages.
const MESSAGES_MIN: usize = 64;
const BYTES_MIN: usize = 16 << 10;
/// A pack must not be larger: a script may have to lay it open in one call.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 1 << 20;

/// A batch as it is staged.
pub(super) struct Pack {
    pub(super) text: Vec<u8>,
    /// Bytes of all bodies.
    pub(super) bytes: usize,
}

/// The batch as a pack, if that is what it should travel as. The first message has this id, the others follow.
pub(super) fn pack(
    messages: &[NewMessage],
    lane: Lane,
    first: impl fmt::Display,
    ms: u64,
) -> Option<Pack> {
    let bytes: usize = messages.iter().map(|message| message.payload().len()).sum();
    let (many, few) = (messages.len(), messages.len() == 1 || bytes <= BYTES_MAX);
    if (many < MESSAGES_MIN && bytes < BYTES_MIN) || many > MESSAGES_MAX || !few {
        return None;
    }
    let headers = messages.iter().any(NewMessage::has_headers);
    let mut text = Vec::with_capacity(bytes + 64 + many * 8);
    NewMessage::head(&mut text, lane, headers, first, ms);
    let (mut own, mut bytes) = (Vec::new(), 0);
    for message in messages {
        own.clear();
        if headers {
            message.write_headers(&mut own);
        }
        let length = own.len() + message.payload().len();
        bytes += length;
        // Writing to a vector cannot fail.
        let _ = write!(text, "{length}:");
        text.extend_from_slice(&own);
        text.extend_from_slice(message.payload());
    }
    Some(Pack { text, bytes })
}

/// Adds a batch to a call of `push` or `send`, as a pack if it is large enough, else as envelopes.
pub(super) fn add_messages(
    call: Call,
    stage: String,
    messages: &[NewMessage],
    lane: Lane,
    first: u64,
    id: impl Fn(u64) -> String,
    ms: u64,
) -> Call {
    match pack(messages, lane, id(first), ms) {
        Some(Pack { text, bytes }) => {
            call.arg(messages.len()).arg(bytes).arg(ms).staging(stage, text)
        }
        None => add_envelopes(call.arg(0).arg(0).arg(0), messages, lane, first, id, ms),
    }
}

/// Adds a batch to a call as envelopes.
pub(super) fn add_envelopes(
    mut call: Call,
    messages: &[NewMessage],
    lane: Lane,
    first: u64,
    id: impl Fn(u64) -> String,
    ms: u64,
) -> Call {
    let mut envelope = Vec::new();
    for (seq, message) in (first..).zip(messages) {
        message.envelope(&mut envelope, lane, id(seq), ms);
        call.push_arg(&envelope[..]);
    }
    call
}

/// Where a message stands in its pack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The offset of its `<length>:`.
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The first id of a pack, and its messages: each with its place, or its bytes if its body cannot be read.
pub(super) type Unpacked = (MessageId, Vec<(Place, Result<Message, Bytes>)>);

/// Reads a pack of exactly this many messages. `None` if it is anything else.
pub(super) fn unpack(text: Vec<u8>, count: usize) -> Option<Unpacked> {
    if count > MESSAGES_MAX {
        return None;
    }
    let text = Bytes::from(text);
    let (first, mut at) = Message::pack_head(&text)?;
    let mut messages = Vec::with_capacity(count);
    for index in 0..count {
        let digits = text[at..].iter().position(|&byte| byte == b':').filter(|&end| end < 10)?;
        let length: u32 = std::str::from_utf8(&text[at..at + digits]).ok()?.parse().ok()?;
        let begin = at + digits + 1;
        let end = begin.checked_add(length as usize).filter(|&end| end <= text.len())?;
        let place = Place { offset: u32::try_from(at).ok()?, length };
        messages.push((place, first.following(index as u64, text.slice(begin..end))));
        at = end;
    }
    (at == text.len()).then_some((first.id, messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(messages: &[NewMessage]) -> Vec<Message> {
        let pack = pack(messages, Lane::Low, "s5f-7", 9).expect("large enough");
        let (first, read) = unpack(pack.text, messages.len()).expect("whole");
        assert_eq!(first.as_str(), "s5f-7");
        read.into_iter().map(|(_, message)| message.expect("readable")).collect()
    }

    #[test]
    fn a_pack_gives_back_what_went_in() {
        let mut messages: Vec<NewMessage> =
            (0..100).map(|n| NewMessage::from(vec![b':'; n % 7])).collect();
        for headers in [false, true] {
            if headers {
                messages[3] = NewMessage::from("3:x").with_kind("order");
            }
            let read = round_trip(&messages);
            assert_eq!(read.len(), 100);
            for (n, (message, new)) in read.iter().zip(&messages).enumerate() {
                assert_eq!(message.payload(), new.payload());
                assert_eq!(message.id().as_str(), format!("s5f-{}", n + 7));
                assert_eq!((message.lane(), message.attempt()), (Lane::Low, 1));
                assert_eq!(message.kind(), (headers && n == 3).then_some("order"));
            }
        }
    }

    #[test]
    fn places_lead_to_their_messages() {
        let messages: Vec<NewMessage> =
            (0..64).map(|n| NewMessage::from("x".repeat(n * 3))).collect();
        let text = pack(&messages, Lane::Low, "s5f-7", 9).expect("large enough").text;
        for (n, (place, _)) in unpack(text.clone(), 64).expect("whole").1.into_iter().enumerate() {
            let text = &text[place.offset as usize..];
            assert!(text.starts_with(format!("{}:", n * 3).as_bytes()));
            assert_eq!(place.length as usize, n * 3);
        }
    }

    #[test]
    fn a_torn_pack_gives_back_nothing() {
        let messages = vec![NewMessage::from("hello"); 64];
        let text = pack(&messages, Lane::Low, "s5f-7", 9).expect("large enough").text;
        assert!(unpack(text.clone(), 64).is_some());
        for count in [0, 63, 65] {
            assert!(unpack(text.clone(), count).is_none(), "{count}");
        }
        for end in 0..text.len() {
            assert!(unpack(text[..end].to_vec(), 64).is_none(), "{end}");
        }
        for odd in [
            "",
            "1",
            "1l-|s5f-7|2|9|1:x",
            "1l-|s5f|1|9|1:x",
            "1l-|s5f-7|1|9|-1:x",
            "1l-|s5f-7|1|9|99999999999:x",
        ] {
            assert!(unpack(odd.into(), 1).is_none(), "{odd}");
        }
    }

    #[test]
    fn small_batches_are_not_packed() {
        let is_packed = |count, bytes| {
            pack(&vec![NewMessage::from(vec![0; bytes]); count], Lane::Low, "s5f-7", 9).is_some()
        };
        assert!(
            !is_packed(63, 100) && is_packed(64, 0) && is_packed(1000, 100) && !is_packed(1001, 1)
        );
        assert!(!is_packed(1, BYTES_MIN - 1) && is_packed(1, BYTES_MIN) && is_packed(1, 3 << 20));
        assert!(!is_packed(2, 1 << 20));
    }
}
