//! The options of `bench`.

use std::path::PathBuf;
use std::time::Duration;

use artel_measure::{Part, Role};

use super::values::time;

/// What to measure, how often, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// What to measure: throughput, memory, latency, failover, recovery, signals
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = part)]
    pub(crate) only: Vec<Part>,

    /// How often each figure is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Messages per round of throughput
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(4_000..=900_000))]
    pub(crate) messages: u32,

    /// How long messages are sent at each rate, to measure latency
    #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "5s")]
    pub(crate) time: Duration,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Also draw the latencies into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Use a Redis that is not empty: it is slowed down while this runs, and nothing in it is changed
    #[arg(long)]
    pub(crate) i_know: bool,
}

fn part(name: &str) -> Result<Part, String> {
    let parts = Part::ALL.into_iter();
    parts.clone().find(|part| part.name() == name.trim()).ok_or_else(|| {
        let names: Vec<&str> = parts.map(Part::name).collect();
        format!("nothing is called {name:?}; use {}", names.join(", "))
    })
}

/// One process that `bench` ends. Only `artel bench` starts it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchPartArgs {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) member: String,
    #[arg(value_parser = role)]
    pub(crate) role: Role,
}

fn role(word: &str) -> Result<Role, String> {
    let role = Role::ALL.into_iter().find(|role| role.word() == word);
    role.ok_or_else(|| format!("no role is called {word:?}"))
}
