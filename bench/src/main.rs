//! Artel against plain Redis loops, on this machine, in the same run.
//!
//! Absolute figures of a shared machine say little; so every round measures the raw loop and Artel
//! one after the other, and the goals are about their ratio. Ends with 1 if a goal is missed.

mod handlers;
mod idle;
mod load;
mod member;
mod raw;
mod report;
mod signals;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use artel_rig::{Kind, Server};

use crate::idle::Part;
use crate::load::{BYTES, Gauge, MESSAGES, Result, WAITING, own_cpu, percentiles};
use crate::raw::Push;
use crate::report::{Goal, Series, Table};
use crate::signals::Signals;

const USAGE: &str = "usage: artel-bench [signals] [--rounds N]   (default 5, at least 1)";

/// One side's figures, a value per round each.
#[derive(Default)]
struct Side {
    push_rate: Series,
    push_redis_cpu: Series,
    push_own_cpu: Series,
    drain_rate: Series,
    drain_redis_cpu: Series,
    drain_own_cpu: Series,
    p50: Series,
    p99: Series,
    /// The same, to be compared with what loses messages when a process dies.
    bare_push_rate: Series,
    bare_p50: Series,
    memory: Series,
}

/// What one run of many messages cost.
struct Cost {
    rate: f64,
    redis_cpu: f64,
    own_cpu: f64,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("--as-handler") {
        handlers::be_handler();
        return ExitCode::SUCCESS;
    }
    if std::env::args().nth(1).as_deref() == Some("--as-waiter") {
        return match signals::be_waiter() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let Some((rounds, only)) = rounds() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|rt| rt.block_on(run(rounds, only)))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

/// How many, and of events and locks alone?
fn rounds() -> Option<(usize, bool)> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let only = args.first().is_some_and(|word| word == "signals");
    if only {
        args.remove(0);
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some((5, only)),
        ["--rounds", n] => n.parse().ok().filter(|&n| n > 0).map(|n| (n, only)),
        _ => None,
    }
}

async fn run(rounds: usize, only: bool) -> Result<bool> {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut gauge = Gauge::new(&server);
    let cores = std::thread::available_parallelism()?;
    let name = gauge.server()?;
    let mut signals = Signals::default();
    for round in 1..=rounds {
        eprintln!("events and locks, round {round} of {rounds}");
        signals.measure(&server).await?;
    }
    if only {
        println!("{name}, {cores} cores, rounds: {rounds}; median (min..max)\n");
        let mut table = Table::new();
        signals.add_to(&mut table);
        print!("{}", table.show());
        return Ok(table.met());
    }
    gauge.flush()?;
    let (mut raw, mut artel) = (Side::default(), Side::default());
    // What is only allocated once is not a matter of messages: scripts, the server's own tables.
    raw::push(&server.url(), WAITING, Push::Bare).await?;
    member::push(&server.url(), "warm-up", WAITING).await?;
    let start = Instant::now();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}, {:.0} s", start.elapsed().as_secs_f64());
        measure_raw(&server, &mut gauge, &mut raw).await?;
        measure_artel(&server, &mut gauge, &mut artel).await?;
    }
    let mut handlers = handlers::cases()?;
    match std::env::var("ARTEL_PROGRAM") {
        Ok(program) => {
            eprintln!("handlers, {:.0} s", start.elapsed().as_secs_f64());
            for _ in 0..rounds.min(3) {
                for case in &mut handlers {
                    case.measure(&program, &server).await?;
                }
            }
        }
        Err(_) => eprintln!("no handlers: set ARTEL_PROGRAM to the program, as `./dev bench` does"),
    }
    eprintln!("idle fleets, {:.0} s", start.elapsed().as_secs_f64());
    gauge.flush()?;
    let eight = idle::measure(&server, "eight", &[Part::Both; 8]).await?;
    let pair = idle::measure(&server, "pair", &[Part::Generate, Part::Handle]).await?;

    println!("{name}, {cores} cores, rounds: {rounds}, {MESSAGES} messages of {BYTES} bytes each");
    println!("median (min..max); the ratio is the median of the rounds' ratios\n");
    let mut table = table(raw, artel, eight, pair);
    for case in &handlers {
        table.compare(case.name, &case.raw, &case.artel, Goal::None);
    }
    signals.add_to(&mut table);
    print!("{}", table.show());
    Ok(table.met())
}

async fn measure_raw(server: &Server, gauge: &mut Gauge, side: &mut Side) -> Result<()> {
    let url = server.url();
    gauge.flush()?;
    let before = gauge.memory()?;
    raw::push(&url, WAITING, Push::Bare).await?;
    side.memory.push(beside_payload(gauge.memory()? - before));

    gauge.flush()?;
    let bare = cost(gauge, raw::push(&url, MESSAGES, Push::Bare)).await?;
    side.bare_push_rate.push(bare.rate);
    gauge.flush()?;
    let cost = crate::cost(gauge, raw::push(&url, MESSAGES, Push::Fenced)).await?;
    side.pushed(cost);
    let cost = crate::cost(gauge, raw::drain(&url, MESSAGES)).await?;
    side.drained(cost);

    gauge.flush()?;
    side.waited(&raw::latency(&url).await?);
    gauge.flush()?;
    side.bare_p50.push(percentiles(&raw::bare_latency(&url).await?).0);
    Ok(())
}

async fn measure_artel(server: &Server, gauge: &mut Gauge, side: &mut Side) -> Result<()> {
    let url = server.url();
    gauge.flush()?;
    let before = gauge.memory()?;
    member::push(&url, "waiting", WAITING).await?;
    side.memory.push(beside_payload(gauge.memory()? - before));

    gauge.flush()?;
    let cost = cost(gauge, member::push(&url, "speed", MESSAGES)).await?;
    side.bare_push_rate.push(cost.rate);
    side.pushed(cost);
    let cost = crate::cost(gauge, member::drain(&url, "speed", MESSAGES)).await?;
    side.drained(cost);

    gauge.flush()?;
    let latencies = member::latency(&url, "latency").await?;
    side.bare_p50.push(percentiles(&latencies).0);
    side.waited(&latencies);
    Ok(())
}

fn beside_payload(bytes: f64) -> f64 {
    bytes / WAITING as f64 - BYTES as f64
}

/// Runs [`MESSAGES`] messages one way, and adds up what that took of both processes. A member's
/// coming and going is in the CPU times, not in the rate.
async fn cost(gauge: &mut Gauge, run: impl Future<Output = Result<Duration>>) -> Result<Cost> {
    let (redis, own) = (gauge.cpu()?, own_cpu()?);
    let took = run.await?;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / MESSAGES as f64;
    Ok(Cost {
        rate: MESSAGES as f64 / took.as_secs_f64(),
        redis_cpu: each(gauge.cpu()?.saturating_sub(redis)),
        own_cpu: each(own_cpu()?.saturating_sub(own)),
    })
}

impl Side {
    fn pushed(&mut self, cost: Cost) {
        self.push_rate.push(cost.rate);
        self.push_redis_cpu.push(cost.redis_cpu);
        self.push_own_cpu.push(cost.own_cpu);
    }

    fn drained(&mut self, cost: Cost) {
        self.drain_rate.push(cost.rate);
        self.drain_redis_cpu.push(cost.redis_cpu);
        self.drain_own_cpu.push(cost.own_cpu);
    }

    fn waited(&mut self, latencies: &[Duration]) {
        let (p50, p99) = percentiles(latencies);
        self.p50.push(p50);
        self.p99.push(p99);
    }
}

fn table(raw: Side, artel: Side, eight: idle::Idle, pair: idle::Idle) -> Table {
    let mut table = Table::new();
    let mut row = |name, of: fn(&Side) -> &Series, goal| {
        table.compare(name, of(&raw), of(&artel), goal);
    };
    row("in, messages/s", |side| &side.push_rate, Goal::RatioAtLeast(0.5));
    row("in, raw without a fence", |side| &side.bare_push_rate, Goal::None);
    row("in, Redis CPU us/message", |side| &side.push_redis_cpu, Goal::None);
    row("in, own CPU us/message", |side| &side.push_own_cpu, Goal::None);
    row("out, messages/s", |side| &side.drain_rate, Goal::RatioAtLeast(0.5));
    row("out, Redis CPU us/message", |side| &side.drain_redis_cpu, Goal::None);
    row("out, own CPU us/message", |side| &side.drain_own_cpu, Goal::None);
    row("latency at 200/s, p50 ms", |side| &side.p50, Goal::RatioAtMost(1.5));
    row("latency at 200/s, p99 ms", |side| &side.p99, Goal::None);
    row("p50, raw without a claim", |side| &side.bare_p50, Goal::None);
    row("memory beside payload, bytes", |side| &side.memory, Goal::AtMost(56.0));
    let (workers, watchers) = (eight.workers.into(), eight.watchers.into());
    table.alone("idle worker of 8, commands/s", &workers, Goal::AtMost(5.0));
    table.alone("watcher of 8, commands/s", &watchers, Goal::AtMost(16.0));
    table.alone("member of 8, mean commands/s", &vec![eight.mean].into(), Goal::None);
    // In a fleet of two both watch.
    let pair_watchers = pair.watchers.into();
    table.alone("generator + worker, commands/s", &pair_watchers, Goal::AtMost(16.0));
    table
}
