//! Measures Artel and its peers in the same run, interleaved, on one private Redis server. A peer that fails is named and
//! left out; the run goes on.

mod apalis;
mod artel;
mod bullmq;
mod external;
mod jobs;
mod load;
mod peer;
mod plot;
mod report;
mod sidekiq;

use std::path::PathBuf;
use std::time::Duration;

use artel_measure::{Gauge, own_cpu};
use artel_rig::{Kind, Server};

use crate::load::{Ran, Result};
use crate::peer::Peer;
use crate::report::{Flow, Report, Way};

/// After this long a step has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// What the step before left behind ends meanwhile: connections that close, tasks that stop.
const SETTLE: Duration = Duration::from_millis(200);

const USAGE: &str = "usage: artel-queue-peers [jobs] [--rounds N] [--only name,name] [--plot FILE]";

/// What to do.
struct Options {
    rounds: usize,
    peers: Vec<Peer>,
    /// Where to draw the rates.
    plot: Option<PathBuf>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options { rounds: 3, peers: Peer::ALL.to_vec(), plot: None };
        while let Some(arg) = args.next() {
            let value = args.next().ok_or(USAGE)?;
            match arg.as_str() {
                "--rounds" => options.rounds = value.parse()?,
                "--only" => options.peers = Options::peers(&value)?,
                "--plot" => options.plot = Some(value.into()),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }

    fn peers(names: &str) -> Result<Vec<Peer>> {
        let peer = |name| {
            let known = Peer::ALL.map(Peer::name).join(", ");
            Peer::named(name).ok_or_else(|| format!("no peer {name}; there are: {known}").into())
        };
        names.split(',').map(peer).collect()
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let only_jobs = args.next_if(|arg| arg == "jobs").is_some();
    let options = Options::read(args)?;
    if only_jobs {
        return jobs::run(options.rounds).await;
    }
    let server = Server::with(Kind::Redis, &["--appendonly", "no"]);
    let url = server.url();
    let mut gauge = Gauge::open(&url)?;
    let mut report = Report::new(gauge.server()?, options.rounds);
    let (mut order, missing): (Vec<Peer>, Vec<Peer>) =
        options.peers.iter().partition(|peer| peer.is_installed());
    for peer in missing {
        eprintln!("{} is not installed, and is left out", peer.name());
        report.note(format!("{} is left out: it could not be installed.", peer.name()));
    }
    // Round 0 only fills caches and loads scripts.
    for round in 0..=options.rounds {
        for &peer in &order {
            measure(peer, round, &url, &mut gauge, &mut report).await;
        }
        // Nobody always comes after the same neighbour's load.
        order.rotate_left(1);
    }
    print!("{}", report.table(&options.peers));
    if let Some(file) = options.plot {
        std::fs::write(file, plot::svg(&report.title(), &report.rates(&options.peers)))?;
    }
    Ok(())
}

/// Measures one peer once. What fails is told, and does not end the run.
async fn measure(peer: Peer, round: usize, url: &str, gauge: &mut Gauge, report: &mut Report) {
    let name = peer.name();
    match flow(peer, url, gauge).await {
        Ok(flow) => {
            let handled = flow.handled;
            if handled != peer.count() {
                let count = peer.count();
                report.note(format!("{name}, round {round}: handled {handled} of {count}"));
            }
            if round > 0 {
                report.flow(peer, round, flow);
            }
        }
        Err(error) => eprintln!("{name}, round {round}: in and out failed: {error}"),
    }
    if round == 0 {
        return;
    }
    match latency(peer, url, gauge).await {
        Ok(latencies) => report.latency(peer, latencies),
        Err(error) => eprintln!("{name}, round {round}: latency failed: {error}"),
    }
}

/// All messages in, then all of them out.
async fn flow(peer: Peer, url: &str, gauge: &mut Gauge) -> Result<Flow> {
    clear(gauge).await?;
    let count = peer.count();
    let empty = gauge.memory()?;
    let cpu = (gauge.cpu()?, own_cpu());
    let filled = tokio::time::timeout(LIMIT, peer.fill(url, count)).await??;
    let into = way(&filled, cpu, gauge)?;
    tokio::time::sleep(SETTLE).await;
    let memory = (gauge.memory()? - empty) / count as f64;
    let cpu = (gauge.cpu()?, own_cpu());
    let worked = tokio::time::timeout(LIMIT, peer.work(url, count)).await??;
    let out = way(&worked, cpu, gauge)?;
    Ok(Flow { into, out, memory, handled: worked.messages })
}

async fn latency(peer: Peer, url: &str, gauge: &mut Gauge) -> Result<(f64, f64)> {
    clear(gauge).await?;
    tokio::time::timeout(LIMIT, peer.latency(url)).await?
}

/// Nothing of the step before is left, neither running nor stored.
async fn clear(gauge: &mut Gauge) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    gauge.flush()
}

/// The rate, and what each message cost Redis and its own processes since those times were read.
fn way(ran: &Ran, (server, own): (Duration, Duration), gauge: &mut Gauge) -> Result<Way> {
    let own = ran.cpu.unwrap_or_else(|| own_cpu().saturating_sub(own));
    let server = gauge.cpu()?.saturating_sub(server);
    let count = ran.messages as f64;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / count;
    let per_s = count / ran.took.as_secs_f64();
    Ok(Way { per_s, server_us: each(server), own_us: each(own) })
}
