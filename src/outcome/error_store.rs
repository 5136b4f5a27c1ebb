//! The error store: failed messages, kept until somebody takes them, drops them or puts them back to
//! work.
//!
//! **Invariant:** a record leaves the store in one of three ways: taken (`take.rs`), removed by the
//! same script that adds the new message, or dropped by an operator and counted. Nothing expires, and
//! nothing is trimmed. A record that was put back has a new position and still says when it failed.

use std::time::SystemTime;

use super::record::{ErrorRecord, record};
use super::take::{Taker, restore_dead};
use crate::Error;
use crate::fleet::Fleet;
use crate::json_time::since_1970_ms;
use crate::store::{Call, Reply, Script, Store};

static DROP: Script = Script::new("drop", include_str!("drop.lua")).lasting(&["ok"]);

/// Records per page.
pub(super) const PAGE: usize = 100;
/// The most bytes of records that one script moves and that one page has, unless it is a single record.
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// How far the error store was read.
///
/// ```
/// let all = artel::Cursor::default();
/// let rest = artel::Cursor::after("1794710083950-0")?;
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    since_ms: u64,
    after: Option<String>,
}

impl Cursor {
    /// Begins with the records that failed at this time or later. [`Fleet::now`] is the clock to use.
    pub fn since(time: SystemTime) -> Cursor {
        Cursor { since_ms: since_1970_ms(time), after: None }
    }

    /// Goes on after this [position](ErrorRecord::position).
    pub fn after(position: &str) -> Result<Cursor, Error> {
        let parts = position.split_once('-');
        let good = parts.is_some_and(|(ms, seq)| {
            let digits = |text: &str| {
                text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
            };
            digits(ms) && digits(seq) && position.len() <= 40
        });
        if !good {
            let problem = "must be a position such as 1794710083950-0".to_owned();
            return Err(Error::Config { field: "cursor", problem });
        }
        Ok(Cursor { since_ms: 0, after: Some(position.to_owned()) })
    }

    /// Goes on after this record.
    /// The position of the last record that was read.
    pub fn position(&self) -> Option<&str> {
        self.after.as_deref()
    }

    pub(super) fn pass(&mut self, record: &ErrorRecord) {
        self.after = Some(record.position.clone());
    }

    fn span(&self) -> Span {
        let from = match &self.after {
            Some(position) => format!("({position}"),
            None => self.since_ms.to_string(),
        };
        Span { from, to: "+".to_owned(), newest_first: false }
    }

    fn span_back(&self) -> Span {
        let from = self.after.as_ref().map_or("+".to_owned(), |position| format!("({position}"));
        Span { from, to: self.since_ms.to_string(), newest_first: true }
    }
}

/// The failed messages of one fleet. Made by [`Fleet::errors`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// use artel::Cursor;
///
/// let (errors, mut cursor) = (fleet.errors(), Cursor::default());
/// loop {
///     let page = errors.page(&mut cursor, 100).await?;
///     if page.is_empty() {
///         break;
///     }
///     errors.drop_records(&page).await?;
/// }
/// assert_eq!(errors.count().await?, 0);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ErrorStore {
    pub(super) fleet: Fleet,
}

impl Fleet {
    /// The failed messages of this fleet.
    pub fn errors(&self) -> ErrorStore {
        ErrorStore { fleet: self.clone() }
    }
}

impl ErrorStore {
    /// How many records are stored, including those that are being taken.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn count(&self) -> Result<u64, Error> {
        self.fleet.compare().await?;
        Ok(self.len(self.fleet.store.keys.errors()).await? + self.being_taken().await?)
    }

    /// How many records are in the drains of takers.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn being_taken(&self) -> Result<u64, Error> {
        let mut count = 0;
        for token in drains(&self.fleet.store).await? {
            count += self.len(self.fleet.store.keys.drain(&token)).await?;
        }
        Ok(count)
    }

    /// Reads up to `count` records, oldest first, and moves the cursor on. Empty at the end. Nothing is
    /// removed. Records that are being taken are not shown. Records held by takers that have died are
    /// shown.
    ///
    /// # Cancel safety
    ///
    /// Safe: the cursor moves only with the answer.
    pub async fn page(&self, cursor: &mut Cursor, count: usize) -> Result<Vec<ErrorRecord>, Error> {
        self.fleet.compare().await?;
        if cursor.after.is_none() {
            restore_dead(&self.fleet.store).await?;
        }
        self.read(cursor, cursor.span(), count).await
    }

    /// As [`page`](Self::page), newest first.
    ///
    /// # Cancel safety
    ///
    /// Safe: the cursor moves only with the answer.
    pub async fn page_back(
        &self,
        cursor: &mut Cursor,
        count: usize,
    ) -> Result<Vec<ErrorRecord>, Error> {
        self.fleet.compare().await?;
        if cursor.after.is_none() {
            restore_dead(&self.fleet.store).await?;
        }
        self.read(cursor, cursor.span_back(), count).await
    }

    async fn read(
        &self,
        cursor: &mut Cursor,
        span: Span,
        count: usize,
    ) -> Result<Vec<ErrorRecord>, Error> {
        let page =
            read_page(&self.fleet.store, self.fleet.store.keys.errors(), span, count).await?;
        if let Some(last) = page.last() {
            cursor.after = Some(last.position.clone());
        }
        Ok(page)
    }

    /// The record at this position; `None` if it is no longer stored.
    ///
    /// # Errors
    ///
    /// If this is not a position, or Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn get(&self, position: &str) -> Result<Option<ErrorRecord>, Error> {
        Cursor::after(position)?;
        let span = Span { from: position.to_owned(), to: position.to_owned(), newest_first: false };
        let page = read_page(&self.fleet.store, self.fleet.store.keys.errors(), span, 1).await?;
        Ok(page.into_iter().next())
    }

    /// Removes these records for good, and counts them as dropped. Returns how many were still stored.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses. Then some records may be removed, and those are counted.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, some of the records may be removed, and those are counted.
    pub async fn drop_records(&self, records: &[ErrorRecord]) -> Result<u64, Error> {
        self.fleet.compare().await?;
        let keys = &self.fleet.store.keys;
        let keys = [keys.errors(), keys.counts(), keys.notices()];
        let mut dropped = 0;
        for some in records.chunks(PAGE) {
            let mut call =
                DROP.call(&keys).arg(self.fleet.who()).reading(|reply: Reply| reply.number(0));
            for record in some {
                call.push_arg(&record.position);
            }
            dropped += self.fleet.store.repeat(&call).await? as u64;
        }
        Ok(dropped)
    }

    /// Begins to take all records.
    pub fn take(&self) -> Taker {
        Taker::new(&self.fleet, None)
    }

    /// Begins to take the records from `cursor` on for which `choose` returns true.
    pub fn take_where(
        &self,
        cursor: Cursor,
        choose: impl FnMut(&ErrorRecord) -> bool + Send + 'static,
    ) -> Taker {
        Taker::new(&self.fleet, Some((Box::new(choose), cursor)))
    }

    async fn len(&self, key: String) -> Result<u64, Error> {
        let call = Call::plain("XLEN").arg(key).reading(Reply::into_number);
        Ok(self.fleet.store.once(&call).await? as u64)
    }
}

impl std::fmt::Debug for ErrorStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorStore").field("fleet", &self.fleet).finish()
    }
}

/// A part of a stream, in the order in which it is read.
pub(super) struct Span {
    from: String,
    to: String,
    newest_first: bool,
}

impl Span {
    /// The whole stream, oldest first.
    pub(super) fn everything() -> Span {
        Span { from: "-".to_owned(), to: "+".to_owned(), newest_first: false }
    }
}

/// Reads up to `count` records of this stream, and stops at about 1 MiB. Redis answers in small pieces,
/// however large the records are. Empty at the end.
pub(super) async fn read_page(
    store: &Store,
    stream: String,
    mut span: Span,
    count: usize,
) -> Result<Vec<ErrorRecord>, Error> {
    let count = count.clamp(1, PAGE);
    let (mut page, mut bytes): (Vec<ErrorRecord>, usize) = (Vec::new(), 0);
    while page.len() < count && bytes < CHUNK_BYTES_MAX {
        // First one. Then as many as are likely to fit, judged by those read so far, and at most three
        // times as many as those.
        let mean = (bytes / page.len().max(1)).max(1);
        let likely = ((CHUNK_BYTES_MAX - bytes) / mean).clamp(1, (page.len() * 3).max(1));
        let few = likely.min(count - page.len());
        let command = if span.newest_first { "XREVRANGE" } else { "XRANGE" };
        let call = Call::plain(command).arg(&stream).arg(&span.from).arg(&span.to);
        let call = call.arg("COUNT").arg(few);
        let call = call.answering(CHUNK_BYTES_MAX * few.min(4)).reading(|entries: Reply| {
            entries.into_list()?.into_iter().map(record).collect::<Result<Vec<_>, _>>()
        });
        let records = store.once(&call).await?;
        let Some(last) = records.last() else { break };
        span.from = format!("({}", last.position);
        bytes += records.iter().map(ErrorRecord::bytes).sum::<usize>();
        page.extend(records);
    }
    Ok(page)
}

pub(crate) async fn drains(store: &Store) -> Result<Vec<String>, Error> {
    store.once(&Call::plain("HKEYS").arg(store.keys.drains()).reading(Reply::into_texts)).await
}
