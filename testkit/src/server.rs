//! A private Redis or Valkey, on a free loopback port, gone when dropped.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::wait::eventually;

/// Which server to start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// `redis-server`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Kind {
    /// Where its program is: `ARTEL_REDIS_SERVER` or `ARTEL_VALKEY_SERVER`, else on the `PATH`, else
    /// where `./dev install` put it.
    pub fn program(self) -> Option<PathBuf> {
        let (variable, name) = match self {
            Kind::Redis => ("ARTEL_REDIS_SERVER", "redis-server"),
            Kind::Valkey => ("ARTEL_VALKEY_SERVER", "valkey-server"),
        };
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            return Some(path.into());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).chain(tools());
        places.find_map(|dir| Some(dir.join(name)).filter(|file| file.is_file()))
    }
}

/// Where `./dev install` puts what the system does not have.
pub(crate) fn tools() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("artel/tools"))
}

/// A running private server.
pub struct Server {
    kind: Kind,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with an append-only file, synced every second.
    pub fn start(kind: Kind) -> Server {
        Server::with(kind, &["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// Starts whichever server is there.
    pub fn any() -> Server {
        let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
        Server::start(kind)
    }

    /// Starts a server with these options.
    pub fn with(kind: Kind, args: &[&str]) -> Server {
        let dir = tempfile::Builder::new().prefix("artel-test-").tempdir().expect("a temp dir");
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut server = Server { kind, port: 0, args, dir, child: None };
        // Between finding a free port and using it somebody else may take it: try another.
        for _ in 0..20 {
            server.port = free_port();
            server.launch();
            if server.comes_up() {
                return server;
            }
            server.kill();
        }
        panic!("no {kind:?} server comes up");
    }

    fn launch(&mut self) {
        let program = self.kind.program().unwrap_or_else(|| {
            panic!("no {:?} server found: run `./dev test`, which installs one", self.kind)
        });
        let log = self.dir.path().join("server.log");
        let log = std::fs::File::options().create(true).append(true).open(log).expect("a log");
        let child = Command::new(program)
            .args(["--bind", "127.0.0.1", "--save", "", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        self.child = Some(child);
    }

    /// Waits until it answers; false if it ended instead.
    fn comes_up(&mut self) -> bool {
        let mut up = false;
        eventually("a private server", || {
            let ended = self
                .child
                .as_mut()
                .is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            up = !ended && self.answers();
            up || ended
        });
        up
    }

    fn answers(&self) -> bool {
        let Ok(client) = redis::Client::open(self.url()) else { return false };
        let timeout = std::time::Duration::from_secs(1);
        let Ok(mut connection) = client.get_connection_with_timeout(timeout) else { return false };
        let loading: Result<String, _> =
            redis::cmd("INFO").arg("persistence").query(&mut connection);
        loading.is_ok_and(|info| info.lines().any(|line| line == "loading:0"))
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A plain connection.
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// A folder that goes with it.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().expect("it runs").id() as i32)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, on the same port and data.
    pub fn restart(&mut self) {
        self.kill();
        eventually("the server to come back", || {
            self.launch();
            self.comes_up()
        });
    }

    /// `SIGSTOP`.
    pub fn freeze(&self) {
        kill(self.pid(), Signal::SIGSTOP).expect("it can be stopped");
    }

    /// `SIGCONT`.
    pub fn thaw(&self) {
        kill(self.pid(), Signal::SIGCONT).expect("it can be continued");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port nobody listens on at this moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
