//! `artel bench`: measures a fleet on private servers, and prints a table.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use artel_measure::{Options, Part, Report, Target, Trouble};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{BenchArgs, BenchPartArgs, Global};
use crate::exit::{FAILURE, Failure, OK, USAGE};
use crate::signals::Signals;
use crate::{printer, settings, table};

/// Runs it.
pub(crate) async fn bench(
    global: &Global,
    args: &BenchArgs,
    words: &[OsString],
) -> Result<u8, Failure> {
    let target = match settings::named_server("bench", global, words)? {
        Some(url) => Target::Given { url, anyway: args.i_know },
        None => Target::Private(settings::private(global)?.find_program()?),
    };
    if let Some(path) = &args.plot {
        // Better now than after a minute.
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| unwritable(path, &error))?;
    }
    let dir = Dir::new()?;
    let options = Options {
        program: std::env::current_exe()?,
        target,
        dir: dir.0.clone(),
        parts: if args.only.is_empty() { Part::ALL.to_vec() } else { args.only.clone() },
        rounds: args.rounds.into(),
        messages: args.messages as usize,
        time: args.time,
    };
    let report = watched(&options).await?;
    match args.json {
        true => printer::data(&table::json(&report)?)?,
        false => print(&report)?,
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, artel_measure::svg(&report))
            .map_err(|error| unwritable(path, &error))?;
    }
    Ok(OK)
}

/// A folder for the servers. It is removed when this is dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Result<Dir, Failure> {
        let dir = std::env::temp_dir().join(format!("artel-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| unwritable(&dir, &error))?;
        Ok(Dir(dir))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(USAGE, format!("cannot write {}: {error}", path.display()))
}

/// Shows the progress. A signal ends everything, and nothing was measured.
async fn watched(options: &Options) -> Result<Report, Failure> {
    let mut signals = Signals::catch()?;
    let bar = ProgressBar::new(options.parts.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:6} {msg}  {elapsed}") {
        bar.set_style(style);
    }
    let tell = |doing: &str, index: usize, all: usize| {
        bar.set_position(index as u64);
        bar.set_message(doing.to_owned());
        if bar.is_hidden() {
            printer::remark(&format!("measuring {doing}, {} of {all}", index + 1));
        }
    };
    let result = tokio::select! {
        result = artel_measure::run(options, tell) => result,
        _ = signals.next() => Err(Trouble::from("it was ended before it was done")),
    };
    bar.finish_and_clear();
    result.map_err(|trouble| match trouble {
        Trouble::InUse { keys } => {
            Failure::new(USAGE, format!("that Redis is in use: it holds {keys} keys"))
                .hint("leave `--redis` out for private servers, or pass `--i-know`")
        }
        Trouble::Failed(error) => Failure::new(FAILURE, format!("nothing was measured: {error}"))
            .hint("is this machine very busy, or the address wrong?"),
    })
}

fn print(report: &Report) -> Result<(), Failure> {
    let Report { server, cores, rounds, payload_bytes, .. } = report;
    printer::data(&format!(
        "{server}, {cores} cores, {rounds} rounds, payloads of {payload_bytes} bytes\n\n"
    ))?;
    printer::data(&printer::screen().columns(
        ["", "median", "range"],
        report.rows(),
        &["range"],
        |_| false,
    ))?;
    Ok(())
}

/// One process that is ended.
pub(crate) async fn part(global: &Global, args: BenchPartArgs) -> Result<u8, Failure> {
    let url = global.redis.clone().unwrap_or_default();
    let played = artel_measure::play(&url, &args.name, &args.member, args.role).await;
    played.map_err(|error| Failure::new(FAILURE, error.to_string()))?;
    Ok(OK)
}
