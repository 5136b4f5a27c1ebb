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

use std::ops::Range;

use bytes::Bytes;

use crate::id::MessageId;
use crate::lane::Lane;
use crate::message::{Head, HeaderFlag, Message, NewMessage};
use crate::store::Call;

/// From this many messages, or this many bytes, on a pack costs less than single messages.
const MESSAGES_MIN: usize = 64;
const BYTES_MIN: usize = 16 << 10;
/// A pack must not be larger: a script may have to lay it open in one call.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 1 << 20;

/// Messages with consecutive ids, `<name>-<first>` and so on.
pub(super) struct Numbered<'a> {
    pub(super) messages: &'a [NewMessage],
    pub(super) lane: Lane,
    pub(super) name: &'a str,
    pub(super) first: u64,
    /// When they were made, Redis time.
    pub(super) ms: u64,
}

/// Does a batch with this many messages and bytes of payload travel as a pack?
pub(super) fn is_packed(messages: usize, bytes: usize) -> bool {
    let enough = messages >= MESSAGES_MIN || bytes >= BYTES_MIN;
    // One message is never too large.
    enough && (messages == 1 || (messages <= MESSAGES_MAX && bytes <= BYTES_MAX))
}

impl Numbered<'_> {
    /// Adds them to a call of `push` or `send`: as a pack in this stage, if there is one and they are enough; else as
    /// envelopes.
    pub(super) fn add_to(&self, mut call: Call, stage: Option<String>) -> Call {
        let bytes = self.messages.iter().map(|message| message.payload().len()).sum();
        if let Some(stage) = stage.filter(|_| is_packed(self.messages.len(), bytes)) {
            let (pack, bytes) = self.pack();
            return call.arg(self.messages.len()).arg(bytes).arg(self.ms).staging(stage, pack);
        }
        call = call.arg(0).arg(0).arg(0);
        let mut envelope = Vec::new();
        for (seq, message) in (self.first..).zip(self.messages) {
            let id = format_args!("{}-{seq}", self.name);
            message.envelope(&mut envelope, self.lane, id, self.ms);
            call.push_arg(&envelope[..]);
        }
        call
    }

    /// The pack, and the bytes of all its bodies.
    fn pack(&self) -> (Vec<u8>, usize) {
        let has_headers = self.messages.iter().any(NewMessage::has_headers);
        let flag = if has_headers { HeaderFlag::Headers } else { HeaderFlag::Bare };
        let id = format_args!("{}-{}", self.name, self.first);
        let (mut text, mut headers, mut bytes) = (Vec::new(), Vec::new(), 0);
        NewMessage::head(&mut text, self.lane, flag, id, self.ms);
        for message in self.messages {
            headers.clear();
            if has_headers {
                message.write_headers(&mut headers, self.ms);
            }
            let length = headers.len() + message.payload().len();
            bytes += length;
            write_length(&mut text, length);
            text.extend_from_slice(&headers);
            text.extend_from_slice(message.payload());
        }
        (text, bytes)
    }
}

/// Writes `<length>:`. There is one for each message, and the formatter of the standard library takes three times as long.
fn write_length(text: &mut Vec<u8>, mut length: usize) {
    let (mut digits, mut first) = ([0; 20], 20);
    loop {
        first -= 1;
        digits[first] = b'0' + (length % 10) as u8;
        length /= 10;
        if length == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
    text.push(b':');
}

/// Where a message stands in its pack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The offset of its `<length>:`.
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// A pack that a worker has claimed. Its messages are read one by one, when they are asked for.
#[derive(Debug)]
pub(super) struct Pack {
    head: Head,
    text: Bytes,
    places: Vec<Place>,
}

impl Pack {
    /// Reads a pack of exactly this many messages. `None` if it is anything else.
    pub(super) fn read(text: Vec<u8>, count: usize) -> Option<Pack> {
        if count > MESSAGES_MAX {
            return None;
        }
        let (head, mut at) = Message::pack_head(&text, count)?;
        let mut places = Vec::with_capacity(count);
        for _ in 0..count {
            let place = Place { offset: u32::try_from(at).ok()?, ..Place::read(&text[at..])? };
            at = place.body()?.end;
            if at > text.len() {
                return None;
            }
            places.push(place);
        }
        (at == text.len()).then(|| Pack { head, text: text.into(), places })
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The id of its first message.
    pub(super) fn first(&self) -> &MessageId {
        &self.head.id
    }

    pub(super) fn place(&self, index: usize) -> Place {
        self.places[index]
    }

    /// The message at this index. The error is its body, if that cannot be read.
    pub(super) fn message(&self, index: usize) -> Result<Message, Bytes> {
        self.read_from(&self.head, &self.text, index)
    }

    fn read_from(&self, head: &Head, text: &Bytes, index: usize) -> Result<Message, Bytes> {
        let body = self.places[index].body().unwrap_or(0..0);
        head.following(index as u64, text.slice(body))
    }
}

/// Reads messages of a pack for one slot. What they share is counted apart from what the messages of another slot share: two
/// threads that count references in one place wait for each other, several times per message.
#[derive(Debug)]
pub(super) struct Reader {
    head: Head,
    text: Bytes,
}

impl Reader {
    pub(super) fn new(pack: &Pack) -> Reader {
        Reader { head: pack.head.apart(), text: Bytes::from_owner(pack.text.clone()) }
    }

    /// The message at this index of its pack, as [`Pack::message`].
    pub(super) fn message(&self, pack: &Pack, index: usize) -> Result<Message, Bytes> {
        pack.read_from(&self.head, &self.text, index)
    }
}

impl Place {
    /// Reads the `<length>:` at the beginning of this text.
    fn read(text: &[u8]) -> Option<Place> {
        let mut length: u32 = 0;
        for (digits, &byte) in text.iter().enumerate().take(10) {
            match byte {
                b'0'..=b'9' if digits < 9 => length = length * 10 + u32::from(byte - b'0'),
                // A length with a zero before it is not one of ours.
                b':' if digits == digits_of(length) => return Some(Place { offset: 0, length }),
                _ => return None,
            }
        }
        None
    }

    /// Where the body stands in its pack: behind `<length>:`.
    fn body(self) -> Option<Range<usize>> {
        let begin = (self.offset as usize).checked_add(digits_of(self.length) + 1)?;
        Some(begin..begin.checked_add(self.length as usize)?)
    }
}

fn digits_of(length: u32) -> usize {
    length.checked_ilog10().map_or(1, |power| power as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(messages: &[NewMessage]) -> Vec<u8> {
        Numbered { messages, lane: Lane::Low, name: "s5f", first: 7, ms: 9 }.pack().0
    }

    fn round_trip(messages: &[NewMessage]) -> Vec<Message> {
        let pack = Pack::read(pack(messages), messages.len()).expect("whole");
        assert_eq!((pack.first().as_str(), pack.len()), ("s5f-7", messages.len()));
        (0..pack.len()).map(|index| pack.message(index).expect("readable")).collect()
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
        let text = pack(&messages);
        let pack = Pack::read(text.clone(), 64).expect("whole");
        for n in 0..64 {
            let place = pack.place(n);
            let text = &text[place.offset as usize..];
            assert!(text.starts_with(format!("{}:", n * 3).as_bytes()));
            assert_eq!(place.length as usize, n * 3);
        }
    }

    #[test]
    fn a_torn_pack_gives_back_nothing() {
        let messages = vec![NewMessage::from("hello"); 64];
        let text = pack(&messages);
        assert!(Pack::read(text.clone(), 64).is_some());
        for count in [0, 63, 65] {
            assert!(Pack::read(text.clone(), count).is_none(), "{count}");
        }
        for end in 0..text.len() {
            assert!(Pack::read(text[..end].to_vec(), 64).is_none(), "{end}");
        }
        for odd in [
            "",
            "1",
            "1l-|s5f-7|2|9|1:x",
            "1l-|s5f|1|9|1:x",
            "1l-|s5f-7|1|9|-1:x",
            "1l-|s5f-7|1|9|99999999999:x",
            "1l-|s5f-7|1|9|01:x",
            "1l-|s5f-7|1|9|:x",
            "1l-|s5f-18446744073709551615|1|9|1:x",
        ] {
            assert!(Pack::read(odd.into(), 1).is_none(), "{odd}");
        }
    }

    #[test]
    fn lengths_are_written_as_everybody_would() {
        for length in [0, 1, 9, 10, 99, 100, 1_048_576, usize::MAX] {
            let mut text = Vec::new();
            write_length(&mut text, length);
            assert_eq!(text, format!("{length}:").into_bytes());
        }
    }

    #[test]
    fn small_batches_are_not_packed() {
        assert!(!is_packed(63, 6300) && is_packed(64, 0) && is_packed(1000, 100_000));
        assert!(!is_packed(1001, 1001) && !is_packed(2, 2 << 20));
        assert!(!is_packed(1, BYTES_MIN - 1) && is_packed(1, BYTES_MIN) && is_packed(1, 3 << 20));
    }
}
