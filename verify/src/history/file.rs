//! The files of the history: each life of a process writes one, and the director reads them while they grow.
//!
//! **Invariant:** a line is read when it is complete, and once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::{Entry, now};

/// The file to which one process writes its history.
#[derive(Debug)]
pub(crate) struct Book {
    file: File,
}

impl Book {
    pub(crate) fn open(path: &Path) -> io::Result<Book> {
        Ok(Book { file: File::options().create(true).append(true).open(path)? })
    }

    /// Writes one line. A process that cannot write its history must end: what it does without a
    /// line would look like a fault of the fleet.
    pub(crate) fn put(&self, entry: &Entry) {
        if self.write(entry).is_err() {
            std::process::exit(NO_HISTORY);
        }
    }

    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        let line = format!("{} {}\n", now(), entry.line());
        (&self.file).write_all(line.as_bytes())
    }
}

/// The exit code of a process that cannot write its history.
pub(crate) const NO_HISTORY: i32 = 74;

/// Reads the history of one life of a process, while it grows.
#[derive(Debug)]
pub(crate) struct Tail {
    /// `m3.12`: process 3 in its 12th life.
    pub(crate) who: String,
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(who: String, path: PathBuf) -> Tail {
        Tail { who, path, file: None, rest: Vec::new() }
    }

    /// The entries that were written since the last call.
    pub(crate) fn read(&mut self) -> Vec<(u64, Entry)> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return Vec::new() };
        let _ = file.read_to_end(&mut self.rest);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8_lossy(&lines).lines().filter_map(Entry::read).collect()
    }
}

/// The lines of all histories that contain one of these words, sorted by time; at most `most`.
pub(crate) fn excerpt(dir: &Path, words: &[String], most: usize) -> Vec<String> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some(who) = name.strip_suffix(".history") else { continue };
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        for line in text.lines() {
            if line.split(' ').skip(1).any(|word| words.iter().any(|wanted| wanted == word)) {
                let (at, rest) = line.split_once(' ').unwrap_or(("0", line));
                found.push((at.parse::<u64>().unwrap_or(0), format!("{who} {rest}")));
            }
        }
    }
    found.sort();
    let begun = found.first().map_or(0, |first| first.0);
    let seconds = |at: u64| (at - begun) as f64 / 1e6;
    let line = |(at, text): (u64, String)| format!("{:>10.6} s  {text}", seconds(at));
    found.into_iter().take(most).map(line).collect()
}
