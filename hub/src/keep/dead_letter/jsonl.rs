//! Dead letters as lines of JSON: readable with any tool.
//!
//! **Invariant:** a line that is no letter is nobody's to remove: it stays where it is. One process
//! at a time writes to a file.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::{Letter, LetterError, LetterStore};
use crate::keep::history::{Lines, lock};

/// One file, one letter a line.
#[derive(Debug)]
pub struct JsonLinesLetters {
    path: PathBuf,
    added: Lines<File>,
    next: u64,
    count: usize,
    /// Held for as long as it is open.
    _lock: File,
}

impl JsonLinesLetters {
    /// Opens the file, or makes it, unless another process has it open. A last line that was cut off
    /// by a crash is left as it is.
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

    /// Everything anew, beside the old file, and then in its place.
    fn rewrite(&mut self, lines: &[Vec<u8>]) -> Result<(), LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not rewritten", error);
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        // Opened before it takes the old one's place: what is added later must not go elsewhere.
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
