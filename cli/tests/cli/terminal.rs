//! What others wrote, on a screen: nothing of it is obeyed, and no line of it looks like one of ours.

use std::process::Stdio;

use artel_rig::{Program, Server, clean_command};

use crate::screen::{any_server, on_terminal};

/// Colours, a cleared screen, a text that reads backwards, lines of its own, a bell.
const EVIL: &str = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{9b}2J\u{202e}back\u{2066}\u{200f}\r\nFORGED line\u{2028}FORGED too\u{7f}";

fn is_harmful(c: char) -> bool {
    let turns = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
    (c.is_control() && !"\r\n\t".contains(c)) || turns.contains(c) || "\u{2028}\u{2029}".contains(c)
}

#[track_caller]
fn harmless(what: &str, screen: &str) {
    let found: String = screen.chars().filter(|c| is_harmful(*c)).collect();
    assert!(found.is_empty(), "{what}: {found:?} in\n{}", screen.escape_debug());
    let forged = screen.lines().find(|line| line.trim_start().starts_with("FORGED"));
    assert_eq!(forged, None, "{what}: {}", screen.escape_debug());
}

fn key(name: &str) -> String {
    format!("artel:{{artel}}:{name}")
}

/// A fleet of which everything that can be written was written by somebody evil.
fn evil_fleet() -> Server {
    let server = any_server(&[]);
    let mut connection = server.connect();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("answers");
    let deadline = (seconds + 3600) * 1000;
    let mut set = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let _: redis::Value = command.query(&mut connection).expect("answers");
    };
    set(&["HSET", &key("config"), "protocol", "5", "lease_ms", "15000", "grace_ms", "300"]);
    for id in ["evil-member", EVIL, "-rf", ".hidden", "a:b", "a b"] {
        set(&["ZADD", &key("members"), &deadline.to_string(), id]);
        let info = ["HSET", &key(&format!("member:{id}")), "label", EVIL, "host", EVIL, "pid", "7"];
        set(&info);
        let lock = format!("lock-of-{}", id.len());
        set(&["SET", &key(&format!("lock:{lock}")), &format!("{id}|1794710083943807")]);
        set(&["HSET", &key(&format!("locks:{id}")), &lock, "1794710083943807:1"]);
        set(&["HSET", &key(&format!("locks:{id}")), EVIL, "1794710083943807:1", "", "1:1"]);
    }
    set(&["SET", &key("lease"), "evil-member|1794710083943807"]);
    set(&["SET", &key("term"), "1794710083943807"]);
    set(&["HSET", &key(&format!("event:{EVIL}")), "flag", "1", "gen", "1794710083943807"]);
    set(&["HSET", &key("event:fine"), "flag", "1", "gen", "1794710083943807", "by", EVIL]);
    let text = serde_json::json!({ "v": 1, "cause": "handler", "reason": EVIL, "member": EVIL,
                                   "label": EVIL });
    let headers = serde_json::json!({ "kind": EVIL, "origin": EVIL }).to_string();
    for envelope in [
        format!("1g-|1794710083943807-1|1|1794710083950|{EVIL}"),
        format!("1g-|{EVIL}|1|1794710083950|{EVIL}"),
        format!("1nh|s5-1|1|1794710083950|{}:{headers}{EVIL}", headers.len()),
        EVIL.to_owned(),
    ] {
        set(&["XADD", &key("errors"), "*", "m", &envelope, "e", &text.to_string()]);
        set(&["ZADD", &key("scheduled"), &deadline.to_string(), &envelope]);
        set(&["HSET", &key("later"), &envelope, &envelope]);
    }
    let waits = format!("1nh|s5-1|1.0.0.9|1794710083950|{}:{headers}{EVIL}", headers.len());
    set(&["ZADD", &key("scheduled"), &deadline.to_string(), "s5-1"]);
    set(&["HSET", &key("later"), "s5-1", &waits]);
    set(&[
        "HSET",
        &key("control"),
        &format!("lane:{EVIL}"),
        "1",
        "lane:low",
        "1",
        &format!("drain:{EVIL}"),
        "1",
    ]);
    let entry = |spec: &str| {
        serde_json::json!({ "v": 1, "spec": spec, "tz": EVIL, "catch_up": "once", "overlap": true,
                            "lane": EVIL, "kind": EVIL, "payload": EVIL, "by": EVIL })
    };
    for (name, spec) in [("fine", "@daily"), (EVIL, EVIL), ("odd", EVIL)] {
        set(&["HSET", &key("crons"), name, &format!("7|{}", entry(spec))]);
        set(&["HSET", &key("fired"), name, EVIL]);
    }
    server
}

#[test]
fn what_stands_in_redis_is_harmless_on_a_screen() {
    let server = evil_fleet();
    let url = server.url();
    for args in [
        &["status"][..],
        &["stats"],
        &["lock", "list"],
        &["lock", "status", "lock-of-11"],
        &["lock", "run", "--wait", "0s", "lock-of-11", "--", "true"],
        &["event", "list"],
        &["event", "status", "fine"],
        &["errors", "list"],
        &["schedule", "list"],
        &["schedule", "list", "--json"],
        &["cron", "list"],
        &["cron", "list", "--json"],
        &["show", "s5-1"],
        &["status", "--json"],
        &["stats", "--json"],
        &["lock", "list", "--json"],
        &["errors", "list", "--json"],
        &["errors", "export", "-"],
        &["getErrors", "--json", "--limit", "1"],
        &["getErrors"],
    ] {
        let mut all = args.to_vec();
        let at = all.iter().position(|word| *word == "--").unwrap_or(all.len());
        all.splice(at..at, ["--redis", url.as_str()]);
        let screen = on_terminal(&all, 400, false);
        harmless(&args.join(" "), &screen);
        assert!(!screen.contains("panicked"), "{screen}");
        // An id is never shown in another form: what is none is not shown.
        if args[0] == "status" || args[0] == "stats" {
            assert!(screen.contains("evil-member"), "{args:?}: {screen}");
            assert!(!screen.contains("-rf") && !screen.contains(".hidden"), "{args:?}: {screen}");
        }
        if args.contains(&"--json") {
            let line = screen.lines().find(|line| line.starts_with('{')).expect("a document");
            assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
        }
    }
    // What is written for programs means what it meant.
    let server = evil_fleet();
    let export = crate::screen::artel(&["errors", "export", "--redis", &server.url()]);
    let lines = String::from_utf8(export.stdout).expect("UTF-8");
    assert_eq!(lines.lines().count(), 4);
    for line in lines.lines() {
        assert!(!line.chars().any(is_harmful), "{}", line.escape_debug());
        let record: serde_json::Value = serde_json::from_str(line).expect("a document");
        assert_eq!(record["reason"], EVIL);
    }
    let taken = crate::screen::artel(&["getErrors", "--redis", &server.url()]);
    assert_eq!(taken.status.code(), Some(0));
    let left: u64 =
        redis::cmd("XLEN").arg(key("errors")).query(&mut server.connect()).expect("answers");
    assert_eq!(left, 0, "all were taken");
}

/// One lock with an odd name, or that is none, is no reason not to show the others.
#[test]
fn an_odd_lock_does_not_hide_the_others() {
    let server = evil_fleet();
    let mut connection = server.connect();
    let () = redis::cmd("HSET")
        .arg(key("locks:evil-member"))
        .arg("a-list")
        .arg("1:1")
        .arg(&b"\xff\xfe"[..])
        .arg("1:1")
        .query(&mut connection)
        .expect("answers");
    let () =
        redis::cmd("RPUSH").arg(key("lock:a-list")).arg("x").query(&mut connection).expect("ok");
    let output = crate::screen::artel(&["lock", "list", "--json", "--redis", &server.url()]);
    assert_eq!(output.status.code(), Some(0), "{}", crate::screen::text(&output.stderr));
    let locks: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    let names: Vec<&str> = locks["locks"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|lock| lock["name"].as_str())
        .collect();
    assert_eq!(names, ["lock-of-11"]);
}

#[test]
fn what_stands_in_redis_is_harmless_in_a_log() {
    let server = any_server(&[]);
    let mut connection = server.connect();
    let url = server.url();
    let member = |label: &str| {
        let args =
            ["run", "--redis", &url, "--lease", "2s", "--label", label, "--interval", "20ms"];
        let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
        command.stdin(Stdio::null()).env("NO_COLOR", "1");
        Program::spawn(command)
    };
    let (first, mut second) = (member("one"), member("two"));
    first.says("joined the fleet");
    second.says("joined the fleet");
    let ids: Vec<String> = redis::cmd("ZRANGE")
        .arg(key("members"))
        .arg(0)
        .arg(-1)
        .query(&mut connection)
        .expect("ids");
    assert_eq!(ids.len(), 2);
    // What the dead one said of itself was not its own words.
    second.kill();
    for id in &ids {
        let () = redis::cmd("HSET")
            .arg(key(&format!("member:{id}")))
            .arg("label")
            .arg(EVIL)
            .arg("host")
            .arg(EVIL)
            .query(&mut connection)
            .expect("answers");
    }
    first.says("member died");
    let log = first.stderr();
    harmless("the log", &log);
    assert!(log.contains("FORGED"), "it was there to be shown: {log}");
}
