//! The options of a run, its progress, and why there may be no verdict.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use artel::Durability;
use artel_rig::Target;

use crate::plan::Kind;
use crate::topology::Topology;

/// When the fleet keeps its ledger. A ledger makes scripts look into packs; without it they are settled whole, and effects
/// and counters must show that every message was settled once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keeps {
    /// Always.
    Always,
    /// Never.
    Never,
    /// By turns.
    ByTurns,
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program to start as `verify-part` for each process under test.
    pub program: PathBuf,
    /// Where Redis is.
    pub target: Target,
    /// How many servers there are, and who decides which of them is the primary.
    pub topology: Topology,
    /// What the processes ask for: with less than all replicas, what they are told may be lost.
    pub durability: Durability,
    /// libfaketime, if it is not where packages install it.
    pub faketime: Option<PathBuf>,
    /// Where the history goes.
    pub dir: PathBuf,
    /// How long to inject faults.
    pub time: Duration,
    /// Members of the fleet.
    pub members: usize,
    /// Messages per second.
    pub rate: u64,
    /// How long a session lasts without a refresh.
    pub lease: Duration,
    /// The seed that decides which fault comes when.
    pub seed: u64,
    /// The faults to inject.
    pub kinds: Vec<Kind>,
    /// When the fleet keeps its ledger; `None`: by turns if there is time for it.
    pub ledger: Option<Keeps>,
}

impl Options {
    /// When the fleet keeps its ledger, if a turn takes this long. A Redis that loses data would lose the turn, too.
    pub(crate) fn keeps(&self, turn: Duration) -> Keeps {
        let lossy = self.loses_data();
        match self.ledger {
            Some(Keeps::ByTurns) | None if lossy => Keeps::Always,
            None if self.time < turn * 2 || self.topology != Topology::Single => Keeps::Always,
            None => Keeps::ByTurns,
            Some(keeps) => keeps,
        }
    }

    /// May something be lost that somebody was told? Then no fleet can keep everything, but it must name what it lost.
    pub(crate) fn loses_data(&self) -> bool {
        self.loses_told() || self.kinds.iter().any(|kind| kind.loses_data())
    }

    /// May a server take over that lacks what somebody was told?
    pub(crate) fn loses_told(&self) -> bool {
        self.topology != Topology::Single && self.durability != Durability::All
    }

    /// The highest rate, in messages per second, that these members can handle. Half of them are
    /// broken at times.
    pub fn rate_max(members: usize) -> u64 {
        150 * (members as u64).saturating_sub(1)
    }
}

/// Ends a run before its time.
#[derive(Debug, Default)]
pub struct Stop {
    early: AtomicBool,
    now: AtomicBool,
}

impl Stop {
    /// No more faults: repair everything and judge.
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

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the first fault.
    pub elapsed: Duration,
    /// Number of faults so far.
    pub faults: u64,
    /// Messages with an outcome.
    pub settled: u64,
    /// Terms so far.
    pub terms: u64,
    /// Violations so far.
    pub violations: usize,
    /// The current phase.
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
    /// The history cannot be written, most likely because the disk is full.
    NoHistory,
    /// No wall clock can be set on this machine, and no other faults were selected.
    NoClocks(&'static str),
    /// The user ended it at once.
    Ended,
    /// The fleet did not start on the given Redis.
    NotStarted(String),
    /// The private server did not answer in time.
    Server(String),
    /// The options do not fit together.
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
                    "this Redis is not empty: it has {keys} keys, and they may belong to somebody"
                )
            }
            Trouble::NoHistory => f.write_str("the history cannot be written: is the disk full?"),
            Trouble::NoClocks(why) => write!(f, "no wall clock can be set on this machine: {why}"),
            Trouble::Ended => f.write_str("ended without a verdict"),
            Trouble::NotStarted(what) => write!(f, "the fleet did not start: {what}"),
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
