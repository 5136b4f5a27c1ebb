//! What a member keeps on its disk about what it did.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;

use artel_rig::{Program, Server, clean_command, wait_for};
use serde_json::Value;

use crate::fleet::{FLEET, artel};

fn archived(place: &str, more: &[&str]) -> Output {
    let mut args = vec!["history", "--archive", place, "--json", "--limit", "1000000"];
    args.extend(more);
    clean_command(artel(), &args).output().expect("it runs")
}

/// The records of an archive, the newest first.
fn records(place: &str, more: &[&str]) -> Vec<Value> {
    let output = archived(place, more);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).expect("a text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// `kill -9` in the midst of archiving, again and again: the archive can be read, what was in it before is still in it, and
/// no record is missing among those of one process.
#[test]
fn a_killed_member_loses_no_record_that_was_written() {
    let server = Server::any();
    let dir = tempfile::tempdir().expect("a folder");
    for place in ["sqlite:archive.db", "jsonl:archive"] {
        let (kind, name) = place.split_once(':').expect("two parts");
        let place = format!("{kind}:{}", dir.path().join(name).display());
        let mut before = Vec::new();
        for _ in 0..4 {
            let mut member = Program::start(
                artel(),
                &[
                    "run",
                    "--redis",
                    &server.url(),
                    "--fleet",
                    FLEET,
                    "--archive",
                    &place,
                    "--leader-works",
                    "always",
                    "--interval",
                    "2ms",
                    "--archive-payloads",
                ],
            );
            member.says("this process leads");
            // Seen from outside while it writes.
            let seen = wait_for("records of this process", || {
                let now = if archived(&place, &[]).status.success() {
                    records(&place, &[])
                } else {
                    vec![]
                };
                (now.len() >= before.len() + 100).then_some(now)
            });
            member.kill();
            let after = records(&place, &[]);
            let tail = &after[after.len() - seen.len()..];
            assert_eq!(tail, seen, "{place}: what was there is still there");
            are_dense(&after[..after.len() - before.len()]);
            before = after;
        }
        let ids: Vec<u64> =
            before.iter().map(|record| record["id"].as_u64().expect("a number")).collect();
        assert!(ids.is_sorted_by(|a, b| a > b), "{place}: the newest first");
    }
}

/// The numbers of one process are dense within a key. Tasks that publish at the same moment may be written in either order, so
/// when the process is killed one of the last may be there without the one before it.
fn are_dense(records: &[Value]) {
    let mut numbers: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for record in records {
        let key = record["key"].as_str().expect("a key");
        let sequence = record["sequence"].as_u64().expect("a number");
        assert!(numbers.entry(key).or_default().insert(sequence), "twice: {record}");
    }
    for (key, numbers) in numbers {
        let last = *numbers.last().expect("a number");
        let missing: Vec<u64> = (1..=last).filter(|n| !numbers.contains(n)).collect();
        assert!(missing.iter().all(|n| n + 8 > last), "{key} lacks {missing:?} of {last}");
    }
}

/// What a user asks an archive.
#[test]
fn an_archive_is_asked_by_outcome_kind_and_text() {
    let server = Server::any();
    let dir = tempfile::tempdir().expect("a folder");
    let place = format!("sqlite:{}", dir.path().join("a.db").display());
    let url = server.url();
    let sent = clean_command(
        artel(),
        &["send", "--redis", &url, "--fleet", FLEET, "--kind", "order", "one", "two", "three"],
    );
    assert!({ sent }.output().expect("it runs").status.success());
    let member = Program::start(
        artel(),
        &[
            "work",
            "--redis",
            &url,
            "--fleet",
            FLEET,
            "--archive",
            &place,
            "--archive-payloads",
            "--handler",
            "sh -c 'read word; [ \"$word\" != two ] || exit 65'",
        ],
    );
    wait_for("all three", || (records_if_any(&place) >= 3).then_some(()));
    drop(member);
    assert_eq!(records(&place, &["--kind", "order"]).len(), 3);
    let failed = records(&place, &["--outcome", "failed"]);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["payload"]["payload"], "two");
    assert_eq!(records(&place, &["--grep", "thre+"]).len(), 1);
    assert_eq!(records(&place, &["--kind", "order", "--since", "1h"]).len(), 3);
    assert_eq!(records(&place, &["--since", "2020-01-01T00:00:00Z", "--kind", "order"]).len(), 3);
    assert_eq!(records(&place, &["--member", "nobody"]).len(), 0);
    let none = archived(&place, &["--member", "nobody"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no record fits"));
    let wrong = archived(&place, &["--outcome", "lost"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("snoozed"), "the outcomes are named");
    for file in std::fs::read_dir(dir.path()).expect("a folder") {
        use std::os::unix::fs::PermissionsExt;
        let file = file.expect("a file");
        let mode = file.metadata().expect("its mode").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} is for its user alone", file.path());
    }
}

fn records_if_any(place: &str) -> usize {
    let there = archived(place, &[]).status.success();
    if there { records(place, &["--kind", "order"]).len() } else { 0 }
}
