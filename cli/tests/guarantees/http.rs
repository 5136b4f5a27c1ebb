//! What a member tells over HTTP, to whom, and who cannot keep it from doing so.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use artel_rig::{DEADLINE, Program, Server, clean_command, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fleet::{artel, soak};

/// One request; status, headers and body.
pub fn get(port: u16, path: &str, headers: &str) -> (u16, String, String) {
    get_as(port, path, &format!("Host: localhost\r\n{headers}"))
}

/// The same, under any name.
fn get_as(port: u16, path: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    let request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

/// The port that a member says it listens on.
pub fn port_of(member: &Program) -> u16 {
    let line = member.says("http: listening on http://");
    line.rsplit(':').next().and_then(|port| port.trim().parse().ok()).expect("a port")
}

pub fn json(body: &str) -> serde_json::Value {
    serde_json::from_str(body).unwrap_or_else(|_| panic!("no document: {body}"))
}

/// Off loopback, probes are for everybody. Numbers are, unless there is a token; the rest is for those
/// who know it.
#[test]
fn off_loopback_the_token_is_asked_for() {
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
        for path in ["/livez", "/readyz"] {
            assert_eq!(get_as(port, path, "Host: pod.example\r\n").0, 200, "{path}");
        }
        let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
        match known {
            None => {
                assert_eq!(get_as(port, "/gather_stats", "Host: pod.example\r\n").0, 200);
                member.says("the page and /api/v1 are not served off loopback without a token");
                for path in ["/", "/page/app.js"] {
                    assert_eq!(get(port, path, "").0, 403, "{path}");
                }
                let (status, _, why) = get(port, "/api/v1/status", &bearer(token));
                assert!(status == 403 && why.contains("set ARTEL_HTTP_TOKEN"), "{status}: {why}");
            }
            Some(token) => {
                for path in ["/api/v1/status", "/gather_stats"] {
                    assert_eq!(get(port, path, "").0, 401, "{path}");
                    assert_eq!(get(port, path, &bearer("wrong")).0, 401, "{path}");
                    assert_eq!(get(port, path, &bearer(token)).0, 200, "{path}");
                }
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

/// One way to hold connections.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Says nothing.
    Idle,
    /// Says one byte now and then.
    Slow,
    /// Asks without end, and reads nothing.
    Deaf,
    /// Asks every three seconds.
    Patient,
}

/// Holds one connection as long as it can, and then the next.
async fn hold(attack: Attack, port: u16, over: Arc<AtomicBool>) {
    let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    while !over.load(Ordering::Relaxed) {
        let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let (mut bytes, mut at) = ([0; 4096], 0);
        while !over.load(Ordering::Relaxed) {
            let (words, pause) = match attack {
                Attack::Idle => (&b""[..], Duration::from_secs(1)),
                Attack::Slow => (&request[at % 20..at % 20 + 1], Duration::from_millis(300)),
                Attack::Deaf => (&request[..], Duration::ZERO),
                Attack::Patient => (&request[..], Duration::from_secs(3)),
            };
            at += 1;
            let write = tokio::time::timeout(Duration::from_secs(1), stream.write_all(words)).await;
            if matches!(write, Ok(Err(_))) {
                break; // it was closed
            }
            if matches!(attack, Attack::Deaf) {
                tokio::task::yield_now().await;
                continue;
            }
            match tokio::time::timeout(pause, stream.read(&mut bytes)).await {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(_)) => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
        }
    }
}

/// 128 connections of each kind, and whoever is thrown out comes back at once.
#[test]
fn a_probe_is_answered_whoever_holds_connections() {
    let server = Server::any();
    let url = server.url();
    let mut member = Program::start(artel(), &["run", "--redis", &url, "--http", "0"]);
    let port = port_of(&member);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    for attacks in [
        &[Attack::Idle][..],
        &[Attack::Slow],
        &[Attack::Deaf],
        &[Attack::Patient],
        &[Attack::Idle, Attack::Slow, Attack::Deaf, Attack::Patient],
    ] {
        let over = Arc::new(AtomicBool::new(false));
        let all: Vec<_> = attacks
            .iter()
            .flat_map(|attack| (0..128).map(|_| runtime.spawn(hold(*attack, port, over.clone()))))
            .collect();
        std::thread::sleep(Duration::from_millis(500)); // the attack itself
        let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
        for _ in 0..20 {
            let asked = Instant::now();
            assert_eq!(probe(port), "ok\n");
            slowest = slowest.max(asked.elapsed());
        }
        println!("{attacks:?}: twenty probes in {:?}, the slowest in {slowest:?}", begun.elapsed());
        if soak() {
            assert!(slowest < Duration::from_secs(1), "{attacks:?}");
        }
        over.store(true, Ordering::Relaxed);
        runtime.block_on(async {
            for one in all {
                drop(one.await)
            }
        });
    }
    member.terminate();
    assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
}

/// As a probe does it: one that is cut off asks again.
fn probe(port: u16) -> String {
    let begun = Instant::now();
    loop {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(
                b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
            body.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
        };
        match ask() {
            Ok(body) => return body,
            Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
        }
    }
}

/// A page in a browser can make it ask, under the name of its own site. It learns nothing.
#[test]
fn a_port_of_this_machine_answers_under_its_own_name_only() {
    let server = Server::any();
    let url = server.url();
    let mut member = Program::start(artel(), &["run", "--redis", &url, "--http", "0"]);
    let port = port_of(&member);
    member.says("joined the fleet");
    for path in ["/livez", "/readyz", "/gather_stats", "/api/v1/status", "/", "/nope"] {
        for headers in ["Host: evil.example\r\n", "", "Host: localhost\r\nHost: evil.example\r\n"] {
            let (status, _, body) = get_as(port, path, headers);
            assert!(matches!(status, 400 | 421), "{path} {headers:?}: {status} {body}");
        }
    }
    for name in ["localhost", "127.0.0.1", "[::1]", "LocalHost"] {
        let host = format!("Host: {name}:{port}\r\n");
        assert_eq!(get_as(port, "/api/v1/status", &host).0, 200, "{name}");
    }
    member.terminate();
    assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
}

/// Asking often costs the fleet little, and tells nobody where Redis is.
#[test]
fn numbers_come_from_a_cache_and_name_no_address() {
    let mut server = Server::any();
    let url = server.url();
    let mut member =
        Program::start(artel(), &["run", "--redis", &url, "--http", "0", "--lease", "2s"]);
    let port = port_of(&member);
    member.says("joined the fleet");
    // It says how long it took, to the nanosecond: the same again is the same answer.
    let ask = || get(port, "/gather_stats", "").2;
    eventually("the same answer twice", || ask() == ask());
    let first = ask();
    eventually("another answer later", || ask() != first);

    eventually("the books to be read", || get(port, "/api/v1/status", "").0 == 200);
    let connections = |server: &Server| -> u64 {
        let info: String =
            redis::cmd("INFO").arg("stats").query(&mut server.connect()).expect("answers");
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    };
    let before = connections(&server);
    for _ in 0..20 {
        assert_eq!(get(port, "/api/v1/status", "").0, 200);
    }
    assert_eq!(connections(&server), before + 1, "the one that counts them");

    server.kill();
    let redis_port = server.port().to_string();
    eventually("it to say so", || get(port, "/gather_stats", "").0 == 503);
    let (_, _, body) = get(port, "/gather_stats", "");
    assert!(json(&body)["error"].as_str().is_some_and(|why| why.contains("Redis")), "{body}");
    assert!(!body.contains(&redis_port) && !body.contains("127.0.0.1"), "{body}");
    assert!(!get(port, "/readyz", "").2.contains(&redis_port));
    member.kill();
}

/// Secrets come in files; a variable that is misspelt is not ignored silently.
#[test]
fn a_token_may_come_from_a_file() {
    let server = Server::any();
    let (url, dir) = (server.url(), tempfile::tempdir().expect("a folder"));
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef0123\n").expect("written");
    let path = file.display().to_string();
    let args = ["run", "--redis", &url, "--http", "0", "--http-token-file", &path];
    let mut command = clean_command(artel(), &args);
    command.env("ARTEL_HTTP_TOKN", "0123456789abcdef").stdin(std::process::Stdio::null());
    let mut member = Program::spawn(command);
    let port = port_of(&member);
    member.says("ARTEL_HTTP_TOKN is not read: did you mean ARTEL_HTTP_TOKEN?");
    member.says("joined the fleet");
    assert_eq!(get(port, "/gather_stats", "").0, 401);
    let bearer = "Authorization: Bearer 0123456789abcdef0123\r\n";
    assert_eq!(get(port, "/gather_stats", bearer).0, 200);
    assert_eq!(get_as(port, "/livez", "Host: anything\r\n").0, 200);
    member.terminate();
    assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
    for (text, token, words) in [
        ("short", None, "at least 16 bytes"),
        ("two words, and long enough", None, "at least 16 bytes"),
        ("0123456789abcdef0123", Some("0123456789abcdef"), "cannot be used together"),
    ] {
        std::fs::write(&file, text).expect("written");
        let mut command = clean_command(artel(), &args);
        command.stdin(std::process::Stdio::null());
        token.map(|token| command.env("ARTEL_HTTP_TOKEN", token));
        let mut member = Program::spawn(command);
        assert_eq!(member.exit_code(), Some(2), "{}", member.stderr());
        let screen = member.stderr();
        assert!(screen.contains(words) && screen.contains("hint: "), "{screen}");
        assert!(!screen.contains("0123456789abcdef"), "{screen}");
    }
}
