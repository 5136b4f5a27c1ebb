//! The page in a real browser: `walk.mjs` looks and types, this side starts, kills and counts.
//!
//! It needs Chromium and Node, and what `./dev` installs from npm: `ARTEL_BROWSER` names the folder, `ARTEL_CHROMIUM` the
//! browser. In CI they must be there.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use artel_rig::{Program, Server, eventually, soak, wait_for};
use serde_json::{Value, json};

const FLEET: &str = "orders";

fn artel() -> &'static str {
    env!("CARGO_BIN_EXE_artel")
}

/// A fleet, and a process that serves its page.
struct Stage {
    server: Server,
    members: Vec<Program>,
    serve: Option<Program>,
    /// The same port again and again.
    port: u16,
    options: Vec<String>,
}

impl Stage {
    fn start(members: &[&[&str]], serve: &[&str]) -> Stage {
        let server = Server::any();
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let options = serve.iter().map(|option| (*option).to_owned()).collect();
        let mut stage = Stage { server, members: Vec::new(), serve: None, port, options };
        for args in members {
            let mut all = args.to_vec();
            let url = stage.server.url();
            all.extend(["--redis", &url, "--fleet", FLEET]);
            let member = Program::start(artel(), &all);
            member.says("joined the fleet");
            stage.members.push(member);
        }
        stage.serve();
        stage
    }

    fn serve(&mut self) {
        let (url, port) = (self.server.url(), self.port.to_string());
        let mut args = vec!["serve", "--redis", &url, "--fleet", FLEET, "--http", &port];
        args.extend(self.options.iter().map(String::as_str));
        let serve = Program::start(artel(), &args);
        serve.says("the page is at");
        self.serve = Some(serve);
    }

    /// Runs a command of the program on this fleet.
    fn run(&self, args: &[&str]) -> String {
        let url = self.server.url();
        let mut all = args.to_vec();
        all.extend(["--redis", &url, "--fleet", FLEET]);
        let mut program = Program::start(artel(), &all);
        assert_eq!(program.exit_code(), Some(0), "{args:?}: {}", program.stderr());
        program.stdout()
    }

    fn status(&self) -> Value {
        // It also reports a fleet in trouble, with another exit code.
        let url = self.server.url();
        let mut program =
            Program::start(artel(), &["status", "--json", "--redis", &url, "--fleet", FLEET]);
        program.exit_code();
        serde_json::from_str(&program.stdout()).unwrap_or_else(|_| panic!("{}", program.stderr()))
    }

    /// The ids of the common log, as Redis has them.
    fn log_ids(&self) -> Vec<String> {
        let key = format!("artel:{{{FLEET}}}:notices");
        let entries: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
            .arg(key)
            .arg("-")
            .arg("+")
            .query(&mut self.server.connect())
            .expect("answers");
        entries.ids.into_iter().map(|entry| entry.id).collect()
    }

    fn act(&mut self, what: &str) -> Value {
        match what {
            "kill-generator" => {
                let status = wait_for("a generator", || {
                    let status = self.status();
                    status["generator"].is_object().then_some(status)
                });
                let leader = &status["generator"]["member"];
                let members = status["members"].as_array().expect("members").iter();
                let pid =
                    members.filter(|one| one["id"] == *leader).find_map(|one| one["pid"].as_u64());
                let killed = self.members.iter_mut().find(|one| Some(u64::from(one.id())) == pid);
                killed.expect("one of ours").kill();
            }
            "kill-serve" => self.serve.take().expect("it runs").kill(),
            "start-serve" => self.serve(),
            "orders" => {
                for _ in 0..3 {
                    self.run(&["pause", "--lane", "low"]);
                    self.run(&["resume", "--lane", "low"]);
                }
            }
            "log-ids" => return json!({ "ids": self.log_ids() }),
            "stop-redis" => self.server.kill(),
            "start-redis" => self.server.restart(),
            "stored" => return json!({ "count": self.status()["errors"]["stored"] }),
            "done" => return json!({ "done": self.ended() }),
            "minutes" => return json!({ "minutes": if soak() { 10.0 } else { 0.1 } }),
            "paused" => return json!({ "paused": self.status()["paused"] }),
            "other-site" => return json!({ "evil": other_site() }),
            other => panic!("nobody can {other}"),
        }
        json!({})
    }

    /// How many messages have an outcome.
    fn ended(&self) -> u64 {
        let status = self.status();
        let count = |name: &str| status["messages"][name].as_u64().unwrap_or(0);
        count("done") + count("failed")
    }

    /// Has the browser walk, and does what it asks for.
    fn walk(&mut self, scenario: &str) {
        let Some((modules, chromium)) = browser() else { return };
        let walk = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/walk.mjs");
        let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
        let mut node = Command::new("node")
            .args([walk, scenario, &format!("http://localhost:{}/", self.port)])
            .arg(&pictures)
            .env("ARTEL_BROWSER", modules)
            .env("ARTEL_CHROMIUM", chromium)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is there");
        let mut answers = node.stdin.take().expect("piped");
        let mut verdict = String::new();
        for line in BufReader::new(node.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            match line.strip_prefix("DO ") {
                Some(what) => {
                    let answer = self.act(what);
                    writeln!(answers, "{answer}").expect("it waits for it");
                }
                None => {
                    println!("{scenario}: {line}");
                    verdict = verdict + &line + "\n";
                }
            }
        }
        node.wait().expect("it ends");
        assert!(verdict.lines().last() == Some("DONE"), "{scenario}: {verdict}");
    }

    fn end(mut self) {
        for member in self.members.iter_mut().chain(&mut self.serve) {
            member.kill();
        }
    }
}

/// Where the browser and what drives it are. Without them a test says that it has seen nothing.
fn browser() -> Option<(PathBuf, PathBuf)> {
    let there = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.exists());
    let found = there("ARTEL_BROWSER").zip(there("ARTEL_CHROMIUM"));
    if found.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "in CI there must be a browser: ./dev installs it"
        );
        println!("no browser: the page was not looked at; `./dev test` installs one");
    }
    found
}

/// A page of another site, on another port.
fn other_site() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = greet(stream);
        }
    });
    format!("http://{address}/")
}

fn greet(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    let _ = stream.read(&mut bytes)?;
    let page = "<!doctype html><title>another site</title>";
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{page}",
        page.len()
    )
}

const RUN: &[&str] = &["run", "--interval", "50ms", "--work-time", "5ms"];

#[test]
fn the_page_follows_the_fleet_without_being_loaded_again() {
    let labels = ["web-1", "web-2", "web-3"]
        .map(|label| [RUN, &["--label", label, "--error-rate", "0.1"]].concat());
    let mut stage = Stage::start(&labels.each_ref().map(Vec::as_slice), &[]);
    stage.walk("live");
    stage.end();
}

/// A worker that fails everything.
const FAILS: &[&str] = &["work", "--label", "one", "--error-rate", "1"];

/// Some that failed; among them markup, and a large one.
fn with_errors() -> Stage {
    let stage = Stage::start(&[FAILS], &[]);
    let dir = tempfile::tempdir().expect("a folder");
    let large = dir.path().join("large");
    std::fs::write(&large, format!("large {}", "x".repeat((1 << 20) - 6))).expect("written");
    stage.run(&["send", "--file", &large.display().to_string()]);
    for text in ["order 1", "order 2", "try it again", "<img src=x onerror=alert(1)>", "order 5"] {
        stage.run(&["send", text]);
    }
    eventually("all to fail", || stage.status()["errors"]["stored"] == 6);
    stage
}

#[test]
fn what_is_taken_is_what_was_shown() {
    let mut stage = with_errors();
    stage.walk("errors");
    stage.end();
}

#[test]
fn the_whole_walk_by_keyboard_alone() {
    let mut stage = with_errors();
    stage.walk("keyboard");
    stage.end();
}

#[test]
fn a_reader_changes_nothing_and_is_shown_nothing_to_change() {
    let mut stage = Stage::start(&[&[RUN, &["--label", "web-1"]].concat()], &["--http-read-only"]);
    stage.run(&["send", "--in", "1h", "later"]);
    stage.run(&["cron", "set", "nightly", "0 2 * * *", "all"]);
    stage.walk("reader");
    stage.end();
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let mut stage = Stage::start(&[FAILS], &[]);
    stage.walk("foreign");
    stage.end();
}

#[test]
fn a_tab_that_stays_open_does_not_grow() {
    let labels = ["web-1", "web-2", "web-3"].map(|label| [RUN, &["--label", label]].concat());
    let mut stage = Stage::start(&labels.each_ref().map(Vec::as_slice), &[]);
    stage.walk("memory");
    stage.end();
}

#[test]
fn every_view_is_for_everyone() {
    let labels = ["web-1", "web-2", "web-3", "web-4"]
        .map(|label| [RUN, &["--label", label, "--error-rate", "0.1"]].concat());
    let mut stage = Stage::start(&labels.each_ref().map(Vec::as_slice), &[]);
    stage.run(&["pause", "--lane", "low"]);
    for number in 0..30 {
        stage.run(&[
            "send",
            "--lane",
            "low",
            &format!("{{\"order\":{number},\"customer\":\"Ångström & <sons>\"}}"),
        ]);
        if number % 5 == 0 {
            stage.run(&[
                "send",
                "--in",
                "1h",
                "--kind",
                "mail",
                &format!("remind customer {number}"),
            ]);
        }
    }
    stage.run(&["cron", "set", "nightly", "0 2 * * *", "report", "--tz", "Europe/Berlin"]);
    stage.run(&["cron", "set", "beat", "every 90s", "beat"]);
    stage.run(&["event", "set", "open"]);
    stage.act("kill-generator");
    eventually("another generator", || stage.status()["generator"].is_object());
    eventually("some to fail", || stage.status()["errors"]["stored"].as_u64() >= Some(5));
    stage.walk("looks");
    stage.end();
}
