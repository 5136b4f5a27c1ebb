//! An archive as lines of JSON, in files that are rotated by size.
//!
//! **Invariant:** records that are written together are stored as whole lines or not at all. If
//! half a line cannot be removed, nothing is ever appended to it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{ArchiveError, ArchiveStore, Query, Record, oldest, private};

/// The maximum number of full files.
const FILES_MAX: usize = 9_999;

/// An archive in one folder: `history.jsonl`, and the older files `history.1.jsonl`,
/// `history.2.jsonl` …
///
/// ```
/// use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let folder = tempfile::tempdir()?;
/// let history = History::new(JsonLinesArchive::rotating(&folder, 64 << 20, 10)?);
/// let hub = EventHub::new();
/// let archive = hub.subscribe(Keys::any(["orders"])?).name("archive").archive(&history)?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// archive.blocking_stop(std::time::Duration::from_secs(5))?;
/// let text = std::fs::read_to_string(folder.path().join("history.jsonl"))?;
/// assert_eq!(text.lines().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JsonLinesArchive {
    folder: PathBuf,
    /// None if it is only read.
    lines: Option<Lines<File>>,
    bytes_max: u64,
    files_max: usize,
    next: u64,
    age_max: Option<Duration>,
    /// Held while the archive is open to write.
    _lock: Option<File>,
}

impl JsonLinesArchive {
    /// Opens or creates the folder. A new file is started before the current one would exceed
    /// `bytes_max`. At most `files_max` full files are kept, and never more than 9,999. 0 counts as
    /// 1 for both. A batch of up to 256 events is never split, so a file may be longer by one
    /// batch.
    pub fn rotating(
        folder: impl AsRef<Path>,
        bytes_max: u64,
        files_max: usize,
    ) -> Result<JsonLinesArchive, ArchiveError> {
        let folder = folder.as_ref().to_path_buf();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not opened", error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let lock = lock(&folder.join("history.lock")).map_err(failed)?;
        let lines = Lines::open(&path(&folder, 0)).map_err(failed)?;
        let (bytes_max, files_max) = (bytes_max.max(1), files_max.clamp(1, FILES_MAX));
        let mut archive = JsonLinesArchive {
            folder,
            lines: Some(lines),
            bytes_max,
            files_max,
            next: 0,
            age_max: None,
            _lock: Some(lock),
        };
        for surplus in (files_max + 1..).map(|age| path(&archive.folder, age)) {
            if std::fs::remove_file(surplus).is_err() {
                break; // there were no more
            }
        }
        let newest = (0..=files_max).filter_map(|age| archive.last_id(age)).max();
        archive.next = newest.unwrap_or(0);
        Ok(archive)
    }

    /// Opens a folder to read it. Another process may write there.
    pub fn open_to_read(folder: impl AsRef<Path>) -> Result<JsonLinesArchive, ArchiveError> {
        let folder = folder.as_ref().to_path_buf();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not opened", error);
        std::fs::metadata(path(&folder, 0)).map_err(failed)?;
        let (lines, age_max, _lock) = (None, None, None);
        let (bytes_max, files_max) = (u64::MAX, FILES_MAX);
        Ok(JsonLinesArchive { folder, lines, bytes_max, files_max, next: 0, age_max, _lock })
    }

    /// Events older than this are not found any more. A full file is removed when all its events are that old.
    pub fn keep_for(mut self, age: Duration) -> JsonLinesArchive {
        self.age_max = Some(age);
        self
    }

    /// Removes full files that are too old. What cannot be removed now is removed later.
    fn forget(&self) {
        let Some(age_max) = self.age_max else { return };
        for path in (1..=self.files_max).map(|age| path(&self.folder, age)) {
            let Ok(about) = std::fs::metadata(&path) else { break };
            let age = about.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > age_max) {
                let _ = std::fs::remove_file(path);
            }
        }
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

    /// Rotates the files. Can be repeated after a failure: the new file exists before the old ones
    /// move, and they move only while there is a current file.
    fn rotate(&mut self) -> std::io::Result<()> {
        let new = self.folder.join("history.new.jsonl");
        let lines = Lines::open(&new)?;
        let first = path(&self.folder, 0).exists();
        for age in (0..self.files_max).rev().filter(|_| first) {
            let (from, to) = (path(&self.folder, age), path(&self.folder, age + 1));
            if from.exists() {
                std::fs::rename(from, to)?;
            }
        }
        std::fs::rename(&new, path(&self.folder, 0))?;
        self.lines = Some(lines);
        self.forget();
        Ok(())
    }
}

fn path(folder: &Path, age: usize) -> PathBuf {
    match age {
        0 => folder.join("history.jsonl"),
        age => folder.join(format!("history.{age}.jsonl")),
    }
}

/// Locks the files against other writers.
pub(crate) fn lock(path: &Path) -> std::io::Result<File> {
    let file =
        private(&mut OpenOptions::new()).create(true).truncate(false).write(true).open(path)?;
    // An archive that was just dropped may still be writing.
    let due = Instant::now() + Duration::from_secs(1);
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= due {
            return Err(std::io::Error::other("somebody else writes there"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

/// What lines are appended to: a file, or a failing one in tests.
pub(crate) trait Appends {
    fn append(&mut self, text: &[u8]) -> std::io::Result<()>;
    /// Removes everything after this many bytes.
    fn cut(&mut self, bytes: u64) -> std::io::Result<()>;
    fn bytes(&mut self) -> std::io::Result<u64>;
}

impl Appends for File {
    fn append(&mut self, text: &[u8]) -> std::io::Result<()> {
        self.write_all(text)
    }

    fn cut(&mut self, bytes: u64) -> std::io::Result<()> {
        self.set_len(bytes)
    }

    fn bytes(&mut self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// A file of whole lines.
#[derive(Debug)]
pub(crate) struct Lines<F> {
    pub(crate) file: F,
    bytes: u64,
    /// There may be half a line after these bytes.
    torn: bool,
}

impl Lines<File> {
    /// Opens a file for appending. If a crash cut off the last line, that line is terminated, so
    /// that only this line is lost.
    pub(crate) fn open(path: &Path) -> std::io::Result<Lines<File>> {
        let mut file =
            private(&mut OpenOptions::new()).create(true).read(true).append(true).open(path)?;
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            std::io::Read::read_exact(&mut file, &mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        let bytes = file.bytes()?;
        Ok(Lines { file, bytes, torn: false })
    }
}

impl<F: Appends> Lines<F> {
    /// Appends whole lines, all or none.
    pub(crate) fn add(&mut self, text: &[u8]) -> std::io::Result<()> {
        if self.torn && self.file.cut(self.bytes).is_err() {
            // The half line is terminated instead, and the bytes are counted again.
            self.file.append(b"\n")?;
            self.bytes = self.file.bytes()?;
        }
        self.torn = false;
        match self.file.append(text) {
            Ok(()) => {
                self.bytes += text.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.take_back();
                Err(error)
            }
        }
    }

    /// Removes everything after the last whole line, now or before the next append.
    fn take_back(&mut self) {
        self.torn = self.file.cut(self.bytes).is_err();
    }

    /// Removes what was appended after this many bytes.
    pub(crate) fn undo(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.take_back();
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Passes every valid record of a file to `each`, until `each` returns `false`.
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
    /// A batch is written to one file, so it must be small beside a file.
    fn batch_max(&self) -> usize {
        256
    }

    fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError> {
        let folder = self.folder.clone();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not written", error);
        let mut text = Vec::new();
        for (record, id) in records.iter().zip(self.next + 1..) {
            let numbered = Record { id, ..record.clone() };
            serde_json::to_writer(&mut text, &numbered).map_err(|error| failed(error.into()))?;
            text.push(b'\n');
        }
        let only_read = || failed(std::io::Error::other("it was opened to be read"));
        let bytes = self.lines.as_ref().ok_or_else(only_read)?.bytes();
        if bytes > 0 && bytes + text.len() as u64 > self.bytes_max {
            self.rotate().map_err(failed)?;
        }
        self.lines.as_mut().ok_or_else(only_read)?.add(&text).map_err(failed)?;
        self.next += records.len() as u64;
        Ok(())
    }

    fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
        let mut query = query.clone();
        if let Some(age) = self.age_max {
            query.from_ms = query.from_ms.max(oldest(age));
        }
        let failed = |error| ArchiveError::new(&self.folder, "not read", error);
        let last = (1..=self.files_max).take_while(|age| path(&self.folder, *age).exists()).count();
        let mut records = Vec::new();
        let newest = query.newest_first;
        for age in (0..=last).map(|age| if newest { age } else { last - age }) {
            let (mut found, room) = (Vec::new(), query.limit - records.len());
            let each = |record: Record| {
                if query.fits(&record) {
                    found.push(record);
                }
                newest || found.len() < room
            };
            if room == 0 {
                break;
            }
            read(&path(&self.folder, age), each).map_err(failed)?;
            if newest {
                found.reverse();
                found.truncate(room);
            }
            records.append(&mut found);
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that becomes full, and that may be unable to remove anything.
    struct BrokenFile {
        text: Vec<u8>,
        room: usize,
        cuts: bool,
    }

    impl Appends for BrokenFile {
        fn append(&mut self, text: &[u8]) -> std::io::Result<()> {
            let fits = text.len().min(self.room - self.text.len());
            self.text.extend(&text[..fits]);
            match fits == text.len() {
                true => Ok(()),
                false => Err(std::io::Error::other("it is full")),
            }
        }

        fn cut(&mut self, bytes: u64) -> std::io::Result<()> {
            if !self.cuts {
                return Err(std::io::Error::other("not now"));
            }
            self.text.truncate(bytes as usize);
            Ok(())
        }

        fn bytes(&mut self) -> std::io::Result<u64> {
            Ok(self.text.len() as u64)
        }
    }

    /// Regression: half a line could not be removed at once, and the next record was appended to
    /// it.
    #[test]
    fn nothing_is_added_to_half_a_line() {
        for (cuts_later, expected) in
            [(true, "first\nthird\nfourth\n"), (false, "first\nsec\nthird\nfourth\n")]
        {
            let file = BrokenFile { text: Vec::new(), room: 9, cuts: false };
            let mut lines = Lines { file, bytes: 0, torn: false };
            lines.add(b"first\n").expect("there is room");
            lines.add(b"second\n").expect_err("there is none");
            lines.add(b"second\n").expect_err("there is still none");
            (lines.file.room, lines.file.cuts) = (100, cuts_later);
            lines.add(b"third\n").expect("there is room");
            lines.add(b"fourth\n").expect("there is room");
            assert_eq!(String::from_utf8_lossy(&lines.file.text), expected);
            assert_eq!(lines.bytes(), expected.len() as u64);
        }
    }
}
