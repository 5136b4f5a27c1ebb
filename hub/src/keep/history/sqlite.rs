//! An archive in an SQLite file, with a write-ahead log and one transaction per batch.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use crate::wait::lane::Priority;

use super::{ArchiveError, ArchiveStore, Query, Record, oldest, private};

/// The bounds are checked after this many events, or after this time.
const LOOK_EVERY: usize = 1000;
const LOOK_AFTER: Duration = Duration::from_secs(10);
/// While the file is too large, one part in this many of the oldest events is removed at a time.
const SHARE: i64 = 20;

/// Opens an SQLite file with the hub's settings.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    // Payloads may be anybody's secrets: a new file is for this user alone. SQLite's own error says no reason.
    private(&mut std::fs::OpenOptions::new())
        .read(true)
        .write(true)
        .create(true)
        .open(path)
        .map_err(|error| {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
            rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
        })?;
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A commit survives the death of the process. A power cut may lose the last commits.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// An archive in the table `events` of an SQLite file. Other programs may read the file at the same
/// time.
///
/// ```
/// use artel_hub::{EventHub, History, Keys, Query, SqliteArchive, Topic};
/// use std::time::Duration;
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let store = SqliteArchive::open(folder.path().join("history.db"))?;
/// let month = Duration::from_secs(30 * 86_400);
/// let history = History::new(store.keep_for(month).keep_bytes(1 << 30));
/// let hub = EventHub::new();
/// let archive = hub.subscribe(Keys::any(["orders"])?).name("archive").archive(&history)?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// archive.blocking_stop(Duration::from_secs(5))?;
/// assert_eq!(history.query(&Query::all().key("orders")?)?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteArchive {
    path: PathBuf,
    connection: Connection,
    age_max: Option<Duration>,
    bytes_max: Option<u64>,
    until_look: usize,
    looked: Option<Instant>,
}

impl SqliteArchive {
    /// Opens or creates the file.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteArchive, ArchiveError> {
        let path = path.as_ref().to_path_buf();
        let failed = |error: rusqlite::Error| ArchiveError::new(&path, "not opened", error);
        let connection = open(&path).map_err(failed)?;
        connection
            .execute_batch(
                "CREATE TABLE IF NOT EXISTS events (
                   id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, key TEXT NOT NULL,
                   sequence INTEGER NOT NULL, priority TEXT NOT NULL, payload TEXT);
                 CREATE INDEX IF NOT EXISTS events_at ON events (at_ms);
                 CREATE INDEX IF NOT EXISTS events_by_key ON events (key);
                 DROP INDEX IF EXISTS events_key;",
            )
            .map_err(failed)?;
        Ok(SqliteArchive {
            path,
            connection,
            age_max: None,
            bytes_max: None,
            until_look: 0,
            looked: None,
        })
    }

    /// Opens a file to read it. It may be in use by another process.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<SqliteArchive, ArchiveError> {
        let path = path.as_ref().to_path_buf();
        let failed = |error: rusqlite::Error| ArchiveError::new(&path, "not opened", error);
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
        let (age_max, bytes_max, until_look, looked) = (None, None, 0, None);
        Ok(SqliteArchive { path, connection, age_max, bytes_max, until_look, looked })
    }

    /// Events older than this are not found any more. They are removed during a later write.
    pub fn keep_for(mut self, age: Duration) -> SqliteArchive {
        self.age_max = Some(age);
        self
    }

    /// Removes the oldest events while all events together take more than about this many bytes.
    pub fn keep_bytes(mut self, bytes: u64) -> SqliteArchive {
        self.bytes_max = Some(bytes);
        self
    }

    fn insert(&mut self, records: &[Record]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO events (at_ms, key, sequence, priority, payload) VALUES (?,?,?,?,?)",
            )?;
            for record in records {
                let payload = record.payload.as_ref().map(ToString::to_string);
                let (at, sequence) = (small(record.at_ms), small(record.sequence));
                let priority = word(record.priority);
                insert.execute(params![at, record.key, sequence, priority, payload])?;
            }
        }
        transaction.commit()
    }

    fn forget(&mut self) -> rusqlite::Result<()> {
        if let Some(age) = self.age_max {
            let until = small(oldest(age));
            self.connection.execute("DELETE FROM events WHERE at_ms < ?", [until])?;
        }
        while self.bytes_max.is_some_and(|most| self.bytes().is_ok_and(|bytes| bytes > most)) {
            let gone = self.connection.execute(
                "DELETE FROM events WHERE id <= (SELECT min(id) + (max(id) - min(id)) / ? FROM events)",
                [SHARE],
            )?;
            if gone == 0 {
                break;
            }
        }
        // Each step frees one page, so it must be stepped to its end.
        let mut vacuum = self.connection.prepare("PRAGMA incremental_vacuum")?;
        let mut steps = vacuum.query([])?;
        while steps.next()?.is_some() {}
        Ok(())
    }

    /// The bytes that the events take, without free pages.
    fn bytes(&self) -> rusqlite::Result<u64> {
        let pragma = |name| self.connection.pragma_query_value(None, name, |row| row.get(0));
        let (pages, free, size): (i64, i64, i64) =
            (pragma("page_count")?, pragma("freelist_count")?, pragma("page_size")?);
        Ok(((pages - free) * size) as u64)
    }
}

/// SQLite's integers are signed.
fn small(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// As it is written in JSON.
fn word(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}

impl ArchiveStore for SqliteArchive {
    fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError> {
        let path = self.path.clone();
        let failed = |error: rusqlite::Error| ArchiveError::new(&path, "not written", error);
        self.insert(records).map_err(failed)?;
        self.until_look = self.until_look.saturating_sub(records.len());
        let long_ago = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AFTER);
        if self.until_look == 0 || long_ago {
            self.until_look = LOOK_EVERY;
            self.looked = Some(Instant::now());
            // The events are written. Removing old ones can wait for the next time.
            if let Err(error) = self.forget() {
                tracing::warn!(target: "artel_hub", "archive {}: {error}", path.display());
            }
        }
        Ok(())
    }

    fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
        let failed = |error: rusqlite::Error| ArchiveError::new(&self.path, "not read", error);
        let exact = query.key.as_ref().filter(|key| !key.is_wild()).map(|key| key.text());
        let text = select(exact.is_some(), query.newest_first);
        let mut select = self.connection.prepare_cached(&text).map_err(failed)?;
        let bounds = params![
            small(query.after),
            small(query.from_ms.max(self.age_max.map_or(0, oldest))),
            small(query.until_ms),
            exact,
            query.text,
            small(query.before)
        ];
        let mut rows = select.query(bounds).map_err(failed)?;
        let mut records = Vec::new();
        while records.len() < query.limit {
            let Some(row) = rows.next().map_err(failed)? else { break };
            let record = read(row).map_err(failed)?;
            if query.fits(&record) {
                records.push(record);
            }
        }
        Ok(records)
    }
}

/// Two statements: SQLite uses the index on keys only if the statement names a key.
fn select(one_key: bool, newest_first: bool) -> String {
    let key = if one_key { "key = ?4" } else { "?4 IS NULL" };
    let order = if newest_first { "id DESC" } else { "id" };
    format!(
        "SELECT id, at_ms, key, sequence, priority, payload FROM events
         WHERE {key} AND id > ?1 AND id < ?6 AND at_ms >= ?2 AND at_ms < ?3
           AND (?5 IS NULL OR instr(payload, ?5) > 0) ORDER BY {order}"
    )
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Record> {
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let (priority, payload): (String, Option<String>) = (row.get(4)?, row.get(5)?);
    Ok(Record {
        id: number(row.get(0)?),
        at_ms: number(row.get(1)?),
        key: row.get(2)?,
        sequence: number(row.get(3)?),
        priority: serde_json::from_value(priority.into()).unwrap_or_default(),
        payload: payload.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_read_as_it_was_written() {
        for priority in [Priority::High, Priority::Normal, Priority::Low] {
            assert_eq!(serde_json::to_value(priority).expect("JSON"), word(priority));
        }
    }

    /// Regression: queries for one key did not use its index.
    #[test]
    fn a_question_about_one_key_uses_its_index() {
        let folder = tempfile::tempdir().expect("a folder");
        let archive = SqliteArchive::open(folder.path().join("a.db")).expect("opened");
        let plan = |one_key, newest_first| -> Vec<String> {
            let text = format!("EXPLAIN QUERY PLAN {}", select(one_key, newest_first));
            let mut plan = archive.connection.prepare(&text).expect("a statement");
            let key = one_key.then_some("orders");
            let values = params![0, 0, i64::MAX, key, None::<String>, i64::MAX];
            let steps = plan.query_map(values, |row| row.get(3)).expect("a plan");
            steps.collect::<Result<_, _>>().expect("steps")
        };
        for newest_first in [false, true] {
            let (one, all) = (plan(true, newest_first), plan(false, newest_first));
            assert!(one.iter().any(|step| step.contains("events_by_key")), "{one:?}");
            assert!(one.iter().chain(&all).all(|step| !step.contains("SORT")), "{one:?} {all:?}");
        }
    }
}
