//! The private server: a real Redis or Valkey on a unix socket of our own, found or started.
//!
//! **Invariant:** at most one private server per data folder.
//!
//! A second server on the same socket path would take the path over silently, and with it half of
//! the fleet. Two file locks prevent that:
//!
//! * A process that starts or stops the server holds an exclusive lock from its first look until
//!   the server certainly runs or has ended.
//! * The server inherits a second lock and holds it for life. It keeps this lock even if its
//!   socket, its pid file or the process that started it is gone.
//!
//! The server is nobody's child: it outlives the process that started it, also after `kill -9`, and
//! the next process uses it again.

mod folder;
mod launch;
mod lock;
mod said;
mod started;
mod talk;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lock::Lock;
use started::Started;
pub(crate) use talk::localhost_answers;

use crate::exit::{FAILURE, Failure, UNREACHABLE, USAGE};

/// How long a started server may take to load its data and to answer.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to open its socket before it counts as one that has lost it.
const START_GRACE: Duration = Duration::from_secs(4);
/// How long another process may hold the lock.
const LOCK_MAX: Duration = Duration::from_secs(40);
/// How long a server may take to write its data when it is stopped.
const STOP_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes that the path of a unix socket may have, without the final zero byte.
const SOCKET_BYTES_MAX: usize = 107;

/// The private server of one data folder, running or not.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    dir: PathBuf,
    program: Option<PathBuf>,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    Up,
    /// It loads its data.
    Loading,
    /// Something listens and does not answer.
    Silent,
    /// Nobody listens.
    Absent,
}

/// What a running server reports about itself.
pub(crate) struct Running {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) memory_bytes: u64,
    /// Connections other than ours.
    pub(crate) clients: usize,
}

impl Embedded {
    /// The private server in `dir`, or else in the user's data folder. It is started with
    /// `program`.
    pub(crate) fn new(dir: Option<&Path>, program: Option<&Path>) -> Result<Embedded, Failure> {
        let Some(dir) = dir.map(Path::to_owned).or_else(folder::usual) else {
            let error = "there is no folder for a private server: this user has no home folder";
            return Err(Failure::new(USAGE, error).hint("pass `--data-dir`, or `--redis <URL>`"));
        };
        let absolute = |path: PathBuf| -> PathBuf {
            let path = std::path::absolute(&path).unwrap_or(path);
            path.components().collect() // turns two slashes into one
        };
        // A bare name is searched on the PATH. A path is relative to the working directory.
        let program = program.map(|program| match program.components().count() {
            1 => program.to_owned(),
            _ => absolute(program.to_owned()),
        });
        Ok(Embedded { dir: absolute(dir), program })
    }

    pub(crate) fn was_said(&self, remark: &str) -> bool {
        said::before(&self.dir, remark)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(folder::SOCKET)
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        let path = self.socket().display().to_string();
        // Characters with a meaning in an address are escaped.
        format!("unix:{}", path.replace('%', "%25").replace('?', "%3F").replace('#', "%23"))
    }

    /// Does it answer?
    pub(crate) fn answers(&self) -> bool {
        self.presence() == Presence::Up
    }

    /// Does anything listen on the socket, answering or not? A folder that others can change is
    /// refused.
    pub(crate) fn is_there(&self) -> Result<bool, Failure> {
        self.check_folder()?;
        Ok(self.check_path().is_ok() && self.presence() != Presence::Absent)
    }

    /// Waits until the server that listens answers.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.settles().map(|_| ())
    }

    /// What the server reports about itself, if it runs.
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

    /// Uses the server that runs, or starts one. While the returned hold is kept, nobody stops the
    /// server as unused.
    pub(crate) fn ensure(&self) -> Result<Hold, Failure> {
        self.check_path()?;
        self.check_folder()?;
        self.make_folder()?;
        self.check_folder()?; // another user may have created it first; from here on nobody can
        let _lock = self.lock()?;
        let life = if self.settles()? { None } else { self.life()? };
        let started = life.is_some();
        if started {
            self.launch()?;
        }
        drop(life); // the server has inherited it
        Ok(Hold { started, _connection: talk::connect(&self.socket()).ok() })
    }

    /// Stops the server; false if it did not run. With `if_unused` it is not stopped while other
    /// clients are connected.
    pub(crate) fn stop(&self, if_unused: bool) -> Result<bool, Failure> {
        self.check_path()?;
        self.check_folder()?;
        if !self.dir.is_dir() {
            return Ok(false);
        }
        let lock = self.lock()?;
        let life = if self.settles()? { None } else { self.life()? };
        if let Some(life) = life {
            // No server lives: remove the files of one that was killed.
            let _ = std::fs::remove_file(self.socket());
            let _ = std::fs::remove_file(self.dir.join(folder::STARTED));
            life.remove();
            lock.remove();
            return Ok(false);
        }
        // If it does not report its clients, it may have some.
        if if_unused && self.running().is_none_or(|running| running.clients > 0) {
            return Ok(false);
        }
        // It answers by closing the connection.
        let _ = self.ask("SHUTDOWN");
        // Watch its socket, not its process: in a container a dead process may stay as a zombie.
        if !until(STOP_MAX, || !self.socket().exists()) {
            let error = "the private server does not stop";
            let hint = format!("see {}", self.log().display());
            return Err(Failure::new(FAILURE, error).hint(hint));
        }
        if let Some(life) = self.life()? {
            life.remove();
        }
        let _ = std::fs::remove_file(self.dir.join(folder::STARTED));
        lock.remove();
        Ok(true)
    }

    /// Waits while a server loads its data, or does not answer. True if it runs, false if there is
    /// none. It is an error if it never answers: it may be frozen, and a second server would split
    /// the fleet.
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
            Presence::Loading => "the private server still loads its data".to_owned(),
            _ => format!("the private server at {} does not answer", self.url()),
        };
        let hint = format!("its process id is in {}", self.dir.join(folder::PID).display());
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
        .hint("try a shorter `--data-dir`"))
    }

    fn check_folder(&self) -> Result<(), Failure> {
        folder::check(&self.dir).map_err(|(why, hint)| {
            let dir = self.dir.display();
            Failure::new(FAILURE, format!("the data folder {dir} is not used: {why}")).hint(hint)
        })
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

    fn lock(&self) -> Result<Lock, Failure> {
        let path = self.dir.join(folder::LOCK);
        match Lock::take(path.clone(), LOCK_MAX) {
            Ok(Some(lock)) => Ok(lock),
            Ok(None) => {
                let (path, seconds) = (path.display(), LOCK_MAX.as_secs());
                let error = format!("another artel has held {path} for {seconds} s");
                Err(Failure::new(FAILURE, error)
                    .hint("is one of them stopped? `fuser` on that file shows which"))
            }
            Err(error) => Err(self.unusable(&error)),
        }
    }

    /// Takes the lock that a server holds as long as it lives; `None` if a server answers.
    ///
    /// If a server holds the lock and does not answer, it gets [`START_GRACE`] to do so. After that
    /// its socket must have been removed, and it is ended: two servers on one append-only file
    /// would ruin it. Its users find the next server, with the same data.
    fn life(&self) -> Result<Option<Lock>, Failure> {
        let path = self.dir.join(folder::LIFE);
        let take = || Lock::take_for_children(path.clone()).map_err(|error| self.unusable(&error));
        let (start, mut told) = (Instant::now(), false);
        loop {
            if let Some(lock) = take()? {
                return Ok(Some(lock));
            }
            if self.answers() {
                return Ok(None);
            }
            let waited = start.elapsed();
            if waited > START_GRACE && !told {
                told = true;
                // Other processes may hold the lock, too. Only our own server is ended.
                if let Some(server) = self.started()
                    && Lock::holders(&path).contains(&server.pid)
                {
                    server.end();
                }
            }
            if waited > START_GRACE + STOP_MAX {
                let error = "a private server runs, cannot be reached and does not stop";
                let pid = self.dir.join(folder::PID);
                let hint = format!("end it: its process id is in {}", pid.display());
                return Err(Failure::new(UNREACHABLE, error).hint(hint));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The server that an artel process started here, if it still lives.
    fn started(&self) -> Option<Started> {
        Started::recall(&self.dir.join(folder::STARTED))
    }

    /// Makes the server rewrite its append-only file, if the file was cut short. A server that was
    /// killed while it wrote the commands of a script leaves half of them in the file, and would
    /// run them at its start after this one.
    fn mend(&self, log_before: u64) {
        if !self.log_since(log_before).contains("Truncating the AOF") {
            return;
        }
        let _ = self.ask("BGREWRITEAOF");
        until(START_MAX, || {
            let said = self.ask("INFO persistence").unwrap_or_default();
            ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"]
                .iter()
                .all(|is| said.contains(is))
        });
    }

    pub(crate) fn find_program(&self) -> Result<PathBuf, Failure> {
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
            // `./dev install` puts tools here that the system does not have.
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

    fn log(&self) -> PathBuf {
        self.dir.join(folder::LOG)
    }

    fn log_since(&self, length: u64) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let new = log.get(length as usize..).unwrap_or_default();
        String::from_utf8_lossy(new).into_owned()
    }

    /// The last line of its log, if the log has grown beyond this length.
    fn said_since(&self, length: u64) -> String {
        let text = self.log_since(length);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if line.is_empty() { String::new() } else { format!(", {}", line.trim()) }
    }

    fn ask(&self, command: &str) -> io::Result<String> {
        talk::ask(talk::connect(&self.socket())?, command)
    }
}

/// Keeps a running server in use: its connection counts as a user.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) started: bool,
    _connection: Option<UnixStream>,
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

    #[test]
    fn a_path_that_is_too_long_is_refused_before_anything_is_made() {
        let dir = std::env::temp_dir().join("x".repeat(120));
        let failure =
            Embedded::new(Some(&dir), None).expect("a folder").ensure().expect_err("too long");
        assert_eq!(failure.code, USAGE);
        assert!(!dir.exists());
    }

    #[test]
    fn an_address_survives_odd_characters() {
        let private = Embedded::new(Some(Path::new("/tmp/a?b#c%41 d")), None).expect("a folder");
        assert_eq!(private.url(), "unix:/tmp/a%3Fb%23c%2541 d/server.sock");
        let address = artel::Address::new(private.url());
        assert_eq!(address.to_string(), "unix:/tmp/a?b#c%41 d/server.sock");
    }
}
