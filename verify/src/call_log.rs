//! [`CallLog`]: writes into the history of a process every call it makes to Redis, the answer, and
//! how long it trusts its session. It gets these from the log events of the library.

use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::history::{Book, Entry, id_of, now};

/// The target of the log events about calls.
const CALLS: &str = "artel::calls";

/// Receives log events about calls, and writes them into the history.
pub(crate) struct CallLog(pub(crate) Arc<Book>);

/// The fields of one log event.
#[derive(Debug, Default)]
struct Said {
    message: String,
    number: u64,
    until: u64,
    attempt: u64,
    id: String,
    call: String,
    tag: String,
    server: String,
    forgotten: u64,
    /// All fields, for people.
    all: String,
}

impl Visit for Said {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "number" => self.number = value,
            "until" => self.until = value,
            "attempt" => self.attempt = value,
            "forgotten" => self.forgotten = value,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "call" => value.clone_into(&mut self.call),
            "tag" => value.clone_into(&mut self.tag),
            "id" => value.clone_into(&mut self.id),
            "server" => value.clone_into(&mut self.server),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
        let _ = write!(self.all, " {}={value:?}", field.name());
    }
}

impl Subscriber for CallLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == CALLS || *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        if event.metadata().target() != CALLS {
            // Other events do not go to the history. They help to find out why something happened.
            let _ = std::io::stderr().write_all(format!("{}{}\n", now(), said.all).as_bytes());
            return;
        }
        let Said { message, number, until, attempt, id, call, tag, server, forgotten, .. } = said;
        self.0.put(&match message.as_str() {
            "recorded" => match id_of(&id) {
                Some(id) => Entry::Recorded { id, attempt: attempt as u32 },
                None => return,
            },
            "again" => match id_of(&id) {
                Some(id) => Entry::Again { id, attempt: attempt as u32 },
                None => return,
            },
            "called" => Entry::Call { number, call },
            "answered" => Entry::Answer { number, tag },
            "unanswered" => Entry::Unanswered(number),
            "trusted" => Entry::Trusts(until),
            "reached" => Entry::Reached { server, forgotten },
            _ => return,
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_says_of_its_calls_is_written_down() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m1.1.history");
        let book = Arc::new(Book::open(&path).expect("a file"));
        tracing::subscriber::with_default(CallLog(book), || {
            tracing::trace!(target: "artel::calls", number = 7_u64, call = "push", "called");
            tracing::trace!(target: "artel::calls", number = 7_u64, tag = String::from("ok"), "answered");
            tracing::trace!(target: "artel::calls", until = 99_u64, "trusted");
            tracing::trace!(target: "artel::calls", id = "7-3", attempt = 2_u64, "recorded");
            tracing::trace!("something else");
        });
        let mut tail = crate::history::Tail::new("m1.1".into(), path);
        let read: Vec<Entry> = tail.read().into_iter().map(|(_, entry)| entry).collect();
        let call = Entry::Call { number: 7, call: "push".into() };
        let answer = Entry::Answer { number: 7, tag: "ok".into() };
        let recorded = Entry::Recorded { id: (crate::history::Source::Term(7), 3), attempt: 2 };
        assert_eq!(read, [call, answer, Entry::Trusts(99), recorded]);
    }
}
