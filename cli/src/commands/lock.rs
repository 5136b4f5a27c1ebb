//! `artel lock`: run a command under a lock; show who holds which lock.
//!
//! **Invariant:** the command is started only while the lock is held. If the lock is lost because
//! Redis is down, the command is ended, with everything it started, before anybody else can be
//! granted the lock.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use artel::{Config, LockGuard, LockStatus, Member};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::args::{LockCommand, LockRunArgs, OnLost};
use crate::exit::{FAILURE, Failure, NOT_FOUND, OK, TIMED_OUT, USAGE};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::signals::Signals;
use crate::variables::withhold_secrets;
use crate::{printer, table, times};

/// The exit codes of a shell: the command does not exist, or cannot be run.
const NO_COMMAND: u8 = 127;
const NO_START: u8 = 126;
/// How long it may take to find out who holds the lock.
const HOLDER_TIMEOUT: Duration = Duration::from_millis(500);
/// When to log for whom the process waits, and how often to check who holds the lock.
const TELL_AFTER: Duration = Duration::from_millis(500);
const TELL_EVERY: Duration = Duration::from_secs(2);
/// How long a command whose lock is lost may take to end by itself.
const LAST_WORDS: Duration = Duration::from_millis(100);

pub(crate) async fn lock(place: &Place, command: &LockCommand) -> Result<u8, Failure> {
    let fleet = place.open()?;
    let (locks, json, wanted) = match command {
        LockCommand::Run(args) => return run(place, args).await,
        LockCommand::Status { name, json } => {
            (Vec::from_iter(fleet.lock_status(name).await?), *json, Some(name))
        }
        LockCommand::List { json } => (fleet.locks().await?, *json, None),
    };
    let text = match (json, wanted) {
        (true, Some(name)) => {
            table::json(&json!({ "v": 1, "lock": name, "holder": locks.first() }))?
        }
        (true, None) => table::json(&json!({ "v": 1, "locks": locks }))?,
        (false, Some(_)) if locks.is_empty() => "not held\n".to_owned(),
        (false, None) if locks.is_empty() => "no locks are held\n".to_owned(),
        (false, _) => rows(&locks),
    };
    printer::shown(&text)?;
    let is_held = locks.iter().any(|lock| !lock.left.is_overdue());
    Ok(if wanted.is_some() && !is_held { NOT_FOUND } else { OK })
}

fn rows(locks: &[LockStatus]) -> String {
    let rows = locks.iter().map(|lock| {
        [
            lock.name.clone(),
            match lock.left.is_overdue() {
                true => format!("{} (overdue)", lock.label),
                false => lock.label.clone(),
            },
            format!("{}:{}", lock.host, lock.pid),
            lock.token.to_string(),
            times::span(lock.held),
            lock.waiting.to_string(),
        ]
    });
    let head = ["LOCK", "HELD BY", "HOST:PID", "TOKEN", "FOR", "WAITING"];
    printer::screen()
        .columns(head, rows, &["TOKEN", "HOST:PID"], |row| row[1].ends_with("(overdue)"))
}

async fn run(place: &Place, args: &LockRunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let mut config = Config::default();
    config.lease = args.lease;
    config.durability = place.durability;
    config.label = args.label.clone().unwrap_or_else(|| format!("lock-{}", std::process::id()));
    let starting = place.open()?.join().config(config).start();
    let member = match signals.unless(starting).await {
        Ok(member) => member?,
        Err(code) => return Ok(code),
    };
    let ended = hold(&member, args, &mut signals).await;
    member.stop();
    // The lock is released already. A signal ends the wait for the rest.
    let _ = signals.unless(member.stopped()).await;
    ended
}

/// Waits for the lock and runs the command under it; returns its exit code.
async fn hold(member: &Member, args: &LockRunArgs, signals: &mut Signals) -> Result<u8, Failure> {
    let lock = member.lock(&args.name)?;
    let waiting = async {
        match args.wait {
            Some(wait) => lock.acquire_timeout(wait).await,
            None => lock.acquire().await.map(Some),
        }
    };
    let waiting = async {
        tokio::select! {
            guard = waiting => guard,
            never = tell_holders(member, &args.name), if args.wait != Some(Duration::ZERO) => {
                match never {}
            }
        }
    };
    let guard = match signals.unless(waiting).await {
        Ok(guard) => guard?,
        Err(code) => return Ok(code),
    };
    let Some(guard) = guard else {
        // Only for the error text, so it may not take long.
        let holder = holder(member, &args.name).await;
        let holder = holder.map_or_else(String::new, |(name, _)| format!(": {name} has it"));
        let error = format!("lock {:?} could not be had{holder}", args.name);
        return match args.conflict_exit {
            // The user expects this, so it is not an error: `-q` silences it.
            Some(code) => {
                tracing::info!("{error}");
                Ok(code)
            }
            None => Err(Failure::new(TIMED_OUT, error)),
        };
    };
    let ended = under(&guard, args, signals).await;
    if !guard.is_held() {
        return ended; // the lock is free when the session ends, which is now
    }
    let released = signals.unless(guard.release()).await;
    if let (Ok(_), Ok(Err(error)), OnLost::Kill) = (&ended, released, args.on_lost) {
        tracing::warn!(%error, "the lock was lost before the command ended");
    }
    ended
}

/// Who holds the lock, and for how long; `None` if that cannot be found out soon.
async fn holder(member: &Member, name: &str) -> Option<(String, Duration)> {
    let lock = tokio::time::timeout(HOLDER_TIMEOUT, member.fleet().lock_status(name)).await;
    let lock = lock.ok().and_then(Result::ok).flatten()?;
    let who = format!("{} ({}:{})", harmless(&lock.label), harmless(&lock.host), lock.pid);
    Some((who, lock.held))
}

/// Logs who holds the lock, once the wait takes a while, and again when the holder changes.
async fn tell_holders(member: &Member, name: &str) -> std::convert::Infallible {
    let mut told = None;
    tokio::time::sleep(TELL_AFTER).await;
    loop {
        if let Some((who, held)) = holder(member, name).await
            && told.as_ref() != Some(&who)
        {
            let held = times::span(held);
            tracing::info!("waiting for lock {name:?}: {who} has had it for {held}");
            told = Some(who);
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

/// Runs the command; returns its exit code, or why it was ended.
async fn under(
    guard: &LockGuard,
    args: &LockRunArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut job = Job::start(guard, args)?;
    let (mut asked, mut lost) = (false, false);
    loop {
        tokio::select! {
            status = job.child.wait() => return Ok(code(status?)),
            () = guard.lost(), if !lost => {
                if args.on_lost == OnLost::Ignore {
                    lost = true;
                    tracing::warn!("lock {:?} was lost; the command goes on", args.name);
                    continue;
                }
                job.end().await;
                let error = format!("lock {:?} was lost, so the command was ended", args.name);
                return Err(Failure::new(NOT_FOUND, error)
                    .hint("was Redis down, or this process frozen, for most of a lease or longer?"));
            }
            code = signals.next() => {
                // On a terminal the command gets every Ctrl-C itself and decides what to do.
                if asked && !(code == 130 && job.group.is_none()) {
                    job.signal(Signal::KILL);
                    return Ok(code);
                }
                asked = true;
                job.pass_on(code);
            }
        }
    }
}

/// The command that runs under the lock.
struct Job {
    child: Child,
    /// Its own process group; `None` on a terminal, where it must stay in the foreground.
    group: Option<Pid>,
}

impl Job {
    fn start(guard: &LockGuard, args: &LockRunArgs) -> Result<Job, Failure> {
        let [program, words @ ..] = &args.command[..] else {
            return Err(Failure::new(USAGE, "no command").hint("put it after `--`"));
        };
        let mut command = Command::new(program);
        command.args(words).kill_on_drop(true);
        command.env("ARTEL_LOCK_TOKEN", guard.token().to_string());
        command.env("ARTEL_LOCK_NAME", &args.name);
        withhold_secrets(command.as_std_mut());
        let foreground = in_foreground();
        if !foreground {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| {
            let program = program.to_string_lossy();
            let code = match error.kind() {
                std::io::ErrorKind::NotFound => NO_COMMAND,
                _ => NO_START,
            };
            Failure::new(code, format!("cannot run {program}: {error}"))
                .hint("is its path right, and is it executable?")
        })?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        Ok(Job { child, group: pid.filter(|_| !foreground) })
    }

    fn signal(&self, signal: Signal) {
        // A stopped process gets the signal only after it continues.
        for signal in [signal, Signal::CONT] {
            match self.group {
                Some(group) => drop(kill_process_group(group, signal)),
                None => descendants(self.child.id()).into_iter().for_each(|process| {
                    let _ = kill_process(process, signal);
                }),
            }
        }
    }

    /// Sends the command the signal that belongs to this exit code. On a terminal it gets Ctrl-C
    /// anyway.
    fn pass_on(&self, code: u8) {
        match code {
            130 if self.group.is_none() => {}
            130 => self.signal(Signal::INT),
            129 => self.signal(Signal::HUP),
            _ => self.signal(Signal::TERM),
        }
    }

    /// Ends it and everything it started: first with SIGTERM, and shortly after with SIGKILL.
    async fn end(&mut self) {
        self.signal(Signal::TERM);
        let _ = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.signal(Signal::KILL);
        }
    }
}

/// Is this process in the foreground of a terminal? Then the command must be, too, or it could not
/// read from the terminal.
fn in_foreground() -> bool {
    std::fs::File::open("/dev/tty").is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}

/// A process and all its descendants, as far as the system shows them.
fn descendants(root: Option<u32>) -> Vec<Pid> {
    let parent_of = |pid: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let parents: Vec<(u32, u32)> =
        all.filter_map(|pid| parent_of(&pid).map(|parent| (pid, parent))).collect();
    let mut found: Vec<u32> = root.into_iter().collect();
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// The exit code as a shell gives it: the command's own, or 128 plus the signal that ended it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILURE)
}
