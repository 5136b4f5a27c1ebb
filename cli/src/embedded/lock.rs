//! The file lock that a process holds while it starts or stops a private server.
//!
//! **Invariant:** one process at a time holds it, and it ends with that process: there is no stale
//! lock, only a file that nobody holds.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::folder;

const PAUSE: Duration = Duration::from_millis(10);

/// The lock, held until it is dropped.
pub(super) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits for it, `limit` at most; `None` if another process holds it all that time.
    pub(super) fn take(path: PathBuf, limit: Duration) -> io::Result<Option<Lock>> {
        let start = Instant::now();
        loop {
            let file = folder::open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The last holder may have removed the file meanwhile: then this lock is worthless.
                Ok(()) if same_file(&file, &path) => return Ok(Some(Lock { _file: file, path })),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if start.elapsed() < limit => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes it if nobody holds it. Every process that is started from now on inherits it, so it is
    /// held until the last of them has ended.
    pub(super) fn take_for_children(path: PathBuf) -> io::Result<Option<Lock>> {
        let lock = Lock::take(path, Duration::ZERO)?;
        if let Some(lock) = &lock {
            rustix::io::fcntl_setfd(&lock._file, rustix::io::FdFlags::empty())?;
        }
        Ok(lock)
    }

    /// The processes that hold a lock on this file, as far as this system can tell.
    pub(super) fn holders(path: &Path) -> Vec<i32> {
        let Ok(lock) = std::fs::metadata(path) else { return Vec::new() };
        let same = |file: std::fs::Metadata| (file.dev(), file.ino()) == (lock.dev(), lock.ino());
        let holds = |pid: &i32| {
            let files =
                std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.into_iter().any(|file| std::fs::metadata(file.path()).is_ok_and(same))
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| *pid != std::process::id() as i32).filter(holds).collect()
    }

    /// Releases the lock and removes its file. A process that waits for it notices and creates a
    /// new file.
    pub(super) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
