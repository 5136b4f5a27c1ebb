//! [`ReplyLimit`]: measures the reply that is being read.
//!
//! **Invariant:** no reply has more than [`REPLY_BYTES_MAX`] bytes or [`ITEMS_MAX`] items, and a reply
//! that announces more is refused before they are read. No bytes of a reply are kept here.

use std::io;

/// The largest reply that we ask for has a few MiB.
pub(super) const REPLY_BYTES_MAX: u64 = 64 << 20;
const ITEMS_MAX: u64 = 1 << 20;
/// How deep lists may be nested.
const DEPTH_MAX: usize = 32;

/// Follows the structure of the protocol, not its meaning.
#[derive(Debug, Default)]
pub(super) struct ReplyLimit {
    /// The bytes and items of the current reply so far.
    bytes: u64,
    items: u64,
    /// The open lists, each with the number of items still to come.
    open: Vec<Open>,
    state: State,
    /// The reply has just ended.
    whole: bool,
}

#[derive(Debug)]
struct Open {
    left: u64,
    /// An attribute: the value that it describes follows.
    is_attribute: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Start,
    /// A line that is a value by itself. `returned`: its `\r` was read.
    Line { returned: bool },
    /// A line that says how many bytes or items follow, as far as it was read.
    Head { kind: u8, many: Option<u64>, none: bool, returned: bool },
    /// `left` bytes follow, including the end of the line.
    Body { left: u64 },
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the reply is refused: {reason}"))
}

impl ReplyLimit {
    /// Counts the bytes that were read.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let used = self.step(bytes)?;
            // A long string was refused when it was announced. This bounds everything else.
            self.bytes += used as u64;
            if self.bytes > REPLY_BYTES_MAX {
                return Err(too_large());
            }
            bytes = &bytes[used..];
            if std::mem::take(&mut self.whole) {
                (self.bytes, self.items) = (0, 0);
            }
        }
        Ok(())
    }

    /// Reads the bytes of one step. Returns how many they are.
    fn step(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let first = bytes[0];
        match &mut self.state {
            State::Start => {
                self.state = match first {
                    b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {
                        State::Line { returned: false }
                    }
                    b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                        State::Head { kind: first, many: None, none: false, returned: false }
                    }
                    _ => return Err(foreign()),
                };
                Ok(1)
            }
            State::Line { returned } => {
                let end = bytes.iter().position(|&byte| byte == b'\n');
                let last = match end {
                    Some(0) => *returned,
                    Some(end) => bytes[end - 1] == b'\r',
                    None => bytes.last() == Some(&b'\r'),
                };
                match end {
                    // The client waits for `\r\n`.
                    Some(_) if !last => return Err(foreign()),
                    Some(_) => self.item_read(),
                    None => *returned = last,
                }
                Ok(end.map_or(bytes.len(), |end| end + 1))
            }
            State::Head { .. } => self.head(first).map(|()| 1),
            State::Body { left } => {
                let used = (*left).min(bytes.len() as u64);
                *left -= used;
                if *left == 0 {
                    self.item_read();
                }
                Ok(used as usize)
            }
        }
    }

    /// Reads one byte of a line that says how many bytes or items follow.
    fn head(&mut self, byte: u8) -> io::Result<()> {
        let State::Head { kind, many, none, returned } = &mut self.state else { return Ok(()) };
        match (byte, *returned) {
            (b'\n', true) => {
                let (kind, many, none) = (*kind, *many, *none);
                self.announced(kind, many, none)?;
            }
            (b'\r', false) => *returned = true,
            (b'-', false) if many.is_none() && !*none => *none = true,
            (b'0'..=b'9', false) => {
                let more = many.unwrap_or(0).checked_mul(10);
                let more = more.and_then(|more| more.checked_add((byte - b'0').into()));
                *many = Some(more.ok_or_else(too_large)?);
            }
            _ => return Err(foreign()),
        }
        Ok(())
    }

    /// A line has announced how many bytes or items follow. A minus means nil.
    fn announced(&mut self, kind: u8, many: Option<u64>, none: bool) -> io::Result<()> {
        let many = match (many, none) {
            (Some(1), true) => {
                self.item_read();
                return Ok(());
            }
            (Some(many), false) => many,
            _ => return Err(foreign()),
        };
        if matches!(kind, b'$' | b'=' | b'!') {
            if self.bytes.saturating_add(many) > REPLY_BYTES_MAX {
                return Err(too_large());
            }
            self.state = State::Body { left: many + 2 };
            return Ok(());
        }
        let many = if matches!(kind, b'%' | b'|') { many.saturating_mul(2) } else { many };
        self.items = self.items.saturating_add(many);
        if self.items > ITEMS_MAX || self.open.len() >= DEPTH_MAX {
            return Err(refused("it has too many items"));
        }
        self.state = State::Start;
        let is_attribute = kind == b'|';
        match (many, is_attribute) {
            (0, false) => self.item_read(),
            (0, true) => {}
            _ => self.open.push(Open { left: many, is_attribute }),
        }
        Ok(())
    }

    /// An item is complete, and perhaps the lists that end with it.
    fn item_read(&mut self) {
        self.state = State::Start;
        while let Some(last) = self.open.last_mut() {
            last.left -= 1;
            if last.left > 0 {
                return;
            }
            let is_attribute = last.is_attribute;
            self.open.pop();
            if is_attribute {
                return; // the reply itself is still to come
            }
        }
        self.whole = true;
    }
}

fn foreign() -> io::Error {
    refused("it is not a reply of Redis")
}

fn too_large() -> io::Error {
    refused(&format!("it has more than {} MiB", REPLY_BYTES_MAX >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the text in pieces of several sizes.
    fn read(text: &str) -> io::Result<()> {
        for size in [1, 2, 3, 7, text.len().max(1)] {
            let mut limit = ReplyLimit::default();
            text.as_bytes().chunks(size).try_for_each(|piece| limit.read(piece))?;
            assert!(limit.open.is_empty() && limit.bytes == 0, "{text:?} is whole: {limit:?}");
        }
        Ok(())
    }

    #[test]
    fn what_redis_says_is_followed_to_its_end() {
        for text in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":5\r\n$-1\r\n*-1\r\n_\r\n",
            "$5\r\na\r\nbc\r\n",
            "$0\r\n\r\n*0\r\n%0\r\n",
            "*2\r\n*1\r\n:1\r\n$3\r\n$$$\r\n+next\r\n",
            "%1\r\n$5\r\nproto\r\n:3\r\n>3\r\n+a\r\n+b\r\n~1\r\n,1.5\r\n",
            "|1\r\n+ttl\r\n:9\r\n*1\r\n+x\r\n",
            "=7\r\ntxt:abc\r\n!5\r\nERR x\r\n#t\r\n(12345678901234567890\r\n",
        ] {
            read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        }
    }

    #[test]
    fn what_is_too_large_is_refused_when_it_is_announced() {
        for text in [
            "$400000000\r\n".to_owned(),
            "$18446744073709551615\r\n".to_owned(),
            "*400000000\r\n".to_owned(),
            "%18446744073709551615\r\n".to_owned(),
            "*1000000\r\n*1000000\r\n".to_owned(),
            "*1\r\n".repeat(DEPTH_MAX + 1),
            format!("*{}", "1".repeat(1000)),
            "HTTP/1.1 400 Bad Request\r\n".to_owned(),
            "$?\r\n".to_owned(),
            "+a\n".to_owned(),
            "$3\nabc\r\n".to_owned(),
            "|1\r\n+k\r\n$60000000\r\n".to_owned()
                + &"x".repeat(60_000_000)
                + "\r\n|1\r\n+k\r\n$60000000\r\n",
        ] {
            assert!(ReplyLimit::default().read(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_reply_that_never_ends_is_refused() {
        let mut limit = ReplyLimit::default();
        let piece = vec![b'x'; 1 << 20];
        limit.read(b"+").expect("a line");
        let refused = (0..100).map(|_| limit.read(&piece)).any(|read| read.is_err());
        assert!(refused);
        // Many large replies, one after the other, are allowed.
        let mut limit = ReplyLimit::default();
        for _ in 0..100 {
            limit.read(b"$1048576\r\n").expect("a head");
            limit.read(&piece).expect("a body");
            limit.read(b"\r\n").expect("its end");
        }
    }
}
