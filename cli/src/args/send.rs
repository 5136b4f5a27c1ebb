//! The options of `send`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;

use super::{TraceArgs, values};

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
    /// Stop at this line.
    Refuse,
    /// Do not send it.
    Skip,
    /// Send an empty message.
    Send,
}

/// What to send, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// The messages; without any, each line of stdin is a message
    #[arg(value_name = "MESSAGE")]
    pub(crate) messages: Vec<String>,

    /// Send each line of this file as a message; `-` is stdin
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["messages", "dedup"])]
    pub(crate) file: Option<PathBuf>,

    /// Messages that are read end with a NUL byte instead of a newline, as from `find -print0`
    #[arg(short = '0', long = "null", conflicts_with = "messages")]
    pub(crate) null: bool,

    /// What to do with an empty line
    #[arg(long, value_enum, value_name = "WHAT", default_value = "refuse")]
    pub(crate) empty: Empty,

    /// Give up after this time without an answer from Redis
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1min")]
    pub(crate) timeout: Duration,

    /// The lane to send to
    #[arg(long, value_enum, default_value = "normal")]
    pub(crate) lane: SendLane,

    /// Send one message, but only if no message was sent with this key before
    #[arg(long, value_name = "KEY")]
    pub(crate) dedup: Option<String>,

    /// How long the key of --dedup is remembered
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1day")]
    pub(crate) dedup_for: Duration,

    /// Kind of the messages, for handlers that distinguish kinds
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Have the messages wait for this time before they start
    #[arg(long = "in", value_name = "TIME", value_parser = values::time, conflicts_with = "at",
          allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,

    /// Have the messages wait until this time, such as 2026-12-24T18:00:00+01:00; UTC without a zone
    #[arg(long, value_name = "TIME", value_parser = values::point)]
    pub(crate) at: Option<SystemTime>,

    /// After this time no run of a message starts, not even a retry: it fails
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) expires: Option<Duration>,

    /// How often a message is retried, in place of the number of its kind or of its worker
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) retries: Option<u32>,

    /// Messages may be any bytes, also empty; by default only UTF-8 text is sent
    #[arg(long)]
    pub(crate) raw: bool,

    /// Print one JSON document per message instead of its id
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}
