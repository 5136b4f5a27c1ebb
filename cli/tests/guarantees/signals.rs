//! Events, locks and the numbers of the whole fleet, over HTTP and from other languages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Instant;

use artel_testkit::{DEADLINE, Kind, Program, Server, clean_command, eventually, python};

use crate::crew::{Crew, FLEET, artel, on_each_server, soak};

/// One request; status, headers and body.
fn get(port: u16, path: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

/// The port that a member says it listens on.
fn port_of(member: &Program) -> u16 {
    let line = member.says("http: listening on http://");
    line.rsplit(':').next().and_then(|port| port.trim().parse().ok()).expect("a port")
}

fn json(body: &str) -> serde_json::Value {
    serde_json::from_str(body).unwrap_or_else(|_| panic!("no document: {body}"))
}

on_each_server! {
    /// Six members, one of them frozen: five answers, and the sixth is named.
    fn whoever_does_not_answer_is_named(kind) {
        let mut crew = Crew::start(kind, 5, &["--interval", "20ms", "--lease", "30s"]);
        let url = crew.server.url();
        crew.add_with(&["--redis", &url, "--http", "0", "--label", "web"]);
        let port = port_of(&crew.members[5]);
        eventually("all to be there", || crew.sessions().len() == 6);
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
        assert_eq!(leader["term"], crew.term());
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

        let frozen = crew.members[0].id();
        crew.members[0].freeze();
        let began = Instant::now();
        let (status, _, body) = get(port, "/gather_stats", "");
        println!("with one frozen member it took {:?}", began.elapsed());
        let some = json(&body);
        assert_eq!((status, some["members"].as_array().map(Vec::len)), (200, Some(5)), "{body}");
        assert_eq!(some["missing"].as_array().map(Vec::len), Some(1));
        assert_eq!(some["missing"][0]["pid"], frozen);
        let url = crew.server.url();
        let mut stats = Program::start(artel(), &["stats", "--redis", &url, "--fleet", FLEET]);
        assert_eq!(stats.exit_code(), Some(0), "{}", stats.stderr());
        let table = stats.stdout();
        assert!(table.contains("5 of 6 members answered") && table.contains("no answer: "), "{table}");
        crew.members[0].thaw();
        let mut stats = Program::start(artel(), &["stats", "--json", "--redis", &url, "--fleet", FLEET]);
        assert_eq!(stats.exit_code(), Some(0), "{}", stats.stderr());
        assert_eq!(json(&stats.stdout())["totals"]["answered"], 6);
        if soak() {
            assert!((1.9..3.0).contains(&some["took_ms"].as_f64().map_or(0.0, |ms| ms / 1000.0)));
        }
        // Nothing is left of the rounds once their time is over.
        let pattern = crew.key("stats:*");
        let rounds: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query(crew.connection()).expect("answers");
        for round in rounds {
            let ttl: i64 = redis::cmd("PTTL").arg(round).query(crew.connection()).expect("answers");
            assert!(ttl <= 10_000 && ttl != -1, "{ttl}");
        }
    }

    /// A process answers for itself whatever Redis does; for the fleet it says why it cannot.
    fn a_dead_redis_is_said_over_http(kind) {
        let mut crew = Crew::start(kind, 0, &["--lease", "2s"]);
        let url = crew.server.url();
        crew.add_with(&["--redis", &url, "--http", "127.0.0.1:0"]);
        let port = port_of(&crew.members[0]);
        eventually("it to be ready", || get(port, "/readyz", "").0 == 200);
        assert_eq!(get(port, "/api/v1/status", "").0, 200, "on loopback without a token");
        crew.server.kill();
        let (status, _, body) = get(port, "/gather_stats", "");
        assert_eq!(status, 503, "{body}");
        assert!(json(&body)["error"].as_str().is_some_and(|why| why.contains("cannot reach Redis")));
        assert_eq!(get(port, "/livez", ""), (200, get(port, "/livez", "").1, "ok\n".to_owned()));
        eventually("it to be not ready", || get(port, "/readyz", "").0 == 503);
        crew.server.restart();
        crew.reconnect();
        eventually("it to be ready again", || get(port, "/readyz", "").0 == 200);
        eventually("answers", || get(port, "/gather_stats", "").0 == 200);
        for (path, status) in [("/nope", 404), ("/", 404), ("/api/v1/nope", 404)] {
            assert_eq!(get(port, path, "").0, status, "{path}");
        }
        crew.members[0].terminate();
        assert_eq!(crew.members[0].exit_code(), Some(0), "{}", crew.members[0].stderr());
    }
}

/// Off loopback, numbers are for everybody and the rest is for those who know the token.
#[test]
fn off_loopback_only_numbers_need_no_token() {
    let server = Server::any();
    let token = "0123456789abcdef0123456789abcdef";
    for known in [None, Some(token)] {
        let url = server.url();
        let args = ["run", "--redis", &url, "--http", "0.0.0.0:0"];
        let mut command = clean_command(artel(), &args);
        command.stdin(std::process::Stdio::null());
        if let Some(token) = known {
            command.env("ARTEL_HTTP_TOKEN", token);
        }
        let mut member = Program::spawn(command);
        let port = port_of(&member);
        member.says("joined the fleet");
        for path in ["/livez", "/gather_stats"] {
            assert_eq!(get(port, path, "").0, 200, "{path}");
        }
        let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
        match known {
            None => {
                member.says("/api/v1 is not served off loopback without a token");
                let (status, _, why) = get(port, "/api/v1/status", &bearer(token));
                assert!(status == 403 && why.contains("set ARTEL_HTTP_TOKEN"), "{status}: {why}");
            }
            Some(token) => {
                assert_eq!(get(port, "/api/v1/status", "").0, 401);
                assert_eq!(get(port, "/api/v1/status", &bearer("wrong")).0, 401);
                let (status, _, body) = get(port, "/api/v1/status", &bearer(token));
                assert_eq!((status, &json(&body)["v"]), (200, &1.into()));
                assert!(!member.stderr().contains(token), "secrets never reach a log");
            }
        }
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
    }
    let (url, port) = (server.url(), server.port().to_string());
    for (address, words) in [
        ("nowhere", "--http nowhere is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("::1", "is no address"),
        ("http://127.0.0.1:9", "is no address"),
        (port.as_str(), "cannot listen on 127.0.0.1:"),
        ("256.1.1.1:80", "cannot listen on 256.1.1.1:80"),
    ] {
        let mut member = Program::start(artel(), &["run", "--redis", &url, "--http", address]);
        assert!(matches!(member.exit_code(), Some(1 | 2)), "{address}");
        let screen = member.stderr();
        assert!(screen.contains(words) && screen.contains("hint: "), "{screen}");
    }
}

/// Whoever connects and says nothing takes no room for long, and cannot keep others out.
#[test]
fn silent_clients_do_not_keep_others_out() {
    let server = Server::any();
    let url = server.url();
    let mut member = Program::start(artel(), &["run", "--redis", &url, "--http", "0"]);
    let port = port_of(&member);
    let silent: Vec<TcpStream> = (0..140)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.write_all(b"GET /livez HT").expect("half a request");
            stream
        })
        .collect();
    assert_eq!(get(port, "/livez", "").0, 200);
    drop(silent);
    member.terminate();
    assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
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
