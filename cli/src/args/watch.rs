//! The options of commands that watch a fleet.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use artel::AlertRule;
use clap::Subcommand;

use super::values;
use crate::archive::ArchivePlace;

/// What this process did, on its disk.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ArchiveArgs {
    /// Keep what this process does with each message, and its notices: sqlite:FILE or jsonl:FOLDER
    /// (see `artel history --archive`)
    #[arg(long, value_name = "KIND:PATH")]
    pub(crate) archive: Option<ArchivePlace>,

    /// Keep the payloads of messages in the archive, too
    #[arg(long, requires = "archive")]
    pub(crate) archive_payloads: bool,

    /// Remove the oldest records when the archive is larger than this
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "1GB")]
    pub(crate) archive_size: u64,

    /// Remove records that are older than this
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "30d")]
    pub(crate) archive_age: Duration,
}

/// When to tell whom about trouble.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct AlertArgs {
    /// Send an alert when this rule holds, such as "no_generator > 10s" or "error_ratio > 0.2 over 5m
    /// hold 1m cooldown 30m critical"; may be given more than once. In the file it is a list, in the
    /// variable one rule per line [default: the rules that `artel notify rules` marks]
    #[arg(long = "alert", value_name = "RULE", value_delimiter = LIST)]
    pub(crate) rules: Vec<AlertRule>,

    #[command(flatten)]
    pub(crate) to: SinkArgs,
}

/// Separates the values of an option that is a list in the settings file.
pub(crate) const LIST: char = '\n';

/// Who is told.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SinkArgs {
    /// Send alerts to: log, command:CMD (JSON on its stdin), webhook:URL, slack:URL, or
    /// mail:smtps://USER:PASSWORD@HOST?from=ADDRESS&to=ADDRESS; may be given more than once. An address
    /// with a secret belongs into the file [default: log, if there is an --alert]
    #[arg(long = "alert-to", value_name = "SINK", value_delimiter = LIST)]
    pub(crate) sinks: Vec<String>,

    /// Read the secret that signs webhooks from this file, instead of from ARTEL_ALERT_SECRET
    #[arg(long, value_name = "FILE")]
    pub(crate) alert_secret_file: Option<PathBuf>,
}

/// How to show a fleet on one screen.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Print one frame, and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Time between two readings
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1s")]
    pub(crate) every: Duration,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NotifyCommand {
    /// Send a test alert to one sink, or to all that the settings name; exit code 1 if one fails
    Test {
        /// The sink: as in --alert-to, or its name, such as webhook or mail-2
        sink: Option<String>,
        #[command(flatten)]
        to: SinkArgs,
    },
    /// Print the rules that there are, and what they mean
    Rules {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// Where traces go.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Send traces of messages, from their sending to their outcome, to this receiver of OTLP over HTTP,
    /// such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Share of messages that are traced, from 0 to 1; a message whose sender traced it always is
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.01")]
    pub(crate) otlp_share: f64,
}

/// From when on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    Ago(Duration),
    At(SystemTime),
}

impl Since {
    pub(crate) fn from(self, now: SystemTime) -> SystemTime {
        match self {
            Since::Ago(time) => now.checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH),
            Since::At(time) => time,
        }
    }
}

/// Which entries of the common log to show.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Go on with new entries, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Only entries of the last TIME, such as 1h, or since a point in time, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::since)]
    pub(crate) since: Option<Since>,

    /// Only entries about this member: its label, or the first characters of its id
    #[arg(long, value_name = "MEMBER")]
    pub(crate) member: Option<String>,

    /// Only entries of this kind, such as joined, left, died, elected, resigned, adopted, ordered,
    /// data-loss or disconnected, or, of an archive, messages of this kind; may be given more than once
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,

    /// Only entries whose text matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,

    /// Show the archive of a process instead: sqlite:FILE or jsonl:FOLDER. The newest record comes first
    #[arg(long, value_name = "KIND:PATH", conflicts_with = "follow")]
    pub(crate) archive: Option<ArchivePlace>,

    /// Only messages that ended so: generated, done, failed, retried or snoozed
    #[arg(long, value_name = "OUTCOME", requires = "archive",
        value_parser = ["generated", "done", "failed", "retried", "snoozed"])]
    pub(crate) outcome: Option<String>,

    /// Only the newest N entries [default: all; 100 of an archive]
    #[arg(long, short = 'n', value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<u64>,

    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}
