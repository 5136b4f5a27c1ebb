//! [`Clock`]: the wall clock of one process, which can be set to another time while it runs.
//!
//! It is libfaketime, loaded into the process, that lies about the time; no other clock is touched. Where it is
//! not installed no clock can be set, and a run says so.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where packages put it.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
    "/usr/local/lib/faketime",
    "/usr/local/lib64/faketime",
];
const LIBRARY: &str = "libfaketime.so.1";
/// So long after it was set a clock is wrong: asking more often would cost a server half its speed.
pub(crate) const TAKES_EFFECT: Duration = Duration::from_secs(1);
/// It keeps something of every process here, and cannot remove it when that is killed.
const LEFTOVERS: [&str; 2] = ["/dev/shm/faketime_shm_", "/dev/shm/sem.faketime_sem_"];

/// A wall clock that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    /// It says by how much the clock is off.
    file: PathBuf,
}

impl Clock {
    /// The library, if it is installed.
    pub(crate) fn library() -> Option<PathBuf> {
        FOLDERS.iter().map(|folder| Path::new(folder).join(LIBRARY)).find(|path| path.exists())
    }

    /// A clock that is right, for now.
    pub(crate) fn new(library: &Path, file: PathBuf) -> io::Result<Clock> {
        let clock = Clock { library: library.to_owned(), file };
        clock.set(0)?;
        Ok(clock)
    }

    /// The process that is started by this goes by this clock.
    pub(crate) fn give(&self, command: &mut Command) {
        // An allocator that asks for the time before the library is ready would never get on: the
        // usual one comes before it.
        let mut libraries = self.library.clone().into_os_string();
        libraries.push(" libc.so.6");
        command
            .env("LD_PRELOAD", libraries)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_CACHE_DURATION", TAKES_EFFECT.as_secs().to_string())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// A moment from now it is off by so many milliseconds.
    pub(crate) fn set(&self, off_ms: i64) -> io::Result<()> {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{:+.3}\n", off_ms as f64 / 1000.0))?;
        std::fs::rename(new, &self.file)
    }

    /// Removes what the library could not, of a process that was killed.
    pub(crate) fn clean(pid: u32) {
        for start in LEFTOVERS {
            let _ = std::fs::remove_file(format!("{start}{pid}"));
        }
    }
}

/// By how much a clock is off, as a number decides: by up to two leases, or by up to an hour.
pub(crate) fn off_ms(which: u32, lease: Duration) -> i64 {
    const HOUR: i64 = 3_600_000;
    let most = if which.is_multiple_of(4) { HOUR } else { 2 * lease.as_millis() as i64 };
    i64::from(which / 4) % (2 * most + 1) - most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_wrong_in_both_directions_and_never_by_more_than_an_hour() {
        let lease = Duration::from_secs(2);
        let off: Vec<i64> =
            (0..10_000_u32).map(|n| off_ms(n.wrapping_mul(2_654_435_761), lease)).collect();
        assert!(off.iter().all(|off| off.abs() <= 3_600_000));
        assert!(off.iter().any(|off| *off < -4000) && off.iter().any(|off| *off > 4000));
        let small = off.iter().filter(|off| off.abs() <= 4000).count();
        assert!((7000..8000).contains(&small), "{small}");
    }

    /// What it must show is what a server says after its clock was set.
    #[test]
    fn a_process_goes_by_its_clock() {
        let Some(library) = Clock::library() else { return };
        let dir = tempfile::tempdir().expect("a folder");
        let clock = Clock::new(&library, dir.path().join("clock")).expect("a file");
        let seconds = || {
            let mut command = Command::new("date");
            clock.give(command.arg("-u").arg("+%s"));
            let said = command.output().expect("it runs").stdout;
            String::from_utf8_lossy(&said).trim().parse::<i64>().expect("a number")
        };
        let right = seconds();
        clock.set(-3_600_000).expect("set");
        assert!((-3605..=-3590).contains(&(seconds() - right)));
    }
}
