//! The settings of a member.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::values;
use crate::builtin::WorkTime;

/// Settings of a member.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = super::OF_RUN)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) make: MakeArgs,

    #[command(flatten)]
    pub(crate) member: MemberArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,

    /// Leave when stdin ends: for whoever starts members and may be killed
    #[arg(long, hide = true)]
    pub(crate) tethered: bool,
}

/// Settings of a member that never leads.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(crate) member: MemberArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

/// What one process has for itself.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// What people call this process [default: artel- and its process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,

    /// Serve /livez, /readyz, /gather_stats and /api/v1/status here: a port, or host:port
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,

    /// Read the token for --http from this file, instead of from ARTEL_HTTP_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) http_token_file: Option<PathBuf>,
}

/// A fleet in one terminal.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// How many members
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=999))]
    pub(crate) members: u16,

    #[command(flatten)]
    pub(crate) make: MakeArgs,

    #[command(flatten)]
    pub(crate) member: MemberArgs,
}

/// What a member needs that may lead.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MakeArgs {
    /// Run this command each interval while this process leads: each line it prints is a message. One that
    /// takes longer than five intervals and two leases loses its turn to another member [default: none if
    /// there is a --handler, so that nobody leads and all work; else random text]
    #[arg(long, value_name = "CMD")]
    pub(crate) generator: Option<String>,

    /// Time between two runs of the generator
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "500ms")]
    pub(crate) interval: Duration,

    /// Stop generating after this many messages of the whole fleet
    #[arg(long, value_name = "N")]
    pub(crate) max_messages: Option<u64>,

    /// Does the process that leads handle messages, too?
    #[arg(long, value_enum, value_name = "WHEN", default_value = "never")]
    pub(crate) leader_works: LeaderWorks,
}

/// When the process that leads handles messages, too.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LeaderWorks {
    /// It only generates.
    Never,
    /// While no other member works.
    Alone,
    /// Like every other member.
    Always,
}

/// What all members of a fleet have in common.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MemberArgs {
    /// Share of messages the built-in handler finds in error, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.05")]
    pub(crate) error_rate: f64,

    /// Run this command for each message: payload on stdin, exit code 0 = done, else failed
    #[arg(long, value_name = "CMD")]
    pub(crate) handler: Option<String>,

    /// One process per message, or one per slot that reads and answers JSON lines
    #[arg(long, value_enum, value_name = "MODE", default_value = "exec")]
    pub(crate) handler_mode: HandlerMode,

    /// A handler that runs longer is stopped, and its message fails
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "5m")]
    pub(crate) handler_timeout: Duration,

    /// Simulated work per message: a time, or a time per byte such as 10us/byte
    #[arg(long, value_name = "TIME", conflicts_with = "handler")]
    pub(crate) work_time: Option<WorkTime>,

    /// Messages handled at the same time [default: number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,

    /// How often each lane is the first to be served
    #[arg(long, value_name = "LANE=N,…", value_parser = values::weights,
          default_value = "high=10,generated=3,normal=2,low=1")]
    pub(crate) lane_weights: artel::LaneWeights,

    /// Messages that may wait in a lane: beyond, generating and sending wait; one value for the fleet
    /// [default: the fleet's, else 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) backlog_max: Option<usize>,

    /// Failed messages that may be stored: beyond, generating and sending wait; one value for the fleet
    /// [default: the fleet's, else 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) errors_max: Option<usize>,

    /// Workers that may die over a message before it goes to the error store; one value for the
    /// fleet [default: the fleet's, else 5]
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<u32>,

    /// How long a silent member counts as alive; one value for the fleet [default: the fleet's, else
    /// 3s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) lease: Option<Duration>,

    /// How long each further standby waits before it tries to take over
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "50ms")]
    pub(crate) takeover_timeout: Duration,

    /// How long a graceful stop waits for running handlers
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "10s")]
    pub(crate) stop_grace: Duration,

    /// Replicas that must have a message or an outcome before it counts (WAIT)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replicas: u32,

    /// Keep an entry per settled message: off, all, or about the last N; one value for the fleet
    /// [default: the fleet's, else off]
    #[arg(long, value_name = "off|all|N", value_parser = values::ledger)]
    pub(crate) ledger: Option<artel::Ledger>,

    /// Makes the built-in generator and handler repeatable
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Say the books this often
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) snapshot_every: Option<Duration>,

    /// End by itself after this time, and print the books
    #[arg(long = "for", value_name = "TIME", value_parser = values::time)]
    pub(crate) duration: Option<Duration>,
}

/// How a handler command is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum HandlerMode {
    /// A process per message.
    Exec,
    /// A process per slot, which reads a JSON line per message and answers with one.
    Lines,
}
