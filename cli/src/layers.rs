//! Flag > environment > file > default, for every option alike.
//!
//! **Invariant:** the nearest place that names an option decides it, and every error names that
//! place. Settings of other commands are not read: a wrong `ARTEL_INTERVAL` cannot break `artel
//! status`.
//!
//! The command line is parsed once, to find the command and the options it names. Then the options
//! from the environment and from the file are appended as further flags, and the whole line is
//! parsed again.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use crate::args::{Args, LIST, OF_RUN, command};
use crate::exit::{Failure, USAGE};
use crate::file::{self, Entries};
use crate::variables::{self, SHARED};

/// Options that are not settings: they make no sense in a file or in the environment.
const NOT_SETTINGS: [&str; 10] = [
    "help",
    "version",
    "getErrors",
    "cleanTemp",
    "temp",
    "json",
    "yes",
    "tethered",
    "config",
    "once",
];

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    CommandLine,
    Variable(String),
    File(PathBuf, usize),
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::CommandLine => write!(f, "the command line"),
            Origin::Variable(name) => write!(f, "{name}"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Default => write!(f, "default"),
        }
    }
}

/// An option whose value comes from the environment or from the file.
struct Added {
    long: String,
    word: OsString,
    value: String,
    origin: Origin,
}

/// One setting with its final value.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
}

/// The origin of each option that the command line does not name.
static ORIGINS: Mutex<BTreeMap<String, Origin>> = Mutex::new(BTreeMap::new());

/// The file that was read.
static FILE_READ: Mutex<Option<PathBuf>> = Mutex::new(None);

fn origins() -> MutexGuard<'static, BTreeMap<String, Origin>> {
    ORIGINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses the command line, then adds the environment, the file and the defaults.
pub(crate) fn read(words: &[OsString]) -> Result<Args, Failure> {
    let (matches, added) = resolve(words)?;
    *origins() = added.into_iter().map(|added| (added.long, added.origin)).collect();
    Args::from_arg_matches(&matches).map_err(|error| Failure::new(USAGE, error.to_string()))
}

/// The name of an option (such as `--interval`) for messages, with the place its value came from.
pub(crate) fn name_of(flag: &str) -> String {
    let long = flag.trim_start_matches('-');
    match origins().get(long) {
        Some(origin) => format!("{origin}: {long}"),
        None => format!("--{long}"),
    }
}

fn resolve(words: &[OsString]) -> Result<(ArgMatches, Vec<Added>), Failure> {
    let command = command();
    let given = command.clone().try_get_matches_from(words);
    let given = given.unwrap_or_else(|error| without_bad_advice(error).exit());
    check_order(&command, &given)?;
    let (leaf, matches) = leaf(&command, &given);
    // `--getErrors` is a command, too, and needs nothing that belongs to `run`.
    let other = is_flag_command(&given);
    let needed = |arg: &&Arg| is_setting(arg) && !(other && arg.get_help_heading() == Some(OF_RUN));
    let options: Vec<&Arg> = leaf.get_arguments().filter(needed).collect();
    let mut named: Vec<&str> = options
        .iter()
        .filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
        .filter_map(|arg| arg.get_long())
        .collect();
    let mut added = Vec::new();
    let file = if reads_file(&given) { file_entries(matches)? } else { None };
    let from_environment = |long: &str| {
        let mut name = variables::of_option(long);
        if long == "redis" && std::env::var_os(&name).is_none() {
            name = "ARTEL_REDIS".to_owned(); // a name that users may guess
        }
        let value = text(&name, std::env::var_os(&name)?);
        // If a service is called `artel`, Kubernetes sets ARTEL_PORT to its URL.
        let foreign = name == "ARTEL_PORT" && value.as_ref().is_ok_and(|url| url.contains("://"));
        (!foreign).then(|| value.map(|value| (value, Origin::Variable(name))))
    };
    // REDIS_URL belongs to every program: our own variables overrule it, and it overrules the file.
    let shared = |long: &str| {
        let value = std::env::var_os(SHARED).filter(|_| long == "redis")?;
        let origin = Origin::Variable(SHARED.to_owned());
        Some(text(SHARED, value).map(|value| (value, origin)))
    };
    let from_file = |long: &str| {
        let (path, entries) = file.as_ref()?;
        let entry = entries.get(long)?;
        Some(Ok((entry.value.clone(), Origin::File(path.clone(), entry.line))))
    };
    type Layer<'a> = &'a dyn Fn(&str) -> Option<Result<(String, Origin), Failure>>;
    for layer in [&from_environment as Layer<'_>, &shared, &from_file] {
        let mut found = Vec::new();
        for arg in &options {
            let Some(long) = arg.get_long() else { continue };
            if named.contains(&long) || named.iter().any(|other| conflict(leaf, arg, other)) {
                continue;
            }
            if let Some(value) = layer(long) {
                let (value, origin) = value?;
                if !value.is_empty() {
                    added.extend(word(arg, long, value, origin)?);
                    found.push(long);
                }
            }
        }
        named.extend(found);
    }
    if added.is_empty() {
        return Ok((given, added));
    }
    // Insert before `--`: the words after it are not ours.
    let mut all = words.to_vec();
    let end = all.iter().position(|word| word == "--").unwrap_or(all.len());
    all.splice(end..end, added.iter().map(|added| added.word.clone()));
    match command.try_get_matches_from(all) {
        Ok(matches) => Ok((matches, added)),
        Err(error) => Err(explain(&error, &added)),
    }
}

/// Removes the parser's advice for a misspelt option: to send it as a message.
fn without_bad_advice(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    error
}

fn is_flag_command(given: &ArgMatches) -> bool {
    given.subcommand_name().is_none()
        && ["get_errors", "clean_temp"].iter().any(|id| given.get_one::<bool>(id) == Some(&true))
}

/// Is the settings file read? Commands that handle such files, or need none, must also work when
/// the file is broken.
fn reads_file(given: &ArgMatches) -> bool {
    !["config", "completions", "man"].contains(&given.subcommand_name().unwrap_or_default())
}

/// Options of `run` must come after `run` if a command is given.
fn check_order(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    let args = Args::from_arg_matches(matches).map_err(|error| {
        Failure::new(USAGE, error.to_string()) // cannot happen: the parser has accepted it
    })?;
    let given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let of_run = |arg: &&Arg| arg.get_help_heading() == Some(OF_RUN);
    let stray = command.get_arguments().find(|arg| of_run(arg) && given(arg));
    match stray.filter(|_| args.has_command()) {
        None => Ok(()),
        Some(arg) => Err(Failure::new(
            USAGE,
            format!("--{} is an option of `run`", arg.get_long().unwrap_or_default()),
        )
        .hint("options of `run` go after `run`: `artel run --interval 50ms`")),
    }
}

fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| !NOT_SETTINGS.contains(&long))
}

/// The innermost command, and its parsed arguments.
fn leaf<'a>(command: &'a Command, matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    let (mut command, mut matches) = (command, matches);
    while let Some((name, sub)) = matches.subcommand() {
        match command.find_subcommand(name) {
            Some(found) => (command, matches) = (found, sub),
            None => break,
        }
    }
    (command, matches)
}

fn conflict(command: &Command, arg: &Arg, other: &str) -> bool {
    let Some(other) = command.get_arguments().find(|arg| arg.get_long() == Some(other)) else {
        return false;
    };
    let names = |one: &Arg, two: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == two.get_id())
    };
    names(arg, other) || names(other, arg)
}

fn text(name: &str, value: OsString) -> Result<String, Failure> {
    value
        .into_string()
        .map_err(|_| Failure::new(USAGE, format!("the variable {name} is not valid UTF-8")))
}

/// An option in the form it has on the command line; `None` for a flag that is off.
fn word(arg: &Arg, long: &str, value: String, origin: Origin) -> Result<Option<Added>, Failure> {
    let flag = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
    let word = match (flag, value.as_str()) {
        (false, value) => format!("--{long}={value}"),
        (true, "1" | "true" | "yes") => format!("--{long}"),
        (true, "0" | "false" | "no") => return Ok(None),
        (true, _) => {
            let error = format!("{origin}: {long} must be true or false, not {value:?}");
            return Err(Failure::new(USAGE, error)
                .hint("a flag is on (true, yes, 1) or off (false, no, 0)"));
        }
    };
    Ok(Some(Added { long: long.to_owned(), word: word.into(), value, origin }))
}

/// Turns the parser's error about a flag into an error that names the place of the value.
fn explain(error: &clap::Error, added: &[Added]) -> Failure {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let flag = context(ContextKind::InvalidArg).unwrap_or_default();
    let long = flag.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
    let Some(culprit) = added.iter().find(|added| added.long == long) else {
        // Options from two places that exclude each other.
        let text = error.to_string();
        let text = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let places: Vec<String> =
            added.iter().map(|added| format!("{} ({})", added.long, added.origin)).collect();
        return Failure::new(USAGE, text.trim())
            .hint(format!("these settings are used in addition: {}", places.join(", ")));
    };
    let problem = match error.kind() {
        ErrorKind::ArgumentConflict => {
            let other = context(ContextKind::PriorArg).unwrap_or_default();
            let long = other.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
            match added.iter().find(|added| added.long == long) {
                Some(other) => format!("cannot be used together with {} ({long})", other.origin),
                None => format!("cannot be used together with {other}"),
            }
        }
        ErrorKind::InvalidValue => {
            let values = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(values)) => values.join(", "),
                _ => String::new(),
            };
            format!("must be one of {values}, not {:?}", culprit.value)
        }
        _ => match std::error::Error::source(error) {
            Some(source) => {
                let value = context(ContextKind::InvalidValue);
                format!("{:?}: {source}", value.unwrap_or_else(|| culprit.value.clone()))
            }
            None => format!("{:?} cannot be used", culprit.value),
        },
    };
    Failure::new(USAGE, format!("{}: {}: {problem}", culprit.origin, culprit.long))
        .hint(format!("`--{}` on the command line overrules it", culprit.long))
}

/// The entries of the file, by the name of their option.
fn file_entries(matches: &ArgMatches) -> Result<Option<(PathBuf, Entries)>, Failure> {
    let Some((path, text)) = file::in_use(matches.get_one("config"))? else { return Ok(None) };
    let entries = file::parse(&path, &text, &names(), is_list)?;
    // An empty file is not worth a log line.
    let read = Some(path.clone()).filter(|_| !entries.is_empty());
    *FILE_READ.lock().unwrap_or_else(PoisonError::into_inner) = read;
    Ok(Some((path, entries)))
}

/// The settings of a member that reads this file and nothing else.
pub(crate) fn read_file(path: &Path, text: &str) -> Result<Args, Failure> {
    let command = command();
    let run = command.find_subcommand("run").cloned().unwrap_or_default();
    let mut added = Vec::new();
    for (name, entry) in file::parse(path, text, &names(), is_list)? {
        let has =
            |command: &&Command| command.get_arguments().any(|arg| arg.get_long() == Some(&name));
        let owner = Some(&run).filter(has).or_else(|| command.get_subcommands().find(has));
        let Some(owner) = owner.filter(|_| !entry.value.is_empty()) else { continue };
        let Some(arg) = owner.get_arguments().find(|arg| arg.get_long() == Some(&name)) else {
            continue;
        };
        let entry = word(arg, &name, entry.value, Origin::File(path.to_owned(), entry.line))?;
        if owner.get_name() == "run" {
            added.extend(entry);
        } else if let Some(entry) = entry {
            // A setting of another command: only its own value can be checked.
            let words = ["artel".into(), owner.get_name().into(), entry.word.clone()];
            let parsed = command.clone().try_get_matches_from::<_, OsString>(words);
            parsed.map_err(|error| explain(&error, &[entry]))?;
        }
    }
    let words = ["artel", "run"].map(OsString::from);
    let words = words.into_iter().chain(added.iter().map(|added| added.word.clone()));
    let matches = command.try_get_matches_from(words).map_err(|error| explain(&error, &added))?;
    *origins() = added.into_iter().map(|added| (added.long, added.origin)).collect();
    Args::from_arg_matches(&matches).map_err(|error| Failure::new(USAGE, error.to_string()))
}

/// The names of the settings of all commands; those of a member come first.
pub(crate) fn names() -> Vec<String> {
    let command = command();
    let mut names: Vec<String> = Vec::new();
    let mut open: Vec<&Command> = command.get_subcommands().collect();
    open.sort_by_key(|command| command.get_name() != "run");
    while !open.is_empty() {
        let command = open.remove(0);
        open.extend(command.get_subcommands());
        for long in command.get_arguments().filter(|arg| is_setting(arg)).filter_map(Arg::get_long)
        {
            if !names.iter().any(|name| name == long) {
                names.push(long.to_owned());
            }
        }
    }
    names
}

/// Is this setting a list in the file?
fn is_list(name: &str) -> bool {
    let command = command();
    let run = command.find_subcommand("run");
    let arg = run.and_then(|run| run.get_arguments().find(|arg| arg.get_long() == Some(name)));
    arg.is_some_and(|arg| arg.get_value_delimiter() == Some(LIST))
}

/// What to log about settings: the file that was read, and a warning for each unknown variable.
pub(crate) fn remarks() -> (Option<PathBuf>, Vec<String>) {
    let file = FILE_READ.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (file, variables::unknown(&names()))
}

/// Every setting of a member with its value and its origin. `told` are flags, which are used
/// together with variables and the file. With `None` only the defaults are used.
pub(crate) fn settings(told: Option<&[OsString]>) -> Result<Vec<Setting>, Failure> {
    let mut words = vec![OsString::from("artel"), OsString::from("run")];
    let (matches, added) = match told {
        None => {
            let matches = command().try_get_matches_from(&words);
            (matches.map_err(|error| Failure::new(USAGE, error.to_string()))?, Vec::new())
        }
        Some(told) => {
            words.extend(told.iter().cloned());
            resolve(&words)?
        }
    };
    let command = command();
    let (run, matches) = leaf(&command, &matches);
    let setting = |arg: &Arg| {
        let name = arg.get_long().unwrap_or_default().to_owned();
        let id = arg.get_id().as_str();
        let raw = matches.get_raw(id).map(|values| {
            let values: Vec<_> = values.map(OsStr::to_string_lossy).collect();
            values.join(&LIST.to_string())
        });
        let flag = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
        let value = match (flag, matches.value_source(id)) {
            (true, Some(ValueSource::CommandLine)) => Some("true".to_owned()),
            (true, _) => Some("false".to_owned()),
            (false, _) => raw,
        };
        let found = added.iter().find(|added| added.long == name);
        let origin = match (found, matches.value_source(id)) {
            (Some(added), _) => added.origin.clone(),
            (None, Some(ValueSource::CommandLine)) => Origin::CommandLine,
            (None, _) => Origin::Default,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        Setting { name, help, value, origin }
    };
    Ok(run.get_arguments().filter(|arg| is_setting(arg)).map(setting).collect())
}

/// The settings of a member that the command line itself names, as flags.
pub(crate) fn told(words: &[OsString]) -> Vec<OsString> {
    let command = command();
    let Ok(given) = command.clone().try_get_matches_from(words) else { return Vec::new() };
    let (leaf, matches) = leaf(&command, &given);
    let mut flags = flags(leaf, matches, |_| true);
    if let Some(path) = matches.get_one::<PathBuf>("config") {
        flags.extend([OsString::from("--config"), path.into()]);
    }
    flags
}

/// The settings that `up` passes on to its members, as flags, from every origin. Settings of `up`
/// itself, and settings that it chooses for each member, are left out.
pub(crate) fn passed_on(words: &[OsString]) -> Result<Vec<OsString>, Failure> {
    const ADDRESS: [&str; 8] =
        ["redis", "redis-url-file", "host", "port", "db", "tls-ca", "tls-cert", "tls-key"];
    const OWN: [&str; 15] = [
        "http",
        "http-token-file",
        "http-read-token-file",
        "http-read-only",
        "http-base",
        "fleet",
        "label",
        "log-format",
        "color",
        "quiet",
        "for",
        "snapshot-every",
        "embedded",
        "data-dir",
        "server",
    ];
    let is_address = |long: &str| ADDRESS.contains(&long) || long.starts_with("sentinel-");
    let (matches, added) = resolve(words)?;
    let command = command();
    let (up, matches) = leaf(&command, &matches);
    let by_hand = |long: &str| !added.iter().any(|added| added.long == long);
    for arg in up.get_arguments() {
        let long = arg.get_long().unwrap_or_default();
        let given = matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        if given && is_address(long) && by_hand(long) {
            let error = format!("--{long} is not for `up`, which has a private server of its own");
            return Err(Failure::new(USAGE, error).hint("`artel run` takes it"));
        }
    }
    Ok(flags(up, matches, |long| !is_address(long) && !OWN.contains(&long)))
}

/// The settings of a member that were given to this command, as flags.
fn flags(command: &Command, matches: &ArgMatches, wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
    let all = crate::args::command();
    let run = all.find_subcommand("run").cloned().unwrap_or_default();
    let known = |long: &str| run.get_arguments().any(|arg| arg.get_long() == Some(long));
    let mut flags = Vec::new();
    for arg in command.get_arguments().filter(|arg| is_setting(arg)) {
        let (Some(long), id) = (arg.get_long(), arg.get_id().as_str()) else { continue };
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if !given || !known(long) || !wanted(long) {
            continue;
        }
        match arg.get_action() {
            ArgAction::Count => {
                let times = matches.get_count(id);
                flags.extend((0..times).map(|_| OsString::from(format!("--{long}"))));
            }
            ArgAction::SetTrue => flags.push(format!("--{long}").into()),
            _ => {
                for value in matches.get_raw(id).into_iter().flatten() {
                    let mut flag = OsString::from(format!("--{long}="));
                    flag.push(value);
                    flags.push(flag);
                }
            }
        }
    }
    flags
}
