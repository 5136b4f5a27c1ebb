//! What an idle subscriber keeps in memory.
//!
//! Each case is measured in a process of its own: pages that another case has freed would be used
//! again, and would not be counted.

use std::process::Command;

use crate::case::{BOUND, Case, Started};
use crate::fanout::settle;
use crate::report::{digits, table};

const SUBSCRIBERS: usize = 8192;
/// Bytes per subscriber.
const GOAL: f64 = 1024.0;

/// Starts itself once per case, prints, and says whether the goal is met.
pub(crate) fn memory(ours: &[Case], peers: &[Case]) -> bool {
    let mut rows = vec![["case", "bytes per subscriber", "goal"].map(str::to_owned).to_vec()];
    let mut met = true;
    for (number, case) in ours.iter().chain(peers).enumerate() {
        if !case.memory {
            continue;
        }
        let bytes = in_a_child(case.name).unwrap_or(f64::NAN);
        let goal = match number < ours.len() {
            true if bytes <= GOAL => format!("<= {GOAL}: pass"),
            true => format!("<= {GOAL}: FAIL"),
            false => String::new(),
        };
        met &= !goal.ends_with("FAIL");
        rows.push(vec![case.name.to_owned(), digits(bytes), goal]);
    }
    println!("## Idle resident memory, N={SUBSCRIBERS}, bound {BOUND}\n\n{}", table(&rows));
    met
}

fn in_a_child(name: &str) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let child = Command::new(program).args(["--memory-of", name]).output().ok()?;
    let text = String::from_utf8(child.stdout).ok()?;
    if !child.status.success() {
        eprintln!("{name}: {}", String::from_utf8_lossy(&child.stderr).trim());
    }
    text.trim().parse().ok()
}

/// What the child does: prints the bytes per subscriber.
pub(crate) fn memory_of(case: &Case) {
    // The code, the allocator and a runtime are there already when the first subscriber comes.
    let small = started(case, 1);
    let before = resident();
    let large = started(case, SUBSCRIBERS);
    let bytes = resident().saturating_sub(before) as f64 / SUBSCRIBERS as f64;
    println!("{bytes}");
    // Nothing has been published, so there is nothing to drain.
    drop((small, large));
}

fn started(case: &Case, subscribers: usize) -> Started {
    let started = (case.start)(subscribers, BOUND);
    settle();
    started
}

/// Bytes of this process in memory. `status` counts in batches per thread; this is exact.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("smaps_rollup of /proc") * 1024
}
