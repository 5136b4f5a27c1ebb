//! [`Started`]: identifies the server process that we started.
//!
//! **Invariant:** nothing else is ever signalled. A process is identified by its process id and its
//! start time, so a later process with the same id is not mistaken for the server.

use std::io::{self, Write};
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::folder;

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Started {
    pub(super) pid: i32,
    /// Its start time, in ticks of the system.
    began: u64,
}

impl Started {
    /// Records that this process is the server. Without the record the server is never signalled.
    pub(super) fn remember(path: &Path, pid: u32) {
        let write = || -> io::Result<()> {
            let pid = i32::try_from(pid).map_err(io::Error::other)?;
            let began = began(pid).ok_or(io::ErrorKind::NotFound)?;
            let mut file = folder::open(path)?;
            file.set_len(0)?;
            writeln!(file, "{pid} {began}")
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "the private server is not recorded");
        }
    }

    /// The recorded server, if it still lives.
    pub(super) fn recall(path: &Path) -> Option<Started> {
        let text = std::fs::read_to_string(path).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
        (began(pid)? == started).then_some(Started { pid, began: started })
    }

    /// Asks it to end.
    pub(super) fn end(self) {
        let process = Pid::from_raw(self.pid);
        let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Check the start time again: from now on its id cannot be reused.
        if let Some(process) = process.filter(|_| began(self.pid) == Some(self.began)) {
            let _ = pidfd_send_signal(process, Signal::TERM);
        }
    }
}

/// The start time of a process; `None` if it does not exist, or the system does not tell.
pub(super) fn began(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name is in parentheses and may contain any characters.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("started");
        assert_eq!(Started::recall(&path), None);
        Started::remember(&path, std::process::id());
        let me = Started::recall(&path).expect("this process");
        assert_eq!(me.pid, std::process::id() as i32);
        let other = format!("{} {}", me.pid, me.began + 1);
        std::fs::write(&path, other).expect("written");
        assert_eq!(Started::recall(&path), None, "another one with the same number");
        for odd in ["", "x y", "-1 5", "1", "99999999999 1"] {
            std::fs::write(&path, odd).expect("written");
            assert_eq!(Started::recall(&path), None, "{odd:?}");
        }
    }
}
