//! The options of `send`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::values;

/// A lane that messages can be sent to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum SendLane {
    /// Urgent.
    High,
    /// The usual one.
    Normal,
    /// Can wait.
    Low,
}

impl From<SendLane> for artel::Lane {
    fn from(lane: SendLane) -> artel::Lane {
        match lane {
            SendLane::High => artel::Lane::High,
            SendLane::Normal => artel::Lane::Normal,
            SendLane::Low => artel::Lane::Low,
        }
    }
}

/// What to do with an empty line.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Empty {
    /// Stop there.
    Refuse,
    /// Leave it out.
    Skip,
    /// Send an empty message.
    Send,
}

/// What is sent.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// The messages; without any, each line of stdin is one
    #[arg(value_name = "MESSAGE")]
    pub(crate) messages: Vec<String>,

    /// Each line of this file is a message; `-` is stdin
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["messages", "dedup"])]
    pub(crate) file: Option<PathBuf>,

    /// What is read ends with a NUL, as of `find -print0`, instead of a line end
    #[arg(short = '0', long = "null", conflicts_with = "messages")]
    pub(crate) null: bool,

    /// What to do with an empty line
    #[arg(long, value_enum, value_name = "WHAT", default_value = "refuse")]
    pub(crate) empty: Empty,

    /// How long Redis may be away before sending is given up
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1min")]
    pub(crate) timeout: Duration,

    /// The lane to put them into
    #[arg(long, value_enum, default_value = "normal")]
    pub(crate) lane: SendLane,

    /// Send one message, and only if none was sent under this key before
    #[arg(long, value_name = "KEY")]
    pub(crate) dedup: Option<String>,

    /// How long that key is remembered
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1day")]
    pub(crate) dedup_for: Duration,

    /// What kind of messages they are, for handlers that tell kinds apart
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Messages may be any bytes, not only UTF-8 text, and empty
    #[arg(long)]
    pub(crate) raw: bool,

    /// Print one JSON document per message instead of its id
    #[arg(long)]
    pub(crate) json: bool,
}
