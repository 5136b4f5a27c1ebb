//! Events, locks and the numbers of the whole fleet, over HTTP and from other languages.

use std::path::PathBuf;
use std::time::Instant;

use artel_rig::{Kind, Program, Server, eventually, python, wait_for};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server, soak};
use crate::http::{get, json, port_of};

on_each_server! {
    /// Six members, one of them frozen: five answers, and the sixth is named.
    fn whoever_does_not_answer_is_named(kind) {
        let mut fleet = TestFleet::start(kind, 5, &["--interval", "20ms", "--lease", "30s"]);
        let url = fleet.server.url();
        fleet.add_with(&["--redis", &url, "--http", "0", "--label", "web"]);
        let port = port_of(&fleet.members[5]);
        eventually("all to be there", || fleet.sessions().len() == 6);
        let (status, head, body) = get(port, "/gather_stats", "");
        assert_eq!(status, 200, "{body}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let all = json(&body);
        assert_eq!((&all["v"], &all["fleet"]), (&1.into(), &FLEET.into()));
        assert_eq!(all["members"].as_array().expect("a list").len(), 6);
        assert_eq!(all["missing"], serde_json::json!([]));
        assert_eq!((&all["totals"]["members"], &all["totals"]["answered"]), (&6.into(), &6.into()));
        let members = all["members"].as_array().expect("a list");
        let leads = |member: &&serde_json::Value| member["role"] == "generator";
        let leader = members.iter().find(leads).expect("a generator");
        assert_eq!(leader["term"], fleet.term());
        for member in members {
            assert!(member["uptime_ms"].as_u64() > Some(0) && member["redis_rtt_ms"].as_f64() > Some(0.0));
            assert!(member["memory_bytes"].as_u64() > Some(1 << 20));
        }
        let sum: u64 = members.iter().map(|member| member["done"].as_u64().expect("a count")).sum();
        assert_eq!(all["totals"]["done"], sum);
        eventually("handlers to have run", || {
            json(&get(port, "/gather_stats", "").2)["members"].as_array().is_some_and(|members| {
                members.iter().any(|member| {
                    member["handler_p50_ms"].as_f64().is_some()
                        && member["handler_p50_ms"].as_f64() <= member["handler_p99_ms"].as_f64()
                })
            })
        });

        let frozen = fleet.members[0].id();
        fleet.members[0].freeze();
        let began = Instant::now();
        // What was asked a moment ago may be told once more.
        let some = wait_for("five answers", || {
            let (status, _, body) = get(port, "/gather_stats", "");
            assert_eq!(status, 200, "{body}");
            Some(json(&body)).filter(|all| all["members"].as_array().is_some_and(|all| all.len() == 5))
        });
        println!("with one frozen member it took {:?}", began.elapsed());
        assert_eq!(some["missing"].as_array().map(Vec::len), Some(1));
        assert_eq!(some["missing"][0]["pid"], frozen);
        let url = fleet.server.url();
        let mut stats = Program::start(artel(), &["stats", "--redis", &url, "--fleet", FLEET]);
        assert_eq!(stats.exit_code(), Some(0), "{}", stats.stderr());
        let table = stats.stdout();
        assert!(table.contains("5 of 6 members answered") && table.contains("no answer: "), "{table}");
        fleet.members[0].thaw();
        let mut stats = Program::start(artel(), &["stats", "--json", "--redis", &url, "--fleet", FLEET]);
        assert_eq!(stats.exit_code(), Some(0), "{}", stats.stderr());
        assert_eq!(json(&stats.stdout())["totals"]["answered"], 6);
        if soak() {
            assert!((1.9..3.0).contains(&some["took_ms"].as_f64().map_or(0.0, |ms| ms / 1000.0)));
        }
        // Nothing is left of the rounds once their time is over.
        let pattern = fleet.key("stats:*");
        let rounds: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query(fleet.connection()).expect("answers");
        for round in rounds {
            let ttl: i64 = redis::cmd("PTTL").arg(round).query(fleet.connection()).expect("answers");
            assert!(ttl <= 10_000 && ttl != -1, "{ttl}");
        }
    }

    /// A process answers for itself whatever Redis does; for the fleet it says why it cannot.
    fn a_dead_redis_is_said_over_http(kind) {
        let mut fleet = TestFleet::start(kind, 0, &["--lease", "2s"]);
        let url = fleet.server.url();
        fleet.add_with(&["--redis", &url, "--http", "127.0.0.1:0"]);
        let port = port_of(&fleet.members[0]);
        eventually("it to be ready", || get(port, "/readyz", "").0 == 200);
        assert_eq!(get(port, "/api/v1/status", "").0, 200, "on loopback without a token");
        fleet.server.kill();
        let (status, _, body) = get(port, "/gather_stats", "");
        assert_eq!(status, 503, "{body}");
        assert!(json(&body)["error"].as_str().is_some_and(|why| why.contains("cannot reach Redis")));
        assert_eq!(get(port, "/livez", ""), (200, get(port, "/livez", "").1, "ok\n".to_owned()));
        eventually("it to be not ready", || get(port, "/readyz", "").0 == 503);
        fleet.server.restart();
        fleet.reconnect();
        eventually("it to be ready again", || get(port, "/readyz", "").0 == 200);
        eventually("answers", || get(port, "/gather_stats", "").0 == 200);
        for (path, status) in [("/nope", 404), ("/api/v1/nope", 404)] {
            assert_eq!(get(port, path, "").0, status, "{path}");
        }
        fleet.members[0].terminate();
        assert_eq!(fleet.members[0].exit_code(), Some(0), "{}", fleet.members[0].stderr());
    }
}

/// A program in another language sets what a shell waits for.
#[test]
fn a_shell_waits_for_what_python_sets() {
    let server = Server::start(Kind::Redis.program().map_or(Kind::Valkey, |_| Kind::Redis));
    let url = server.url();
    let mut waits =
        Program::start(artel(), &["event", "wait", "pulse", "--redis", &url, "--fleet", FLEET]);
    eventually("it to listen", || {
        let event = format!("artel:{{{FLEET}}}:@0:event:pulse");
        let count: (String, u32) = redis::cmd("PUBSUB")
            .arg("SHARDNUMSUB")
            .arg(event)
            .query(&mut server.connect())
            .expect("answers");
        count.1 == 1
    });
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/languages/event.py");
    let mut sets = python(script, &["set", &url, FLEET, "pulse"]);
    assert_eq!(sets.exit_code(), Some(0), "{}", sets.stderr());
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
}
