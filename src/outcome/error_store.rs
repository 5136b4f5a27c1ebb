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
use crate::lane::Lane;
use crate::process;
use crate::store::{Call, PROTOCOL, Reply, Script, Store, StoreError, nonce};

static DROP: Script = Script::new("drop", include_str!("drop.lua"));
static REQUEUE: Script = Script::new("requeue", include_str!("requeue.lua"));

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
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits(ms) && digits(seq) && position.len() <= 40
        });
        if !good {
            let problem = "must be a position such as 1794710083950-0".to_owned();
            return Err(Error::Config { field: "cursor", problem });
        }
        Ok(Cursor { since_ms: 0, after: Some(position.to_owned()) })
    }

    /// Goes on after this record.
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

/// The result of putting records back to work.
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
/// let page = fleet.errors().page(&mut Cursor::default(), 10).await?;
/// let requeued = fleet.errors().requeue(None).put_back(&page).await?;
/// assert_eq!((requeued.messages, requeued.unreadable), (1, 0));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Requeued {
    /// New messages, one for each record that was removed.
    pub messages: u64,
    /// Records that stay: this version cannot read them, or another message of their periodic entry is not over.
    pub unreadable: u64,
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
                DROP.call(&keys).arg(process::who()).reading(|reply: Reply| reply.number(0));
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

    /// Begins to put records back to work: into this lane, or each into its own (`normal` for generated
    /// messages).
    pub fn requeue(&self, lane: Option<Lane>) -> Requeuer {
        let (fleet, done) = (self.fleet.clone(), Requeued::default());
        Requeuer { fleet, lane, name: nonce(), next: 1, in_doubt: false, done }
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

impl std::fmt::Debug for Requeuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requeuer").field("done", &self.done).finish_non_exhaustive()
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

/// Puts failed messages back to work: each as a new message, with the old id as its `origin`.
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
/// use artel::{Cursor, Lane};
///
/// let (errors, mut cursor) = (fleet.errors(), Cursor::default());
/// let mut requeuer = errors.requeue(Some(Lane::Low));
/// loop {
///     let page = errors.page(&mut cursor, 100).await?;
///     if page.is_empty() {
///         break;
///     }
///     requeuer.put_back(&page).await?;
/// }
/// assert_eq!(requeuer.done().messages, 1);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Requeuer {
    fleet: Fleet,
    lane: Option<Lane>,
    name: String,
    next: u64,
    /// A call was sent under `next` and its answer was never received.
    in_doubt: bool,
    done: Requeued,
}

impl Requeuer {
    /// What was put back so far, by the calls that were answered.
    pub fn done(&self) -> Requeued {
        self.done
    }

    /// Puts these records back to work. Records that are no longer stored are left out. Returns what
    /// this call did.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is no room: then [`done`](Self::done) says what was put back before,
    /// and the rest is still stored.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the records may have been put back or not, but never twice.
    pub async fn put_back(&mut self, records: &[ErrorRecord]) -> Result<Requeued, Error> {
        self.lane.map_or(Ok(()), Lane::check_open)?;
        self.fleet.compare().await?;
        let (mut total, mut rest) = (Requeued::default(), records);
        while !rest.is_empty() {
            let (moved, looked) = self.chunk(&rest[..rest.len().min(PAGE)]).await?;
            for sum in [&mut total, &mut self.done] {
                sum.messages += moved.messages;
                sum.unreadable += moved.unreadable;
            }
            rest = &rest[looked.clamp(1, rest.len())..];
        }
        Ok(total)
    }

    /// Puts back the first of these records, as many as one script moves. Also returns how many it has
    /// read.
    async fn chunk(&mut self, records: &[ErrorRecord]) -> Result<(Requeued, usize), Error> {
        loop {
            if std::mem::replace(&mut self.in_doubt, true) {
                // Removing a record is what must happen once. Under a new name only its count is lost.
                self.name = nonce();
                self.next = 1;
            }
            let call = self.call(records);
            let reply = match self.fleet.store.repeat(&call).await {
                Err(Error::Refused { reason }) if reason.starts_with("OOM") => {
                    return Err(Error::Full { reason: "Redis is out of memory".to_owned() });
                }
                reply => reply?,
            };
            match reply {
                Answer::Moved { messages, unreadable, looked } => {
                    self.next += messages;
                    self.in_doubt = false;
                    return Ok((Requeued { messages, unreadable }, looked));
                }
                Answer::Full(max) => {
                    return Err(Error::Full { reason: format!("{max} messages wait already") });
                }
                Answer::Protocol(theirs) => return Err(self.fleet.store.other_protocol(&theirs)),
                Answer::Forgotten => {} // again, under another name
            }
        }
    }

    fn call(&self, records: &[ErrorRecord]) -> Call<Answer> {
        let keys = &self.fleet.store.keys;
        let mut all = keys.jobs();
        all.extend([keys.errors(), keys.sent(&self.name), keys.config(), keys.notices()]);
        let mut call = REQUEUE
            .call(&all)
            .arg(&self.name)
            .arg(self.next)
            .arg(self.lane.map_or(String::new(), |lane| lane.letter().to_string()))
            .arg(PROTOCOL)
            .arg(CHUNK_BYTES_MAX)
            .arg(process::who());
        for record in records {
            call.push_arg(&record.position);
        }
        call.reading(Answer::read)
    }
}

/// What Redis answered to a call that puts records back to work.
enum Answer {
    Moved {
        messages: u64,
        unreadable: u64,
        /// How many records were read. The others are for another call.
        looked: usize,
    },
    /// This many messages wait already.
    Full(String),
    Protocol(String),
    /// The numbers were forgotten.
    Forgotten,
}

impl Answer {
    fn read(reply: Reply) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" | "already" => Ok(Answer::Moved {
                messages: reply.number(0)? as u64,
                unreadable: reply.number(1)? as u64,
                looked: reply.number(2)? as usize,
            }),
            "full" => Ok(Answer::Full(reply.text(0)?)),
            "protocol" => Ok(Answer::Protocol(reply.text(0)?)),
            "gap" => Ok(Answer::Forgotten),
            _ => Err(reply.unexpected()),
        }
    }
}
