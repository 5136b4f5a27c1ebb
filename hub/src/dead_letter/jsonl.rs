//! Dead letters as lines of JSON: readable with any tool.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use super::{Letter, LetterError, LetterStore};

/// One file, one letter a line.
#[derive(Debug)]
pub struct JsonLinesLetters {
    path: PathBuf,
    file: File,
    next: u64,
}

impl JsonLinesLetters {
    /// Opens the file, or makes it. A last line that was cut off by a crash is left out.
    pub fn open(path: impl AsRef<Path>) -> Result<JsonLinesLetters, LetterError> {
        let path = path.as_ref().to_path_buf();
        let file = append_to(&path)?;
        let mut letters = JsonLinesLetters { path, file, next: 0 };
        let there = letters.read()?;
        letters.next = there.iter().map(|letter| letter.id).max().unwrap_or(0);
        letters.rewrite(&there)?;
        Ok(letters)
    }

    /// Everything anew, beside the old file, and then in its place.
    fn rewrite(&mut self, letters: &[Letter]) -> Result<(), LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not rewritten", error);
        let beside = self.path.with_extension("new");
        let mut file = File::create(&beside).map_err(failed)?;
        file.write_all(&lines(letters)?).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&beside, &self.path).map_err(failed)?;
        self.file = append_to(&self.path)?;
        Ok(())
    }
}

fn append_to(path: &Path) -> Result<File, LetterError> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| LetterError::new("not opened", format!("{}: {error}", path.display())))
}

fn lines(letters: &[Letter]) -> Result<Vec<u8>, LetterError> {
    let mut text = Vec::new();
    for letter in letters {
        let line = serde_json::to_vec(letter);
        text.extend(line.map_err(|error| LetterError::new("not encoded", error))?);
        text.push(b'\n');
    }
    Ok(text)
}

impl LetterStore for JsonLinesLetters {
    fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not written", error);
        let before = self.file.metadata().map_err(failed)?.len();
        for (letter, id) in letters.iter_mut().zip(self.next + 1..) {
            letter.id = id;
        }
        let text = lines(letters)?;
        if let Err(error) = self.file.write_all(&text).and_then(|()| self.file.sync_data()) {
            let _ = self.file.set_len(before); // half a line would spoil the next one
            return Err(failed(error));
        }
        self.next += letters.len() as u64;
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Letter>, LetterError> {
        let failed = |error: std::io::Error| LetterError::new("not read", error);
        let file = BufReader::new(File::open(&self.path).map_err(failed)?);
        let mut letters = Vec::new();
        for line in file.split(b'\n') {
            if let Ok(letter) = serde_json::from_slice(&line.map_err(failed)?) {
                letters.push(letter);
            }
        }
        Ok(letters)
    }

    fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError> {
        let mut letters = self.read()?;
        letters.retain(|letter| !ids.contains(&letter.id));
        self.rewrite(&letters)
    }
}
