//! The private server: a real Redis or Valkey on a unix socket of our own, found or started.
//!
//! **Invariant:** at most one private server per data folder. A second server on the same socket path
//! would take the path over silently, and with it half of the fleet; so whoever starts or stops one
//! holds an exclusive file lock from looking to being sure. The server is nobody's child: it outlives
//! whoever started it, `kill -9` included, and is adopted by whoever comes next.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::exit::{FAILURE, Failure, UNREACHABLE, USAGE};

/// How long a probe waits: a server on this machine answers at once, or is not there.
const PROBE: Duration = Duration::from_secs(1);
/// How long a started server may take to read its data and to answer.
const START_MAX: Duration = Duration::from_secs(30);
/// How long somebody else may hold the lock.
const LOCK_MAX: Duration = Duration::from_secs(40);
/// How long a stopped server may take to write what it has.
const STOP_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// What a unix socket's path may have, without its closing zero.
const SOCKET_BYTES_MAX: usize = 107;

/// The private server of one data folder, running or not.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    dir: PathBuf,
    program: Option<PathBuf>,
}

/// What a probe found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    Up,
    /// It reads its data.
    Loading,
    /// Something is there and does not answer.
    Silent,
    /// Nobody listens.
    Absent,
}

/// What a running server says of itself.
pub(crate) struct Running {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) memory_bytes: u64,
    /// Connections other than the one that asked.
    pub(crate) clients: usize,
}

impl Embedded {
    /// The private server in this folder, else in the user's data folder; with this program.
    pub(crate) fn new(dir: Option<&Path>, program: Option<&Path>) -> Embedded {
        let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty());
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => match (variable("XDG_DATA_HOME"), std::env::home_dir()) {
                (Some(data), _) => PathBuf::from(data).join("artel"),
                (None, Some(home)) => home.join(".local/share/artel"),
                (None, None) => std::env::temp_dir().join("artel"),
            },
        };
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        Embedded { dir, program: program.map(Path::to_owned) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("server.sock")
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Does it answer?
    pub(crate) fn answers(&self) -> bool {
        self.presence() == Presence::Up
    }

    /// What it says of itself, if it runs.
    pub(crate) fn running(&self) -> Option<Running> {
        let info = self.ask("INFO").ok()?;
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = |name: &str| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let version = field("valkey_version").map(|version| format!("Valkey {version}"));
        let version = version.or_else(|| field("redis_version").map(|v| format!("Redis {v}")))?;
        Some(Running {
            version,
            pid: number("process_id") as u32,
            memory_bytes: number("used_memory"),
            clients: number("connected_clients").saturating_sub(1) as usize,
        })
    }

    /// Adopts the server that runs, or starts one. True if it was started.
    pub(crate) fn ensure(&self) -> Result<bool, Failure> {
        self.check_path()?;
        self.make_folder()?;
        let _lock = self.lock()?;
        if self.settles()? {
            return Ok(false);
        }
        self.launch()?;
        Ok(true)
    }

    /// Stops it; false if it did not run. With `if_unused` it stays while anybody else is connected.
    pub(crate) fn stop(&self, if_unused: bool) -> Result<bool, Failure> {
        if !self.dir.is_dir() {
            return Ok(false);
        }
        let lock = self.lock()?;
        if !self.settles()? {
            // A killed server leaves its socket behind.
            let _ = std::fs::remove_file(self.socket());
            lock.remove();
            return Ok(false);
        }
        if if_unused && self.running().is_some_and(|running| running.clients > 0) {
            return Ok(false);
        }
        // Its answer is that it hangs up.
        let _ = self.ask("SHUTDOWN");
        // By its socket, not by its process: in a container a dead process may linger.
        if !until(STOP_MAX, || !self.socket().exists()) {
            let error = "the private server does not stop";
            return Err(Failure::new(FAILURE, error).hint(self.see_log()));
        }
        lock.remove();
        Ok(true)
    }

    /// Waits while a server reads its data, or does not answer. True if it runs, false if there is
    /// none. One that is there and silent may be frozen: a second one would split the fleet.
    fn settles(&self) -> Result<bool, Failure> {
        let mut presence = Presence::Absent;
        let settled = until(START_MAX, || {
            presence = self.presence();
            matches!(presence, Presence::Up | Presence::Absent)
        });
        if settled {
            return Ok(presence == Presence::Up);
        }
        let error = match presence {
            Presence::Loading => "the private server still reads its data".to_owned(),
            _ => format!("the private server at {} does not answer", self.url()),
        };
        let hint = format!("its process id is in {}", self.dir.join("server.pid").display());
        Err(Failure::new(UNREACHABLE, error).hint(hint))
    }

    fn presence(&self) -> Presence {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        match self.ask("PING") {
            Ok(answer) if answer == "PONG" => Presence::Up,
            Ok(answer) if answer.starts_with("LOADING") => Presence::Loading,
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Presence::Absent,
            _ => Presence::Silent,
        }
    }

    fn check_path(&self) -> Result<(), Failure> {
        let socket = self.socket();
        let bytes = socket.as_os_str().len();
        if bytes <= SOCKET_BYTES_MAX {
            return Ok(());
        }
        Err(Failure::new(
            USAGE,
            format!(
                "the private server's socket {} has a path of {bytes} bytes, and {SOCKET_BYTES_MAX} \
                 are allowed",
                socket.display()
            ),
        )
        .hint("try a shorter `--data-dir`, such as /tmp/artel"))
    }

    fn make_folder(&self) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &io::Error) -> Failure {
        let error = format!("cannot use the data folder {}: {error}", self.dir.display());
        Failure::new(FAILURE, error)
            .hint("try another `--data-dir`, or give the address of a Redis: `--redis <URL>`")
    }

    /// Takes the lock that starters and stoppers share. It ends with the process that holds it.
    fn lock(&self) -> Result<Lock, Failure> {
        let path = self.dir.join("lock");
        let start = Instant::now();
        loop {
            let open = File::options().create(true).truncate(false).write(true).open(&path);
            let file = open.map_err(|error| self.unusable(&error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever held it may have removed the file meanwhile: then this is a lock on nothing.
                Ok(()) if same_file(&file, &path) => return Ok(Lock { _file: file, path }),
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < LOCK_MAX => {
                    std::thread::sleep(PAUSE);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let error = format!(
                        "another artel has held {} for {} s",
                        path.display(),
                        LOCK_MAX.as_secs()
                    );
                    return Err(Failure::new(FAILURE, error)
                        .hint("is one of them stopped? `fuser` on that file shows which"));
                }
                Err(error) => return Err(self.unusable(&error.into())),
            }
        }
    }

    /// Starts a server that detaches itself, and waits until it answers.
    fn launch(&self) -> Result<(), Failure> {
        let program = self.find_program()?;
        let path = |name: &str| self.dir.join(name).into_os_string();
        let status = Command::new(&program)
            .args(["--port", "0", "--unixsocketperm", "700", "--daemonize", "yes"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--maxmemory-policy", "noeviction", "--dir"])
            .arg(&self.dir)
            .arg("--unixsocket")
            .arg(path("server.sock"))
            .arg("--pidfile")
            .arg(path("server.pid"))
            .arg("--logfile")
            .arg(path("server.log"))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let failed = |reason: String| {
            let error = format!("the private server {} did not start: {reason}", program.display());
            Failure::new(FAILURE, error).hint(self.see_log())
        };
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(format!("{status}{}", self.log_tail()))),
            Err(error) => return Err(failed(error.to_string())),
        }
        if !until(START_MAX, || self.answers()) {
            return Err(failed(format!("no answer{}", self.log_tail())));
        }
        Ok(())
    }

    fn find_program(&self) -> Result<PathBuf, Failure> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
        let places: Vec<PathBuf> = std::env::split_paths(&path)
            .chain(
                ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from),
            )
            .chain(["/opt/homebrew/bin"].map(PathBuf::from))
            // Where `./dev install` puts what the system does not have.
            .chain(cache.map(|cache| cache.join("artel/tools")))
            .collect();
        for name in ["valkey-server", "redis-server"] {
            if let Some(found) = places.iter().map(|dir| dir.join(name)).find(|file| file.is_file())
            {
                return Ok(found);
            }
        }
        let error = "no Redis is configured, none answers on localhost, and neither valkey-server \
                     nor redis-server is installed to start one";
        Err(Failure::new(UNREACHABLE, error).hint(
            "install one (`apt install redis-server`, `dnf install valkey`, `brew install valkey`), \
             or pass `--redis <URL>`",
        ))
    }

    fn see_log(&self) -> String {
        format!("see {}", self.dir.join("server.log").display())
    }

    /// The last thing it said before it gave up.
    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("server.log")).unwrap_or_default();
        let line = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if line.is_empty() { String::new() } else { format!(", {}", line.trim()) }
    }

    fn ask(&self, command: &str) -> io::Result<String> {
        let stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(PROBE))?;
        stream.set_write_timeout(Some(PROBE))?;
        ask(stream, command)
    }
}

/// Does a Redis answer on localhost? One that wants a password does.
pub(crate) fn localhost_answers() -> bool {
    let connect = || -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], 6379).into(), PROBE)?;
        stream.set_read_timeout(Some(PROBE))?;
        stream.set_write_timeout(Some(PROBE))?;
        ask(stream, "PING")
    };
    let known = ["PONG", "NOAUTH", "LOADING", "DENIED", "MASTERDOWN"];
    connect().is_ok_and(|answer| known.iter().any(|word| answer.starts_with(word)))
}

/// One command, one answer: enough of the protocol to find, know and stop a server.
fn ask(mut stream: impl Read + Write, command: &str) -> io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let head = answer.iter().position(|&byte| byte == b'\n');
        if let Some(head) = head {
            let line = String::from_utf8_lossy(&answer[..head]).trim_end().to_owned();
            let Some(length) = line.strip_prefix('$') else {
                return Ok(line.trim_start_matches(['+', '-', ':']).to_owned());
            };
            let length: usize = length.parse().map_err(|_| io::ErrorKind::InvalidData)?;
            if answer.len() >= head + 1 + length {
                let body = &answer[head + 1..head + 1 + length];
                return Ok(String::from_utf8_lossy(body).into_owned());
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&chunk[..n]),
        }
        if answer.len() > 1 << 20 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// The lock, held until it is dropped.
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Removes the file, too: whoever waits for it notices and makes a new one.
    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(io::Cursor<Vec<u8>>);

    impl Read for Fake {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let one = buffer.len().min(3); // in small pieces, as a network may
            self.0.read(&mut buffer[..one])
        }
    }

    impl Write for Fake {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            Ok(buffer.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn answers_are_read_whole() {
        let answer = |bytes: &str| ask(Fake(io::Cursor::new(bytes.into())), "PING");
        assert_eq!(answer("+PONG\r\n").expect("whole"), "PONG");
        assert_eq!(answer("-NOAUTH no\r\n").expect("whole"), "NOAUTH no");
        assert_eq!(answer("$5\r\na\r\nbc\r\n").expect("whole"), "a\r\nbc");
        assert!(answer("$5\r\nab").is_err() && answer("HTTP/1.1").is_err());
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_before_anything_is_made() {
        let dir = std::env::temp_dir().join("x".repeat(120));
        let failure = Embedded::new(Some(&dir), None).ensure().expect_err("too long");
        assert_eq!(failure.code, USAGE);
        assert!(!dir.exists());
    }
}
