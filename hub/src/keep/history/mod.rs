//! History: an archive of chosen keys, on disk, to be asked later.
//!
//! **Invariant:** an archive is a subscriber like any other, on a thread of its own. An event leaves
//! its queue when it is committed, so that a crash or a full disk loses nothing that was committed
//! and what was not is tried again; a queue that overflows meanwhile loses events by count.

mod jsonl;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use jsonl::JsonLinesArchive;
pub(crate) use jsonl::{Lines, lock};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteArchive;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::open as open_sqlite;

use crate::error::SubscribeError;
use crate::event::AnyEvent;
use crate::keep::dead_letter::millis;
use crate::key::{KeyError, Pattern};
use crate::run::context::Context;
use crate::run::handler::{Delivery, Handler, HandlerError};
use crate::run::restart::{Backoff, Restart};
use crate::run::subscribe::Subscribe;
use crate::run::subscriber::Stage;
use crate::run::subscription::Subscription;
use crate::wait::lane::Priority;
use crate::wait::overflow::{Overflow, Queue};

/// Events per transaction, at most.
const BATCH: usize = 256;
/// Levels of JSON that can be read again from any store.
const DEPTH_MAX: usize = 100;
/// Events that may wait for the disk unless the subscriber says otherwise.
const WAITING: usize = 8192;

/// One event of the archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// Its number in the archive; grows with time.
    #[serde(default)]
    pub id: u64,
    /// When it was published, in milliseconds since 1970, by a clock that may be some milliseconds
    /// behind.
    pub at_ms: u64,
    /// The key it was published under.
    pub key: String,
    /// Its number under that key.
    pub sequence: u64,
    /// How urgent it was.
    pub priority: Priority,
    /// The payload, if its topic can be encoded.
    pub payload: Option<Value>,
}

impl Record {
    fn new(event: &AnyEvent) -> Record {
        Record {
            id: 0,
            at_ms: millis(event.at()),
            key: event.key().into(),
            sequence: event.sequence(),
            priority: event.priority(),
            payload: encoded(event),
        }
    }
}

fn is_shallow(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => {
            levels > 0 && values.iter().all(|value| is_shallow(value, levels - 1))
        }
        Value::Object(values) => {
            levels > 0 && values.values().all(|value| is_shallow(value, levels - 1))
        }
        _ => true,
    }
}

/// What panics when it is encoded, or is nested too deeply, is kept without its payload.
pub(crate) fn encoded(event: &AnyEvent) -> Option<Value> {
    let json = std::panic::AssertUnwindSafe(|| event.json().cloned());
    // What is deeper could be written and not be read again.
    std::panic::catch_unwind(json).ok().flatten().filter(|value| is_shallow(value, DEPTH_MAX))
}

/// What is looked for in an archive. By default the first thousand events.
#[derive(Clone, Debug)]
pub struct Query {
    pub(crate) key: Option<Pattern>,
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) text: Option<String>,
    pub(crate) after: u64,
    pub(crate) limit: usize,
}

impl Default for Query {
    fn default() -> Query {
        Query { key: None, from_ms: 0, until_ms: u64::MAX, text: None, after: 0, limit: 1000 }
    }
}

impl Query {
    /// Everything, a thousand at a time.
    pub fn all() -> Query {
        Query::default()
    }

    /// Events under keys like this.
    pub fn key(mut self, pattern: &str) -> Result<Query, KeyError> {
        self.key = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Events published at this time or later, by a clock that may be some milliseconds behind.
    pub fn from(mut self, at: SystemTime) -> Query {
        self.from_ms = millis(at);
        self
    }

    /// Events published before this time.
    pub fn until(mut self, at: SystemTime) -> Query {
        self.until_ms = millis(at);
        self
    }

    /// Events whose payload, as JSON text without blanks between its parts, has these letters in it,
    /// capitals as they are.
    pub fn text(mut self, text: impl Into<String>) -> Query {
        self.text = Some(text.into());
        self
    }

    /// Events after the one with this number: the next page.
    pub fn after(mut self, id: u64) -> Query {
        self.after = id;
        self
    }

    /// As many at most.
    pub fn limit(mut self, events: usize) -> Query {
        self.limit = events;
        self
    }

    /// As many at most are asked for.
    pub fn get_limit(&self) -> usize {
        self.limit
    }

    /// Whether this is one of those asked for: for stores of your own.
    pub fn fits(&self, record: &Record) -> bool {
        record.id > self.after
            && (self.from_ms..self.until_ms).contains(&record.at_ms)
            && self.key.as_ref().is_none_or(|key| key.matches(&record.key))
            && self.text.as_ref().is_none_or(|text| {
                record.payload.as_ref().is_some_and(|value| value.to_string().contains(text))
            })
    }
}

/// Why an archive could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[error("archive {path}: {what}: {reason}")]
pub struct ArchiveError {
    path: String,
    what: &'static str,
    reason: String,
}

impl ArchiveError {
    /// At this place, this did not happen, for this reason.
    pub fn new(
        path: &std::path::Path,
        what: &'static str,
        reason: impl std::fmt::Display,
    ) -> ArchiveError {
        ArchiveError { path: path.display().to_string(), what, reason: reason.to_string() }
    }
}

/// Somewhere to archive to.
pub trait ArchiveStore: Send + 'static {
    /// Writes these events, all or none.
    fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError>;
    /// The events asked for, oldest first.
    fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError>;
}

/// An archive that can be asked while it is written. Clones share it.
#[derive(Clone)]
pub struct History {
    store: Arc<Mutex<dyn ArchiveStore>>,
}

impl History {
    /// An archive in this store, to be asked, and to be given to
    /// [`Subscribe::archive`].
    pub fn new(store: impl ArchiveStore) -> History {
        History { store: Arc::new(Mutex::new(store)) }
    }

    /// The events asked for, oldest first. Blocks while it reads.
    pub fn query(&self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).query(query)
    }

    /// Writes the events asked for as lines of JSON, page by page, and says how many they were. The
    /// query's limit is the size of a page. Blocks while it reads.
    pub fn export(&self, query: &Query, to: &mut impl Write) -> Result<u64, ArchiveError> {
        let failed = |error: std::io::Error| {
            ArchiveError::new(std::path::Path::new("export"), "not written", error)
        };
        let (mut query, mut many) = (query.clone(), 0);
        query.limit = query.limit.max(1);
        loop {
            let page = self.query(&query)?;
            let Some(last) = page.last() else { return to.flush().map(|()| many).map_err(failed) };
            query.after = last.id;
            many += page.len() as u64;
            for record in &page {
                serde_json::to_writer(&mut *to, record).map_err(|error| failed(error.into()))?;
                to.write_all(b"\n").map_err(failed)?;
            }
        }
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl Subscribe<AnyEvent> {
    /// Subscribes an archive to [`Keys::any`](crate::Keys::any): on a thread of its own, with a queue of 8,192 events that drops the
    /// newest when the disk cannot keep up, unless [`Subscribe::queue`] says otherwise. A write that
    /// fails is tried again, with pauses, until it succeeds or the archive is stopped.
    pub fn archive(self, history: &History) -> Result<Subscription, SubscribeError> {
        let store = history.store.clone();
        let backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(5));
        self.queue_unless_set(Queue::bounded(WAITING).on_full(Overflow::DropNewest))
            .on(Context::Thread)
            .stage(Stage::Archive)
            .restart(Restart::times(u32::MAX).backoff(backoff))
            .spawn_with(move || ArchiveWriter { store: store.clone(), batch: Vec::new() })
    }
}

/// Collects records and writes them together.
struct ArchiveWriter {
    store: Arc<Mutex<dyn ArchiveStore>>,
    batch: Vec<Record>,
}

impl Handler<AnyEvent> for ArchiveWriter {
    async fn handle(&mut self, event: Delivery<'_, AnyEvent>) -> Result<(), HandlerError> {
        self.batch.push(Record::new(&event));
        Ok(())
    }

    fn collects(&self) -> usize {
        BATCH
    }

    async fn commit(&mut self) -> Result<(), HandlerError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.append(&self.batch).map_err(|error| {
            HandlerError::retry(error).with_severity(crate::run::handler::Severity::Critical)
        })?;
        self.batch.clear();
        Ok(())
    }
}
