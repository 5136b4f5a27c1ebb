use std::collections::HashMap;

use artel_rig::{Program, eventually, wait_for};
use serde_json::Value;

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

/// The entries that `artel history --json` has printed.
fn entries(program: &Program) -> Vec<Value> {
    let stdout = program.stdout();
    let whole = stdout.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ms(entry: &Value, field: &str) -> u64 {
    entry[field].as_u64().unwrap_or_else(|| panic!("{field} in {entry}"))
}

/// What the ledger says: when a message was settled, and under which term it was made.
fn settled(fleet: &mut TestFleet) -> Vec<(u64, u64)> {
    let ledger = fleet.key("ledger");
    let entries: Vec<(String, HashMap<String, String>)> =
        redis::cmd("XRANGE").arg(&[&ledger, "-", "+"]).query(fleet.connection()).expect("answers");
    let first = |text: &str| text.split('-').next().and_then(|n| n.parse().ok()).expect("a number");
    entries.iter().map(|(at, entry)| (first(at), first(&entry["id"]))).collect()
}

on_each_server! {
    /// Whoever follows the log on one machine sees an election among others. It agrees with the ledger: what the new
    /// generator made was settled after its election, each term of the ledger was elected, and nothing was elected twice.
    fn an_election_is_in_the_log_of_everybody(kind) {
        let mut fleet = TestFleet::start(kind, 3, &["--interval", "5ms", "--lease", "1s"]);
        let url = fleet.server.url();
        let args = ["history", "--follow", "--json", "--redis", &url, "--fleet", FLEET];
        let follower = Program::start(artel(), &args);
        for _ in 0..3 {
            let (old, process) = fleet.leader();
            let done = fleet.done();
            eventually("messages of this term", || fleet.done() > done + 5);
            // Adding messages refreshes its session, too.
            let (alive, generated) = (fleet.now_ms(), fleet.count("generated"));
            eventually("more of them", || fleet.count("generated") > generated);
            let before = fleet.now_ms();
            fleet.members[process].kill();
            let after = fleet.now_ms();
            let elected = wait_for("the election in the log", || {
                entries(&follower).into_iter().find(|entry| {
                    entry["kind"] == "elected" && entry["from"].as_str() == Some(&old)
                })
            });
            let (at, gap) = (ms(&elected, "time_ms"), ms(&elected, "gap_ms"));
            assert_eq!(elected["why"], "died");
            assert!(at >= before, "elected before the old one was killed: {elected}");
            assert!(at - gap <= after, "heard of after it was killed: {elected}");
            let term = elected["term"].as_u64().expect("a term");
            let (_, next) = fleet.leader();
            assert_ne!(next, process);
            let first = wait_for("the first outcome of the new term", || {
                settled(&mut fleet).into_iter().find(|(_, of)| *of == term).map(|(at, _)| at)
            });
            assert!(first >= at, "settled before its generator was elected: {elected}");
            assert!(at - gap >= alive, "it was heard of later, with its last messages: {elected}");
            println!("{kind:?}: nobody led for {gap} ms, next outcome {} ms later", first - at);
            fleet.add();
        }
        let log = entries(&follower);
        let kinds = |kind: &str| log.iter().filter(|entry| entry["kind"] == kind).count();
        assert_eq!((kinds("died"), kinds("elected")), (3, 4));
        let elected = log.iter().filter(|entry| entry["kind"] == "elected");
        let elected: Vec<(u64, u64)> =
            elected.map(|entry| (ms(entry, "time_ms"), ms(entry, "term"))).collect();
        for (at, term) in settled(&mut fleet) {
            let known = elected.iter().find(|(_, of)| *of == term);
            assert!(known.is_some_and(|(since, _)| *since <= at), "{term} at {at}: {elected:?}");
        }
    }
}
