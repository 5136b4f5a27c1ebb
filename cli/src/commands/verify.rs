//! `artel verify`: breaks a private fleet, checks its books, prints the verdict.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use artel::Durability;
use artel_verify::{Options, Part, Progress, Report, Stop, Target, Topology, Trouble, Verdict};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{Global, PartArgs, VerifyArgs};
use crate::exit::{FAILURE, Failure, OK, UNREACHABLE, USAGE};
use crate::signals::{Signals, blocking};
use crate::{printer, settings};

/// Exit code if there is no verdict. Code 1 is only for a broken promise.
const NO_VERDICT: u8 = UNREACHABLE;
/// Messages per second by default, if the members can handle that many.
const RATE: u64 = 500;
/// The smallest lease of any fleet.
const LEASE_MIN: Duration = Duration::from_millis(500);
/// How often the progress is printed where no progress bar can be drawn.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Runs it.
pub(crate) async fn verify(
    global: &Global,
    args: &VerifyArgs,
    words: &[OsString],
) -> Result<u8, Failure> {
    let target = target(global, args, words)?;
    let (dir, own) = match &args.keep {
        Some(dir) => (dir.clone(), false),
        None => (std::env::temp_dir().join(format!("artel-verify-{}", std::process::id())), true),
    };
    if dir.read_dir().is_ok_and(|mut there| there.next().is_some()) {
        return Err(Failure::new(USAGE, format!("{} is not empty", dir.display()))
            .hint("name a folder that does not exist yet"));
    }
    let options = options(args, target, durability(global, args, words)?, &dir)?;
    let report = args.report.as_deref().map(writable).transpose()?;
    std::fs::create_dir_all(&dir).map_err(|error| {
        Failure::new(USAGE, format!("cannot make the folder {}: {error}", dir.display()))
            .hint("choose another folder with `--keep <DIR>`")
    })?;
    let result = watched(options).await;
    let keep = result.as_ref().is_ok_and(|report| report.verdict == Verdict::Broken);
    if own && !keep {
        let _ = std::fs::remove_dir_all(&dir);
    } else {
        printer::remark(&format!("the history is in {}", dir.display()));
    }
    let result = result?;
    // Print first: the verdict must not be lost if the file cannot be written.
    printer::data(&result.text())?;
    if let Some(path) = report {
        let json = serde_json::to_string_pretty(&result).map_err(io::Error::other)?;
        std::fs::write(&path, json + "\n").map_err(|error| {
            Failure::new(NO_VERDICT, format!("cannot write {}: {error}", path.display()))
        })?;
    }
    Ok(if result.verdict == Verdict::Broken { FAILURE } else { OK })
}

/// The server to break: the one that was named, or a private one.
fn target(global: &Global, args: &VerifyArgs, words: &[OsString]) -> Result<Target, Failure> {
    Ok(match settings::named_server("verify", global, words)? {
        Some(url) => Target::Given { url, anyway: args.i_know },
        None => Target::Private(settings::private(global)?.find_program()?),
    })
}

/// What the processes ask for: what the command line says. What the environment says is for other commands.
fn durability(
    global: &Global,
    args: &VerifyArgs,
    words: &[OsString],
) -> Result<Durability, Failure> {
    let is_named = words.iter().any(|word| word.to_string_lossy().starts_with("--durability"));
    match is_named {
        true if args.topology == Topology::Single && global.durability != Durability::Local => {
            Err(Failure::new(USAGE, "one server has no replicas")
                .hint("add `--topology sentinel` or `--topology cluster`"))
        }
        true if matches!(global.durability, Durability::Replicated(n) if n as usize > args.topology.replicas()) =>
        {
            let (name, replicas) = (args.topology.name(), args.topology.replicas());
            let error = format!("--topology {name} has {replicas} replicas of each primary");
            Err(Failure::new(USAGE, error).hint("use `--durability all`, or `local`"))
        }
        true => Ok(global.durability),
        false => Ok(args.topology.durability()),
    }
}

fn options(
    args: &VerifyArgs,
    target: Target,
    durability: Durability,
    dir: &Path,
) -> Result<Options, Failure> {
    let rate_max = Options::rate_max(args.members.into());
    let rate = args.rate.unwrap_or(RATE.min(rate_max));
    if rate > rate_max {
        let members = args.members;
        let error =
            format!("{rate}/s is too much for {members} members: some of them are always broken");
        let hint = format!("use at most {rate_max}/s, or more members");
        return Err(Failure::new(USAGE, error).hint(hint));
    }
    if args.lease < LEASE_MIN {
        return Err(Failure::new(USAGE, format!("--lease must be at least {LEASE_MIN:?}")));
    }
    if args.topology != Topology::Single && matches!(target, Target::Given { .. }) {
        let error = "--topology starts servers of its own";
        return Err(Failure::new(USAGE, error).hint("leave `--redis` out"));
    }
    let faketime = args.faketime.as_ref().map(|library| {
        library.canonicalize().map_err(|error| {
            Failure::new(USAGE, format!("{}: {error}", library.display()))
                .hint("leave `--faketime` out, or install it (Debian: `apt install libfaketime`)")
        })
    });
    Ok(Options {
        program: std::env::current_exe()?,
        target,
        topology: args.topology,
        durability,
        faketime: faketime.transpose()?,
        dir: dir.to_owned(),
        time: args.time,
        members: args.members.into(),
        rate,
        lease: args.lease,
        seed: args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        kinds: args.faults.0.clone(),
        ledger: args.ledger,
    })
}

/// Runs it on another thread and shows its progress. A signal ends the faults.
async fn watched(options: Options) -> Result<Report, Failure> {
    let mut signals = Signals::catch()?;
    let stop = Arc::new(Stop::default());
    let heard = stop.clone();
    let run = blocking(move || {
        let bar = ProgressBar::new(options.time.as_millis() as u64);
        let style = ProgressStyle::with_template("{bar:6} {msg}").ok();
        if let Some(style) = style {
            bar.set_style(style);
        }
        let mut said = Instant::now();
        let mut begun = false;
        let mut tell = |progress: &Progress| {
            if !std::mem::replace(&mut begun, true) {
                printer::remark(&format!(
                    "breaking a fleet of {} for {}, seed {}; Ctrl-C ends it early",
                    options.members,
                    humantime::format_duration(options.time),
                    options.seed
                ));
            }
            let line = line(progress);
            bar.set_position(progress.elapsed.as_millis() as u64);
            bar.set_message(line.clone());
            if bar.is_hidden() && said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                printer::remark(&line);
            }
        };
        let given = matches!(options.target, Target::Given { .. });
        let result = artel_verify::run(&options, &heard, &mut tell);
        let result = result.map_err(|trouble| explain(trouble, given));
        bar.finish_and_clear();
        result
    });
    let mut run = std::pin::pin!(run);
    tokio::select! {
        result = &mut run => return result,
        _ = signals.next() => stop.early(),
    }
    printer::remark("ending: repairing everything, then judging; once more ends at once");
    tokio::select! {
        result = &mut run => return result,
        _ = signals.next() => stop.now(),
    }
    // Wait until all processes that were started are ended.
    run.await
}

fn line(progress: &Progress) -> String {
    format!(
        "{:>4} s  {}: {} faults, {} messages, {} terms, {} violations",
        progress.elapsed.as_secs(),
        progress.doing,
        progress.faults,
        progress.settled,
        progress.terms,
        progress.violations
    )
}

fn explain(trouble: Trouble, given: bool) -> Failure {
    match trouble {
        Trouble::NotEmpty { .. } => Failure::new(USAGE, trouble.to_string())
            .hint("leave `--redis` out for a private server, or pass `--i-know`"),
        Trouble::NoHistory => Failure::new(NO_VERDICT, trouble.to_string())
            .hint("choose another folder with `--keep <DIR>`, or a lower `--rate`"),
        Trouble::NoClocks(_) => Failure::new(USAGE, trouble.to_string())
            .hint("install it (Debian: `apt install libfaketime`), or name other faults"),
        Trouble::Ended => Failure::new(NO_VERDICT, trouble.to_string()),
        Trouble::NotStarted(_) => Failure::new(UNREACHABLE, trouble.to_string())
            .hint("does this user have all rights on that Redis? `artel run` shows what is missing"),
        Trouble::Server(what) => Failure::new(NO_VERDICT, what).hint(
            "this machine or its disk is too busy: end other programs, or use a lower `--rate` or a shorter `--for`",
        ),
        Trouble::Usage(what) => {
            Failure::new(USAGE, what).hint("leave `--redis` out for a private server")
        }
        Trouble::Io(what) if given => {
            Failure::new(UNREACHABLE, what).hint("are the address and the password right?")
        }
        Trouble::Io(what) => Failure::new(UNREACHABLE, what)
            .hint("`--server <FILE>` names a redis-server or valkey-server to start"),
    }
}

/// Checks that the path can be written: better now than after an hour.
fn writable(path: &Path) -> Result<PathBuf, Failure> {
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.map(|_| path.to_owned())
        .map_err(|error| Failure::new(USAGE, format!("cannot write {}: {error}", path.display())))
}

/// One process under test.
pub(crate) async fn part(global: &Global, args: PartArgs) -> Result<u8, Failure> {
    let part = Part {
        url: global.redis.clone().unwrap_or_default(),
        name: args.name,
        dir: args.dir,
        interval: Duration::from_micros(args.interval_us),
        batch: args.batch,
        lease: Duration::from_millis(args.lease_ms),
        durability: global.durability,
    };
    part.play().await?;
    Ok(OK)
}
