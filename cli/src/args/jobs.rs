//! The options of `schedule`, `cron`, `pause`, `resume`, `drain` and `step-down`.

use std::time::{Duration, SystemTime};

use clap::{Subcommand, ValueEnum};

use super::send::SendLane;
use super::values;

/// A lane that can be paused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum AnyLane {
    /// Sent, urgent.
    High,
    /// From the generator.
    Generated,
    /// Sent.
    Normal,
    /// Sent, can wait.
    Low,
}

impl From<AnyLane> for artel::Lane {
    fn from(lane: AnyLane) -> artel::Lane {
        match lane {
            AnyLane::High => artel::Lane::High,
            AnyLane::Generated => artel::Lane::Generated,
            AnyLane::Normal => artel::Lane::Normal,
            AnyLane::Low => artel::Lane::Low,
        }
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List the messages that wait for a time, the first due first
    List {
        /// Only messages of this kind
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Print one JSON document per message
        #[arg(long)]
        json: bool,
    },
    /// End messages before they start; exit code 5 if one does not wait for a time
    Cancel {
        /// Ids of the messages
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Let messages start now; exit code 5 if one does not wait for a time
    Run {
        /// Ids of the messages
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Give a message another time; exit code 5 if it does not wait for a time
    Move {
        /// Id of the message
        id: String,
        /// This long from now
        #[arg(
            long = "in",
            value_name = "TIME",
            value_parser = values::time,
            required_unless_present = "at",
            conflicts_with = "at"
        )]
        delay: Option<Duration>,
        /// At this time, such as 2026-12-24T18:00:00+01:00; UTC without a zone
        #[arg(long, value_name = "TIME", value_parser = values::point)]
        at: Option<SystemTime>,
    },
}

/// What happens to times at which nobody was there.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum CatchUp {
    /// The latest one is made up for.
    Once,
    /// None is made up for.
    Skip,
    /// Each is made up for, but only the latest 1,000.
    All,
}

impl From<CatchUp> for artel::CatchUp {
    fn from(catch_up: CatchUp) -> artel::CatchUp {
        match catch_up {
            CatchUp::Once => artel::CatchUp::Once,
            CatchUp::Skip => artel::CatchUp::Skip,
            CatchUp::All => artel::CatchUp::All,
        }
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CronCommand {
    /// List the periodic entries
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Make an entry, or replace it: its message is sent at certain times
    Set(CronSetArgs),
    /// Remove entries; exit code 5 if one does not exist
    Remove {
        /// Names of the entries
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Send the message of an entry now; exit code 5 if it does not exist
    Run {
        /// Name of the entry
        name: String,
    },
    /// Pause entries: their times pass without a message; exit code 5 if one does not exist or is
    /// paused already
    Pause {
        /// Names of the entries
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Resume entries; exit code 5 if one does not exist or is not paused
    Resume {
        /// Names of the entries
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// A periodic entry.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CronSetArgs {
    /// Name of the entry: lower-case letters, digits, `_` and `-`
    pub(crate) name: String,

    /// Its times: five cron fields such as `0 2 * * *`, @hourly, @daily, @weekly, @monthly, or
    /// `every 90s`
    pub(crate) spec: String,

    /// Its message
    pub(crate) message: String,

    /// Time zone of its times, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,

    /// What happens to times at which nobody was there
    #[arg(long, value_enum, value_name = "WHAT", default_value = "once")]
    pub(crate) catch_up: CatchUp,

    /// Skip a time while the message of an earlier time is not over
    #[arg(long)]
    pub(crate) no_overlap: bool,

    /// The lane of its message
    #[arg(long, value_enum, default_value = "normal")]
    pub(crate) lane: SendLane,

    /// Kind of its message
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// How often its message is retried, in place of the number of its kind or of its worker
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) retries: Option<u32>,

    /// After this time no run of its message starts, not even a retry: it fails
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) expires: Option<Duration>,
}

/// What to pause.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PauseArgs {
    /// Everything: no member fetches messages
    #[arg(long)]
    pub(crate) all: bool,

    /// This lane
    #[arg(long, value_enum)]
    pub(crate) lane: Option<AnyLane>,
}

/// What to resume.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ResumeArgs {
    /// Everything; lanes that are paused stay so
    #[arg(long)]
    pub(crate) all: bool,

    /// This lane
    #[arg(long, value_enum)]
    pub(crate) lane: Option<AnyLane>,

    /// A member that was drained: its id, the first 4 or more characters of its id, or its label
    #[arg(value_name = "MEMBER")]
    pub(crate) member: Option<String>,
}
