//! [`PrivateServer`]: a private Redis or Valkey on a free loopback port, which can be killed and
//! started again.
//!
//! **Invariant:** the server is ended when this is dropped; its data stay in its folder. The server
//! that answers on its port is the process that was started, and not another server that took the
//! port first.

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::Clock;

/// Where Redis is.
#[derive(Clone, Debug)]
pub enum Target {
    /// Private servers, started from this program.
    Private(PathBuf),
    /// This server, which must be empty unless `anyway`.
    Given {
        /// Its address.
        url: String,
        /// Use it although it is not empty.
        anyway: bool,
    },
}

/// How long it may take to answer, on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// How long it may take to load its data.
const LOAD_MAX: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(10);
/// The range in which a free port is searched, and the number of tries.
const PORTS: std::ops::Range<u16> = 15_000..32_000;
const TRIES: u32 = 100;

/// A running private server.
#[derive(Debug)]
pub struct PrivateServer {
    program: PathBuf,
    dir: PathBuf,
    args: Vec<String>,
    port: u16,
    /// Its own wall clock; without one it uses the clock of the machine.
    clock: Option<Clock>,
    /// Signals from our terminal do not reach it.
    apart: bool,
    child: Option<Child>,
}

impl PrivateServer {
    /// Starts this program in this folder, with these options.
    pub fn start(program: &Path, dir: &Path, args: &[&str]) -> io::Result<PrivateServer> {
        PrivateServer::start_with(program, dir, args, None, false)
    }

    /// As [`start`](Self::start), with a wall clock of its own, and apart from our terminal.
    pub fn start_with(
        program: &Path,
        dir: &Path,
        args: &[&str],
        clock: Option<Clock>,
        apart: bool,
    ) -> io::Result<PrivateServer> {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let mut server = PrivateServer { program, dir, args, port: 0, clock, apart, child: None };
        let mut last = None;
        // Another process may take the port before the server does: try another port.
        for _ in 0..20 {
            server.port = free_port()?;
            match server.launch().and_then(|()| server.comes_up()) {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
            server.kill();
        }
        Err(last.unwrap_or_else(|| io::Error::other("the server does not start")))
    }

    fn launch(&mut self) -> io::Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(&self.program);
        if let Some(clock) = &self.clock {
            clock.give(&mut command);
        }
        if self.apart {
            command.process_group(0);
        }
        let child = command
            .args(["--bind", "127.0.0.1", "--save", "", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(&self.dir)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn();
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.program.display()))
        };
        self.child = Some(child.map_err(named)?);
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// Waits until it answers.
    fn comes_up(&mut self) -> io::Result<()> {
        let (begun, mut heard) = (Instant::now(), Instant::now());
        while heard.elapsed() < START_MAX && begun.elapsed() < LOAD_MAX {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                let said = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
                let program = self.program.display();
                let what =
                    format!("{program} ended instead of answering: {status} {}", said.trim());
                return Err(io::Error::other(what.trim_end().to_owned()));
            }
            match self.is_loading() {
                Some(false) => return Ok(()),
                Some(true) => heard = Instant::now(),
                None => {}
            }
            std::thread::sleep(PAUSE);
        }
        let waited = begun.elapsed().as_secs();
        let what = format!("{} was not ready after {waited} s", self.program.display());
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }

    /// Does it still load its data? `None` if it does not answer.
    fn is_loading(&self) -> Option<bool> {
        let client = redis::Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let info: String = redis::cmd("INFO").query(&mut connection).ok()?;
        let says = |what: &str| info.lines().any(|line| line == what);
        // Another server may have taken the port first. Then ours ends.
        let ours = format!("process_id:{}", self.child.as_ref()?.id());
        says(&ours).then(|| !says("loading:0"))
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id, if it runs.
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.as_ref()?.id() as i32)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            if self.clock.is_some() {
                Clock::clean(child.id());
            }
        }
    }

    /// Its wall clock, if that can be set.
    pub fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// Starts it again on the same port and data. Returns whether its append-only file was torn.
    ///
    /// A server up to Redis 8 or Valkey 9 that is killed while it writes the commands of a script
    /// leaves the complete ones in the file, and runs them at the start after the next
    /// (valkey-io/valkey#4342). So a torn file is rewritten.
    pub fn restart(&mut self) -> io::Result<bool> {
        self.kill();
        let begun = Instant::now();
        let said = std::fs::metadata(self.log()).map_or(0, |log| log.len());
        loop {
            // Another process may use its port for a moment.
            match self.launch().and_then(|()| self.comes_up()) {
                Err(_) if begun.elapsed() < START_MAX => {
                    self.kill();
                    std::thread::sleep(PAUSE);
                }
                result => {
                    result?;
                    break;
                }
            }
        }
        let log = std::fs::read(self.log())?;
        let since = String::from_utf8_lossy(&log[(said as usize).min(log.len())..]).into_owned();
        let torn = since.contains("Truncating the AOF");
        if torn {
            self.rewrite()?;
        }
        Ok(torn)
    }

    /// Makes it rewrite its append-only file, and waits until that is done.
    fn rewrite(&self) -> io::Result<()> {
        let ask = |words: &[&str]| -> redis::RedisResult<String> {
            let client = redis::Client::open(self.url())?;
            let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
            redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
        };
        ask(&["BGREWRITEAOF"]).map_err(io::Error::other)?;
        let begun = Instant::now();
        while begun.elapsed() < START_MAX {
            let info = ask(&["INFO", "persistence"]).unwrap_or_default();
            let done = |line: &str| info.lines().any(|is| is == line);
            if done("aof_rewrite_in_progress:0") && done("aof_rewrite_scheduled:0") {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server does not rewrite its append-only file",
        ))
    }

    /// `SIGSTOP`.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// `SIGCONT`.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port on which nobody listens at this moment. It is not in the range that the system uses for
/// outgoing connections, because a server that is started again needs the same port.
pub(crate) fn free_port() -> io::Result<u16> {
    for _ in 0..TRIES {
        let port = rand::random_range(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
