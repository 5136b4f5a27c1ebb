//! [`Switchboard`]: passes on what arrives without being asked for.
//!
//! **Invariant:** it never waits and never loses the news that the connection is gone. A message
//! reaches everybody who listens on its line before the next one is read; hints only hurry things.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::Keys;

/// Hints that wait to be heard; more are dropped, nothing depends on them.
const HINTS_MAX: usize = 1024;

/// What the session hears.
#[derive(Debug, PartialEq)]
pub(crate) enum Hint {
    /// A message on one of its channels.
    Message(String),
    /// The connection is gone, and with it our presence.
    Lost,
}

/// Somebody who listens on one line.
pub(crate) trait Listener: Send + Sync {
    /// Called on the thread that reads the connection: must not block.
    fn hear(&self, text: &str);
}

/// The lines of one connection: one per channel, or, on a member's own channel, one per lock.
pub(crate) struct Switchboard {
    hints: Sender<Hint>,
    /// The channels of the session: the fleet's, and how those of members begin.
    own: [String; 2],
    lines: Mutex<HashMap<String, Weak<dyn Listener>>>,
}

impl Switchboard {
    pub(super) fn new(keys: &Keys) -> (Arc<Switchboard>, Receiver<Hint>) {
        let (hints, heard) = mpsc::channel(HINTS_MAX);
        let own = [keys.ctl(), keys.alive()];
        (Arc::new(Switchboard { hints, own, lines: Mutex::default() }), heard)
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, Weak<dyn Listener>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `listener` hears what comes on this line, and nobody else.
    pub(crate) fn plug(&self, line: String, listener: Weak<dyn Listener>) {
        self.lines().insert(line, listener);
    }

    /// Nobody hears that line any more, if whoever did is gone.
    pub(crate) fn unplug(&self, line: &str) {
        let mut lines = self.lines();
        if lines.get(line).is_some_and(|listener| listener.strong_count() == 0) {
            lines.remove(line);
        }
    }

    /// Passes one push on; `ended` is told when it says that the connection is gone.
    pub(super) fn connect(&self, push: PushInfo, ended: impl FnOnce()) {
        match push.kind {
            PushKind::Disconnection => {
                ended();
                let _ = self.hints.try_send(Hint::Lost);
            }
            PushKind::SMessage => {
                let [Value::BulkString(channel), Value::BulkString(text), ..] = &push.data[..]
                else {
                    return;
                };
                let (channel, text) =
                    (String::from_utf8_lossy(channel), String::from_utf8_lossy(text));
                let line = if text.starts_with(LOCK) { &text } else { &channel };
                let listener = self.lines().get(&**line).and_then(Weak::upgrade);
                match listener {
                    Some(listener) => listener.hear(&text),
                    // Too many to be heard: what they hurry happens a little later.
                    None if *channel == *self.own[0] || channel.starts_with(&self.own[1]) => {
                        drop(self.hints.try_send(Hint::Message(text.into_owned())));
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }
}

/// How a message to a member begins that a lock it waits for is free; the lock's name follows.
pub(crate) const LOCK: &str = "lock|";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Listener for Heard {
        fn hear(&self, text: &str) {
            self.0.lock().expect("never poisoned").push(text.to_owned());
        }
    }

    fn message(channel: &str, text: &str) -> PushInfo {
        let data = [channel, text].map(|part| Value::BulkString(part.as_bytes().to_vec()));
        PushInfo { kind: PushKind::SMessage, data: data.to_vec() }
    }

    #[test]
    fn a_message_reaches_its_line_and_what_nobody_listens_to_is_a_hint() {
        let (board, mut hints) = Switchboard::new(&Keys::new("f", 0));
        let heard = Arc::new(Heard::default());
        let listener: Weak<dyn Listener> = Arc::downgrade(&(heard.clone() as Arc<dyn Listener>));
        board.plug("event".to_owned(), listener.clone());
        board.plug("lock|a|b".to_owned(), listener);
        for (channel, text) in [
            ("event", "7"),
            ("artel:{f}:@0:alive:me", "lock|a|b"),
            ("artel:{f}:@0:event:of-before", "lead|x|9"),
            ("artel:{f}:@1:ctl", "free|y"),
            ("artel:{f}:@0:ctl", "free|x"),
        ] {
            board.connect(message(channel, text), || panic!("nothing ended"));
        }
        assert_eq!(*heard.0.lock().expect("never poisoned"), ["7", "lock|a|b"]);
        assert_eq!(hints.try_recv(), Ok(Hint::Message("free|x".to_owned())));
        board.unplug("event");
        assert_eq!(board.lines().len(), 2, "somebody listens");
        drop(heard);
        board.unplug("event");
        assert_eq!(board.lines().len(), 1);
    }

    #[test]
    fn the_end_of_the_connection_is_told_even_when_nobody_hears_hints() {
        let (board, hints) = Switchboard::new(&Keys::new("f", 0));
        drop(hints);
        let mut ended = false;
        board.connect(PushInfo { kind: PushKind::Disconnection, data: vec![] }, || ended = true);
        assert!(ended);
    }
}
