//! The options of `errors` and `getErrors`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::{SendLane, values};

/// Which failed messages.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct FilterArgs {
    /// Only those whose payload or reason matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,

    /// Only those that failed within this time
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) since: Option<Duration>,

    /// Only those that failed for this cause: handler, attempts, decode, timeout or unread
    #[arg(long, value_name = "CAUSE")]
    pub(crate) cause: Option<artel::Cause>,

    /// Only those of this kind, as their senders said
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Only the message of this id
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,

    /// At most this many
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<u64>,
}

/// Which errors are taken, and how they are printed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TakeArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Print whole records, one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which errors are shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Go on after this position, as the page before said
    #[arg(long, value_name = "POSITION", conflicts_with = "since")]
    pub(crate) cursor: Option<String>,

    /// Print whole records, one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which errors are put back to work.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RequeueArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// The lane to put them into [default: each its own; normal for what was generated]
    #[arg(long, value_enum)]
    pub(crate) lane: Option<SendLane>,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Which errors are dropped.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Which errors are copied, and where to.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Write to this file, which is there only once it is whole [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ErrorsCommand {
    /// Show a page of failed messages, newest first, and how many there are; nothing is removed
    List(ListArgs),
    /// Take failed messages: print them and remove them
    Take(TakeArgs),
    /// Put failed messages back to work, each as a new message
    Requeue(RequeueArgs),
    /// Remove failed messages for good; they are counted as dropped
    Drop(DropArgs),
    /// Copy failed messages as JSON lines; nothing is removed
    Export(ExportArgs),
}
