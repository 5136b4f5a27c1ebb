//! The options of `event` and `lock`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::values;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EventCommand {
    /// Set the event and wake every waiter. It stays set until it is cleared; setting it again
    /// changes nothing
    Set {
        /// Name of the event
        name: String,
        /// Clear it automatically after this time, unless another set lasts longer
        #[arg(long, value_name = "TIME", value_parser = values::time)]
        ttl: Option<Duration>,
    },
    /// Clear the event
    Clear {
        /// Name of the event
        name: String,
    },
    /// Show whether the event is set; exit code 5 if it is not
    Status {
        /// Name of the event
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Wait until the event is set, even if it is cleared again at once
    Wait {
        /// Name of the event
        name: String,
        /// Give up after this time, with exit code 4
        #[arg(long, value_name = "TIME", value_parser = values::time)]
        timeout: Option<Duration>,
        /// Clear the event after the wait: each set lets one of the waiters with --clear continue
        #[arg(long)]
        clear: bool,
        /// Re-check the event at least this often
        #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "5s")]
        consumer_timeout: Duration,
    },
    /// List every event of the fleet
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LockCommand {
    /// Run a command while holding the lock; exit with its exit code
    Run(LockRunArgs),
    /// Show who holds the lock; exit code 5 if nobody does
    Status {
        /// Name of the lock
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// List every lock that is held
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// The command to run, and its lock.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LockRunArgs {
    /// Name of the lock
    pub(crate) name: String,

    /// Give up if the lock is not free within this time; 0 means do not wait [default: wait]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) wait: Option<Duration>,

    /// What happens to the command when the lock is lost. It is lost if Redis is down for two
    /// thirds of a lease, if the connection is cut for a moment, or if this process was frozen and
    /// judged dead
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Exit code if the lock is not free in time, instead of 4
    #[arg(long, value_name = "N")]
    pub(crate) conflict_exit: Option<u8>,

    /// How long a holder counts as alive after its last call to Redis. If Redis is down, the lock
    /// is kept for two thirds of this time. One value for the fleet [default: the fleet's, else 3s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) lease: Option<Duration>,

    /// Name of the holder that others see [default: lock- and the process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,

    /// The command, after `--`; the fencing token is in its variable ARTEL_LOCK_TOKEN
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OnLost {
    /// It is killed, with everything it started.
    Kill,
    /// It continues; its fencing token shows that it is late.
    Ignore,
}
