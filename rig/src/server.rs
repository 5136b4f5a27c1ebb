//! A private Redis or Valkey on a free loopback port, which is ended when it is dropped.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::PrivateServer;

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

/// The folder where `./dev install` puts tools that the system does not have.
pub(crate) fn tools() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("artel/tools"))
}

/// A running private server.
#[derive(Debug)]
pub struct Server {
    inner: PrivateServer,
    dir: TempDir,
}

impl Server {
    /// Starts a server that loses nothing when it is killed: every write is in its append-only file
    /// before it is answered. (With `everysec` and a slow sync, it may answer up to two seconds
    /// before it writes.)
    pub fn start(kind: Kind) -> Server {
        Server::with(kind, &["--appendonly", "yes", "--appendfsync", "no"])
    }

    /// Starts any server that is installed.
    pub fn any() -> Server {
        let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
        Server::start(kind)
    }

    /// Starts a server with these options.
    pub fn with(kind: Kind, args: &[&str]) -> Server {
        let dir = tempfile::Builder::new().prefix("artel-test-").tempdir().expect("a temp dir");
        let program = kind.program().unwrap_or_else(|| {
            panic!("no {kind:?} server found: run `./dev test`, which installs one")
        });
        let inner = PrivateServer::start(&program, dir.path(), args);
        Server { inner: inner.expect("a private server"), dir }
    }

    /// Its address.
    pub fn url(&self) -> String {
        self.inner.url()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.inner.port()
    }

    /// A plain connection.
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// Sends a command whose answer does not matter.
    pub fn say(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query::<redis::Value>(&mut self.connect()).expect("the server answers");
    }

    /// Its data folder, which is removed with it.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.inner.kill();
    }

    /// Starts it again, on the same port and data.
    pub fn restart(&mut self) {
        self.inner.restart().expect("the server comes back");
    }

    /// `SIGSTOP`.
    pub fn freeze(&self) {
        self.inner.freeze();
    }

    /// `SIGCONT`.
    pub fn thaw(&self) {
        self.inner.thaw();
    }
}

/// A port on which nobody listens at this moment.
pub fn free_port() -> u16 {
    crate::private_server::free_port().expect("a free port")
}

/// Runs a test with every kind of server that is installed.
///
/// # Panics
///
/// If no server is installed.
pub fn each_server(mut test: impl FnMut(Kind)) {
    let kinds = [Kind::Redis, Kind::Valkey].into_iter().filter(|kind| kind.program().is_some());
    assert!(
        kinds.map(&mut test).count() > 0,
        "no server found: run `./dev test`, which installs one"
    );
}

/// Turns each function into a test module that tests the same promise on each kind of server.
#[macro_export]
macro_rules! on_each_server {
    ($($(#[$meta:meta])* fn $name:ident($kind:ident) $body:block)*) => {
        $(
            $(#[$meta])*
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                fn promise($kind: $crate::Kind) $body

                #[test]
                fn on_redis() {
                    if $crate::Kind::Redis.program().is_some() {
                        promise($crate::Kind::Redis);
                    }
                }

                #[test]
                fn on_valkey() {
                    if $crate::Kind::Valkey.program().is_some() {
                        promise($crate::Kind::Valkey);
                    }
                }
            }
        )*
    };
}

/// Is this a long run (`ARTEL_SOAK`)?
pub fn soak() -> bool {
    std::env::var_os("ARTEL_SOAK").is_some()
}
