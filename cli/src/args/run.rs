//! The settings of a member.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::{AlertArgs, ArchiveArgs, LogFileArgs, TraceArgs, values};
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

    /// Leave the fleet when stdin ends: for a parent process that may be killed
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

/// Settings of one process alone.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// Name of this process in logs and tables [default: artel- and its process id]
    #[arg(long, value_name = "NAME")]
    pub(crate) label: Option<String>,

    /// Serve the page, /api/v1, /metrics, /gather_stats, /livez and /readyz on this address: a port, or
    /// host:port
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,

    #[command(flatten)]
    pub(crate) http_rules: HttpArgs,

    #[command(flatten)]
    pub(crate) log: LogFileArgs,

    #[command(flatten)]
    pub(crate) archive: ArchiveArgs,

    #[command(flatten)]
    pub(crate) alerts: AlertArgs,

    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}

/// Who may do what over HTTP.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HttpArgs {
    /// Read the token for --http from this file, instead of from ARTEL_HTTP_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) http_token_file: Option<PathBuf>,

    /// Read the token of those who may only read over HTTP from this file, instead of from
    /// ARTEL_HTTP_READ_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) http_read_token_file: Option<PathBuf>,

    /// Nothing can be changed over HTTP, whoever asks
    #[arg(long)]
    pub(crate) http_read_only: bool,

    /// The path under which a proxy passes requests on, such as /artel
    #[arg(long, value_name = "PATH", default_value = "")]
    pub(crate) http_base: String,
}

/// How to serve fleets without joining them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Serve the page, /api/v1, /metrics and probes on this address: a port, or host:port
    #[arg(long, value_name = "ADDR", default_value = "8090")]
    pub(crate) http: String,

    #[command(flatten)]
    pub(crate) http_rules: HttpArgs,
}

/// Settings of a fleet in one terminal.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Number of members
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=999))]
    pub(crate) members: u16,

    /// Serve the page and /api/v1 on this address: a port, host:port, or none [default: 8090, or any free
    /// port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,

    #[command(flatten)]
    pub(crate) http_rules: HttpArgs,

    #[command(flatten)]
    pub(crate) make: MakeArgs,

    #[command(flatten)]
    pub(crate) member: MemberArgs,
}

/// Settings of a member that may lead.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MakeArgs {
    /// Run this command each interval while this process leads: each line it prints is a message.
    /// If it takes longer than five intervals and two leases, another member leads instead
    /// [default: none if there is a --handler, so that nobody leads and all work; else random text]
    #[arg(long, value_name = "CMD")]
    pub(crate) generator: Option<String>,

    /// Time between two runs of the generator
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "500ms")]
    pub(crate) interval: Duration,

    /// Stop generating when the fleet has generated N messages in total
    #[arg(long, value_name = "N")]
    pub(crate) max_messages: Option<u64>,

    /// When the process that leads also handles messages
    #[arg(long, value_enum, value_name = "WHEN", default_value = "never")]
    pub(crate) leader_works: LeaderWorks,
}

/// When the process that leads also handles messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LeaderWorks {
    /// It only generates.
    Never,
    /// It handles messages while no other member works.
    Alone,
    /// It handles messages like every other member.
    Always,
}

/// Settings of every member.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MemberArgs {
    /// Share of messages that the built-in handler fails, from 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.05")]
    pub(crate) error_rate: f64,

    /// Run this command for each message: payload on stdin; exit code 0 = done, 75 = retry, 65 =
    /// failed and never retried, anything else = failed, or retried with --retries
    #[arg(long, value_name = "CMD")]
    pub(crate) handler: Option<String>,

    /// How to run the handler: a process per message, or a process per slot that reads and answers
    /// JSON lines
    #[arg(long, value_enum, value_name = "MODE", default_value = "exec")]
    pub(crate) handler_mode: HandlerMode,

    /// Stop a handler that runs longer than this; its message is retried, or fails
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "5m")]
    pub(crate) handler_timeout: Duration,

    /// How often a message is retried whose handler failed, crashed or ran too long [default: never;
    /// 10 times if the handler asks for it]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) retries: Option<u32>,

    /// How long a message waits before it is retried: the first and the longest delay, doubled each
    /// time, with up to a quarter more at random; or one fixed delay
    #[arg(long, value_name = "FIRST..LONGEST", value_parser = values::backoff, default_value = "5s..1h")]
    pub(crate) backoff: artel::Backoff,

    /// How long the built-in handler works on a message: a time, or a time per byte such as
    /// 10us/byte
    #[arg(long, value_name = "TIME", conflicts_with = "handler")]
    pub(crate) work_time: Option<WorkTime>,

    /// Number of messages to handle at the same time [default: number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,

    /// Weights of the lanes: how often each lane is served first
    #[arg(long, value_name = "LANE=N,…", value_parser = values::weights,
          default_value = "high=10,generated=3,normal=2,low=1")]
    pub(crate) lane_weights: artel::LaneWeights,

    /// How many messages may wait in a lane. When it is full, the generator and senders wait. One
    /// value for the fleet [default: the fleet's, else 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) backlog_max: Option<usize>,

    /// How many failed messages may be stored. At this number, the generator and senders wait. One
    /// value for the fleet [default: the fleet's, else 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) errors_max: Option<usize>,

    /// How many workers may die while they hold a message before it goes to the error store. One
    /// value for the fleet [default: the fleet's, else 5]
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<u32>,

    /// How long a member counts as alive after its last call to Redis. One value for the fleet
    /// [default: the fleet's, else 3s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) lease: Option<Duration>,

    /// Delay before a member tries to take over a free lease; multiplied by its rank
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "50ms")]
    pub(crate) takeover_timeout: Duration,

    /// How long a graceful stop waits for running handlers
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "10s")]
    pub(crate) stop_grace: Duration,

    /// Another name of --durability replicated:N
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replicas: u32,

    /// Keep an entry per settled message: off, all, or about the last N. One value for the fleet
    /// [default: the fleet's, else off]
    #[arg(long, value_name = "off|all|N", value_parser = values::ledger)]
    pub(crate) ledger: Option<artel::Ledger>,

    /// Seed of the built-in generator and handler, to make them repeatable
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Log the books at this interval
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) snapshot_every: Option<Duration>,

    /// Stop after this time, and print the books
    #[arg(long = "for", value_name = "TIME", value_parser = values::time)]
    pub(crate) duration: Option<Duration>,
}

/// How a handler command is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum HandlerMode {
    /// A process per message.
    Exec,
    /// A process per slot, which reads a JSON line per message and answers with a JSON line.
    Lines,
}
