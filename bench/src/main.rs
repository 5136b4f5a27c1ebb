//! Artel against plain Redis loops, on this machine, in the same run.
//!
//! Absolute figures of a shared machine say little; so every round measures the raw loop and Artel
//! one after the other, and the goals are about their ratio. Ends with 1 if a goal is missed.

mod flow;
mod growth;
mod handlers;
mod idle;
mod jobs;
mod members;
mod replicas;
mod report;
mod signals;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use artel_rig::{Kind, Server};

use artel_bench::load::{BYTES, Gauge, MESSAGES, Result, percentiles};
use artel_bench::{member, raw};

use crate::flow::Flows;
use crate::idle::Part;
use crate::report::{Goal, Series, Table};
use crate::signals::Signals;

const USAGE: &str = "usage: artel-bench [signals|growth|jobs|watch|replicas|members] [--rounds N]   (default 5, at least 1)";

/// Push to handler start, a value per round each.
#[derive(Default)]
struct Waits {
    p50: Series,
    p99: Series,
}

impl Waits {
    fn add(&mut self, latencies: &[Duration]) {
        let (p50, p99) = percentiles(latencies);
        self.p50.push(p50);
        self.p99.push(p99);
    }
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
    if std::env::args().nth(1).as_deref() == Some("--as-generator") {
        return match members::be_generator() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let Some((rounds, what)) = rounds() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|rt| rt.block_on(run(rounds, what)))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

/// What to measure.
#[derive(Clone, Copy, Eq, PartialEq)]
enum What {
    Everything,
    /// Events and locks.
    Signals,
    /// The cost of growth.
    Growth,
    /// Delays and retries.
    Jobs,
    /// Log, metrics, archive and alerts.
    Watch,
    /// Waiting for replicas.
    Replicas,
    /// Many members.
    Members,
}

/// How many rounds, and of what?
fn rounds() -> Option<(usize, What)> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let what = match args.first().map(String::as_str) {
        Some("signals") => What::Signals,
        Some("growth") => What::Growth,
        Some("jobs") => What::Jobs,
        Some("watch") => What::Watch,
        Some("replicas") => What::Replicas,
        Some("members") => What::Members,
        _ => What::Everything,
    };
    if what != What::Everything {
        args.remove(0);
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some((5, what)),
        ["--rounds", n] => n.parse().ok().filter(|&n| n > 0).map(|n| (n, what)),
        _ => None,
    }
}

async fn run(rounds: usize, what: What) -> Result<bool> {
    match what {
        What::Growth => return growth::run(rounds).await,
        What::Jobs => return jobs::run(rounds).await,
        What::Watch => return watch::run(rounds).await,
        What::Replicas => return replicas::run(rounds).await,
        What::Members => return members::run(rounds).await,
        What::Everything | What::Signals => {}
    }
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut gauge = Gauge::open(&server.url())?;
    let cores = std::thread::available_parallelism()?;
    let name = gauge.server()?;
    let mut signals = Signals::default();
    for round in 1..=rounds {
        eprintln!("events and locks, round {round} of {rounds}");
        signals.measure(&server).await?;
    }
    if what == What::Signals {
        println!("{name}, {cores} cores, rounds: {rounds}; median (min..max)\n");
        let mut table = Table::new(report::RAW);
        signals.add_to(&mut table);
        print!("{}", table.show());
        return Ok(table.met());
    }
    gauge.flush()?;
    let (mut flows, mut raw, mut bare, mut artel) =
        (Flows::default(), Waits::default(), Waits::default(), Waits::default());
    Flows::warm_up(&server).await?;
    let start = Instant::now();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}, {:.0} s", start.elapsed().as_secs_f64());
        flows.measure(&server, &mut gauge).await?;
        gauge.flush()?;
        raw.add(&raw::latency(&server.url()).await?);
        gauge.flush()?;
        artel.add(&member::latency(&server.url(), "latency").await?);
        gauge.flush()?;
        bare.add(&raw::bare_latency(&server.url()).await?);
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
    let mut table = Table::new(report::RAW);
    flows.add_to(&mut table);
    table.compare("latency at 200/s, p50 ms", &raw.p50, &artel.p50, Goal::RatioAtMost(1.5));
    table.compare("latency at 200/s, p99 ms", &raw.p99, &artel.p99, Goal::RatioAtMost(2.0));
    table.compare("p50, raw without a claim", &bare.p50, &artel.p50, Goal::None);
    add_idle(&mut table, eight, pair);
    for case in &handlers {
        table.compare(case.name, &case.raw, &case.artel, Goal::None);
    }
    signals.add_to(&mut table);
    print!("{}", table.show());
    Ok(table.met())
}

fn add_idle(table: &mut Table, eight: idle::Idle, pair: idle::Idle) {
    let (workers, watchers) = (eight.workers.into(), eight.watchers.into());
    table.alone("idle worker of 8, commands/s", &workers, Goal::AtMost(5.0));
    table.alone("watcher of 8, commands/s", &watchers, Goal::AtMost(16.0));
    table.alone("member of 8, mean commands/s", &vec![eight.mean].into(), Goal::None);
    // In a fleet of two both watch.
    let pair_watchers = pair.watchers.into();
    table.alone("generator + worker, commands/s", &pair_watchers, Goal::AtMost(16.0));
}
