//! The options of `verify`.

use std::path::PathBuf;
use std::time::Duration;

use artel_verify::{Keeps, Kind, Topology};

use super::values::time;

/// What to break, for how long, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// How long to inject faults
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "60s")]
    pub(crate) time: Duration,

    /// The servers: one; a primary with replicas and sentinels; or a cluster. Failovers, slots that move and so on
    /// come only where they can happen. There, all processes wait for all replicas, unless the command line has
    /// `--durability`: with `local` what is lost must be named
    #[arg(long, value_name = "single|sentinel|cluster", value_parser = topology, default_value = "single")]
    pub(crate) topology: Topology,

    /// Number of members
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=100))]
    pub(crate) members: u16,

    /// Messages per second [default: 500/s, or less if the members cannot handle that many]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<u64>,

    /// Seed that decides which fault comes when [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Which faults to inject, by family (all, kill, freeze, network, redis, clock, topology) or by name
    /// (such as cut,redis-loss). `all` leaves out redis-everysec and redis-loss, because with these
    /// Redis itself loses data
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = kinds)]
    pub(crate) faults: Kinds,

    /// When the fleet keeps its ledger: always, never, or by turns of 20 s. Without it packs are settled
    /// whole [default: by turns in runs of 40 s and more]
    #[arg(long, value_name = "WHEN", value_parser = keeps)]
    pub(crate) ledger: Option<Keeps>,

    /// How long a session lasts without a refresh
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "2s")]
    pub(crate) lease: Duration,

    /// Also write the whole report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// The libfaketime library, which sets the wall clocks [default: where packages install it]
    #[arg(long, value_name = "FILE")]
    pub(crate) faketime: Option<PathBuf>,

    /// Use a Redis that is not empty; its data may be lost
    #[arg(long)]
    pub(crate) i_know: bool,

    /// Keep the history and the server's data in this folder [default: a temporary folder, removed
    /// unless a promise is broken]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// The faults that one list names.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(pub(crate) Vec<Kind>);

fn kinds(text: &str) -> Result<Kinds, String> {
    let mut all = Vec::new();
    for name in text.split(',').map(str::trim) {
        let some = Kind::named(name).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!(
                "no fault is called {name:?}; use all, kill, freeze, network, redis, clock, topology, {}",
                names.join(", ")
            )
        })?;
        all.extend(some);
    }
    all.sort();
    all.dedup();
    Ok(Kinds(all))
}

fn topology(text: &str) -> Result<Topology, String> {
    let found = Topology::ALL.into_iter().find(|topology| topology.name() == text);
    found.ok_or_else(|| "must be single, sentinel or cluster".to_owned())
}

fn keeps(text: &str) -> Result<Keeps, String> {
    match text {
        "always" => Ok(Keeps::Always),
        "never" => Ok(Keeps::Never),
        "by-turns" => Ok(Keeps::ByTurns),
        _ => Err("must be always, never or by-turns".to_owned()),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).trim();
    match number.parse() {
        Ok(rate @ 1..=100_000) => Ok(rate),
        _ => Err("must be messages a second from 1 to 100000, such as 500/s".to_owned()),
    }
}

/// One process under test. Only `artel verify` starts it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PartArgs {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) interval_us: u64,
    #[arg(long)]
    pub(crate) batch: u64,
    #[arg(long)]
    pub(crate) lease_ms: u64,
}
