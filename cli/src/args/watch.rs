//! The options of commands that watch a fleet.

use std::time::Duration;

use super::values;

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

    /// Only entries of this kind, such as elected, died or ordered; may be given more than once
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,

    /// Only entries whose text matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub(crate) grep: Option<String>,

    /// Only the newest N entries [default: all]
    #[arg(long, short = 'n', value_name = "N", value_parser = values::at_least_one)]
    pub(crate) limit: Option<u64>,

    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}
