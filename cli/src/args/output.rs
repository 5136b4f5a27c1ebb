//! The options of everything that is printed: the log, and colour.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::values;

/// What is logged, where and how.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output and settings")]
pub(crate) struct OutputArgs {
    /// Format of log lines
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "pretty",
        help_heading = "Output and settings"
    )]
    pub(crate) log_format: LogFormat,

    /// When to use colour
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        help_heading = "Output and settings"
    )]
    pub(crate) color: Color,

    /// Log each message too; given twice, log everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count,
          help_heading = "Output and settings")]
    pub(crate) verbose: u8,

    /// Log only warnings and errors
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Output and settings"
    )]
    pub(crate) quiet: bool,
}

/// The log in a file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogFileArgs {
    /// Write the log to this file instead of stderr; full files become FILE.1, FILE.2 and so on
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,

    /// Begin a new log file when this one has reached this size
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "10MB")]
    pub(crate) log_file_size: u64,

    /// Begin a new log file when this one is this old [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) log_file_age: Option<Duration>,

    /// Keep at most this many log files
    #[arg(long, value_name = "N", value_parser = values::at_least_one, default_value = "5")]
    pub(crate) log_files: u64,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON document per line.
    Json,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
