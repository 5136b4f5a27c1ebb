//! [`Clock`]: the wall clock of one process, which can be set to another time while it runs.
//!
//! The library libfaketime is loaded into the process and gives it a wrong time; no other clock is
//! changed. Where it is not installed, no clock can be set, and a run reports that.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where packages install it: in these folders, or one folder further down.
const FOLDERS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];
const LIBRARY: &str = "faketime/libfaketime.so.1";
/// The library reads its file again after more than this many seconds. To read it every time would
/// cost a server half its speed.
const LOOKS_EVERY: &str = "1";
/// A new clock setting takes effect within this time.
pub const TAKES_EFFECT: Duration = Duration::from_secs(2);
/// How far a clock goes wrong at least, ms.
const OFF_MIN: i64 = 1000;
/// How far a clock goes wrong at most, ms.
pub const OFF_MAX: i64 = 3 * 3_600_000;
/// The library keeps files of every process here, and cannot remove them when the process is
/// killed.
const LEFTOVERS: [&str; 2] = ["/dev/shm/faketime_shm_", "/dev/shm/sem.faketime_sem_"];

/// A wall clock that can be set.
#[derive(Clone, Debug)]
pub struct Clock {
    library: PathBuf,
    /// The file that says how far the clock is off.
    file: PathBuf,
}

impl Clock {
    /// The library, if it is installed.
    pub fn library() -> Option<PathBuf> {
        let further = |folder: &&str| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let plain = FOLDERS.iter().map(PathBuf::from);
        let all = plain.chain(FOLDERS.iter().flat_map(further));
        all.map(|folder| folder.join(LIBRARY)).find(|path| path.exists())
    }

    /// Does the library work on this machine?
    pub fn works(library: &Path, dir: &Path) -> bool {
        // These characters separate the names of libraries.
        if library.to_string_lossy().contains([' ', ':']) {
            return false;
        }
        let off = |by: i64| {
            let clock = Clock::new(library, dir.join("clock")).ok()?;
            clock.set(by).ok()?;
            let mut command = Command::new("date");
            clock.give(command.arg("+%s"));
            let said = command.stderr(Stdio::null()).output().ok()?.stdout;
            String::from_utf8_lossy(&said).trim().parse::<i64>().ok()
        };
        let (right, wrong) = (off(0), off(-3_600_000));
        let _ = std::fs::remove_file(dir.join("clock"));
        right.zip(wrong).is_some_and(|(right, wrong)| (3500..=3600).contains(&(right - wrong)))
    }

    /// A clock that is right until it is set.
    pub fn new(library: &Path, file: PathBuf) -> io::Result<Clock> {
        let clock = Clock { library: library.to_owned(), file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Makes the process of this command use this clock.
    pub fn give(&self, command: &mut Command) {
        // An allocator that reads the time before the library is ready would hang. So libc, with
        // the usual allocator, is loaded before others.
        let mut libraries = self.library.clone().into_os_string();
        libraries.push(" libc.so.6");
        command
            .env("LD_PRELOAD", libraries)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_CACHE_DURATION", LOOKS_EVERY)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Sets the clock off by this many milliseconds; it takes effect within [`TAKES_EFFECT`].
    pub fn set(&self, off_ms: i64) -> io::Result<()> {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{:+.3}\n", off_ms as f64 / 1000.0))?;
        std::fs::rename(new, &self.file)
    }

    /// Removes the files that the library has left of a killed process.
    pub fn clean(pid: u32) {
        for start in LEFTOVERS {
            let _ = std::fs::remove_file(format!("{start}{pid}"));
        }
    }
}

/// How far a clock is set off; the number `which` decides. It is up to two leases, or up to three
/// hours, which is longer than Redis remembers a sender.
pub fn off_ms(which: u32, lease: Duration) -> i64 {
    let most = if which.is_multiple_of(4) { OFF_MAX } else { 2 * lease.as_millis() as i64 };
    let off = i64::from(which / 4) % (2 * most + 1) - most;
    if off < 0 { off.min(-OFF_MIN) } else { off.max(OFF_MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_wrong_in_both_directions_and_by_more_than_an_hour() {
        let lease = Duration::from_secs(2);
        let off: Vec<i64> =
            (0..10_000_u32).map(|n| off_ms(n.wrapping_mul(2_654_435_761), lease)).collect();
        assert!(off.iter().all(|off| (OFF_MIN..=OFF_MAX).contains(&off.abs())));
        assert!(off.iter().any(|off| *off > 3_600_000) && off.iter().any(|off| *off < -3_600_000));
        assert!(off.iter().any(|off| *off < -4000) && off.iter().any(|off| *off > 4000));
        let small = off.iter().filter(|off| off.abs() <= 4000).count();
        assert!((7000..8000).contains(&small), "{small}");
    }

    #[test]
    fn what_is_no_such_library_does_not_work() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(!Clock::works(Path::new("/bin/true"), dir.path()));
        assert!(!Clock::works(Path::new("/a folder/libfaketime.so.1"), dir.path()));
        if let Some(library) = Clock::library() {
            assert!(Clock::works(&library, dir.path()));
        }
        assert_eq!(dir.path().read_dir().expect("a folder").count(), 0);
    }
}
