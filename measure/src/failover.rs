//! What it costs if a process ends: the time until another one leads, and until its message starts elsewhere.
//!
//! **Invariant:** members are real processes, and they are ended by real signals.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Message, Outcome, Tick};
use artel_rig::own_variables;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::flow::{PATIENCE, join};
use crate::report::Times;
use crate::{Result, ms};

/// How often the parent looks who leads.
const LOOK: Duration = Duration::from_millis(2);
/// Members of the fleet whose generator is ended.
const MEMBERS: usize = 3;

/// How a generator comes to its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// `kill -9`.
    Killed,
    /// `SIGTERM`: it stops gracefully.
    Stopped,
    /// `SIGSTOP`: it stands still, and its connections stay open.
    Frozen,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 3] = [Cause::Killed, Cause::Stopped, Cause::Frozen];

    fn signal(self) -> Signal {
        match self {
            Cause::Killed => Signal::KILL,
            Cause::Stopped => Signal::TERM,
            Cause::Frozen => Signal::STOP,
        }
    }
}

/// What a process does that is started to be ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It can lead.
    Lead,
    /// It takes a message and never ends with it.
    Hold,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 2] = [Role::Lead, Role::Hold];

    /// The word for it on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Role::Lead => "lead",
            Role::Hold => "hold",
        }
    }
}

/// One of these processes: a member until its stdin ends or it gets a signal.
pub async fn play(url: &str, fleet: &str, label: &str, role: Role) -> Result<()> {
    let mut config = Config::default();
    config.label = label.to_owned();
    config.interval = Duration::from_millis(10);
    let member = Fleet::open(url, fleet)?.join().config(config);
    let member = match role {
        Role::Lead => member.generate(|_: Tick| async { "tick" }).handle(done).start().await?,
        Role::Hold => member.handle(never).start().await?,
    };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut nothing = [0];
    let mut stdin = tokio::io::stdin();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = stdin.read(&mut nothing) => {}
    }
    member.shutdown().await;
    Ok(())
}

async fn done(_: Message, _: Context) -> Outcome {
    Outcome::done()
}

async fn never(_: Message, _: Context) -> Outcome {
    std::future::pending().await
}

/// A process that plays a role. It is killed when this is dropped.
struct Process {
    label: String,
    child: Child,
}

impl Process {
    fn start(program: &Path, url: &str, fleet: &str, label: String, role: Role) -> Result<Process> {
        let mut command = Command::new(program);
        own_variables().into_iter().for_each(|name| _ = command.env_remove(name));
        // Not as an argument, which every user can see: the address may contain a password.
        let child = command
            .env("ARTEL_REDIS_URL", url)
            .args(["bench-part", "--name", fleet, "--member", &label, role.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Process { label, child })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid =
            self.child.id().and_then(|pid| Pid::from_raw(pid as i32)).ok_or("it has ended")?;
        Ok(kill_process(pid, signal)?)
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(format!("waited {PATIENCE:?} for {what}").into())
}

/// Ends the generator this often; says how long it took until another one led and had generated a message.
pub(crate) async fn failover(
    program: &Path,
    url: &str,
    name: &str,
    cause: Cause,
    times: usize,
) -> Result<Times> {
    let fleet = Fleet::connect(url, name).await?;
    let mut processes = Vec::new();
    let (mut took, mut started) = (Vec::new(), 0);
    for _ in 0..times {
        while processes.len() < MEMBERS {
            started += 1;
            processes.push(Process::start(program, url, name, format!("m{started}"), Role::Lead)?);
        }
        let (leader, term) = until("a generator and its followers", async || {
            let status = fleet.status().await?;
            let all_there = status.members.len() == MEMBERS;
            Ok(status.generator.filter(|_| all_there).map(|leads| (leads.label, leads.term)))
        })
        .await?;
        let at = processes.iter().position(|process| process.label == leader);
        let process = processes.remove(at.ok_or("somebody else leads")?);
        let began = Instant::now();
        process.signal(cause.signal())?;
        let generated = until("another generator", async || {
            let status = fleet.status().await?;
            let other = status.generator.is_some_and(|leads| leads.term > term);
            Ok(other.then_some(status.messages.generated))
        })
        .await?;
        until("its first message", async || {
            let now = fleet.status().await?.messages.generated;
            Ok((now > generated).then_some(()))
        })
        .await?;
        took.push(ms(began.elapsed()));
        // A frozen one would find out that it is dead.
        drop(process);
    }
    Ok(Times::of(took))
}

/// Kills a worker in the middle of a message this often; says how long it took until the message started elsewhere.
pub(crate) async fn recovery(program: &Path, url: &str, name: &str, times: usize) -> Result<Times> {
    let fleet = Fleet::connect(url, name).await?;
    let mut took = Vec::new();
    for time in 0..times {
        let process = Process::start(program, url, name, format!("w{time}"), Role::Hold)?;
        fleet.send("a message").await?;
        until("a worker with the message", async || {
            let members = fleet.status().await?.members;
            Ok(members.iter().any(|member| member.in_flight == 1).then_some(()))
        })
        .await?;
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |_: Message, _: Context| {
            let _ = started.send(Instant::now());
            async { Outcome::done() }
        };
        let other = join(url, name, Config::default(), handler).await?;
        let began = Instant::now();
        process.signal(Signal::KILL)?;
        let start = tokio::time::timeout(PATIENCE, starts.recv()).await?.ok_or("it has left")?;
        took.push(ms(start - began));
        other.shutdown().await;
    }
    Ok(Times::of(took))
}
