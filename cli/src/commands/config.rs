//! `artel config`: where each setting comes from, whether they are right, a file to begin with.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::args::{ConfigCommand, Global};
use crate::exit::{FAILURE, Failure, OK};
use crate::layers::{self, Origin, Setting};
use crate::{commands, printer, settings};

/// The file that is read if none is named.
const FILE: &str = "artel.toml";

pub(crate) fn config(global: &Global, command: &ConfigCommand) -> Result<u8, Failure> {
    match command {
        ConfigCommand::Show { origin } => show(global, *origin),
        ConfigCommand::Check { file } => check(global, file.as_deref()),
        ConfigCommand::Init => init(),
    }
}

/// The words that make `run` read the same file.
fn same_file(path: Option<&Path>) -> Vec<OsString> {
    path.map(|path| vec!["--config".into(), path.into()]).unwrap_or_default()
}

fn show(global: &Global, origin: bool) -> Result<u8, Failure> {
    let mut text = String::new();
    for setting in layers::settings(&same_file(global.config.as_deref()), false)? {
        let line = match &setting.value {
            Some(value) => format!("{} = {}", setting.name, written(&setting.name, value)),
            None => format!("# {} is not set", setting.name),
        };
        let _ = match (origin, &setting.value) {
            (true, Some(_)) => writeln!(text, "{line:<44} # {}", setting.origin),
            _ => writeln!(text, "{line}"),
        };
    }
    printer::data(&text).map_err(|error| Failure::new(FAILURE, error.to_string()))?;
    Ok(OK)
}

/// A value as TOML, without its password.
fn written(name: &str, value: &str) -> String {
    let shown = match (name, value.rsplit_once('@'), value.split_once("://")) {
        ("redis", Some((_, host)), Some((scheme, _))) => format!("{scheme}://***@{host}"),
        _ => value.to_owned(),
    };
    let plain = shown.parse::<f64>().is_ok() || shown == "true" || shown == "false";
    if plain { shown } else { format!("{shown:?}") }
}

fn check(global: &Global, file: Option<&Path>) -> Result<u8, Failure> {
    let path = file.or(global.config.as_deref());
    let path = path.map_or_else(|| PathBuf::from(FILE), Path::to_owned);
    layers::entries(&path)?;
    let words: Vec<OsString> =
        ["artel".into(), "run".into()].into_iter().chain(same_file(Some(&path))).collect();
    match layers::read(&words)?.action()? {
        crate::args::Action::Run(run) => {
            settings::config(&run).validate()?;
            commands::run::parts(&run.member)?;
        }
        _ => return Err(Failure::new(FAILURE, "not a member's settings")),
    }
    printer::remark(&format!("{} is fine", path.display()));
    Ok(OK)
}

fn init() -> Result<u8, Failure> {
    let mut text = String::from(
        "# Settings of `artel`. A flag or a variable (interval is --interval and ARTEL_INTERVAL)\n\
         # overrules what is written here. `artel config check` checks this file.\n",
    );
    for Setting { name, help, value, origin } in layers::settings(&[], true)? {
        debug_assert!(matches!(origin, Origin::Default));
        let _ = writeln!(text, "\n# {}", help.replace('\n', " "));
        let _ = match value {
            Some(value) => writeln!(text, "# {name} = {}", written(&name, &value)),
            None => writeln!(text, "# {name} ="),
        };
    }
    let made = File::create_new(FILE).and_then(|mut file| file.write_all(text.as_bytes()));
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
