//! Flags; their doc comments are the help text.
//!
//! **Invariant:** every option has one definition, here. Help, completions, man pages, environment
//! variables, keys of the file and `config init` all come from it (see `layers.rs`).

mod bench;
mod errors;
mod jobs;
mod output;
mod run;
mod send;
mod sync;
mod values;
mod verify;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use bench::{BenchArgs, BenchPartArgs};
pub(crate) use errors::{
    DropArgs, ErrorsCommand, ExportArgs, FilterArgs, ListArgs, RequeueArgs, TakeArgs,
};
pub(crate) use jobs::{CronCommand, CronSetArgs, PauseArgs, ResumeArgs, ScheduleCommand};
pub(crate) use output::{Color, LogFileArgs, LogFormat, OutputArgs};
pub(crate) use run::{
    HandlerMode, HttpArgs, LeaderWorks, MakeArgs, MemberArgs, ProcessArgs, RunArgs, ServeArgs,
    UpArgs, WorkArgs,
};
pub(crate) use send::{Empty, SendArgs, SendLane};
pub(crate) use sync::{EventCommand, LockCommand, LockRunArgs, OnLost};
pub(crate) use values::time;
pub(crate) use verify::{PartArgs, VerifyArgs};
pub(crate) use watch::{
    AlertArgs, ArchiveArgs, HistoryArgs, LIST, NotifyCommand, SinkArgs, TopArgs, TraceArgs,
};

use crate::exit::{Failure, USAGE};

/// A fleet of identical processes on Redis or Valkey: one elected member generates messages, the
/// others handle them, and every message is completed exactly once.
#[derive(Debug, Parser)]
#[command(name = "artel", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(flatten)]
    run: RunArgs,

    /// Take all failed messages: print one per line, remove them, and exit
    #[arg(long = "getErrors", value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes",
          value_parser = values::yes_or_no, help_heading = "Commands as flags")]
    get_errors: Option<bool>,

    /// Clean up after dead members (put back their messages, free their locks), and exit; live
    /// members are not touched
    #[arg(long = "cleanTemp", value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes",
          value_parser = values::yes_or_no, help_heading = "Commands as flags")]
    clean_temp: Option<bool>,

    /// With --getErrors: print whole records, one JSON document per line
    #[arg(long, requires = "get_errors", help_heading = "Commands as flags")]
    json: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

const AFTER_HELP: &str = "Without a command, artel does `run` and takes the options of `run`: see \
`artel run --help`. Every option is also a variable (--interval is ARTEL_INTERVAL) and a key of \
artel.toml (see `artel config init`). Try it: `artel up`.";

/// The heading above the options of `run`.
pub(crate) const OF_RUN: &str = "Options of `run`, the default command";

/// The whole command line.
pub(crate) fn command() -> clap::Command {
    // The options of `run` are shown only in `artel run --help`.
    let command = Args::command();
    let mut command = command
        .mut_args(|arg| if arg.get_help_heading() == Some(OF_RUN) { arg.hide(true) } else { arg });
    command.build();
    command
}

/// Where the fleet is, and how much to print.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Global {
    /// Address of Redis or Valkey: redis://[user:password@]host[:port][/db], which may be any node of a
    /// cluster; redis-cluster://…host,host; redis-sentinel://…host,host[/db]?master=NAME; rediss… for
    /// TLS; or unix:/path [env: ARTEL_REDIS_URL, else REDIS_URL]
    #[arg(long, global = true, value_name = "URL", alias = "redis-url",
          conflicts_with_all = ["redis_url_file", "host", "port", "db"])]
    pub(crate) redis: Option<String>,

    /// Read the address from this file, such as a container secret
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

    /// Certificate authorities to trust (PEM), instead of the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Client certificate (PEM), for a server that asks for one
    #[arg(long, global = true, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// User at the sentinels, if they have users. The user in the address is that of the servers
    #[arg(long, global = true, value_name = "NAME", requires = "sentinel_password_file")]
    pub(crate) sentinel_user: Option<String>,

    /// Read the password of the sentinels from this file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) sentinel_password_file: Option<PathBuf>,

    /// When what is told counts as done: when the primary did it (local), when N replicas have it, too
    /// (replicated:N), or when all have it. A failover may forget what is only local
    #[arg(long, global = true, value_name = "local|replicated:N|all", value_parser = values::durability,
          default_value = "local")]
    pub(crate) durability: artel::Durability,

    /// Name of the fleet: processes with the same name on the same Redis belong together
    #[arg(long = "fleet", global = true, value_name = "NAME", default_value = "artel", value_delimiter = LIST)]
    pub(crate) fleets: Vec<String>,

    /// What to do when no address is given
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub(crate) embedded: EmbeddedMode,

    /// Folder for the socket and the data of the private server [default: ~/.local/share/artel]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Program to start as the private server [default: the first valkey-server or redis-server
    /// found]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) server: Option<PathBuf>,

    /// Read settings from this TOML file [default: artel.toml in the working directory, if it
    /// exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output and settings")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl Global {
    /// The fleet. Only `serve` takes several.
    pub(crate) fn fleet(&self) -> &str {
        self.fleets.first().map_or("artel", String::as_str)
    }

    /// Refuses several fleets, for all commands but `serve`.
    pub(crate) fn one_fleet(&self) -> Result<(), Failure> {
        match self.fleets.len() {
            0 | 1 => Ok(()),
            _ => Err(Failure::new(USAGE, "--fleet is given more than once")
                .hint("only `artel serve` takes several fleets")),
        }
    }
}

/// What to do when no address is given.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EmbeddedMode {
    /// Use the private server if it answers, else Redis on localhost, else start the private
    /// server.
    Auto,
    /// Report an error: for production.
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Join the fleet (the default): generate if elected, else handle messages
    Run(RunArgs),
    /// Join the fleet to handle messages; never generate any
    Work(WorkArgs),
    /// Start a private server and a fleet in one terminal, to try it out and to kill members
    Up(UpArgs),
    /// Put messages into a lane: the arguments, or the lines of stdin
    Send(SendArgs),
    /// Take all failed messages: print one per line, and remove them
    #[command(name = "getErrors")]
    GetErrors(TakeArgs),
    /// Show failed messages, take them, put them back to work, or drop them
    #[command(subcommand)]
    Errors(ErrorsCommand),
    /// Messages that wait for a time: list them, cancel them, run them now, or move them
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Periodic entries: messages that are sent at certain times
    #[command(subcommand)]
    Cron(CronCommand),
    /// Pause a lane or everything: no member fetches from it; nothing is lost
    Pause(PauseArgs),
    /// Resume a lane, everything, or a drained member; exit code 5 if it is not paused or drained
    Resume(ResumeArgs),
    /// Have a member finish what it has started, fetch nothing and not lead, until `resume`; exit code 5
    /// if there is no such member
    Drain {
        /// Its id, the first 4 or more characters of its id, or its label
        member: String,
    },
    /// Have the generator give up its lease, so that another member leads; exit code 5 if nobody leads
    #[command(name = "step-down")]
    StepDown,
    /// Show where a message is: waiting, scheduled, claimed, failed or done; exit code 5 if it is
    /// not found
    Show {
        /// Id of the message, as `artel send` prints it
        id: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Show the data that the effects of handlers wrote
    #[command(subcommand)]
    Data(DataCommand),
    /// List every fleet on this Redis, with its members and waiting messages
    Fleets {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove a fleet
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Show the generator, the members and the books; exit code 6 if the fleet has no members, if
    /// nobody leads although a member could, or if messages wait and nobody works
    Status(StatusArgs),
    /// Show the fleet on one screen, live: generator, members, rates, lanes, failed messages, notices
    Top(TopArgs),
    /// Serve the page, the JSON API and the numbers of one or more fleets, without joining them
    Serve(ServeArgs),
    /// Ask every member for its role, its counts and its handler times
    Stats {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Show what happened to the fleet: elections, deaths, orders, and what its members saw
    History(HistoryArgs),
    /// Look for what endangers the promise: the server, its settings, rights, keys, members, books;
    /// exit code 6 if something does
    Doctor {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Try out the sinks of alerts, and show the rules
    #[command(subcommand)]
    Notify(NotifyCommand),
    /// Events across the fleet: set, clear, show and wait for a named event
    #[command(subcommand)]
    Event(EventCommand),
    /// Locks across the fleet: run a command under a lock, show who holds which lock
    #[command(subcommand)]
    Lock(LockCommand),
    /// Break a private fleet in every way, check its books, and print the verdict; exit code 1 if a
    /// promise is broken
    Verify(VerifyArgs),
    /// One process of `verify`
    #[command(hide = true)]
    VerifyPart(PartArgs),
    /// Measure a fleet on private servers: throughput, latency, failover, recovery, wake-ups, memory,
    /// CPU
    Bench(BenchArgs),
    /// One process of `bench`
    #[command(hide = true)]
    BenchPart(BenchPartArgs),
    /// Clean up after dead members
    Clean(CleanArgs),
    /// Show or stop the private server, which is used when no address is given
    #[command(subcommand)]
    Embedded(EmbeddedCommand),
    /// Show the settings, check a settings file, or write a new one
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program or of one command
    Man {
        /// The command, such as `send` or `errors take`
        command: Vec<String>,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Print the data under this name: a value, or one element per line; a hash has a tab between
    /// field and value; exit code 5 if there is no data
    Get {
        /// The name that the effect used
        name: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Remove a fleet with all its messages, failed messages, books, locks, events and data. The
    /// fleet must have no members
    Remove {
        /// The fleet
        name: String,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
}

/// How to print the status.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Print it again and again, until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// Time between two prints with --watch
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "1s")]
    pub(crate) every: Duration,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CleanArgs {
    /// Put back the messages of dead members and free their locks; live members are not touched
    #[arg(long, required = true)]
    temp: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EmbeddedCommand {
    /// Show whether it runs and how many connections it has; exit code 5 if it does not run
    Status {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Stop it; its data are kept
    Stop,
    /// Print its address, for example for `export ARTEL_REDIS_URL=$(artel embedded path)`
    Path,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the settings of a member that is started here, as TOML
    Show {
        /// Print where each setting comes from
        #[arg(long)]
        origin: bool,
    },
    /// Check a settings file [default: the file that a member started here would read]
    Check {
        /// The file
        file: Option<PathBuf>,
    },
    /// Write an artel.toml with every setting, its default and its meaning
    Init,
}

impl Args {
    /// Is a command given, by its name or as a flag? Without one the command is `run`.
    pub(crate) fn has_command(&self) -> bool {
        self.command.is_some() || self.get_errors == Some(true) || self.clean_temp == Some(true)
    }

    /// The one command to perform.
    pub(crate) fn action(self) -> Result<Command, Failure> {
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
                true => Command::GetErrors(take),
                false => Command::Clean(CleanArgs { temp: true }),
            });
        }
        Ok(match self.command {
            None => Command::Run(self.run),
            Some(command) => command,
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
