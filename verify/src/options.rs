//! What a run is told, what it tells while it runs, and why there may be no verdict.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::plan::Kind;

/// Where Redis is.
#[derive(Clone, Debug)]
pub enum Target {
    /// A server of our own, started from this program.
    Private(PathBuf),
    /// This one, which must be empty unless `anyway`.
    Given {
        /// Its address.
        url: String,
        /// Use it although it is not empty.
        anyway: bool,
    },
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose `verify-part` plays the parts.
    pub program: PathBuf,
    /// Where Redis is.
    pub target: Target,
    /// libfaketime, if it is elsewhere than packages put it.
    pub faketime: Option<PathBuf>,
    /// Where the history goes.
    pub dir: PathBuf,
    /// For how long faults happen.
    pub time: Duration,
    /// Members of the fleet.
    pub members: usize,
    /// Messages a second.
    pub rate: u64,
    /// How long a session lasts without a refresh.
    pub lease: Duration,
    /// What decides which fault comes when.
    pub seed: u64,
    /// The faults that happen.
    pub kinds: Vec<Kind>,
}

impl Options {
    /// More messages a second than this are too many for these members, half of whom are broken at times.
    pub fn rate_max(members: usize) -> u64 {
        150 * (members as u64).saturating_sub(1)
    }
}

/// How a run is ended before its time.
#[derive(Debug, Default)]
pub struct Stop {
    early: AtomicBool,
    now: AtomicBool,
}

impl Stop {
    /// No more faults: mend everything and judge.
    pub fn early(&self) {
        self.early.store(true, Ordering::Relaxed);
    }

    /// Clean up, without a verdict.
    pub fn now(&self) {
        self.now.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_early(&self) -> bool {
        self.early.load(Ordering::Relaxed)
    }

    pub(crate) fn is_now(&self) -> bool {
        self.now.load(Ordering::Relaxed)
    }
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Since when faults happen.
    pub elapsed: Duration,
    /// How many there were.
    pub faults: u64,
    /// Messages with an outcome.
    pub settled: u64,
    /// Terms so far.
    pub terms: u64,
    /// What must not be, so far.
    pub violations: usize,
    /// What it is doing.
    pub doing: &'static str,
}

/// Why there is no verdict.
#[derive(Debug)]
pub enum Trouble {
    /// The server is not empty.
    NotEmpty {
        /// How many keys it has.
        keys: u64,
    },
    /// The history cannot be written: the disk is full, most likely.
    NoHistory,
    /// No wall clock can be set here, and nothing else was asked for.
    NoClocks(&'static str),
    /// Somebody ended it at once.
    Ended,
    /// On the Redis that was given, the fleet did not even begin.
    NotStarted(String),
    /// The server that was started is not there in time.
    Server(String),
    /// It cannot be done like this.
    Usage(String),
    /// Something could not be started or reached.
    Io(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::NotEmpty { keys } => {
                write!(
                    f,
                    "this Redis is not empty: it has {keys} keys, and they might be somebody's"
                )
            }
            Trouble::NoHistory => f.write_str("the history cannot be written: is the disk full?"),
            Trouble::NoClocks(why) => write!(f, "no wall clock can be set on this machine: {why}"),
            Trouble::Ended => f.write_str("ended without a verdict"),
            Trouble::NotStarted(what) => write!(f, "the fleet did not get going: {what}"),
            Trouble::Server(what) | Trouble::Usage(what) | Trouble::Io(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Trouble {}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error.to_string())
    }
}

impl From<redis::RedisError> for Trouble {
    fn from(error: redis::RedisError) -> Trouble {
        Trouble::Io(format!("Redis: {error}"))
    }
}
