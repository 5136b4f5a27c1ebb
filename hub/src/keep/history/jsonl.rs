//! An archive as lines of JSON, in files that are rotated by size.
//!
//! **Invariant:** records that are written together are stored as whole lines or not at all. If
//! half a line cannot be removed, nothing is ever appended to it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{ArchiveError, ArchiveStore, Query, Record, oldest, private};

/// The maximum number of full files.
const FILES_MAX: usize = 9_999;
/// How often it is looked whether files are too old.
const LOOK_AFTER: Duration = Duration::from_secs(10);

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
    /// When the first event of the current file was published, if it has one.
    since_ms: Option<u64>,
    looked: Option<Instant>,
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
            since_ms: None,
            looked: None,
            _lock: Some(lock),
        };
        for surplus in (files_max + 1..).map(|age| path(&archive.folder, age)) {
            if std::fs::remove_file(surplus).is_err() {
                break; // there were no more
            }
        }
        archive.since_ms = first(&path(&archive.folder, 0)).map(|record| record.at_ms);
        let newest = (0..=files_max).filter_map(|age| archive.last_id(age)).max();
        archive.next = newest.unwrap_or(0);
        Ok(archive)
    }

    /// Opens a folder to read it. Another process may write there.
    pub fn open_to_read(folder: impl AsRef<Path>) -> Result<JsonLinesArchive, ArchiveError> {
        let folder = folder.as_ref().to_path_buf();
        let failed = |error: std::io::Error| ArchiveError::new(&folder, "not opened", error);
        std::fs::metadata(path(&folder, 0)).map_err(failed)?;
        Ok(JsonLinesArchive {
            folder,
            lines: None,
            bytes_max: u64::MAX,
            files_max: FILES_MAX,
            next: 0,
            age_max: None,
            since_ms: None,
            looked: None,
            _lock: None,
        })
    }

    /// Events older than this are not found any more. A full file is removed when all its events are that old; so that
    /// this does not take much longer, a file also counts as full after a part of this time: one part for each full file
    /// that is kept.
    pub fn keep_for(mut self, age: Duration) -> JsonLinesArchive {
        self.age_max = Some(age);
        self
    }

    /// Has the current file been written for long enough, whatever its size?
    fn is_old(&self) -> bool {
        let (Some(age_max), Some(since_ms)) = (self.age_max, self.since_ms) else { return false };
        since_ms < oldest(age_max / self.files_max as u32)
    }

    /// Removes full files that are too old. What cannot be removed now is removed later.
    fn forget(&mut self) {
        let Some(age_max) = self.age_max else { return };
        self.looked = Some(Instant::now());
        for path in (1..=self.files_max).map(|age| path(&self.folder, age)) {
            let Ok(about) = std::fs::metadata(&path) else { break };
            let age = about.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > age_max) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    fn begins_before(&self, age: usize, id: u64) -> bool {
        let first = first(&path(&self.folder, age));
        first.is_some_and(|record| record.id < id)
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
        (self.lines, self.since_ms) = (Some(lines), None);
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

/// The first event of a file.
fn first(path: &Path) -> Option<Record> {
    let mut first = None;
    let each = |record: Record| {
        first = Some(record);
        false
    };
    read(path, each).ok().and(first)
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
        let is_full = bytes + text.len() as u64 > self.bytes_max;
        if bytes > 0 && (is_full || self.is_old()) {
            self.rotate().map_err(failed)?;
        }
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AFTER) {
            self.forget();
        }
        self.lines.as_mut().ok_or_else(only_read)?.add(&text).map_err(failed)?;
        self.since_ms = self.since_ms.or(records.first().map(|record| record.at_ms));
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
            let (mut found, room) = (VecDeque::new(), query.limit - records.len());
            let each = |record: Record| {
                if query.fits(&record) {
                    // Of the newest only the last ones are kept.
                    if newest && found.len() == room {
                        found.pop_front();
                    }
                    found.push_back(record);
                }
                newest || found.len() < room
            };
            if room == 0 {
                break;
            }
            // All its events are newer than what is asked for: its first line says so.
            if newest && query.before < u64::MAX && !self.begins_before(age, query.before) {
                continue;
            }
            read(&path(&self.folder, age), each).map_err(failed)?;
            match newest {
                true => records.extend(found.into_iter().rev()),
                false => records.extend(found),
            }
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

    fn record(at_ms: u64) -> Record {
        let (key, payload) = ("k".to_owned(), Some(serde_json::json!("x")));
        Record { id: 0, at_ms, key, sequence: 1, priority: crate::Priority::Normal, payload }
    }

    fn files(folder: &Path) -> usize {
        (0..).take_while(|age| path(folder, *age).exists()).count()
    }

    /// Regression: what was too old stayed until a file was full of bytes.
    #[test]
    fn what_is_too_old_goes_although_the_file_is_not_full() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || JsonLinesArchive::rotating(&folder, 1 << 20, 3).expect("an archive");
        let (now, hour) = (super::super::millis(std::time::SystemTime::now()), 3_600_000);
        let mut archive = open();
        archive.append(&[record(now - 2 * hour)]).expect("written");
        drop(archive);
        let mut archive = open().keep_for(Duration::from_millis(3 * hour));
        archive.append(&[record(now)]).expect("written");
        assert_eq!(files(folder.path()), 2, "it was written for a third of the time");
        archive.append(&[record(now)]).expect("written");
        assert_eq!(files(folder.path()), 2, "this one is new");
        let old = std::time::SystemTime::now() - Duration::from_millis(4 * hour);
        let full = File::options().append(true).open(path(folder.path(), 1)).expect("it is there");
        full.set_modified(old).expect("set");
        archive.looked = None;
        archive.append(&[record(now)]).expect("written");
        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn pages_from_the_newest_on_leave_out_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut archive = JsonLinesArchive::rotating(&folder, 500, 100).expect("an archive");
        for at in 1..=100 {
            archive.append(&[record(at)]).expect("written");
        }
        assert!(files(folder.path()) > 5);
        let (mut query, mut seen) = (Query::all().newest_first().limit(7), Vec::new());
        loop {
            let page = archive.query(&query).expect("read");
            let Some(last) = page.last() else { break };
            query = query.before(last.id);
            seen.extend(page.iter().map(|record| record.at_ms));
        }
        assert_eq!(seen, (1..=100).rev().collect::<Vec<u64>>());
    }
}
