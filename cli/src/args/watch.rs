//! The options of commands that watch a fleet.

use std::time::Duration;

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

/// Which entries of the common log to show.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Go on with new entries, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Only entries of the last TIME, such as 1h
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) since: Option<Duration>,

    /// Only entries about this member: its label, or the first characters of its id
    #[arg(long, value_name = "MEMBER")]
    pub(crate) member: Option<String>,

    /// Only entries of this kind, such as elected, died or ordered, or, of an archive, messages of this
    /// kind; may be given more than once
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,

    /// Only entries whose text matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,

    /// Show the archive of a process instead: sqlite:FILE or jsonl:FOLDER. The newest record comes first
    #[arg(long, value_name = "KIND:PATH", conflicts_with = "follow")]
    pub(crate) archive: Option<ArchivePlace>,

    /// Only messages that ended so: generated, done, failed, retried or snoozed
    #[arg(long, value_name = "OUTCOME", requires = "archive")]
    pub(crate) outcome: Option<String>,

    /// Only the newest N entries [default: all; 100 of an archive]
    #[arg(long, short = 'n', value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<u64>,

    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}
