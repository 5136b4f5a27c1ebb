//! A command line of the user, a process that runs it, and the end of its stderr.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use crate::exit::{Failure, USAGE};
use crate::variables::withhold;

/// How long a stream is read after its process ended: processes that it started may hold it open.
pub(super) const LINGER: Duration = Duration::from_millis(200);
/// Bytes of stderr that are kept.
const TAIL_BYTES: usize = 2048;
/// Pause before a command that could not be started is tried again.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A command and its arguments. Plain words are run directly; everything else is run by a shell.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    program: OsString,
    args: Vec<String>,
    /// As it was written.
    text: String,
}

impl CommandLine {
    /// Parses the value of `option`, and refuses a command that does not exist.
    pub(crate) fn parse(option: &str, text: &str) -> Result<CommandLine, Failure> {
        CommandLine::parse_of(&crate::layers::name_of(option), text)
    }

    /// The same; an error says who named it.
    pub(crate) fn parse_of(option: &str, text: &str) -> Result<CommandLine, Failure> {
        let plain =
            |c: char| c.is_ascii_alphanumeric() || c.is_whitespace() || "_./-+:,@".contains(c);
        let mut words = text.split_whitespace();
        let Some(first) = words.next() else {
            let error = format!("{option} is empty");
            return Err(Failure::new(USAGE, error).hint("give a command such as `./handle.sh`"));
        };
        let refuse = |why: &str, hint: String| {
            Err(Failure::new(USAGE, format!("{option}: {first} {why}")).hint(hint))
        };
        let args: Vec<String> = words.map(str::to_owned).collect();
        // An assignment before the command needs a shell. After the command it is an argument.
        let is_name = first.chars().all(plain);
        let is_plain = is_name && args.iter().all(|arg| arg.chars().all(|c| plain(c) || c == '='));
        match find(first).filter(|_| is_plain) {
            Some(path) if !is_executable(&path) => {
                return refuse("is not executable", format!("`chmod +x {}`", path.display()));
            }
            Some(path) => {
                return Ok(CommandLine { program: path.into(), args, text: text.to_owned() });
            }
            None => {}
        }
        if is_name && !shell_knows(first) {
            let hint = "give its path, or put its folder on the PATH";
            return refuse("is not there", hint.to_owned());
        }
        let args = vec!["-c".to_owned(), text.to_owned()];
        Ok(CommandLine { program: "sh".into(), args, text: text.to_owned() })
    }

    /// Starts the command, with pipes for all streams but stdout, and with `third` as its
    /// descriptor 3. It gets a process group of its own: so Ctrl-C in the terminal does not reach
    /// it, and it can be ended with everything it started. If it cannot be started, this is tried
    /// again `until` then.
    pub(super) async fn start(
        &self,
        stdout: fn() -> Stdio,
        env: &[(&str, String)],
        until: Option<Instant>,
        third: Option<&OwnedFd>,
    ) -> io::Result<Running> {
        let mut pause = RETRY_MIN;
        loop {
            let mut command = Command::new(&self.program);
            command.args(&self.args).process_group(0).kill_on_drop(true);
            withhold(command.as_std_mut());
            command.envs(env.iter().map(|(name, value)| (name, value)));
            command.stdin(Stdio::piped()).stdout(stdout()).stderr(Stdio::piped());
            if let Some(third) = third {
                let parent_fd = third.try_clone()?;
                let mapping = FdMapping { parent_fd, child_fd: 3 };
                command.as_std_mut().fd_mappings(vec![mapping]).map_err(io::Error::other)?;
            }
            let error = match command.spawn() {
                Ok(child) => return Ok(Running::new(child)),
                Err(error) => error,
            };
            // An error in the call itself does not go away.
            let hopeless = error.kind() == io::ErrorKind::InvalidInput;
            if hopeless || until.is_some_and(|until| Instant::now() + pause > until) {
                return Err(error);
            }
            tracing::error!(%error, command = self.text, "cannot start the command, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}

/// Is it a command, or a builtin of the shell?
fn shell_knows(word: &str) -> bool {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "command -v \"$1\"", "sh", word]);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(name));
    files.find(|file| file.is_file() && is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0)
}

/// The process groups of all running commands. The last of them are ended when this process ends.
struct Groups {
    running: BTreeSet<u32>,
    /// This process ends at once, without waiting.
    ending: bool,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups { running: BTreeSet::new(), ending: false });

fn groups() -> MutexGuard<'static, Groups> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every command that still runs, and lets none start: for a stop that does not wait.
pub(crate) fn end_all() {
    let mut groups = groups();
    groups.ending = true;
    for group in std::mem::take(&mut groups.running) {
        kill_group(group);
    }
}

/// Never returns after [`end_all`]: a command that we killed gives no outcome for its message.
async fn unless_ending() {
    let ending = groups().ending;
    if ending {
        std::future::pending::<()>().await;
    }
}

fn kill_group(group: u32) {
    if let Some(group) = Pid::from_raw(group as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A running process. If this is dropped before the process has ended, the whole process group is
/// killed.
pub(super) struct Running {
    pub(super) child: Child,
    group: u32,
    ended: bool,
}

impl Running {
    fn new(child: Child) -> Running {
        let group = child.id().unwrap_or(0);
        let mut groups = groups();
        if groups.ending {
            kill_group(group);
        }
        groups.running.insert(group);
        Running { child, group, ended: false }
    }

    /// Waits until it has ended.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.ended = true;
        unless_ending().await;
        status
    }

    /// Has it ended already?
    pub(super) fn has_ended(&mut self) -> bool {
        if let Ok(Some(_)) = self.child.try_wait() {
            self.ended = true;
        }
        self.ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        groups().running.remove(&self.group);
        if !self.ended && self.child.id().is_some() {
            kill_group(self.group);
        }
    }
}

/// The end of a process's output. Everything before it is read and dropped.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        if self.0.len() > 2 * TAIL_BYTES {
            self.0.drain(..self.0.len() - TAIL_BYTES);
        }
    }

    /// Reads a chunk; false at the end.
    pub(super) async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> bool {
        let mut chunk = [0; 8192];
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.push(&chunk[..n]);
                true
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let start = self.0.len().saturating_sub(TAIL_BYTES);
        let text = String::from_utf8_lossy(&self.0[start..]);
        // The tail may begin in the middle of a character.
        text.trim_start_matches('\u{fffd}').trim().to_owned()
    }
}

/// Why a command failed: how it ended, and the end of its stderr.
pub(super) fn reason(status: &io::Result<ExitStatus>, tail: &str) -> String {
    use std::os::unix::process::ExitStatusExt;
    let how = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        },
        Err(error) => format!("cannot find out how it ended: {error}"),
    };
    if tail.is_empty() { how } else { format!("{how}: {tail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = Tail::default();
        for n in 0..100_000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        assert!(tail.0.len() <= 2 * TAIL_BYTES);
        assert!(tail.text().ends_with("line 99999"));
        tail.push(&vec![b'x'; 1 << 20]);
        assert_eq!(tail.text(), "x".repeat(TAIL_BYTES));
    }

    #[test]
    fn a_command_that_is_not_there_is_refused() {
        for (text, words) in [
            ("", "is empty"),
            ("no-such-command-here", "is not there"),
            ("./no/such/file now", "is not there"),
            ("/etc/passwd", "is not executable"),
        ] {
            let failure = CommandLine::parse("--handler", text).expect_err("refused");
            assert!(failure.error.contains(words) && failure.code == USAGE, "{failure:?}");
        }
    }

    #[test]
    fn a_shell_is_used_only_where_one_is_needed() {
        let line = |text: &str| CommandLine::parse("--handler", text).expect("there");
        assert_ne!(line("cat -").program, "sh");
        assert_ne!(line("cat --x=1").program, "sh");
        assert_eq!(line("cat - | wc -l").args, ["-c", "cat - | wc -l"]);
        assert_eq!(line("X=1 cat").program, "sh");
        assert_eq!(line("exit 3").program, "sh", "a word of the shell's own");
        assert!(CommandLine::parse("--handler", "no-such-command | wc").is_err());
    }
}
