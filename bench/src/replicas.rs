//! What it costs to wait for replicas: one replica on this machine, the same work with and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use artel::{Config, Context, Durability, Fleet, Message, NewMessage, Outcome};
use artel_bench::load::{Gauge, Result, payloads, percentiles};
use artel_bench::member::stop;
use artel_rig::{Kind, Server, ask_port, wait_for};

use crate::report::{Goal, Series, Table};

/// Handlers side by side, and how long each takes.
const HANDLERS: usize = 200;
const WORK: Duration = Duration::from_millis(1);
const MESSAGES: u64 = 100_000;
/// Messages that are sent one after the other.
const SENDS: usize = 2_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// One way of waiting.
struct Way {
    durability: Durability,
    rate: Series,
    p50: Series,
    p99: Series,
}

/// Measures all of it, and prints it. Are all goals met?
pub(crate) async fn run(rounds: usize) -> Result<bool> {
    let mut met = true;
    for kind in [Kind::Redis, Kind::Valkey].into_iter().filter(|kind| kind.program().is_some()) {
        met &= on(kind, rounds).await?;
    }
    Ok(met)
}

async fn on(kind: Kind, rounds: usize) -> Result<bool> {
    let server = Server::with(kind, &["--appendonly", "no"]);
    let port = server.port().to_string();
    let _replica = Server::with(kind, &["--appendonly", "no", "--replicaof", "127.0.0.1", &port]);
    wait_for("the replica to be in sync", || {
        let info: String = ask_port(server.port(), &["INFO", "replication"]).ok()?;
        info.contains("state=online").then_some(())
    });
    let way = |durability| Way {
        durability,
        rate: Series::default(),
        p50: Series::default(),
        p99: Series::default(),
    };
    let mut ways = [Durability::Local, Durability::Replicated(1), Durability::All].map(way);
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for way in &mut ways {
            let rate = throughput(&server, way.durability).await?;
            let (p50, p99) = latency(&server, way.durability).await?;
            // Round 0 only fills caches and loads scripts.
            if round > 0 {
                way.rate.push(rate);
                way.p50.push(p50);
                way.p99.push(p99);
            }
        }
    }
    let cores = std::thread::available_parallelism()?;
    let name = Gauge::open(&server.url())?.server()?;
    println!(
        "{name} with a replica on this machine, {cores} cores, rounds: {rounds}; median (min..max)"
    );
    println!("{HANDLERS} handlers of {WORK:?}; sends one after the other\n");
    let mut table = Table::new(["", "local", "waits", "waits / local", "goal"]);
    let [local, waits @ ..] = &ways;
    for way in waits {
        let name = way.durability;
        let goal = Goal::RatioAtLeast(0.7);
        table.compare(&format!("{name}: handled, messages/s"), &local.rate, &way.rate, goal);
        table.compare(&format!("{name}: a send, p50 ms"), &local.p50, &way.p50, Goal::None);
        table.compare(&format!("{name}: a send, p99 ms"), &local.p99, &way.p99, Goal::None);
    }
    print!("{}", table.show());
    println!();
    Ok(table.met())
}

/// Messages per second that one member handles.
async fn throughput(server: &Server, durability: Durability) -> Result<f64> {
    ask_port::<redis::Value>(server.port(), &["FLUSHALL"])?;
    let fleet = Fleet::connect(server.url(), "replicas").await?;
    let sender = fleet.sender();
    let mut texts = payloads();
    for _ in 0..MESSAGES / 1000 {
        let batch: Vec<NewMessage> =
            texts.by_ref().take(1000).map(|text| NewMessage::from(text.to_vec())).collect();
        sender.send_all(&batch).await?;
    }
    let mut config = Config::default();
    (config.concurrency, config.durability) = (HANDLERS, durability);
    let handled = Arc::new(AtomicU64::new(0));
    let noted = handled.clone();
    let handle = move |_: Message, _: Context| {
        noted.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(WORK).await;
            Outcome::done()
        }
    };
    let begun = Instant::now();
    let member = fleet.join().config(config).handle(handle).start().await?;
    loop {
        let done = fleet.status().await?.messages.done;
        if done >= MESSAGES {
            break;
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{done} of {MESSAGES} after {PATIENCE:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = begun.elapsed();
    stop(vec![member]).await;
    Ok(MESSAGES as f64 / took.as_secs_f64())
}

/// How long a send takes.
async fn latency(server: &Server, durability: Durability) -> Result<(f64, f64)> {
    ask_port::<redis::Value>(server.port(), &["FLUSHALL"])?;
    let fleet = Fleet::connect(server.url(), "replicas").await?.durable(durability).await?;
    let mut took = Vec::with_capacity(SENDS);
    for _ in 0..SENDS {
        let begun = Instant::now();
        fleet.send("x").await?;
        took.push(begun.elapsed());
    }
    Ok(percentiles(&took))
}
