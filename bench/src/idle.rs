//! What a fleet asks of Redis while it has nothing to do.
//!
//! `MONITOR` and not `INFO commandstats`: the latter counts the commands inside scripts with those
//! that travelled, and cannot tell who sent them.

use std::time::Duration;

use artel::{Config, Context, Fleet, Message, Outcome, Role, Tick};
use artel_rig::Server;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use artel_bench::load::Result;
use artel_bench::member::stop;

/// How long the fleet is left alone before it is watched, so that ranks and watchers are settled.
const CALM: Duration = Duration::from_secs(2);
/// How long it is watched.
const WINDOW: Duration = Duration::from_secs(5);
/// Messages before it has nothing to do any more.
const MESSAGES: u64 = 1;
/// Beside the generator, this many of the lowest ids watch over the fleet.
const WATCHING_RANKS: usize = 2;

/// What a member is made for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Part {
    Both,
    Generate,
    Handle,
}

/// Commands per second, as they travel.
pub(crate) struct Idle {
    /// Of each member that neither leads nor watches.
    pub(crate) workers: Vec<f64>,
    /// Of each member that does.
    pub(crate) watchers: Vec<f64>,
    /// Of all, per member.
    pub(crate) mean: f64,
}

struct Commands {
    id: String,
    leads: bool,
    commands: f64,
}

/// Runs a fleet until it is idle, and counts what it still sends.
pub(crate) async fn measure(server: &Server, fleet: &str, parts: &[Part]) -> Result<Idle> {
    let mut fleets = Vec::new();
    for part in parts {
        fleets.push(start(server, fleet, *part).await?);
    }
    while fleets[0].fleet().status().await?.messages.done < MESSAGES {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(CALM).await;

    let mut members = Vec::new();
    for fleet in &fleets {
        let id = fleet.id().ok_or("a member without a session")?.to_string();
        members.push(Commands { id, leads: fleet.role() == Role::Generator, commands: 0.0 });
    }
    // By rank, which goes by id.
    members.sort_by(|one, two| one.id.cmp(&two.id));
    let nameless = listen(server, &mut members).await?;
    stop(fleets).await;

    // The blocking wait for work names nobody; every member that does not lead does it alike.
    let waiting = members.iter().filter(|member| !member.leads).count();
    let share = nameless / waiting.max(1) as f64;
    let (mut workers, mut watchers) = (Vec::new(), Vec::new());
    for (rank, member) in members.iter().enumerate() {
        let commands = member.commands + if member.leads { 0.0 } else { share };
        let watches = member.leads || rank < WATCHING_RANKS;
        if watches { &mut watchers } else { &mut workers }.push(commands / WINDOW.as_secs_f64());
    }
    let total: f64 = workers.iter().chain(&watchers).sum();
    Ok(Idle { workers, watchers, mean: total / members.len() as f64 })
}

async fn start(server: &Server, fleet: &str, part: Part) -> Result<artel::Member> {
    let mut config = Config::default();
    config.messages_max = Some(MESSAGES);
    let mut builder = Fleet::open(server.url(), fleet)?.join().config(config);
    if part != Part::Handle {
        builder = builder.generate(|_: Tick| async { "the only one" });
    }
    if part != Part::Generate {
        builder = builder.handle(|_: Message, _: Context| async { Outcome::done() });
    }
    Ok(builder.start().await?)
}

/// Counts for a while, by the member whose id a command carries; returns how many carry none.
async fn listen(server: &Server, members: &mut [Commands]) -> Result<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    stream.write_all(b"MONITOR\r\n").await?;
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    if first != "+OK" {
        return Err(format!("no MONITOR: {first}").into());
    }
    let end = Instant::now() + WINDOW;
    let mut nameless = 0.0;
    while let Ok(line) = tokio::time::timeout_at(end, lines.next_line()).await {
        let line = line?.ok_or("the server hung up")?;
        // `+<time> [<db> <address>] "<command>" …`, with `lua` for an address inside a script.
        if line.contains(" lua] ") {
            continue;
        }
        match members.iter_mut().find(|member| line.contains(&member.id)) {
            Some(member) => member.commands += 1.0,
            None => nameless += 1.0,
        }
    }
    Ok(nameless)
}
