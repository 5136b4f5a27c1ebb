use artel_rig::{Program, Server, eventually};

use crate::screen::{any_server, text, with};

fn server() -> Server {
    any_server(&["--appendonly", "yes"])
}

fn artel(args: &[&str], variables: &[(&str, &str)]) -> std::process::Output {
    with(args, variables, b"")
}

#[test]
fn an_empty_fleet_is_unhealthy_and_says_so() {
    let server = server();
    let output = artel(&["status", "--redis", &server.url()], &[]);
    let screen = text(&output.stdout);
    assert_eq!(output.status.code(), Some(6));
    assert!(output.stderr.is_empty());
    let lines: Vec<&str> = screen.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "generator: none, no member can lead",
            "trouble: nobody ever joined this fleet · `artel fleets` shows those there are",
            "generated 0 · waiting 0 · claimed 0 · done 0 · failed 0 · balance 0",
            "errors stored 0",
            "no members",
        ]
    );
}

/// A fleet whose members are all dead is not healthy, even if nobody is left to judge them.
#[test]
fn a_dead_fleet_is_unhealthy() {
    let server = server();
    let args = ["run", "--redis", &server.url(), "--lease", "1s"];
    let mut member = Program::start(env!("CARGO_BIN_EXE_artel"), &args);
    member.says("this process leads");
    member.kill();
    let status = || artel(&["status", "--redis", &server.url()], &[]);
    eventually("its lease to end", || text(&status().stdout).contains("nobody leads"));
    let screen = text(&status().stdout);
    assert_eq!(status().status.code(), Some(6));
    assert!(
        screen.contains("trouble: no member is here") && screen.contains("overdue"),
        "{screen}"
    );
}

/// The documented document: these fields stay.
#[test]
fn status_as_json_has_its_documented_fields() {
    let server = server();
    let url = server.url();
    let program = env!("CARGO_BIN_EXE_artel");
    let _members: Vec<Program> = ["one", "two"]
        .iter()
        .map(|label| {
            let args =
                ["run", "--redis", &url, "--label", label, "--interval", "20ms", "--lease", "2s"];
            Program::start(program, &args)
        })
        .collect();
    let mut document = serde_json::Value::Null;
    eventually("a fleet with its books", || {
        let output = artel(&["status", "--json", "--redis", &url], &[]);
        document = serde_json::from_slice(&output.stdout).expect("one JSON document");
        output.status.success()
            && document["messages"]["done"].as_u64() > Some(3)
            && document["members"].as_array().is_some_and(|members| members.len() == 2)
    });
    assert_eq!(document["v"], 1);
    assert_eq!(document["fleet"], "artel");
    assert_eq!(document["messages"]["balance"], 0);
    for (part, fields) in [
        ("redis", &["version", "rtt_ms"][..]),
        ("generator", &["member", "label", "term", "lease_ms"]),
        (
            "messages",
            &["generated", "sent", "waiting", "scheduled", "claimed", "done", "failed", "balance"],
        ),
        ("lanes", &["returned", "high", "generated", "normal", "low"]),
        ("errors", &["stored"]),
    ] {
        for field in fields {
            assert!(!document[part][field].is_null(), "{part}.{field}: {document}");
        }
    }
    for field in ["id", "label", "role", "host", "pid", "done", "failed", "in_flight", "seen_ms"] {
        assert!(!document["members"][0][field].is_null(), "{field}: {document}");
    }
    let roles: Vec<&str> = document["members"]
        .as_array()
        .expect("two")
        .iter()
        .filter_map(|m| m["role"].as_str())
        .collect();
    assert!(roles.contains(&"generator") && roles.contains(&"worker"));
    assert!(document["time"].as_str().is_some_and(|time| time.ends_with('Z')));
}

/// Flag over environment, and one variable over the other.
#[test]
fn the_address_comes_from_the_nearest_place() {
    let server = server();
    let good = server.url();
    let bad = "redis://127.0.0.1:1";
    for (args, variables, code) in [
        (&["status", "--redis", &good][..], &[("ARTEL_REDIS_URL", bad)][..], 6),
        (&["status"], &[("ARTEL_REDIS_URL", &good), ("REDIS_URL", bad)], 6),
        (&["status"], &[("REDIS_URL", &good)], 6),
        (&["status"], &[("REDIS_URL", bad)], 3),
        (&["status", "--port", &server.port().to_string()], &[("REDIS_URL", bad)], 6),
    ] {
        let output = artel(args, variables);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?} {variables:?} {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn another_database_is_another_world() {
    let server = server();
    let port = server.port().to_string();
    let () = redis::pipe()
        .cmd("SELECT")
        .arg(3)
        .ignore()
        .cmd("XADD")
        .arg("artel:{artel}:errors")
        .arg("*")
        .arg("m")
        .arg("1g-|5-1|1|9|in db 3\nsecond \\ line")
        .arg("e")
        .arg("{}")
        .ignore()
        .query(&mut server.connect())
        .expect("answers");
    let output = artel(&["getErrors", "--port", &port, "--db", "3"], &[]);
    assert_eq!(text(&output.stdout), "in db 3\\nsecond \\\\ line\n");
    let output = artel(&["getErrors", "--port", &port], &[]);
    assert!(output.status.success() && output.stdout.is_empty());
}

#[test]
fn whole_records_are_json_lines() {
    let server = server();
    let envelope = b"1g-|1794710083943807-7|2|1794710083950|\xff\xfe";
    let why =
        r#"{"v":1,"cause":"timeout","reason":"too slow","member":"m1","label":"one","later":1}"#;
    let () = redis::cmd("XADD")
        .arg("artel:{artel}:errors")
        .arg("1794710099999-0")
        .arg("m")
        .arg(&envelope[..])
        .arg("e")
        .arg(why)
        .query(&mut server.connect())
        .expect("answers");
    let output = artel(&["getErrors", "--json", "--redis", &server.url()], &[]);
    assert_eq!(
        text(&output.stdout),
        "{\"v\":1,\"id\":\"1794710083943807-7\",\"payload_b64\":\"//4=\",\"reason\":\"too slow\",\
         \"cause\":\"timeout\",\"member\":\"m1\",\"label\":\"one\",\"attempt\":2,\
         \"generated_ms\":1794710083950,\"failed_ms\":1794710099999}\n"
    );
}

#[test]
fn the_log_can_be_json() {
    let server = server();
    let args = ["run", "--redis", &server.url(), "--log-format", "json", "--for", "2s"];
    let mut member = Program::start(env!("CARGO_BIN_EXE_artel"), &args);
    assert_eq!(member.exit_code(), Some(0));
    let log = member.stderr();
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let entry: serde_json::Value =
            serde_json::from_str(line).expect("a JSON document per line");
        assert!(entry["message"].is_string() && entry["level"].is_string(), "{line}");
    }
    assert!(log.contains("nobody works: start a second copy"), "{log}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let server = server();
    let url = server.url();
    let options = ["--interval", "50ms", "--work-time", "60s", "--error-rate", "0"];
    let start = || {
        let mut args = vec!["run", "--redis", &url];
        args.extend(options);
        Program::start(env!("CARGO_BIN_EXE_artel"), &args)
    };
    let mut members = [start(), start()];
    let mut connection = server.connect();
    eventually("a busy worker", || {
        let snapshot = artel_rig::Snapshot::read(&mut connection, "artel");
        snapshot.blocks.values().flatten().count() > 0
    });
    for member in &members {
        member.terminate();
        member.says("stopping");
    }
    let codes: Vec<Option<i32>> =
        members.iter_mut().map(|member| member.insist(nix::sys::signal::Signal::SIGTERM)).collect();
    assert!(codes.contains(&Some(143)), "the busy one ends with 143 on the second: {codes:?}");
}

/// Again and again until Ctrl-C, which is no error; through an outage of Redis, too.
#[test]
fn watching_goes_on_until_it_is_told_to_stop() {
    let mut server = server();
    let args = ["status", "--watch", "--json", "--every", "50ms", "--redis", &server.url()];
    let mut watch = Program::start(env!("CARGO_BIN_EXE_artel"), &args);
    eventually("three documents", || watch.stdout().lines().count() >= 3);
    server.kill();
    watch.says("cannot reach Redis");
    server.restart();
    let before = watch.stdout().lines().count();
    eventually("documents again", || watch.stdout().lines().count() > before);
    for line in watch.stdout().lines() {
        let document: serde_json::Value = serde_json::from_str(line).expect("a document per line");
        assert_eq!(document["v"], 1);
    }
    watch.signal_interrupt();
    assert_eq!(watch.exit_code(), Some(0));
}

#[test]
fn a_member_says_the_books_as_often_as_it_is_told() {
    let server = server();
    let args = ["run", "--redis", &server.url(), "--snapshot-every", "100ms", "--interval", "20ms"];
    let member = Program::start(env!("CARGO_BIN_EXE_artel"), &args);
    let line = member.says("balance=0");
    assert!(line.contains("the books members=1 generated="), "{line}");
}

/// Whoever reads our output may stop reading: that is not an error, and nothing is lost.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let server = server();
    let url = server.url();
    let mut connection = server.connect();
    for n in 0..300 {
        let () = redis::cmd("XADD")
            .arg("artel:{artel}:errors")
            .arg("*")
            .arg("m")
            .arg(format!("1g-|5-{n}|1|9|{}", "x".repeat(1000)))
            .arg("e")
            .arg("{}")
            .query(&mut connection)
            .expect("answers");
    }
    for command in [
        &["errors", "export", "--redis", &url][..],
        &["errors", "list", "--limit", "300", "--redis", &url],
        &["status", "--watch", "--every", "50ms", "--redis", &url],
        &["send", "--redis", &url, "--json", "a", "b", "c"],
        &["completions", "bash"],
        &["man"],
        &["config", "show"],
        &["--help"],
        &["getErrors", "--redis", &url],
    ] {
        let mut child = artel_rig::clean_command(env!("CARGO_BIN_EXE_artel"), command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("its end");
        let stderr = text(&output.stderr);
        assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{command:?}: {stderr}");
        assert_eq!(output.status.code(), Some(0), "{command:?}: {stderr}");
    }
    let left: u64 =
        redis::cmd("XLEN").arg("artel:{artel}:errors").query(&mut connection).expect("answers");
    let drains: u64 =
        redis::cmd("HLEN").arg("artel:{artel}:drains").query(&mut connection).expect("answers");
    assert!(
        left == 300 || drains == 1,
        "nobody has read them, so all are stored: {left}, {drains}"
    );
}
