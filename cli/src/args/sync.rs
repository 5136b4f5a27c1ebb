//! The options of `event` and `lock`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::values;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EventCommand {
    /// Set it, and wake everybody who waits for it; it stays set until it is cleared, and setting it
    /// twice is setting it once
    Set {
        /// The event
        name: String,
        /// Clear it by itself after this time, unless somebody set it for longer
        #[arg(long, value_name = "TIME", value_parser = values::time)]
        ttl: Option<Duration>,
    },
    /// Clear it
    Clear {
        /// The event
        name: String,
    },
    /// Is it set? Exit code 5 if it is not
    Status {
        /// The event
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Wait until it is set, also if it is cleared again at once
    Wait {
        /// The event
        name: String,
        /// Give up after this time, with exit code 4
        #[arg(long, value_name = "TIME", value_parser = values::time)]
        timeout: Option<Duration>,
        /// Clear it then: of all who wait so, one goes on each time it is set
        #[arg(long)]
        clear: bool,
        /// Look at least this often, whatever is heard
        #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "5s")]
        consumer_timeout: Duration,
    },
    /// Every event of the fleet
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LockCommand {
    /// Run a command while holding the lock; its exit code is ours
    Run(LockRunArgs),
    /// Who holds it? Exit code 5 if nobody does
    Status {
        /// The lock
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Every lock that is held
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// What is run under which lock.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LockRunArgs {
    /// The lock
    pub(crate) name: String,

    /// Give up if it cannot be had within this time, 0 for at once [default: wait]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) wait: Option<Duration>,

    /// What happens to the command when the lock is lost: Redis was away for two thirds of a lease, or
    /// cut off from us for a moment, or this process was frozen and judged dead
    #[arg(long, value_enum, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Exit code when the lock cannot be had in time, instead of 4
    #[arg(long, value_name = "N")]
    pub(crate) conflict_exit: Option<u8>,

    /// How long a silent holder counts as alive, and for two thirds of which it goes on without Redis; one
    /// value for the fleet [default: the fleet's, else 3s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) lease: Option<Duration>,

    /// What others see as its holder [default: lock- and the process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,

    /// The command, behind `--`; it finds the fencing token in ARTEL_LOCK_TOKEN
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OnLost {
    /// It is ended, with everything it started.
    Kill,
    /// It goes on; the token tells that it is late.
    Ignore,
}
