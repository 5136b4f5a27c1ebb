//! Flags; their doc comments are the help text.

use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::builtin::WorkTime;
use crate::exit::{Failure, USAGE};

/// One elected generator, all other copies workers, every message completed exactly once: a fleet
/// of identical processes on nothing but Redis or Valkey.
#[derive(Debug, Parser)]
#[command(name = "artel", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(flatten)]
    run: RunArgs,

    /// Take all failed messages, print one per line, end
    #[arg(long = "getErrors", value_name = "yes", num_args = 0..=1, default_missing_value = "yes",
          value_parser = ["yes"])]
    get_errors: Option<String>,

    /// Put back what dead members left behind, never live work, and end
    #[arg(long = "cleanTemp", value_name = "yes", num_args = 0..=1, default_missing_value = "yes",
          value_parser = ["yes"])]
    clean_temp: Option<String>,

    #[command(subcommand)]
    command: Option<Command>,
}

/// Where the fleet is, and how much to say.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Global {
    /// Redis or Valkey, as redis://[user:password@]host[:port][/db] or unix:/path [env:
    /// ARTEL_REDIS_URL, else REDIS_URL] [default: redis://127.0.0.1:6379]
    #[arg(long, global = true, value_name = "URL", conflicts_with_all = ["host", "port", "db"])]
    pub(crate) redis: Option<String>,

    /// Host of Redis, instead of --redis
    #[arg(long, global = true)]
    pub(crate) host: Option<String>,

    /// Port of Redis, instead of --redis
    #[arg(long, global = true)]
    pub(crate) port: Option<u16>,

    /// Database number, instead of --redis
    #[arg(long, global = true)]
    pub(crate) db: Option<u32>,

    /// Processes with the same fleet name on the same Redis belong together [default: artel]
    #[arg(long, global = true, env = "ARTEL_FLEET", value_name = "NAME")]
    pub(crate) fleet: Option<String>,

    /// How log lines look
    #[arg(long, global = true, value_enum, default_value = "pretty", env = "ARTEL_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,

    /// Say more: each message; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say less: only warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON document per line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join the fleet (the default): generate if elected, else handle messages
    Run(RunArgs),
    /// Take all failed messages, print one per line, end
    #[command(name = "getErrors")]
    GetErrors(TakeArgs),
    /// Who leads, who is here, the books; exit code 6 when nobody leads
    Status(StatusArgs),
    /// Put back what dead members left behind
    Clean(CleanArgs),
}

/// Settings of a member.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct RunArgs {
    /// Time between two generated messages [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = time, env = "ARTEL_INTERVAL")]
    pub(crate) interval: Option<Duration>,

    /// Share of messages the built-in handler finds in error, 0 to 1 [default: 0.05]
    #[arg(long, value_name = "SHARE", value_parser = share, env = "ARTEL_ERROR_RATE")]
    pub(crate) error_rate: Option<f64>,

    /// Stop generating after this many messages of the whole fleet
    #[arg(long, value_name = "N", env = "ARTEL_MAX_MESSAGES")]
    pub(crate) max_messages: Option<u64>,

    /// How long a silent member counts as alive; one value for the fleet [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = time, env = "ARTEL_LEASE")]
    pub(crate) lease: Option<Duration>,

    /// How long each further standby waits before it tries to take over [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = time, env = "ARTEL_TAKEOVER_TIMEOUT")]
    pub(crate) takeover_timeout: Option<Duration>,

    /// Simulated work per message: a time, or a time per byte such as 10us/byte
    #[arg(long, value_name = "TIME", env = "ARTEL_WORK_TIME")]
    pub(crate) work_time: Option<WorkTime>,

    /// Messages handled at the same time [default: number of cores]
    #[arg(long, value_name = "N", env = "ARTEL_CONCURRENCY")]
    pub(crate) concurrency: Option<usize>,

    /// What people call this process [default: artel- and its process id]
    #[arg(long, value_name = "NAME", env = "ARTEL_LABEL")]
    pub(crate) label: Option<String>,

    /// Makes the built-in generator and handler repeatable
    #[arg(long, value_name = "N", env = "ARTEL_SEED")]
    pub(crate) seed: Option<u64>,

    /// Keep an entry per settled message: off, all, or about the last N
    #[arg(long, value_name = "off|all|N", value_parser = ledger, env = "ARTEL_LEDGER")]
    pub(crate) ledger: Option<artel::Ledger>,

    /// End by itself after this time, and print the books
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(crate) duration: Option<Duration>,
}

/// How errors are printed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TakeArgs {
    /// Print whole records, one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the status is printed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct CleanArgs {
    /// Put back what dead members left behind, never live work
    #[arg(long, required = true)]
    temp: bool,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    Run(RunArgs),
    GetErrors(TakeArgs),
    CleanTemp,
    Status(StatusArgs),
}

impl Args {
    /// Reads the command line. What belongs to `run` must stand after `run` if there is a command.
    pub(crate) fn read() -> Result<Args, Failure> {
        let matches = Args::command().get_matches();
        let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let other =
            args.command.is_some() || args.get_errors.is_some() || args.clean_temp.is_some();
        let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let run = RunArgs::augment_args(clap::Command::new("run"));
        match run.get_arguments().find(|arg| other && given(arg.get_id().as_str())) {
            Some(arg) => Err(Failure::new(
                USAGE,
                format!("--{} is an option of `run`", arg.get_long().unwrap_or_default()),
            )
            .hint("options of `run` go after `run`: `artel run --interval 50ms`")),
            None => Ok(args),
        }
    }

    /// The one thing that was asked for.
    pub(crate) fn action(self) -> Result<Action, Failure> {
        let flags = usize::from(self.get_errors.is_some()) + usize::from(self.clean_temp.is_some());
        let named = usize::from(self.command.is_some()) + flags;
        if named > 1 {
            let error = "more than one command in one line";
            return Err(Failure::new(USAGE, error).hint("`artel --help` shows the commands"));
        }
        if flags == 1 {
            return Ok(match self.get_errors {
                Some(_) => Action::GetErrors(TakeArgs::default()),
                None => Action::CleanTemp,
            });
        }
        Ok(match self.command {
            None => Action::Run(self.run),
            Some(Command::Run(run)) => Action::Run(run),
            Some(Command::GetErrors(options)) => Action::GetErrors(options),
            Some(Command::Status(options)) => Action::Status(options),
            Some(Command::Clean(CleanArgs { .. })) => Action::CleanTemp,
        })
    }
}

/// A time such as `500ms`; a bare 0 is a time, too, and out of range where it does not make sense.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| match text.parse::<f64>() {
        Ok(_) => format!("a time needs a unit: try `{text}ms` or `{text}s`"),
        Err(_) => format!("not a time ({error}): try `500ms` or `2s`"),
    })
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) => Err("must be between 0 and 1, such as 0.05 for 5 %".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn ledger(text: &str) -> Result<artel::Ledger, String> {
    match text {
        "off" => Ok(artel::Ledger::Off),
        "all" => Ok(artel::Ledger::All),
        _ => match text.parse::<u64>() {
            Ok(n @ 1..=1_000_000_000) => Ok(artel::Ledger::Last(n)),
            _ => Err("must be off, all, or a number of entries".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_need_units_and_say_so() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert!(time("5").expect_err("no unit").contains("5ms"));
    }
}
