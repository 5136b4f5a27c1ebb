//! The lock that starters and stoppers of a private server share.
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

const PAUSE: Duration = Duration::from_millis(10);

/// The lock, held until it is dropped.
pub(super) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits for it, `limit` at most; `None` if somebody else holds it all that time.
    pub(super) fn take(path: PathBuf, limit: Duration) -> io::Result<Option<Lock>> {
        let start = Instant::now();
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever held it may have removed the file meanwhile: then this is a lock on nothing.
                Ok(()) if same_file(&file, &path) => return Ok(Some(Lock { _file: file, path })),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if start.elapsed() < limit => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes the file, too: whoever waits for it notices and makes a new one.
    pub(super) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
