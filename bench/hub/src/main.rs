//! Fan-out of the Artel hub against channels, actors and event buses, in the same run.
//!
//! Absolute figures of a shared machine say little; so every round measures all cases one after
//! the other, and the goals are about ratios. Ends with 1 if a goal is missed.

mod case;
mod fanout;
mod memory;
mod ours;
mod peers;
mod report;

use std::process::{Command, ExitCode};

use crate::case::Case;

const USAGE: &str = "\
usage: artel-hub-peers [fanout|memory|stuck] [--rounds N] [--subscribers LIST] [--only TEXT]

  fanout, memory, stuck   one part only (default: all)
  --rounds N              default 5, at least 1
  --subscribers LIST      default 1,4,64,1024,8192
  --only TEXT             only cases whose name contains it";

/// What was asked for.
struct Wanted {
    part: Option<String>,
    rounds: usize,
    subscribers: Vec<usize>,
    only: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name] = &args[..]
        && first == "--memory-of"
    {
        return be_measured(name);
    }
    let Some(wanted) = wanted(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    head(&args);

    let chosen = |cases: Vec<Case>| -> Vec<Case> {
        cases.into_iter().filter(|case| case.name.contains(&wanted.only)).collect()
    };
    let (ours, peers) = (chosen(ours::cases()), chosen(peers::cases()));
    let part = |name: &str| wanted.part.as_deref().is_none_or(|part| part == name);
    let mut met = true;
    if part("fanout") {
        met &= fanout::fanout(&ours, &peers, wanted.rounds, &wanted.subscribers);
    }
    if part("memory") {
        met &= memory::memory(&ours, &peers);
    }
    if part("stuck") {
        println!("## One subscriber is stuck\n");
        met &= ours::stuck(wanted.rounds);
    }
    if met { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// The child of `memory`.
fn be_measured(name: &str) -> ExitCode {
    match ours::cases().into_iter().chain(peers::cases()).find(|case| case.name == name) {
        Some(case) => memory::memory_of(&case),
        None => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Nothing if it makes no sense.
fn wanted(args: &[String]) -> Option<Wanted> {
    let mut wanted = Wanted {
        part: None,
        rounds: 5,
        subscribers: vec![1, 4, 64, 1024, 8192],
        only: String::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "fanout" | "memory" | "stuck" if wanted.part.is_none() => {
                wanted.part = Some(arg.clone());
            }
            "--rounds" => {
                wanted.rounds = args.next()?.parse().ok().filter(|&rounds| rounds > 0)?;
            }
            "--subscribers" => {
                let counts = args.next()?.split(',').map(|count| count.trim().parse().ok());
                wanted.subscribers = counts.collect::<Option<Vec<usize>>>()?;
                if wanted.subscribers.contains(&0) {
                    return None;
                }
            }
            "--only" => wanted.only = args.next()?.clone(),
            _ => return None,
        }
    }
    Some(wanted)
}

/// Where, when and with what: figures without it cannot be compared.
fn head(args: &[String]) {
    let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output().ok();
    let date = date.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("# Artel hub and its peers\n");
    println!("- date: {}", date.trim());
    println!("- cpu: {}, {cores} cores", model.trim());
    println!("- built by: {}", env!("PEERS_RUSTC"));
    println!("- peers: {}", versions(include_str!("../Cargo.lock")).join(", "));
    println!("- command: artel-hub-peers {}\n", args.join(" "));
}

/// Name and version of each peer, as they were built in.
fn versions(lock: &str) -> Vec<String> {
    const PEERS: [&str; 8] = [
        "tokio",
        "async-broadcast",
        "crossbeam-channel",
        "kameo",
        "kameo_actors",
        "ractor",
        "jaeb",
        "qubit-event-bus",
    ];
    let version = |peer: &&str| {
        let (_, rest) = lock.split_once(&format!("name = \"{peer}\"\nversion = \""))?;
        Some(format!("{peer} {}", rest.split('"').next()?))
    };
    PEERS.iter().filter_map(version).collect()
}
