//! `artel run`: join the fleet, until told to stop.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use artel::{
    BoxError, Config, Context, Fleet, Generate, Handle, Message, NewMessage, Notice, Notices,
    Outcome, Status, Tick,
};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, HandlerMode, MemberArgs, RunArgs};
use crate::builtin::{Inspector, Text};
use crate::exit::{Failure, OK, USAGE};
use crate::external::{CommandLine, Exec, Lines, Source};
use crate::http::Token;
use crate::settings::{self, Need, Place};
use crate::signals::{Signals, blocking};
use crate::{commands, external, http, printer};

// What a member says of itself; `up` reads it, too.
pub(crate) const JOINED: &str = "joined the fleet";
pub(crate) const LEADS: &str = "generator: this process leads";
pub(crate) const DEPOSED: &str = "no longer the generator";

/// What makes messages.
pub(crate) enum Maker {
    Text(Box<Text>),
    Command(Source),
}

impl Generate for Maker {
    async fn generate(&mut self, tick: Tick) -> Result<Vec<NewMessage>, BoxError> {
        match self {
            Maker::Text(text) => Ok(vec![text.next().into()]),
            Maker::Command(source) => source.generate(tick).await,
        }
    }
}

/// What handles them.
pub(crate) enum Worker {
    Inspector(Box<Inspector>),
    Exec(Exec),
    Lines(Arc<Lines>),
}

impl Handle for Worker {
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        match self {
            Worker::Inspector(inspector) => inspector.inspect(message, context).await,
            Worker::Exec(exec) => exec.handle(message, context).await,
            Worker::Lines(lines) => lines.handle(message, context).await,
        }
    }
}

/// The built-in generator and handler, or the user's commands.
pub(crate) fn parts(args: &MemberArgs) -> Result<(Maker, Worker), Failure> {
    let maker = match &args.generator {
        None => Maker::Text(Box::new(Text::new(args.seed))),
        Some(text) => Maker::Command(Source { command: CommandLine::parse("--generator", text)? }),
    };
    let worker = match (&args.handler, args.handler_mode) {
        (None, HandlerMode::Lines) => {
            return Err(Failure::new(USAGE, "--handler-mode lines is for a --handler")
                .hint("`--handler ./handle.py --handler-mode lines`"));
        }
        (None, HandlerMode::Exec) => {
            let work_time = args.work_time.unwrap_or_default();
            Worker::Inspector(Box::new(Inspector::new(args.seed, args.error_rate, work_time)))
        }
        (Some(text), mode) => {
            let command = CommandLine::parse("--handler", text)?;
            match mode {
                HandlerMode::Exec => Worker::Exec(Exec { command }),
                HandlerMode::Lines => Worker::Lines(Arc::new(Lines::new(command))),
            }
        }
    };
    Ok((maker, worker))
}

pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    // What is wrong with the settings is said before a server is started for them.
    let config = settings::config(args);
    config.validate()?;
    let (maker, worker) = parts(&args.member)?;
    let token = Token::of_this_process(args.http_token_file.as_deref())?;
    let listening = match &args.http {
        Some(address) => Some(http::listen(address).await?),
        None => None,
    };
    let talkers = match &worker {
        Worker::Lines(lines) => Some(lines.clone()),
        _ => None,
    };
    let (place, mut fleet) = match signals.unless(join(global, config.clone(), maker, worker)).await
    {
        Ok(joined) => joined?,
        Err(code) => return Ok(code),
    };
    let http_over = CancellationToken::new();
    let served = listening.map(|port| http::serve(port, token, &fleet, http_over.clone()));
    let teller = tokio::spawn(tell(fleet.notices(), config.label.clone()));
    let every = args.member.snapshot_every;
    let mut snapshots = tokio::time::interval(every.unwrap_or(Duration::MAX / 4).max(TICK_MIN));
    snapshots.tick().await;
    let ends = end_of(args);
    let mut ends = std::pin::pin!(ends);
    loop {
        tokio::select! {
            _ = signals.next() => break tracing::info!("stopping: finishing what was started"),
            () = &mut ends => break,
            _ = snapshots.tick(), if every.is_some() => snapshot(&fleet).await,
        }
    }
    fleet.stop();
    if let Err(code) = signals.unless(fleet.stopped()).await {
        external::end_all();
        return Ok(code);
    }
    http_over.cancel();
    tracing::info!("left the fleet");
    if let Some(served) = served {
        // Whoever still waits for an answer gets it.
        let _ = signals.unless(tokio::time::timeout(HTTP_GRACE, served)).await;
    }
    if let Some(talkers) = talkers {
        talkers.close().await;
    }
    // A handler that cannot be stopped may still hold the notices open.
    let _ = tokio::time::timeout(Duration::from_secs(1), teller).await;
    if args.member.duration.is_some() {
        let status = Status::read(&place.redis, &place.fleet).await?;
        printer::data(&commands::status::books(&status))?;
    }
    Ok(OK)
}

/// Finds or starts a server, and joins.
async fn join(
    global: &Global,
    config: Config,
    maker: Maker,
    worker: Worker,
) -> Result<(Place, Fleet), Failure> {
    let at = global.clone();
    let (place, _hold) = blocking(move || settings::place(&at, Need::Server)).await?;
    let fleet = Fleet::builder()
        .redis(&place.redis)
        .name(&place.fleet)
        .config(config)
        .generate(maker)
        .handle(worker);
    Ok((place, fleet.start().await?))
}

/// How long answers that are being made may take once the fleet is left.
const HTTP_GRACE: Duration = Duration::from_secs(3);

/// More often than this nobody can read.
const TICK_MIN: Duration = Duration::from_millis(10);

/// The time is over, or whoever holds the other end of our stdin is gone.
fn end_of(args: &RunArgs) -> impl Future<Output = ()> + use<> {
    let (duration, tethered) = (args.member.duration, args.tethered);
    async move {
        let time_over = async {
            match duration {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        let tether_cut = async {
            let mut stdin = tokio::io::stdin();
            let mut bytes = [0; 64];
            while matches!(stdin.read(&mut bytes).await, Ok(n) if n > 0) {}
        };
        tokio::select! {
            () = time_over => {}
            () = tether_cut, if tethered => {}
        }
    }
}

async fn snapshot(fleet: &Fleet) {
    match fleet.status().await {
        Ok(status) => {
            let m = &status.messages;
            tracing::info!(
                members = status.members.len(),
                generated = m.generated,
                sent = m.sent,
                waiting = m.waiting,
                claimed = m.claimed,
                done = m.done,
                failed = m.failed,
                balance = m.balance,
                "the books"
            );
        }
        Err(error) => tracing::warn!(%error, "no snapshot"),
    }
}

/// Says what happens, in the words of the log.
async fn tell(mut notices: Notices, label: String) {
    let pid = std::process::id();
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Joined { member } => tracing::info!(%member, label, pid, "{JOINED}"),
            Notice::BecameGenerator { term } => {
                tracing::info!(%term, label, pid, "{LEADS}")
            }
            Notice::LeaseLost { term, reason } => {
                tracing::info!(%term, reason, "{DEPOSED}")
            }
            Notice::Fenced { term } => {
                tracing::warn!(%term, "fenced: Redis refused a write of a stale term")
            }
            Notice::NoWorker => tracing::info!("no worker yet: start a second copy"),
            Notice::Full { reason } => tracing::warn!(reason, "generating waits"),
            Notice::Flowing => tracing::info!("generating goes on"),
            Notice::MemberDied { member, label, process } => {
                tracing::warn!(%member, who = label, process, "member died");
            }
            Notice::Adopted { member, returned, failed } => {
                tracing::info!(%member, returned, failed, "put back what it held");
            }
            Notice::MessageFailed { id, reason } => tracing::debug!(%id, reason, "message failed"),
            Notice::ClaimLost { id } => {
                tracing::warn!(%id, "claim lost: its outcome is not recorded")
            }
            Notice::SessionLost { member } => tracing::warn!(%member, "session lost, joining anew"),
            Notice::Disconnected { reason } => {
                tracing::warn!(reason, "Redis does not answer: waiting for it");
            }
            Notice::Reconnected { after } => {
                tracing::info!(after_ms = after.as_millis() as u64, "Redis answers again");
            }
            Notice::DataLossSeen { what } => {
                tracing::error!(what, "data loss: Redis has lost acknowledged writes");
            }
            Notice::Unreplicated { replicas, wanted } => {
                tracing::warn!(replicas, wanted, "waiting for replicas");
            }
            Notice::Refused { reason } => {
                tracing::error!(reason, "Redis refuses: what this member holds goes to others");
            }
            Notice::Unread { id, failed: false } => {
                tracing::warn!(%id, "not read in time over this link, given back");
            }
            Notice::Unread { id, failed: true } => {
                tracing::error!(%id, "too many workers could not read it in time: message failed");
            }
            Notice::Exhausted { keys } => tracing::error!(
                keys = keys.join(", "),
                "no larger term or token can be granted: Redis's clock is, or was, past the year 2112 \
                 (README, \"Clocks\")"
            ),
            Notice::GaveBack { messages } => tracing::info!(messages, "handed back unstarted"),
            Notice::GenerateFailed { reason } => tracing::error!(reason, "nothing generated"),
            Notice::Missed { notices } => {
                tracing::warn!(notices, "too many notices to tell them all")
            }
            other => tracing::info!(?other, "notice"),
        }
    }
}
