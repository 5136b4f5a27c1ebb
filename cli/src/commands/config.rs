//! `artel config`: shows where each setting comes from, checks a settings file, writes a new one.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use artel::{Address, Fleet};

use crate::args::{Command, ConfigCommand, Global, LIST};
use crate::exit::{FAILURE, Failure, OK};
use crate::file::{self, FILE};
use crate::layers::{self, Origin, Setting};
use crate::{alerts, otlp};
use crate::{commands, printer};

/// Runs the command. `told` are the settings of a member that the command line names.
pub(crate) fn config(
    global: &Global,
    command: &ConfigCommand,
    told: &[OsString],
) -> Result<u8, Failure> {
    match command {
        ConfigCommand::Show { origin } => show(*origin, told),
        ConfigCommand::Check { file } => check(global, file.as_ref()),
        ConfigCommand::Init => init(),
    }
}

fn show(origin: bool, told: &[OsString]) -> Result<u8, Failure> {
    let mut text = String::new();
    for setting in layers::settings(Some(told))? {
        let line = match &setting.value {
            Some(value) => format!("{} = {}", setting.name, written(&setting.name, value)),
            None => format!("# {} is not set", setting.name),
        };
        let _ = match (origin, &setting.value) {
            (true, Some(_)) => writeln!(text, "{line:<44} # {}", setting.origin),
            _ => writeln!(text, "{line}"),
        };
    }
    printer::data(&text)?;
    Ok(OK)
}

/// A value as TOML, without its password.
fn written(name: &str, value: &str) -> String {
    if let "alert" | "alert-to" = name {
        let shown = |value: &str| match name {
            "alert-to" => format!("{:?}", alerts::without_secrets(value)),
            _ => format!("{value:?}"),
        };
        let values: Vec<String> = value.split(LIST).map(shown).collect();
        return format!("[{}]", values.join(", "));
    }
    if name == "otlp" {
        return format!("{:?}", otlp::without_secrets(value));
    }
    // The library shows an address without its password. If it cannot parse the value, the value
    // might be just a password, so it is not shown. An address without these characters has no
    // password.
    let known = Address::new(value).to_string();
    let plain = known.contains(':') && !value.contains(['@', '?', '%', '#']);
    let shown = if name == "redis" && !plain { known } else { value.to_owned() };
    let same = |number: String| number == shown;
    let plain = shown.parse::<u64>().is_ok_and(|number| same(number.to_string()))
        || shown.parse::<f64>().is_ok_and(|number| same(number.to_string()) && shown.contains('.'))
        || shown == "true"
        || shown == "false";
    if plain { shown } else { format!("{shown:?}") }
}

/// Checks one settings file by itself.
fn check(global: &Global, file: Option<&PathBuf>) -> Result<u8, Failure> {
    let (path, text) = match file::in_use(file.or(global.config.as_ref()))? {
        Some(found) => found,
        None => (PathBuf::from(FILE), file::text(Path::new(FILE))?), // fails: no such file
    };
    let args = layers::read_file(&path, &text)?;
    let (fleet, redis) = (args.global.fleet().to_owned(), args.global.redis.clone());
    if let Command::Run(run) = args.action()? {
        let start = commands::run::Start::of_run(&run);
        start.parts()?;
        alerts::alerts(&run.process.alerts)?;
        otlp::check(&run.process.traces)?;
        let redis = redis.unwrap_or_else(|| "redis://127.0.0.1".to_owned());
        start.config().validate()?;
        Fleet::open(redis, &fleet)?;
    }
    printer::remark(&format!("{} is fine", path.display()));
    Ok(OK)
}

fn init() -> Result<u8, Failure> {
    let mut text = String::from(
        "# Settings of `artel`. A flag or a variable (interval is --interval and ARTEL_INTERVAL)\n\
         # overrules this file. `artel config check` checks it.\n",
    );
    for Setting { name, help, value, origin } in layers::settings(None)? {
        debug_assert!(matches!(origin, Origin::Default));
        let _ = writeln!(text, "\n# {}", help.replace('\n', " "));
        let _ = match value {
            Some(value) => writeln!(text, "# {name} = {}", written(&name, &value)),
            None => writeln!(text, "# {name} ="),
        };
    }
    // The user may write a password into it.
    let file = File::options().write(true).create_new(true).mode(0o600).open(FILE);
    let made = file.and_then(|mut file| file.write_all(text.as_bytes()));
    made.map_err(|error| {
        let failure = Failure::new(FAILURE, format!("cannot write {FILE}: {error}"));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.hint("it is there already: move it away first")
            }
            _ => failure.hint("may this user write here?"),
        }
    })?;
    printer::remark(&format!("wrote {FILE}"));
    Ok(OK)
}
