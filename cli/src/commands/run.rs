//! `artel run`: joins the fleet and stays until it is stopped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use artel::{
    Batch, BoxError, Config, Context, Durability, Fleet, Generate, Handle, Member, Message,
    Outcome, Tick,
};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, HandlerMode, MakeArgs, MemberArgs, ProcessArgs, RunArgs, WorkArgs};
use crate::builtin::{Inspector, Text};
use crate::commands::notice_log::log_notices;
use crate::exit::{Failure, OK, USAGE};
use crate::external::{CommandLine, Exec, Lines, Source};
use crate::http::Rules;
use crate::settings::{self, Need, Place};
use crate::signals::{Signals, blocking};
use crate::supervisor::Supervised;
use crate::watchers::Watchers;
use crate::{commands, external, http, printer, supervisor};

/// A generator: the built-in one or a command.
pub(crate) enum Maker {
    Text(Box<Text>),
    Command(Source),
}

impl Generate for Maker {
    async fn generate(&mut self, tick: Tick) -> Result<Batch, BoxError> {
        match self {
            Maker::Text(text) => Ok(Batch::new([text.next()])),
            Maker::Command(source) => source.generate(tick).await,
        }
    }
}

/// A handler: the built-in one or a command.
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

/// The settings that a member is started with.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// Without it the member never leads.
    make: Option<&'a MakeArgs>,
    member: &'a MemberArgs,
    process: &'a ProcessArgs,
    tethered: bool,
}

impl<'a> Start<'a> {
    pub(crate) fn of_run(args: &'a RunArgs) -> Start<'a> {
        let RunArgs { make, member, process, tethered } = args;
        Start { make: Some(make), member, process, tethered: *tethered }
    }

    pub(crate) fn of_work(WorkArgs { member, process }: &'a WorkArgs) -> Start<'a> {
        Start { make: None, member, process, tethered: false }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = settings::config(self.make, self.member);
        let label = self.process.label.clone();
        config.label = label.unwrap_or_else(|| format!("artel-{}", std::process::id()));
        config
    }

    pub(crate) fn parts(&self) -> Result<(Option<Maker>, Worker), Failure> {
        parts(self.make, self.member)
    }

    /// A remark about these parts that a new user may not expect.
    fn remark(&self) -> Option<String> {
        // Without any command, the user wants to see the built-in ones.
        let plain = self.make.is_some_and(|make| make.generator.is_none());
        (!plain && self.member.handler.is_none()).then(|| {
            let share = self.member.error_rate * 100.0;
            format!("no --handler: the built-in one handles messages, and finds {share} % in error")
        })
    }
}

/// The user's commands, or the built-in generator and handler. Random text is generated only if
/// there is neither command: a handler without a generator is for messages that are sent.
pub(crate) fn parts(
    make: Option<&MakeArgs>,
    args: &MemberArgs,
) -> Result<(Option<Maker>, Worker), Failure> {
    let generator = make.map(|make| make.generator.as_deref());
    let maker = match (generator, &args.handler) {
        (None, _) | (Some(None), Some(_)) => None,
        (Some(None), None) => Some(Maker::Text(Box::new(Text::new(args.seed)))),
        (Some(Some(text)), _) => {
            Some(Maker::Command(Source { command: CommandLine::parse("--generator", text)? }))
        }
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

pub(crate) async fn run(global: &Global, start: Start<'_>) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    // Check the settings before a server is started for them.
    let config = start.config();
    config.validate()?;
    let (maker, worker) = start.parts()?;
    let rules = Rules::of(&start.process.http_rules)?;
    let listening = http::listen_if(start.process.http.as_deref()).await?;
    let mut watchers = Watchers::open(start.process, global.fleet())?;
    let talkers = match &worker {
        Worker::Lines(lines) => Some(lines.clone()),
        _ => None,
    };
    let joining = join(global, config.clone(), maker, worker, &watchers);
    let (place, mut member) = match joined(&mut signals, joining).await {
        Ok(joined) => joined?,
        Err(code) => return Ok(code),
    };
    let http_over = CancellationToken::new();
    let served = listening.map(|port| {
        port.say();
        http::serve(port, rules, http::Source::of_member(&member), http_over.clone())
    });
    let _supervised = Supervised::start(&member);
    watchers.start(&member)?;
    let teller = tokio::spawn(log_notices(member.notices(), config.label.clone()));
    if let Some(remark) = start.remark() {
        tracing::warn!("{remark}");
    }
    let every = start.member.snapshot_every;
    let mut snapshots = tokio::time::interval(every.unwrap_or(Duration::MAX / 4).max(TICK_MIN));
    snapshots.tick().await;
    let ends = end_of(start);
    let mut ends = std::pin::pin!(ends);
    loop {
        tokio::select! {
            _ = signals.next() => break tracing::info!("stopping: finishing what was started"),
            () = &mut ends => break,
            _ = snapshots.tick(), if every.is_some() => snapshot(member.fleet()).await,
        }
    }
    supervisor::stopping();
    let left = async {
        // First: once the member has left, another one would tell again what this one is telling.
        watchers.stop().await;
        member.stop();
        member.stopped().await;
    };
    if let Err(code) = signals.unless(left).await {
        external::end_all();
        return Ok(code);
    }
    http_over.cancel();
    tracing::info!("left the fleet");
    if let Some(served) = served {
        // Clients that still wait for an answer get it.
        let _ = signals.unless(tokio::time::timeout(HTTP_GRACE, served)).await;
    }
    if let Some(talkers) = talkers {
        talkers.close().await;
    }
    watchers.end().await;
    // A handler that cannot be stopped may still hold the notices open.
    let _ = tokio::time::timeout(Duration::from_secs(1), teller).await;
    if start.member.duration.is_some() {
        let status = place.open()?.status().await?;
        printer::shown(&printer::screen().flow(&commands::status::books(&status)))?;
    }
    Ok(OK)
}

/// Waits until it has joined. If a signal comes first, returns the exit code. By then others may know the member already: it
/// leaves the fleet again.
async fn joined(
    signals: &mut Signals,
    joining: impl Future<Output = Result<(Place, Member), Failure>>,
) -> Result<Result<(Place, Member), Failure>, u8> {
    let mut joining = std::pin::pin!(joining);
    let code = match signals.unless(&mut joining).await {
        Ok(joined) => return Ok(joined),
        Err(code) => code,
    };
    match signals.unless(tokio::time::timeout(JOIN_GRACE, joining)).await {
        Ok(Ok(Ok((_, member)))) => match signals.unless(member.shutdown()).await {
            Ok(()) => Err(OK),
            Err(code) => {
                external::end_all();
                Err(code)
            }
        },
        _ => Err(code),
    }
}

/// Finds or starts a server, and joins the fleet.
async fn join(
    global: &Global,
    mut config: Config,
    maker: Option<Maker>,
    worker: Worker,
    watchers: &Watchers,
) -> Result<(Place, Member), Failure> {
    let at = global.clone();
    let (place, _hold) = blocking(move || settings::place(&at, Need::Server)).await?;
    let (own, asked) = (config.durability, place.durability);
    if own != Durability::Local && asked != Durability::Local && own != asked {
        return Err(Failure::new(USAGE, "--replicas and --durability say different things")
            .hint("leave out `--replicas`"));
    }
    config.durability = own.max(asked);
    let mut member = place.open()?.join().config(config).handle(worker);
    if let Some(maker) = maker {
        member = member.generate(maker);
    }
    member = watchers.attach(member);
    Ok((place, member.start().await?))
}

/// How long a member that is stopped while it joins may take to join, so that it can leave.
const JOIN_GRACE: Duration = Duration::from_secs(1);

/// How long the HTTP answers in progress may take after the member has left the fleet.
const HTTP_GRACE: Duration = Duration::from_secs(3);

/// The shortest time between two snapshots: nobody can read faster.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Ends when the time is over, or when the other end of our stdin is closed.
fn end_of(start: Start<'_>) -> impl Future<Output = ()> + use<> {
    let (duration, tethered) = (start.member.duration, start.tethered);
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
                scheduled = m.scheduled,
                claimed = m.claimed,
                done = m.done,
                failed = m.failed,
                balance = m.balance,
                "the books"
            );
        }
        Err(error) => tracing::warn!(%error, "cannot read the books"),
    }
}
