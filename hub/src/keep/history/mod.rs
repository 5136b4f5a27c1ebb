//! History: an archive of selected keys on disk, for later queries.
//!
//! **Invariant:** an archive is a normal subscriber on its own thread. An event leaves its queue
//! when it is committed. So a crash or a full disk loses no committed event, and uncommitted events
//! are tried again. If the queue overflows in the meantime, the lost events are counted.

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

/// The maximum number of events per transaction, unless the store wants fewer.
const BATCH: usize = 1024;
/// The maximum nesting of JSON that can be read back from any store.
const DEPTH_MAX: usize = 100;
/// How many events may wait for the disk by default.
const WAITING: usize = 8192;

/// One event of an archive.
///
/// ```
/// use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Query, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let history = History::new(JsonLinesArchive::rotating(&folder, 1 << 20, 10)?);
/// let hub = EventHub::new();
/// let archive = hub.subscribe(Keys::any(["orders"])?).archive(&history)?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// archive.blocking_stop(std::time::Duration::from_secs(5))?;
/// let record = history.query(&Query::all())?.remove(0);
/// assert_eq!((record.id, &*record.key, record.sequence), (1, "orders", 1));
/// assert_eq!(record.payload, Some(7.into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// Its number in the archive. Newer records have greater numbers.
    #[serde(default)]
    pub id: u64,
    /// When it was published, in milliseconds since 1970. The clock may lag by some milliseconds.
    pub at_ms: u64,
    /// The key it was published under.
    pub key: String,
    /// Its sequence number under that key.
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

/// The time of the oldest events that are kept, in milliseconds.
fn oldest(age: Duration) -> u64 {
    millis(SystemTime::now()).saturating_sub(age.as_millis() as u64)
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

/// The payload as JSON. `None` if encoding panics or the JSON is nested too deeply.
pub(crate) fn encoded(event: &AnyEvent) -> Option<Value> {
    let json = std::panic::AssertUnwindSafe(|| event.own_json());
    // Deeper JSON could be written but not read back.
    std::panic::catch_unwind(json).ok().flatten().filter(|value| is_shallow(value, DEPTH_MAX))
}

/// Selects events of an archive. By default the first thousand.
///
/// ```
/// use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Query, Topic};
/// const LINES: Topic<String> = Topic::json("lines/en");
///
/// # let folder = tempfile::tempdir()?;
/// let history = History::new(JsonLinesArchive::rotating(&folder, 1 << 20, 10)?);
/// # let hub = EventHub::new();
/// let archive = hub.subscribe(Keys::any(["lines/*"])?).archive(&history)?;
/// hub.publisher(&LINES)?.blocking_publish_batch(["brown fox", "red fox"].map(String::from))?;
/// archive.blocking_stop(std::time::Duration::from_secs(5))?;
/// let query = Query::all().key("lines/*")?.text("fox").limit(1);
/// let first = history.query(&query)?;
/// let second = history.query(&query.after(first[0].id))?; // the next page
/// assert_eq!(second[0].payload, Some("red fox".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    pub(crate) key: Option<Pattern>,
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) text: Option<String>,
    pub(crate) after: u64,
    pub(crate) before: u64,
    pub(crate) newest_first: bool,
    pub(crate) limit: usize,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            key: None,
            from_ms: 0,
            until_ms: u64::MAX,
            text: None,
            after: 0,
            before: u64::MAX,
            newest_first: false,
            limit: 1000,
        }
    }
}

impl Query {
    /// All events, at most a thousand per query.
    pub fn all() -> Query {
        Query::default()
    }

    /// Only events whose key matches this pattern.
    pub fn key(mut self, pattern: &str) -> Result<Query, KeyError> {
        self.key = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Only events published at this time or later. The clock of the events may lag by some
    /// milliseconds.
    pub fn from(mut self, at: SystemTime) -> Query {
        self.from_ms = millis(at);
        self
    }

    /// Only events published before this time.
    pub fn until(mut self, at: SystemTime) -> Query {
        self.until_ms = millis(at);
        self
    }

    /// Only events whose payload contains this text. The payload is searched as JSON without spaces
    /// between its parts. Upper and lower case matter.
    pub fn text(mut self, text: impl Into<String>) -> Query {
        self.text = Some(text.into());
        self
    }

    /// Only events after the one with this number. Use it for the next page.
    pub fn after(mut self, id: u64) -> Query {
        self.after = id;
        self
    }

    /// The newest events come first. Use it with [`before`](Self::before) for the next page.
    ///
    /// ```
    /// use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Query, Topic};
    /// const ORDERS: Topic<u32> = Topic::json("orders");
    ///
    /// let folder = tempfile::tempdir()?;
    /// let history = History::new(JsonLinesArchive::rotating(&folder, 1 << 20, 10)?);
    /// let hub = EventHub::new();
    /// let archive = hub.subscribe(Keys::any(["orders"])?).archive(&history)?;
    /// hub.publisher(&ORDERS)?.blocking_publish_batch([1, 2, 3])?;
    /// archive.blocking_stop(std::time::Duration::from_secs(5))?;
    /// let query = Query::all().newest_first().limit(2);
    /// let page = history.query(&query)?;
    /// assert_eq!([&page[0].payload, &page[1].payload], [&Some(3.into()), &Some(2.into())]);
    /// let page = history.query(&query.before(page[1].id))?;
    /// assert_eq!(page[0].payload, Some(1.into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn newest_first(mut self) -> Query {
        self.newest_first = true;
        self
    }

    /// Only events before the one with this number.
    pub fn before(mut self, id: u64) -> Query {
        self.before = id;
        self
    }

    /// Whether the newest events come first, for your own stores.
    pub fn is_newest_first(&self) -> bool {
        self.newest_first
    }

    /// The maximum number of events. Default: 1000.
    pub fn limit(mut self, events: usize) -> Query {
        self.limit = events;
        self
    }

    /// The maximum number of events, for your own stores.
    pub fn get_limit(&self) -> usize {
        self.limit
    }

    /// Whether a record is selected, for your own stores. Does not check the limit.
    pub fn fits(&self, record: &Record) -> bool {
        record.id > self.after
            && record.id < self.before
            && (self.from_ms..self.until_ms).contains(&record.at_ms)
            && self.key.as_ref().is_none_or(|key| key.matches(&record.key))
            && self.text.as_ref().is_none_or(|text| {
                record.payload.as_ref().is_some_and(|value| value.to_string().contains(text))
            })
    }
}

/// Why an archive could not be opened, written or read.
///
/// ```
/// use artel_hub::{ArchiveError, JsonLinesArchive};
///
/// let file = tempfile::NamedTempFile::new()?;
/// let error = JsonLinesArchive::rotating(file.path(), 1 << 20, 10).unwrap_err(); // not a folder
/// assert!(error.to_string().contains(": not opened: "));
/// // In a store of your own:
/// let error = ArchiveError::new("/archive".as_ref(), "not written", "the disk is full");
/// assert_eq!(error.to_string(), "archive /archive: not written: the disk is full");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("archive {path}: {what}: {reason}")]
pub struct ArchiveError {
    path: String,
    what: &'static str,
    reason: String,
}

impl ArchiveError {
    /// An error from the path, what was not done, for example `"not written"`, and the reason.
    pub fn new(
        path: &std::path::Path,
        what: &'static str,
        reason: impl std::fmt::Display,
    ) -> ArchiveError {
        ArchiveError { path: path.display().to_string(), what, reason: reason.to_string() }
    }
}

/// A file that is created with these options is for this user alone: payloads may be anybody's secrets.
pub(crate) fn private(options: &mut std::fs::OpenOptions) -> &mut std::fs::OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// A store for archived events.
///
/// ```
/// # use artel_hub::{ArchiveError, ArchiveStore, History, Query, Record};
/// struct Memory(Vec<Record>);
///
/// impl ArchiveStore for Memory {
///     fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError> {
///         self.0.extend_from_slice(records);
///         (1..).zip(&mut self.0).for_each(|(id, record)| record.id = id); // numbers them
///         Ok(())
///     }
///     fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
///         Ok(self.0.iter().filter(|one| query.fits(one)).take(query.get_limit()).cloned().collect())
///     }
/// }
/// let history = History::new(Memory(Vec::new()));
/// assert!(history.query(&Query::all())?.is_empty());
/// # let hub = artel_hub::EventHub::new();
/// # let archive = hub.subscribe(artel_hub::Keys::any(["orders"])?).archive(&history)?;
/// # hub.blocking_publish(&artel_hub::Topic::<u32>::new("orders"), 7)?;
/// # archive.blocking_stop(std::time::Duration::from_secs(5))?;
/// # assert_eq!(history.query(&Query::all())?[0].id, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ArchiveStore: Send + 'static {
    /// Writes these events, all or none.
    fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError>;
    /// The selected events, oldest first.
    fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError>;
    /// How many events it is given at once, at most.
    fn batch_max(&self) -> usize {
        BATCH
    }
}

/// An archive that can be queried while it is written. Clones share it.
///
/// ```
/// use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Query, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let history = History::new(JsonLinesArchive::rotating(&folder, 1 << 20, 10)?);
/// let hub = EventHub::new();
/// let archive = hub.subscribe(Keys::any(["orders"])?).name("archive").archive(&history)?;
/// hub.publisher(&ORDERS)?.blocking_publish_batch([7, 8])?;
/// archive.blocking_stop(std::time::Duration::from_secs(5))?; // writes what waits
/// let mut lines = Vec::new();
/// assert_eq!(history.export(&Query::all(), &mut lines)?, 2);
/// assert_eq!(lines.split_inclusive(|byte| *byte == b'\n').count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct History {
    store: Arc<Mutex<dyn ArchiveStore>>,
}

impl History {
    /// An archive in this store. Pass it to [`Subscribe::archive`] to fill it.
    pub fn new(store: impl ArchiveStore) -> History {
        History { store: Arc::new(Mutex::new(store)) }
    }

    /// The selected events, oldest first unless the query says otherwise. Blocks while it reads.
    pub fn query(&self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).query(query)
    }

    /// Writes all selected events as lines of JSON, page by page. Returns how many they were. The
    /// limit of the query is the size of a page. Blocks while it reads.
    pub fn export(&self, query: &Query, to: &mut impl Write) -> Result<u64, ArchiveError> {
        let failed = |error: std::io::Error| {
            ArchiveError::new(std::path::Path::new("export"), "not written", error)
        };
        let (mut query, mut many) = (query.clone(), 0);
        query.limit = query.limit.max(1);
        query.newest_first = false;
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
    /// Subscribes an archive, for [`Keys::any`](crate::Keys::any). It runs on its own thread. By
    /// default its queue has 8,192 events and drops the newest when the disk cannot keep up;
    /// [`Subscribe::queue`] changes that. A write that fails is tried again, with pauses, until it
    /// succeeds or the archive is stopped.
    pub fn archive(self, history: &History) -> Result<Subscription, SubscribeError> {
        let store = history.store.clone();
        let batch_max = store.lock().unwrap_or_else(PoisonError::into_inner).batch_max();
        let backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(5));
        self.queue_unless_set(Queue::bounded(WAITING).on_full(Overflow::DropNewest))
            .on(Context::Thread)
            .stage(Stage::Archive)
            .restart(Restart::times(u32::MAX).backoff(backoff))
            .spawn_with(move || {
                let (store, batch) = (store.clone(), Vec::new());
                ArchiveWriter { store, batch, batch_max }
            })
    }
}

/// Collects records and writes them together.
struct ArchiveWriter {
    store: Arc<Mutex<dyn ArchiveStore>>,
    batch: Vec<Record>,
    batch_max: usize,
}

impl Handler<AnyEvent> for ArchiveWriter {
    async fn handle(&mut self, event: Delivery<'_, AnyEvent>) -> Result<(), HandlerError> {
        self.batch.push(Record::new(&event));
        Ok(())
    }

    fn collects(&self) -> usize {
        self.batch_max
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
