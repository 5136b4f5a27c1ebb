//! The documented keys and channels are enough: other programs set, clear and wait.

use std::path::PathBuf;
use std::process::Command;

use artel_rig::{Program, Server, eventually};

use crate::{FLEET, actor, key, said};

/// `redis-cli` comes with the server; `./dev test` installs both.
fn redis_cli(server: &Server, commands: &str) -> String {
    let port = server.port().to_string();
    let mut cli = Command::new("redis-cli");
    cli.args(["-p", &port]).stdin(std::process::Stdio::piped());
    cli.stdout(std::process::Stdio::piped());
    let mut child = cli.spawn().expect("redis-cli is there: `./dev test` installs it");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), commands.as_bytes())
        .expect("reads");
    let output = child.wait_with_output().expect("ends");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The commands of the documentation, for another event.
fn documented(event: &str) -> String {
    let text = include_str!("../../src/sync/event.rs");
    let start = text.find("/// MULTI").expect("documented");
    let block = text[start..].split("/// ```").next().expect("a block");
    block
        .replace("///", "")
        .replace("artel:{shop}:event:new-prices", event)
        .replace("artel:{shop}:@0:event:new-prices", &event.replace(":event:", ":@0:event:"))
}

#[test]
fn what_the_documentation_says_wakes_a_waiter() {
    let server = Server::any();
    let mut waits = actor(&["wait", &server.url(), "1"]);
    said(&waits, "waiting", 1);
    let answer = redis_cli(&server, &documented(&key("event:pulse")));
    assert!(answer.starts_with("OK\nQUEUED"), "{answer}");
    said(&waits, "woken 0", 1);
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
}

/// A program in Python, with its usual client.
fn python(server: &Server, what: &str) -> Program {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/languages/event.py");
    artel_rig::python(script, &[what, &server.url(), FLEET, "pulse"])
}

#[test]
fn python_sets_what_rust_waits_for_and_waits_for_what_rust_sets() {
    let server = Server::any();
    let mut waits = actor(&["wait", &server.url(), "1"]);
    said(&waits, "waiting", 1);
    let mut sets = python(&server, "set");
    assert_eq!(sets.exit_code(), Some(0), "{}", sets.stderr());
    said(&waits, "woken 0", 1);
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());

    let mut clears = python(&server, "clear");
    assert_eq!(clears.exit_code(), Some(0), "{}", clears.stderr());
    let mut waits = python(&server, "wait");
    eventually("Python to wait", || waits.stdout().contains("waiting") || !waits.is_alive());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let redis = artel::Fleet::open(server.url(), FLEET).expect("an address");
        let event = redis.event("pulse").expect("a name");
        event.set().await.expect("sets");
        event.clear().await.expect("clears: it was a pulse");
    });
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
    assert_eq!(waits.stdout(), "waiting\nset\n");
}

/// The class for asyncio: three tasks wait, Rust sets, and hears that they went on.
#[test]
fn tasks_in_python_wait_for_what_rust_sets_and_set_what_rust_waits_for() {
    let mut server = Server::any();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let script = script.join("examples/languages/asyncio_events.py");
    let mut tasks = artel_rig::python(script, &[&server.url(), FLEET, "work"]);
    eventually("Python to wait", || tasks.stdout().contains("waiting") || !tasks.is_alive());
    // Redis goes and comes back under it.
    server.kill();
    server.restart();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let redis = artel::Fleet::open(server.url(), FLEET).expect("an address");
        let event = |name: &str| redis.event(name).expect("a name");
        event("work").set().await.expect("sets");
        let done = event("work-done").wait_timeout(artel_rig::DEADLINE).await.expect("answers");
        assert!(done, "{}", tasks.stderr());
        assert!(!event("work").is_set().await.expect("answers"), "cleared by Python");
    });
    assert_eq!(tasks.exit_code(), Some(0), "{}", tasks.stderr());
    let mut lines: Vec<String> = tasks.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task 0 goes on", "task 1 goes on", "task 2 goes on", "waiting"]);
}
