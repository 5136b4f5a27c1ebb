//! Dead letters in an SQLite file.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{Letter, LetterError, LetterStore};

/// Stores dead letters in the table `letters` of an SQLite file. An archive may use the same file.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, LetterFilter, SqliteLetters, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let letters = SqliteLetters::open(folder.path().join("letters.db"))?;
/// let hub = EventHub::builder().dead_letters(letters).build()?;
/// let billing = hub.subscribe(&ORDERS).name("billing");
/// let _billing = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::skip("no price")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// assert_eq!(hub.dead_letters().list(&LetterFilter::all())?[0].reason, "no price");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteLetters {
    connection: Connection,
}

impl SqliteLetters {
    /// Opens or creates the file.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteLetters, LetterError> {
        let path = path.as_ref();
        let failed = |error: rusqlite::Error| {
            LetterError::new("not opened", format!("{}: {error}", path.display()))
        };
        let connection = crate::keep::history::open_sqlite(path).map_err(failed)?;
        connection
            .execute_batch(
                "CREATE TABLE IF NOT EXISTS letters (
                   id INTEGER PRIMARY KEY AUTOINCREMENT, letter TEXT NOT NULL)",
            )
            .map_err(failed)?;
        Ok(SqliteLetters { connection })
    }
}

impl LetterStore for SqliteLetters {
    fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError> {
        let failed = |error: rusqlite::Error| LetterError::new("not written", error);
        let transaction = self.connection.transaction().map_err(failed)?;
        for letter in letters.iter_mut() {
            let text = serde_json::to_string(letter);
            let text = text.map_err(|error| LetterError::new("not encoded", error))?;
            transaction
                .prepare_cached("INSERT INTO letters (letter) VALUES (?)")
                .and_then(|mut insert| insert.execute([text]))
                .map_err(failed)?;
            letter.id = transaction.last_insert_rowid() as u64;
        }
        transaction.commit().map_err(failed)
    }

    fn read(&mut self) -> Result<Vec<Letter>, LetterError> {
        let failed = |error: rusqlite::Error| LetterError::new("not read", error);
        let mut select = self
            .connection
            .prepare_cached("SELECT id, letter FROM letters ORDER BY id")
            .map_err(failed)?;
        let rows = select
            .query_map(params![], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
            .map_err(failed)?;
        let mut letters = Vec::new();
        for row in rows {
            let (id, text) = row.map_err(failed)?;
            // A row that is not a dead letter is skipped and stays.
            let Ok(mut letter) = serde_json::from_str::<Letter>(&text) else { continue };
            letter.id = id as u64;
            letters.push(letter);
        }
        Ok(letters)
    }

    fn count(&mut self) -> Result<usize, LetterError> {
        let failed = |error: rusqlite::Error| LetterError::new("not counted", error);
        let mut count =
            self.connection.prepare_cached("SELECT count(*) FROM letters").map_err(failed)?;
        let many: i64 = count.query_row([], |row| row.get(0)).map_err(failed)?;
        Ok(usize::try_from(many).unwrap_or(0))
    }

    fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError> {
        let failed = |error: rusqlite::Error| LetterError::new("not removed", error);
        let transaction = self.connection.transaction().map_err(failed)?;
        for id in ids {
            transaction
                .prepare_cached("DELETE FROM letters WHERE id = ?")
                .and_then(|mut delete| delete.execute([*id as i64]))
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }
}
