//! An archive as lines of JSON, in files that are rotated by size.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{ArchiveError, ArchiveStore, Query, Record};

/// `history.jsonl`, and before it `history.1.jsonl`, `history.2.jsonl` … in one folder.
#[derive(Debug)]
pub struct JsonLinesArchive {
    folder: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    files_max: usize,
    next: u64,
    /// Held for as long as it is open.
    _lock: File,
}

impl JsonLinesArchive {
    /// Opens the folder, or makes it. A new file is begun before the last one would get longer than
    /// this many bytes, and this many full ones are kept; 0 bytes or files count as 1. What is
    /// written together is never split, so that a file may be longer by up to 256 events.
    pub fn rotating(
        folder: impl AsRef<Path>,
        bytes_max: u64,
        files_max: usize,
    ) -> Result<JsonLinesArchive, ArchiveError> {
        let folder = folder.as_ref().to_path_buf();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not opened", error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let lock = lock(&folder.join("history.lock")).map_err(failed)?;
        let file = open(&path(&folder, 0)).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let (bytes_max, files_max) = (bytes_max.max(1), files_max.max(1));
        let mut archive =
            JsonLinesArchive { folder, file, bytes, bytes_max, files_max, next: 0, _lock: lock };
        for surplus in (files_max + 1..).map(|age| path(&archive.folder, age)) {
            if std::fs::remove_file(surplus).is_err() {
                break; // there were never more
            }
        }
        let newest = (0..=files_max).filter_map(|age| archive.last_id(age)).max();
        archive.next = newest.unwrap_or(0);
        Ok(archive)
    }

    fn last_id(&self, age: usize) -> Option<u64> {
        let mut last = None;
        read(&path(&self.folder, age), |record| {
            last = last.max(Some(record.id));
            true
        })
        .ok()?;
        last
    }

    /// Safe to repeat after it failed: the new file is there before the old ones move, and they
    /// move only while there is one in the first place.
    fn rotate(&mut self) -> std::io::Result<()> {
        let new = self.folder.join("history.new.jsonl");
        let file = open(&new)?;
        let first = path(&self.folder, 0).exists();
        for age in (0..self.files_max).rev().filter(|_| first) {
            let (from, to) = (path(&self.folder, age), path(&self.folder, age + 1));
            if from.exists() {
                std::fs::rename(from, to)?;
            }
        }
        std::fs::rename(&new, path(&self.folder, 0))?;
        self.file = file;
        self.bytes = 0;
        Ok(())
    }
}

fn path(folder: &Path, age: usize) -> PathBuf {
    match age {
        0 => folder.join("history.jsonl"),
        age => folder.join(format!("history.{age}.jsonl")),
    }
}

/// Nobody else may write to the same files.
pub(crate) fn lock(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    // One that was just dropped may still be writing its last.
    let due = Instant::now() + Duration::from_secs(1);
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= due {
            return Err(std::io::Error::other("somebody else writes there"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

/// Opens a file to add to it. A line that a crash cut off is closed, so that only it is lost.
pub(crate) fn open(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        std::io::Read::read_exact(&mut file, &mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Gives every whole record of a file to `each`, until it says no.
fn read(path: &Path, mut each: impl FnMut(Record) -> bool) -> std::io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        file => BufReader::new(file?),
    };
    for line in file.split(b'\n') {
        let record = serde_json::from_slice(&line?);
        if record.is_ok_and(|record| !each(record)) {
            break;
        }
    }
    Ok(())
}

impl ArchiveStore for JsonLinesArchive {
    fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError> {
        let folder = self.folder.clone();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not written", error);
        let mut text = Vec::new();
        for (record, id) in records.iter().zip(self.next + 1..) {
            let numbered = Record { id, ..record.clone() };
            serde_json::to_writer(&mut text, &numbered).map_err(|error| failed(error.into()))?;
            text.push(b'\n');
        }
        if self.bytes > 0 && self.bytes + text.len() as u64 > self.bytes_max {
            self.rotate().map_err(failed)?;
        }
        if let Err(error) = self.file.write_all(&text) {
            let _ = self.file.set_len(self.bytes); // all or none
            return Err(failed(error));
        }
        self.bytes += text.len() as u64;
        self.next += records.len() as u64;
        Ok(())
    }

    fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
        let mut records = Vec::new();
        for age in (0..=self.files_max).rev() {
            if records.len() >= query.limit {
                break;
            }
            let each = |record: Record| {
                if query.fits(&record) {
                    records.push(record);
                }
                records.len() < query.limit
            };
            read(&path(&self.folder, age), each)
                .map_err(|error| ArchiveError::new(&self.folder, "not read", error))?;
        }
        Ok(records)
    }
}
