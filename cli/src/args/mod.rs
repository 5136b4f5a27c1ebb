//! Flags; their doc comments are the help text.
//!
//! **Invariant:** every option has one definition, here. Help, completions, man pages, environment
//! variables, keys of the file and `config init` all come from it (see `layers.rs`).

mod errors;
mod run;
mod send;
mod sync;
mod values;
mod verify;

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use errors::{
    DropArgs, ErrorsCommand, ExportArgs, FilterArgs, ListArgs, RequeueArgs, TakeArgs,
};
pub(crate) use run::{
    HandlerMode, LeaderWorks, MakeArgs, MemberArgs, ProcessArgs, RunArgs, UpArgs, WorkArgs,
};
pub(crate) use send::{Empty, SendArgs, SendLane};
pub(crate) use sync::{EventCommand, LockCommand, LockRunArgs, OnLost};
pub(crate) use values::time;
pub(crate) use verify::{PartArgs, VerifyArgs};

use crate::exit::{Failure, USAGE};

/// One elected generator, all other copies workers, every message completed exactly once: a fleet
/// of identical processes on nothing but Redis or Valkey.
#[derive(Debug, Parser)]
#[command(name = "artel", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(flatten)]
    run: RunArgs,

    /// Take all failed messages, print one per line, end
    #[arg(long = "getErrors", value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes",
          value_parser = values::yes_or_no, help_heading = "Commands as flags")]
    get_errors: Option<bool>,

    /// Put back what dead members left behind, never live work, and end
    #[arg(long = "cleanTemp", value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes",
          value_parser = values::yes_or_no, help_heading = "Commands as flags")]
    clean_temp: Option<bool>,

    /// With --getErrors: print whole records, one JSON document per line
    #[arg(long, requires = "get_errors", help_heading = "Commands as flags")]
    json: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

const AFTER_HELP: &str = "Without a command it is `run`, and takes its options: see `artel run \
--help`. Every option is also a variable (--interval is ARTEL_INTERVAL) and a key of artel.toml \
(see `artel config init`). Try it: `artel up`.";

/// The heading under which the options of `run` stand.
pub(crate) const OF_RUN: &str = "Options of `run`, the default command";

/// The whole command line.
pub(crate) fn command() -> clap::Command {
    // What belongs to `run` is shown there.
    let command = Args::command();
    let mut command = command
        .mut_args(|arg| if arg.get_help_heading() == Some(OF_RUN) { arg.hide(true) } else { arg });
    command.build();
    command
}

/// Where the fleet is, and how much to say.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Global {
    /// Redis or Valkey: redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:/path
    /// [env: ARTEL_REDIS_URL, else REDIS_URL]
    #[arg(long, global = true, value_name = "URL", alias = "redis-url",
          conflicts_with_all = ["redis_url_file", "host", "port", "db"])]
    pub(crate) redis: Option<String>,

    /// A file that holds the address, such as a container's secret
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["host", "port", "db"])]
    pub(crate) redis_url_file: Option<PathBuf>,

    /// Host of Redis, instead of --redis
    #[arg(long, global = true)]
    pub(crate) host: Option<String>,

    /// Port of Redis, instead of --redis
    #[arg(long, global = true)]
    pub(crate) port: Option<u16>,

    /// Database number, instead of --redis
    #[arg(long, global = true)]
    pub(crate) db: Option<u32>,

    /// Certificates of the authority to trust (PEM), instead of the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Our own certificate (PEM), for a server that asks for one
    #[arg(long, global = true, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of our own certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Processes with the same fleet name on the same Redis belong together
    #[arg(long, global = true, value_name = "NAME", default_value = "artel")]
    pub(crate) fleet: String,

    /// When no address is given: use the private server, or never
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub(crate) embedded: EmbeddedMode,

    /// Where the private server keeps its socket and its data [default: ~/.local/share/artel]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// The program of the private server [default: the first valkey-server or redis-server found]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) server: Option<PathBuf>,

    /// Settings in TOML [default: artel.toml in the working directory, if there is one]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output and settings")]
    pub(crate) config: Option<PathBuf>,

    /// How log lines look
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "pretty",
        help_heading = "Output and settings"
    )]
    pub(crate) log_format: LogFormat,

    /// Colour on a terminal, always or never
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        help_heading = "Output and settings"
    )]
    pub(crate) color: Color,

    /// Say more: each message; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count,
          help_heading = "Output and settings")]
    pub(crate) verbose: u8,

    /// Say less: only warnings and errors
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Output and settings"
    )]
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

/// What to do when no address is given.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EmbeddedMode {
    /// The private server if it answers, else Redis on localhost, else start the private server.
    Auto,
    /// An error: for production.
    Never,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join the fleet (the default): generate if elected, else handle messages
    Run(RunArgs),
    /// Join the fleet to handle messages, and never to generate any
    Work(WorkArgs),
    /// A private server and some members in one terminal: kill them and see
    Up(UpArgs),
    /// Put messages into a lane: arguments, or lines from stdin
    Send(SendArgs),
    /// Take all failed messages, print one per line, end
    #[command(name = "getErrors")]
    GetErrors(TakeArgs),
    /// Look at failed messages, take them, or put them back to work
    #[command(subcommand)]
    Errors(ErrorsCommand),
    /// Where a message is: waiting, claimed by whom, failed why, or done; exit code 5 if nothing is known
    Show {
        /// Its id, as `artel send` prints it
        id: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// What the effects of handlers wrote
    #[command(subcommand)]
    Data(DataCommand),
    /// Every fleet on this Redis: who is in it, what waits
    Fleets {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove a fleet
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Who leads, who is here, the books; exit code 6 when nobody is here, when nobody leads although a
    /// member could, or when messages wait and nobody works
    Status(StatusArgs),
    /// What every member says about itself: role, numbers, handler times
    Stats {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Signals across the fleet: set, clear, look at and wait for a named event
    #[command(subcommand)]
    Event(EventCommand),
    /// Locks across the fleet: run a command while holding one, see who holds what
    #[command(subcommand)]
    Lock(LockCommand),
    /// Break a private fleet in every way, check its books, print the verdict; exit code 1 if a promise is broken
    Verify(VerifyArgs),
    /// One process of `verify`
    #[command(hide = true)]
    VerifyPart(PartArgs),
    /// Put back what dead members left behind
    Clean(CleanArgs),
    /// The private server that is used when no address is given
    #[command(subcommand)]
    Embedded(EmbeddedCommand),
    /// Settings: where each comes from, whether they are right, a file to begin with
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of the program or of one command
    Man {
        /// Which command, such as `send` or `errors take`
        command: Vec<String>,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Print what stands under this name: a value, or one element per line, fields of a hash with a tab
    /// between field and value; exit code 5 if nothing does
    Get {
        /// The name, as the effect has it
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Remove a fleet with everything in it: messages, failed ones, books, locks, events, data. Nobody may be
    /// in it
    Remove {
        /// The fleet
        name: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// How the status is printed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Again and again, until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// How often, with --watch
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1s")]
    pub(crate) every: Duration,
}

#[derive(Clone, Debug, clap::Args)]
struct CleanArgs {
    /// Put back what dead members left behind, never live work
    #[arg(long, required = true)]
    temp: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EmbeddedCommand {
    /// Does it run, and who uses it? Exit code 5 if it does not
    Status {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Stop it; its data stay
    Stop,
    /// Its address, such as `export ARTEL_REDIS_URL=$(artel embedded path)` wants it
    Path,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the settings that a member started here would have, as TOML
    Show {
        /// Say where each comes from
        #[arg(long)]
        origin: bool,
    },
    /// Check a file of settings [default: the one that would be used]
    Check {
        /// The file
        file: Option<PathBuf>,
    },
    /// Write an artel.toml with every setting, its default and what it means
    Init,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    Run(RunArgs),
    Work(WorkArgs),
    Up(UpArgs),
    Send(SendArgs),
    Errors(ErrorsCommand),
    CleanTemp,
    Show { id: String, json: bool },
    Data(DataCommand),
    Fleets { json: bool },
    Fleet(FleetCommand),
    Status(StatusArgs),
    Stats { json: bool },
    Event(EventCommand),
    Lock(LockCommand),
    Verify(VerifyArgs),
    VerifyPart(PartArgs),
    Embedded(EmbeddedCommand),
    Config(ConfigCommand),
    Completions(clap_complete::Shell),
    Man(Vec<String>),
}

impl Args {
    /// Is there a command, by its name or as a flag? Without one it is `run`.
    pub(crate) fn has_command(&self) -> bool {
        self.command.is_some() || self.get_errors == Some(true) || self.clean_temp == Some(true)
    }

    /// The one thing that was asked for.
    pub(crate) fn action(self) -> Result<Action, Failure> {
        let (get_errors, clean_temp) =
            (self.get_errors == Some(true), self.clean_temp == Some(true));
        let flags = usize::from(get_errors) + usize::from(clean_temp);
        let named = usize::from(self.command.is_some()) + flags;
        if named > 1 {
            let error = "more than one command in one line";
            return Err(Failure::new(USAGE, error).hint("`artel --help` shows the commands"));
        }
        if flags == 1 {
            let take = TakeArgs { json: self.json, ..TakeArgs::default() };
            return Ok(match get_errors {
                true => Action::Errors(ErrorsCommand::Take(take)),
                false => Action::CleanTemp,
            });
        }
        Ok(match self.command {
            None => Action::Run(self.run),
            Some(Command::Run(run)) => Action::Run(run),
            Some(Command::Work(work)) => Action::Work(work),
            Some(Command::Up(up)) => Action::Up(up),
            Some(Command::Send(send)) => Action::Send(send),
            Some(Command::GetErrors(take)) => Action::Errors(ErrorsCommand::Take(take)),
            Some(Command::Errors(command)) => Action::Errors(command),
            Some(Command::Show { id, json }) => Action::Show { id, json },
            Some(Command::Data(command)) => Action::Data(command),
            Some(Command::Fleets { json }) => Action::Fleets { json },
            Some(Command::Fleet(command)) => Action::Fleet(command),
            Some(Command::Status(options)) => Action::Status(options),
            Some(Command::Stats { json }) => Action::Stats { json },
            Some(Command::Event(command)) => Action::Event(command),
            Some(Command::Lock(command)) => Action::Lock(command),
            Some(Command::Verify(options)) => Action::Verify(options),
            Some(Command::VerifyPart(part)) => Action::VerifyPart(part),
            Some(Command::Clean(CleanArgs { .. })) => Action::CleanTemp,
            Some(Command::Embedded(command)) => Action::Embedded(command),
            Some(Command::Config(command)) => Action::Config(command),
            Some(Command::Completions { shell }) => Action::Completions(shell),
            Some(Command::Man { command }) => Action::Man(command),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
