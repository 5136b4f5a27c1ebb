//! Proves the house rules that a compiler cannot see: which stage may know which, what a script
//! must say about itself, and how long a file may be.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which modules of the crate each module may import. Everything is allowed what is nobody's stage:
/// `clock`, `config`, `error`, `mutant`, `notice`, `panic`, `term`, `timings`.
const ALLOWED: [(&str, &[&str]); 8] = [
    ("store", &["membership::MemberId"]),
    ("membership", &["store"]),
    ("election", &["store", "membership"]),
    ("generator", &["store", "membership", "election", "queue"]),
    ("queue", &["store", "membership", "election"]),
    ("worker", &["store", "membership", "queue", "outcome"]),
    ("outcome", &["store", "membership", "queue"]),
    ("sync", &["store", "membership", "election"]),
];
const COMMON: [&str; 9] =
    ["clock", "config", "Error", "mutant", "notice", "panic", "term", "timings", "error"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(below: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(below)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty());
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text")
}

#[test]
fn data_goes_one_way_through_the_house() {
    let allowed: BTreeMap<_, _> = ALLOWED.into_iter().collect();
    for path in files("src", "rs") {
        let within = path.strip_prefix(root().join("src")).expect("below src");
        let stage =
            within.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
        let Some(may) = allowed.get(stage.as_str()) else { continue };
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            for import in line.split("crate::").skip(1) {
                let known = |module: &&str| import.starts_with(*module);
                let fine = import.starts_with(&stage)
                    || may.iter().any(&known)
                    || COMMON.iter().any(known);
                assert!(fine, "{}: {stage} must not know crate::{import}", within.display());
            }
        }
    }
}

#[test]
fn every_module_opens_with_what_it_is_for() {
    for below in ["src", "cli/src", "hub/src", "testkit/src", "verify/src"] {
        for path in files(below, "rs") {
            assert!(read(&path).starts_with("//!"), "{} has no head", path.display());
        }
    }
}

#[test]
fn every_script_says_what_it_takes_and_returns() {
    for path in files("src", "lua") {
        let text = read(&path);
        let head: Vec<&str> = text.lines().take(12).collect();
        assert!(head[0].starts_with("#!lua"), "{}", path.display());
        for word in ["-- KEYS[1]", "-- ARGV", "-- Returns"] {
            let there = head.iter().any(|line| line.starts_with(word));
            assert!(there, "{}: no {word} in its head", path.display());
        }
    }
}

/// Numbers go through Lua as strings or by %.0f: `tostring` prints 1.79e+15.
#[test]
fn no_script_prints_a_number_its_own_way() {
    for path in files("src", "lua") {
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("--")) {
            let small = line.contains("tostring(i - 1)"); // a position in a block
            assert!(!line.contains("tostring(") || small, "{}: {line}", path.display());
        }
    }
}

#[test]
fn files_stay_readable() {
    for below in ["src", "cli/src", "hub/src", "testkit/src", "verify/src"] {
        for path in files(below, "rs") {
            let lines = read(&path).lines().count();
            assert!(lines <= 500, "{} has {lines} lines: split it by noun", path.display());
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(!["utils", "helpers", "common", "misc"].contains(&name.as_str()));
        }
    }
}

/// No type of the Redis client is part of the public API.
#[test]
fn the_client_library_stays_inside() {
    for path in files("src", "rs") {
        for line in read(&path).lines() {
            let public = line.trim_start().starts_with("pub ") && line.contains("redis::");
            assert!(!public, "{}: {line}", path.display());
        }
    }
}

/// The hub has users who have no Redis: it knows of none, and of no fleet.
#[test]
fn the_hub_knows_nothing_of_redis() {
    let manifest = read(&root().join("hub/Cargo.toml"));
    assert!(
        !manifest.contains("redis") && !manifest.contains("artel ") && !manifest.contains("artel.")
    );
    for path in files("hub/src", "rs") {
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!line.to_lowercase().contains("redis"), "{}: {line}", path.display());
        }
    }
}
