//! The checker is checked: with a rule of the protocol switched off, `artel verify` must find out.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use artel_rig::{Kind, clean_command};
use serde_json::Value;

use crate::ARTEL;
use crate::job_rules::JOB_MUTANTS;
use crate::rules::{MUTANTS, Mutant, WITHOUT_LEDGER};

/// How many runs a mutant may survive. Chance decides what a run of seconds hits: the rarest mutants survive every third one.
const TRIES: u64 = 10;

/// Runs `verify` on the mutant. Which promises it found broken.
fn broken(mutant: &Mutant, seed: u64) -> HashSet<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let (report, keep) = (dir.path().join("report.json"), dir.path().join("history"));
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = kind.program().expect("a server").display().to_string();
    let (seed, report_arg) = (seed.to_string(), report.display().to_string());
    let keep = keep.display().to_string();
    let mut command = clean_command(
        ARTEL,
        &[
            "verify",
            "--for",
            mutant.time,
            "--members",
            "4",
            "--lease",
            "1s",
            "--rate",
            "400/s",
            "--seed",
            &seed,
            "--faults",
            mutant.faults,
            "--server",
            &server,
            "--report",
            &report_arg,
            "--keep",
            &keep,
        ],
    );
    if WITHOUT_LEDGER.contains(&mutant.name) {
        command.args(["--ledger", "never"]);
    }
    let edit = |(script, rule, instead): &(&str, &str, &str)| {
        format!("{script}\u{1f}{rule}\u{1f}{instead}")
    };
    let rules = mutant.rules.iter().map(|rule| (*rule).to_owned());
    let lines: Vec<String> = mutant.edits.iter().map(edit).chain(rules).collect();
    command.env("MUTANT_OF_ARTEL", lines.join("\n")).stdin(std::process::Stdio::null());
    let output = command.output().expect("it runs");
    let json = std::fs::read(&report).unwrap_or_default();
    let report: Value = serde_json::from_slice(&json).unwrap_or_default();
    let found = report["violations"].as_array().into_iter().flatten();
    let found = found.filter_map(|one| one["invariant"].as_str().map(str::to_owned)).collect();
    if output.status.code() != Some(1) {
        println!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    found
}

/// Every rule that is switched off.
fn all() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS.iter().chain(&JOB_MUTANTS)
}

/// A mutant whose edit does not fit would be a process that panics, which is found out by itself.
#[test]
fn every_edit_fits_its_script() {
    let scripts = artel_rig::scripts();
    for mutant in all() {
        for (script, rule, _) in mutant.edits {
            // What all scripts with duties share is in each of them.
            let script = if *script == "jobs" { "settle_jobs" } else { *script };
            assert!(scripts[script].contains(rule), "{}: {rule:?} of {script}.lua", mutant.name);
        }
    }
}

/// GUARANTEES.md lists the same rules, with the same faults.
#[test]
fn the_guarantees_list_every_mutant() {
    let page = include_str!("../../../GUARANTEES.md");
    let table = page.split("| disabled | faults | seed | found as |").nth(1).expect("the table");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    for mutant in all() {
        let language = if mutant.rules.is_empty() { "" } else { " (Rust)" };
        let name = format!("{}{language}", mutant.name);
        let row = rows.iter().find(|row| row[0] == name);
        let row = row.unwrap_or_else(|| panic!("GUARANTEES.md lacks {name:?}"));
        assert_eq!(row[1], mutant.faults.replace(',', ", "), "{name}");
        assert_eq!(row[2], mutant.seed.to_string(), "{name}");
    }
    assert_eq!(rows.len(), all().count(), "a rule that is no mutant any more");
}

#[test]
fn every_mutant_is_caught() {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(mutant) = all().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = |seed: u64| {
                        let begun = Instant::now();
                        let found = broken(mutant, seed);
                        let took = begun.elapsed().as_secs();
                        println!("{}, seed {seed}: {found:?}, {took} s", mutant.name);
                        mutant.broken.iter().any(|promise| found.contains(*promise))
                    };
                    if !(mutant.seed..mutant.seed + TRIES).any(caught) {
                        missed.lock().expect("never poisoned").push(mutant.name);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("never poisoned");
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
