//! The options of `errors` and `getErrors`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::{SendLane, values};

/// Selects failed messages.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct FilterArgs {
    /// Only messages whose payload or reason matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,

    /// Only messages that failed within the last TIME, such as 1h
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) since: Option<Duration>,

    /// Only messages that failed for this cause: handler, attempts,
    /// decode, timeout, unread, kind, retries or expired
    #[arg(long, value_name = "CAUSE")]
    pub(crate) cause: Option<artel::Cause>,

    /// Only messages of this kind, as set by the sender (`artel send --kind`)
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Only the message with this id
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,

    /// At most N messages
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<u64>,
}

/// Which failed messages to take, and how to print them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TakeArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Print whole records, one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which failed messages to show.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Continue after this position, which the previous page printed
    #[arg(long, value_name = "POSITION", conflicts_with = "since")]
    pub(crate) cursor: Option<String>,

    /// Print whole records, one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which failed messages to put back to work.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RequeueArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// The lane to put the messages into [default: each message's own lane; normal if it was
    /// generated]
    #[arg(long, value_enum)]
    pub(crate) lane: Option<SendLane>,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Which failed messages to drop.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Which failed messages to copy, and where to.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Write to this file, which appears only when it is complete [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ErrorsCommand {
    /// Show a page of failed messages, newest first, and their total number; nothing is removed
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
