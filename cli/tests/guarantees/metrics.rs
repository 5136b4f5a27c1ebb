//! The numbers for Prometheus, and the files that use them.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use artel_rig::{Program, Server, eventually, wait_for};
use regex::Regex;

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};
use crate::http::{get, port_of};

fn ops(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops").join(name)
}

/// Runs `promtool`, which comes with the Debian package `prometheus`. Where it is not installed, this says so: what it
/// checks is checked where it is.
fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("no promtool: {args:?} was not run");
        return;
    };
    let mut stdin = child.stdin.take().expect("piped");
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{args:?}: {said}\n{input}");
}

/// The value of a sample, by the beginning of its line.
fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(sample))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn metrics(port: u16) -> String {
    let (status, head, body) = get(port, "/metrics", "");
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body
}

fn names(page: &str) -> BTreeSet<String> {
    let line = Regex::new(r"(?m)^(artel_[a-z_]+)\{").expect("a pattern");
    line.captures_iter(page).map(|found| found[1].to_owned()).collect()
}

on_each_server! {
    /// One member tells the numbers of the fleet, all tell their own, and Prometheus understands them.
    fn every_member_tells_its_numbers_and_one_those_of_the_fleet(kind) {
        let dir = tempfile::tempdir().expect("a folder");
        let archive = format!("sqlite:{}", dir.path().join("artel.db").display());
        let options = ["--interval", "10ms", "--lease", "1s", "--http", "0", "--archive", &archive];
        let mut fleet = TestFleet::start(kind, 3, &options);
        let ports: Vec<u16> = fleet.members.iter().map(port_of).collect();
        eventually("some messages", || fleet.done() > 50);
        let speaker = wait_for("one that speaks for the fleet", || {
            let pages: Vec<String> = ports.iter().map(|port| metrics(*port)).collect();
            let speaks = |page: &&String| page.contains("\nartel_fleet_waiting{");
            let speaking = pages.iter().filter(speaks).count();
            (speaking == 1).then(|| pages.iter().position(|page| speaks(&page)).expect("one"))
        });
        let page = metrics(ports[speaker]);
        promtool(&["check", "metrics"], &page);
        assert_eq!(value(&page, "artel_is_generator{"), Some(1.0), "{page}");
        assert_eq!(value(&page, "artel_books_balance{"), Some(0.0));
        assert_eq!(value(&page, &format!("artel_fleet_members{{fleet=\"{FLEET}\",role=\"worker\"}}")), Some(2.0));
        let generated = value(&page, "artel_messages_generated_total{").expect("a number");
        assert!(generated >= 50.0, "{generated}");
        let worker = metrics(ports[(speaker + 1) % 3]);
        promtool(&["check", "metrics"], &worker);
        let done = format!("artel_messages_total{{fleet=\"{FLEET}\",kind=\"\",outcome=\"done\"}}");
        assert!(value(&worker, &done).is_some_and(|done| done > 0.0), "{worker}");
        let handled = format!("artel_handler_seconds_count{{fleet=\"{FLEET}\",kind=\"\"}}");
        let waited = format!("artel_message_wait_seconds_count{{fleet=\"{FLEET}\",kind=\"\"}}");
        // Each ran once, and the second number was read a moment later.
        assert!(value(&worker, &waited) >= value(&worker, &handled), "{worker}");
        assert_eq!(value(&page, "artel_fleet_leaderless{"), Some(0.0), "{page}");
        // The files that are shipped name nothing else.
        let mut exported = names(&page);
        exported.extend(names(&worker));
        let name = Regex::new(r"\bartel_[a-z_]+").expect("a pattern");
        for file in ["prometheus/artel.rules.yml", "grafana/artel.json"] {
            let text = std::fs::read_to_string(ops(file)).expect("a text");
            for found in name.find_iter(&text).map(|found| found.as_str()) {
                assert!(exported.contains(found), "{file} names {found}, which nobody exports: {exported:?}");
            }
        }
    }

    /// Where no member could lead, nobody is missed.
    fn a_fleet_without_a_generator_is_not_leaderless(kind) {
        let server = Server::start(kind);
        let url = server.url();
        let args = ["work", "--redis", &url, "--fleet", FLEET, "--http", "0"];
        let mut worker = Program::start(artel(), &args);
        worker.says("joined the fleet");
        let port = port_of(&worker);
        let told = wait_for("it to tell the numbers of the fleet", || {
            value(&metrics(port), "artel_fleet_leaderless{")
        });
        assert_eq!(told, 0.0);
        worker.terminate();
        assert_eq!(worker.exit_code(), Some(0), "{}", worker.stderr());
    }

    /// Whatever Redis does, the numbers are served.
    fn numbers_are_told_while_redis_is_down(kind) {
        let mut fleet = TestFleet::start(kind, 1, &["--interval", "10ms", "--lease", "1s", "--http", "0"]);
        let port = port_of(&fleet.members[0]);
        fleet.leader();
        eventually("a session", || value(&metrics(port), "artel_redis_up{") == Some(1.0));
        fleet.server.kill();
        let page = wait_for("it to notice", || {
            Some(metrics(port)).filter(|page| value(page, "artel_redis_up{") == Some(0.0))
        });
        promtool(&["check", "metrics"], &page);
        assert!(!page.contains("artel_fleet_waiting"), "{page}");
        let lost = "artel_notices_total{fleet=\"fleet\",notice=\"disconnected\"}";
        eventually("it to count that", || value(&metrics(port), lost) >= Some(1.0));
    }
}

/// With a token set, it is asked for.
#[test]
fn numbers_are_for_those_who_know_the_token() {
    let server = Server::any();
    let token = "0123456789abcdef0123456789abcdef";
    let mut command =
        artel_rig::clean_command(artel(), &["run", "--redis", &server.url(), "--http", "0"]);
    command.env("ARTEL_HTTP_TOKEN", token).stdin(Stdio::null());
    let member = Program::spawn(command);
    let port = port_of(&member);
    member.says("joined the fleet");
    assert_eq!(get(port, "/metrics", "").0, 401);
    let (status, _, page) = get(port, "/metrics", &format!("Authorization: Bearer {token}\r\n"));
    assert_eq!(status, 200);
    assert!(page.contains("artel_build_info"), "{page}");
}

/// The alert rules are rules, and each of them fires where it should.
#[test]
fn each_alert_rule_fires() {
    let (rules, tests) =
        (ops("prometheus/artel.rules.yml"), ops("prometheus/artel.rules.test.yml"));
    promtool(&["check", "rules", &rules.display().to_string()], "");
    promtool(&["test", "rules", &tests.display().to_string()], "");
    let rule = Regex::new(r"(?m)- alert: (\w+)").expect("a pattern");
    let (rules, tests) = (std::fs::read_to_string(rules), std::fs::read_to_string(tests));
    let (rules, tests) = (rules.expect("a text"), tests.expect("a text"));
    let all: Vec<&str> =
        rule.captures_iter(&rules).map(|found| found.extract::<1>().1[0]).collect();
    assert!(all.len() >= 10, "{all:?}");
    for alert in all {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&fires), "no test fires {alert}");
    }
}
