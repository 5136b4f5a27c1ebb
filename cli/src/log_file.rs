//! [`LogFile`]: the log in a file that is replaced by a new one when it is full or old.
//!
//! **Invariant:** logging never waits for the disk. Lines that the disk cannot follow are dropped, and the next line that is
//! written says how many. There are never more than the wanted number of files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::args::LogFileArgs;
use crate::exit::{FAILURE, Failure};

/// Lines that may wait for the disk.
const WAITING_MAX: usize = 8192;
/// Pause after the disk refused a line.
const RETRY: Duration = Duration::from_secs(1);

/// Where log lines are written to. Clones write to the same file.
#[derive(Clone)]
pub(crate) struct LogFile {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

enum Line {
    Text(Vec<u8>),
    /// Answer when everything before it is written.
    Flush(SyncSender<()>),
}

impl LogFile {
    /// Opens the file and starts its thread.
    pub(crate) fn start(args: &LogFileArgs) -> Result<Option<LogFile>, Failure> {
        let Some(path) = &args.log_file else { return Ok(None) };
        let (size_max, age_max, files) = (args.log_file_size, args.log_file_age, args.log_files);
        let cannot = |error: io::Error| {
            let text = format!("the log file {} cannot be written: {error}", path.display());
            Failure::new(FAILURE, text).hint("each process needs a --log-file of its own, in a folder that this user may write to")
        };
        let file = Rotating::open(path, size_max, age_max, files).map_err(cannot)?;
        let (lines, received) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_all(file, &received, &counted)).map_err(cannot)?;
        Ok(Some(LogFile { lines, dropped }))
    }
}

impl Write for LogFile {
    /// Each write is a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Line::Text(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    /// Waits a while for the disk: the process is about to end.
    fn flush(&mut self) -> io::Result<()> {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = written.recv_timeout(RETRY);
        }
        Ok(())
    }
}

/// Writes lines until nobody can send any.
fn write_all(mut file: Rotating, lines: &Receiver<Line>, dropped: &AtomicU64) {
    loop {
        let line = match lines.recv_timeout(Duration::from_secs(60)) {
            Ok(Line::Text(line)) => line,
            Ok(Line::Flush(done)) => {
                let _ = done.try_send(());
                continue;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let lost = dropped.swap(0, Ordering::Relaxed);
        let told = match lost {
            0 => Ok(()),
            lost => file.add(
                format!("{lost} log lines were dropped: the disk did not follow\n").as_bytes(),
            ),
        };
        if told.and_then(|()| file.add(&line)).is_err() {
            dropped.fetch_add(lost + 1, Ordering::Relaxed);
            std::thread::sleep(RETRY);
            file.reopen();
        }
    }
}

/// A file that makes room for the next one.
struct Rotating {
    path: PathBuf,
    size_max: u64,
    age_max: Option<Duration>,
    files: u64,
    file: File,
    size: u64,
    since: Instant,
}

impl Rotating {
    fn open(
        path: &Path,
        size_max: u64,
        age_max: Option<Duration>,
        files: u64,
    ) -> io::Result<Rotating> {
        let file = append(path)?;
        let about = file.metadata()?;
        // A file that was begun by an earlier process is as old as it is.
        let age = about.created().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let now = Instant::now();
        let since = age.and_then(|age| now.checked_sub(age)).unwrap_or(now);
        let (path, size) = (path.to_owned(), about.len());
        Ok(Rotating { path, size_max, age_max, files, file, size, since })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        let full = self.size > 0 && self.size.saturating_add(line.len() as u64) > self.size_max;
        let old = self.size > 0 && self.age_max.is_some_and(|age| self.since.elapsed() >= age);
        if full || old {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    /// FILE becomes FILE.1, that one FILE.2 and so on. The last one is removed. It can be repeated after a failure: the new
    /// file is there before the old ones move, and they move only while FILE is the one that is written.
    fn rotate(&mut self) -> io::Result<()> {
        let new = numbered(&self.path, "new");
        let file = append(&new)?;
        if self.is_there() {
            for number in (1..self.files).rev() {
                let name = |number| match number {
                    0 => self.path.clone(),
                    number => numbered(&self.path, number),
                };
                match std::fs::rename(name(number - 1), name(number)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        std::fs::rename(&new, &self.path)?;
        self.file = file;
        (self.size, self.since) = (0, Instant::now());
        Ok(())
    }

    /// Is the file that is written the one that has its name?
    fn is_there(&self) -> bool {
        let there = std::fs::metadata(&self.path).ok().map(|it| (it.dev(), it.ino()));
        there.is_some() && there == self.file.metadata().ok().map(|it| (it.dev(), it.ino()))
    }

    /// After an error: perhaps the file was removed, or its folder.
    fn reopen(&mut self) {
        if self.is_there() {
            return;
        }
        if let Ok(file) = append(&self.path) {
            self.size = file.metadata().map_or(0, |about| about.len());
            self.file = file;
        }
    }
}

/// The file beside this one with such an end.
fn numbered(path: &Path, end: impl std::fmt::Display) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{end}"));
    name.into()
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Messages may be quoted in it: only its owner reads it.
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // Two processes would rename the files under each other's feet.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::other("another process writes to it")),
        _ => Ok(file), // also if this file system knows no locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(path: &Path) -> Vec<u64> {
        let first = std::iter::once(path.to_owned());
        let files = first.chain((1..).map(|number| numbered(path, number)));
        files.map_while(|file| std::fs::metadata(file).ok()).map(|about| about.len()).collect()
    }

    #[test]
    fn there_are_never_more_files_than_wanted_and_none_is_too_large() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = Rotating::open(&path, 100, None, 3).expect("a file");
        for number in 0..100 {
            file.add(format!("line {number:04}\n").as_bytes()).expect("written");
            let sizes = sizes(&path);
            assert!(sizes.len() <= 3 && sizes.iter().all(|size| *size <= 100), "{sizes:?}");
        }
        assert_eq!(sizes(&path), [100, 100, 100]);
        let newest = std::fs::read_to_string(&path).expect("a text");
        assert!(newest.ends_with("line 0099\n"));
        let oldest = std::fs::read_to_string(numbered(&path, 2)).expect("a text");
        assert!(oldest.starts_with("line 0070\n"), "{oldest}");
        assert!(Rotating::open(&path, 100, None, 3).is_err(), "another process writes to it");
        drop(file);
        // The next process goes on with the same file.
        let mut file = Rotating::open(&path, 100, None, 3).expect("a file");
        file.add(b"more\n").expect("written");
        assert_eq!(sizes(&path), [5, 100, 100]);
    }

    /// Regression: each try moved the files on, until all old ones were gone.
    #[test]
    fn a_rotation_that_fails_again_and_again_destroys_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = Rotating::open(&path, 5, None, 3).expect("a file");
        for line in [b"one1\n", b"two2\n", b"tre3\n"] {
            file.add(line).expect("written");
        }
        // The new file cannot be made: something else has its name.
        std::fs::create_dir(numbered(&path, "new")).expect("a folder");
        for _ in 0..5 {
            file.add(b"four\n").expect_err("no room");
            file.reopen();
        }
        assert_eq!(std::fs::read_to_string(numbered(&path, 2)).expect("a text"), "one1\n");
        std::fs::remove_dir(numbered(&path, "new")).expect("removed");
        file.add(b"four\n").expect("written");
        assert_eq!(std::fs::read_to_string(numbered(&path, 2)).expect("a text"), "two2\n");
        assert_eq!(std::fs::read_to_string(&path).expect("a text"), "four\n");
    }

    #[test]
    fn an_old_file_is_replaced_and_an_empty_one_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let mut file = Rotating::open(&path, 1000, Some(Duration::ZERO), 2).expect("a file");
        file.add(b"one\n").expect("written");
        assert_eq!(sizes(&path), [4]);
        file.add(b"two two\n").expect("written");
        assert_eq!(sizes(&path), [8, 4]);
        let mut single = Rotating::open(&dir.path().join("single"), 5, None, 1).expect("a file");
        for _ in 0..3 {
            single.add(b"four\n").expect("written");
        }
        assert_eq!(sizes(&dir.path().join("single")), [5]);
    }

    #[test]
    fn a_disk_that_refuses_is_counted_and_holds_up_nobody() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("folder").join("log");
        let start = |path: &Path| {
            let (log_file, log_file_size, log_files) = (Some(path.to_owned()), 100, 2);
            LogFile::start(&LogFileArgs { log_file, log_file_size, log_file_age: None, log_files })
        };
        assert!(start(&path).is_err());
        // A device that is always full.
        let full = start(Path::new("/dev/full")).unwrap_or_else(|_| panic!("it opens"));
        let mut full = full.expect("a file");
        let begun = Instant::now();
        for _ in 0..20_000 {
            full.write_all(b"line\n").expect("never an error");
        }
        assert!(begun.elapsed() < RETRY * 10);
        assert!(full.dropped.load(Ordering::Relaxed) > 10_000);
    }
}
