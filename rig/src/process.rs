//! Starts the program under test as a real process, and sends it real signals.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::environment::own_variables;
use crate::server::tools;
use crate::wait::{DEADLINE, wait_for};

/// A running program. Its output is read all the time.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Program {
    /// Starts `program` with these arguments, and without the `ARTEL_*` variables of this process.
    pub fn start<S: AsRef<str>>(program: impl AsRef<Path>, args: &[S]) -> Program {
        let mut command = clean_command(program, args);
        command.stdin(Stdio::null());
        Program::spawn(command)
    }

    /// Starts a command, usually one from [`clean_command`].
    pub fn spawn(mut command: Command) -> Program {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            read(child.stdout.take().expect("piped"), &stdout),
            read(child.stderr.take().expect("piped"), &stderr),
        ];
        Program { child, stdout, stderr, readers, status: None }
    }

    /// Its stdin, if that was piped.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("piped, and taken once")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal; the process must still exist.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the process is there");
    }

    /// `kill -9`, and waits until it has ended.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// `SIGTERM`: a graceful stop.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// `SIGINT`: Ctrl-C.
    pub fn signal_interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Sends a signal again and again until the process has ended; returns its exit code.
    #[track_caller]
    pub fn insist(&mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_raw(self.child.id() as i32);
        wait_for("a process to end at once", || {
            let alive = self.is_alive();
            if alive {
                let _ = kill(pid, signal);
            }
            (!alive).then_some(())
        });
        self.exit_code()
    }

    /// Sends SIGINT to its process group, like Ctrl-C in a terminal. It must lead that group.
    pub fn type_interrupt(&self) {
        let group = Pid::from_raw(-(self.child.id() as i32));
        kill(group, Signal::SIGINT).expect("the group is there");
    }

    /// `SIGSTOP`, and waits until all its threads are stopped: on a busy machine that takes a
    /// while.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            // A thread that has ended meanwhile counts as stopped.
            stat.map_or(true, |stat| {
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
            })
        };
        wait_for("a process to stand still", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).ok()?;
            tasks.into_iter().all(stopped).then_some(())
        });
    }

    /// `SIGCONT`.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Is it still running?
    pub fn is_alive(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// Waits until it has ended, and returns its exit code.
    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        let what = format!("process {} to end; it said:\n{}", self.id(), self.stderr());
        wait_for(&what, || (!self.is_alive()).then_some(()));
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        self.status.and_then(|status| status.code())
    }

    /// What it wrote to stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.lock().expect("never poisoned").concat()
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("never poisoned").concat()
    }

    /// Waits until a line of stderr contains `text`, and returns that line.
    #[track_caller]
    pub fn says(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(line) = self.stderr().lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(start.elapsed() < DEADLINE, "{text:?} is not said:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A command without the `ARTEL_*` variables and the `REDIS_URL` of this process.
pub fn clean_command<S: AsRef<str>>(program: impl AsRef<Path>, args: &[S]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(args.iter().map(AsRef::as_ref));
    own_variables().into_iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// Runs a Python script that uses the usual Redis client: the one of the system, or the one that
/// `./dev test` has installed in its own folder.
pub fn python(script: impl AsRef<Path>, args: &[&str]) -> Program {
    let mut command = clean_command("python3", &[script.as_ref().display().to_string()]);
    command.args(args).stdin(Stdio::null());
    if let Some(libraries) = tools().map(|tools| tools.join("python")).filter(|dir| dir.is_dir()) {
        command.env("PYTHONPATH", libraries);
    }
    Program::spawn(command)
}

impl Drop for Program {
    fn drop(&mut self) {
        // SIGKILL also ends a frozen process.
        self.kill();
    }
}

fn read(
    stream: impl std::io::Read + Send + 'static,
    lines: &Arc<Mutex<Vec<String>>>,
) -> JoinHandle<()> {
    let lines = lines.clone();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            lines.lock().expect("never poisoned").push(text);
            line.clear();
        }
    })
}
