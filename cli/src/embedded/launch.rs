//! Starting the private server.
//!
//! **Invariant:** it is called under the lock of the folder, and only while no server lives there.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::Mode;
use rustix::process::umask;

use super::lock::Lock;
use super::started::Started;
use super::{Embedded, START_GRACE, START_MAX, folder, until};
use crate::exit::{FAILURE, Failure};
use crate::variables::withhold;

impl Embedded {
    /// The command that starts a server. The server detaches itself.
    fn start_command(&self, program: &Path) -> Command {
        let path = |name: &str| self.dir.join(name).into_os_string();
        let mut command = Command::new(program);
        command
            .args(["--port", "0", "--unixsocketperm", "700", "--daemonize", "yes"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--maxmemory-policy", "noeviction", "--dir"])
            .arg(&self.dir)
            .arg("--unixsocket")
            .arg(path(folder::SOCKET))
            .arg("--pidfile")
            .arg(path(folder::PID))
            .arg("--logfile")
            .arg(self.log())
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        withhold(&mut command);
        command
    }

    /// Why it did not start.
    fn did_not_start(&self, program: &Path, reason: &str, log_before: u64) -> Failure {
        let error = format!("the private server {} did not start: {reason}", program.display());
        let said = self.said_since(log_before);
        if ["Bad file format", "RDB format version"].iter().any(|words| said.contains(words)) {
            let error = format!("{error}, it cannot read the data in {}", self.dir.display());
            return Failure::new(FAILURE, error).hint(
                "another server or a newer version wrote them: name that one with `--server`, or \
                 use another `--data-dir`",
            );
        }
        let failure = Failure::new(FAILURE, format!("{error}{said}"));
        match said.is_empty() {
            true => failure.hint("is it a redis-server or valkey-server? See `--server`"),
            false => failure.hint(format!("see {}", self.log().display())),
        }
    }

    /// Starts a server that detaches itself, and waits until it answers.
    pub(super) fn launch(&self) -> Result<(), Failure> {
        let program = self.find_program()?;
        let log_before = std::fs::metadata(self.log()).map_or(0, |log| log.len());
        let mut command = self.start_command(&program);
        // Its files are for this user alone.
        let before = umask(Mode::from_raw_mode(0o077));
        let starter = command.spawn();
        umask(before);
        let failed = |reason: String| self.did_not_start(&program, &reason, log_before);
        let mut starter = starter.map_err(|error| failed(error.to_string()))?;
        let mut ended = None;
        until(START_MAX, || {
            ended = starter.try_wait().ok().flatten();
            ended.is_some()
        });
        match ended {
            Some(status) if status.success() => {}
            Some(status) => return Err(failed(status.to_string())),
            None => {
                let _ = starter.kill();
                let _ = starter.wait();
                return Err(failed("it does not detach".to_owned()));
            }
        }
        // Wait until it answers. If no process holds its lock any more, it has ended and will not
        // answer.
        let lock = self.dir.join(folder::LIFE);
        let mut looked = Instant::now();
        until(START_MAX, || {
            let look = looked.elapsed() > START_GRACE / 4;
            if look {
                looked = Instant::now();
            }
            self.answers()
                || (look && Path::new("/proc").exists() && Lock::holders(&lock).is_empty())
        });
        if !self.answers() {
            return Err(failed("no answer".to_owned()));
        }
        if let Some(running) = self.running() {
            Started::remember(&self.dir.join(folder::STARTED), running.pid);
        }
        self.mend(log_before);
        Ok(())
    }
}
