//! Dead letters as lines of JSON, readable with any tool.
//!
//! **Invariant:** a line that is not a dead letter is never removed. One process at a time writes
//! to a file.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::{Letter, LetterError, LetterStore};
use crate::keep::history::{Lines, lock};

/// Stores dead letters in one file, one line of JSON each.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, JsonLinesLetters, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("letters.jsonl");
/// let hub = EventHub::builder().dead_letters(JsonLinesLetters::open(&path)?).build()?;
/// let billing = hub.subscribe(&ORDERS).name("billing");
/// let _billing = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::skip("no price")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// assert_eq!(hub.dead_letters().count()?, 1); // waits until it is written
/// assert!(std::fs::read_to_string(&path)?.contains("no price"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JsonLinesLetters {
    path: PathBuf,
    added: Lines<File>,
    next: u64,
    count: usize,
    /// Held while the file is open.
    _lock: File,
}

impl JsonLinesLetters {
    /// Opens or creates the file. Fails if another process has it open. If a crash cut off the last
    /// line, that line stays in the file.
    pub fn open(path: impl AsRef<Path>) -> Result<JsonLinesLetters, LetterError> {
        let path = path.as_ref().to_path_buf();
        let failed = |error: std::io::Error| {
            LetterError::new("not opened", format!("{}: {error}", path.display()))
        };
        let mut beside = path.clone().into_os_string();
        beside.push(".lock");
        let lock = lock(Path::new(&beside)).map_err(failed)?;
        let added = Lines::open(&path).map_err(failed)?;
        let mut letters = JsonLinesLetters { path, added, next: 0, count: 0, _lock: lock };
        let all = letters.read()?;
        letters.next = all.iter().map(|letter| letter.id).max().unwrap_or(0);
        letters.count = all.len();
        Ok(letters)
    }

    fn lines(&self) -> Result<Vec<Vec<u8>>, LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not read", error);
        let file = BufReader::new(File::open(&self.path).map_err(failed)?);
        file.split(b'\n').collect::<Result<_, _>>().map_err(failed)
    }

    /// Writes all lines to a new file, then replaces the old one.
    fn rewrite(&mut self, lines: &[Vec<u8>]) -> Result<(), LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not rewritten", error);
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        // Opened before it replaces the old file: later lines must go to the new one.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        let mut anew = Lines::open(Path::new(&beside)).map_err(failed)?;
        for line in lines {
            anew.add(&[line, &b"\n"[..]].concat()).map_err(failed)?;
        }
        anew.file.sync_all().map_err(failed)?;
        std::fs::rename(&beside, &self.path).map_err(failed)?;
        self.added = anew;
        Ok(())
    }
}

impl LetterStore for JsonLinesLetters {
    fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not written", error);
        let before = self.added.bytes();
        let mut text = Vec::new();
        for (letter, id) in letters.iter_mut().zip(self.next + 1..) {
            letter.id = id;
            let line = serde_json::to_vec(letter);
            text.extend(line.map_err(|error| LetterError::new("not encoded", error))?);
            text.push(b'\n');
        }
        self.added.add(&text).map_err(failed)?;
        if let Err(error) = self.added.file.sync_data() {
            self.added.undo(before);
            return Err(failed(error));
        }
        self.next += letters.len() as u64;
        self.count += letters.len();
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Letter>, LetterError> {
        let lines = self.lines()?;
        Ok(lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    fn count(&mut self) -> Result<usize, LetterError> {
        Ok(self.count)
    }

    fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError> {
        let ids: HashSet<u64> = ids.iter().copied().collect();
        let mut lines = self.lines()?;
        let many = lines.len();
        lines.retain(|line| {
            !serde_json::from_slice::<Letter>(line).is_ok_and(|letter| ids.contains(&letter.id))
        });
        let gone = many - lines.len();
        if gone > 0 {
            self.rewrite(&lines)?;
            self.count = self.count.saturating_sub(gone);
        }
        Ok(())
    }
}
