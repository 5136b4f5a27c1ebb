//! The private server, and a fleet in one terminal.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use artel_rig::{Kind, Program, clean_command, eventually, wait_for};
use tempfile::TempDir;

use crate::fleet::{artel, soak};

/// A data folder of its own, whose server is stopped at the end.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Home {
        Home { dir: tempfile::Builder::new().prefix("artel-up-").tempdir().expect("a dir") }
    }

    fn data(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("data/server.sock")
    }

    fn start(&self, args: &[&str]) -> Program {
        let data = self.data();
        let mut all = args.to_vec();
        all.extend(["--data-dir", &data]);
        let mut command = clean_command(artel(), &all);
        command.stdin(std::process::Stdio::null());
        // Not to be mistaken for the data folder of whoever runs the tests.
        command.env("XDG_DATA_HOME", self.dir.path());
        Program::spawn(command)
    }

    /// `kill -9` of its one server, and waits for its end.
    #[track_caller]
    fn kill_server(&self) {
        let servers = servers_on(&self.socket());
        assert_eq!(servers.len(), 1);
        let pid = nix::unistd::Pid::from_raw(servers[0] as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it is there");
        eventually("its end", || servers_on(&self.socket()).is_empty());
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let mut program = self.start(args);
        assert_eq!(program.exit_code(), Some(0), "{args:?}: {}", program.stderr());
        program.stdout()
    }

    fn status(&self) -> serde_json::Value {
        let mut program = self.start(&["status", "--json"]);
        program.exit_code();
        serde_json::from_str(&program.stdout()).unwrap_or_default()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.start(&["embedded", "stop"]).exit_code();
    }
}

/// Servers on this socket.
fn servers_on(socket: &Path) -> Vec<u32> {
    processes_of(socket, "-server")
}

/// Processes whose command line names this path, and this word. A zombie has none.
fn processes_of(path: &Path, word: &str) -> Vec<u32> {
    let name = path.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("a list").flatten() {
        let pid = entry.file_name().to_string_lossy().parse::<u32>();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Ok(pid) = pid
            && String::from_utf8_lossy(&line).contains(&name)
            && String::from_utf8_lossy(&line).contains(word)
        {
            found.push(pid);
        }
    }
    found
}

fn localhost_answers() -> bool {
    std::net::TcpStream::connect("127.0.0.1:6379").is_ok()
}

/// Two programs start at the same instant with nothing configured: one server, one fleet, one
/// generator.
#[test]
fn two_starters_make_one_server() {
    if localhost_answers() {
        return println!("a Redis on localhost comes first here: nothing to prove");
    }
    let rounds = if soak() { 200 } else { 20 };
    for round in 0..rounds {
        let home = Home::new();
        let mut members = [home.start(&["run"]), home.start(&["run"])];
        for member in &members {
            member.says("joined the fleet");
        }
        let started =
            members.iter().filter(|member| member.stderr().contains("started the private server"));
        assert_eq!(started.count(), 1, "round {round}");
        assert_eq!(servers_on(&home.socket()).len(), 1, "round {round}: servers");
        let status = wait_for("a generator", || {
            Some(home.status()).filter(|status| !status["generator"].is_null())
        });
        let members_there = status["members"].as_array().expect("a list");
        assert_eq!(members_there.len(), 2, "round {round}: {status}");
        let generators = members_there.iter().filter(|member| member["role"] == "generator");
        assert_eq!(generators.count(), 1, "round {round}");
        for member in &mut members {
            member.terminate();
            assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        }
        home.run(&["embedded", "stop"]);
        eventually("the server to be gone", || servers_on(&home.socket()).is_empty());
    }
}

/// A private server with a message, whose starter was killed.
fn left_alone() -> Option<Home> {
    if localhost_answers() {
        println!("a Redis on localhost comes first here: nothing to prove");
        return None;
    }
    let home = Home::new();
    let mut first = home.start(&["run"]);
    first.says("joined the fleet");
    home.run(&["send", "kept"]);
    first.kill();
    Some(home)
}

/// A kill can tear the file a server writes; half a script in it must never be carried out.
#[test]
fn a_torn_file_of_the_private_server_is_written_anew() {
    let Some(home) = left_alone() else { return };
    home.kill_server();
    let data = home.dir.path().join("data");
    let files = std::fs::read_dir(data.join("appendonlydir")).expect("its files").flatten();
    let mut files = files.map(|file| file.path());
    let file = files.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("its file");
    let bytes = std::fs::read(&file).expect("its file");
    std::fs::write(&file, &bytes[..bytes.len() - 3]).expect("torn");
    let mut second = home.start(&["run"]);
    second.says("joined the fleet");
    let log = std::fs::read_to_string(data.join("server.log")).expect("its log");
    let torn = log.find("Truncating the AOF").expect("it was torn");
    assert!(log[torn..].contains("Background AOF rewrite finished"), "{}", &log[torn..]);
    second.terminate();
    assert_eq!(second.exit_code(), Some(0), "{}", second.stderr());
}

/// The server outlives whoever started it, and the next one adopts it, data and all.
#[test]
fn a_private_server_is_adopted() {
    let Some(home) = left_alone() else { return };
    let second = home.start(&["run"]);
    second.says("using the private server");
    second.says("joined the fleet");
    // A lock file that nobody holds and a killed server's socket are no obstacles.
    drop(second);
    home.kill_server();
    std::fs::write(home.dir.path().join("data/lock"), "").expect("writes");
    assert!(home.socket().exists(), "a killed server leaves its socket");
    let third = home.start(&["run"]);
    third.says("started the private server");
    third.says("joined the fleet");
    let status = home.status();
    assert_eq!(status["messages"]["sent"], 1, "what was sent is still there: {status}");
}

/// A frozen server is not replaced: a second one would split the fleet.
#[test]
fn a_frozen_private_server_is_not_replaced() {
    let home = Home::new();
    let mut up = home.start(&["up", "-n", "1", "--for", "60s"]);
    up.says("this process leads");
    up.kill();
    let server = servers_on(&home.socket());
    let pid = nix::unistd::Pid::from_raw(server[0] as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("it is there");
    let waiting = home.start(&["up", "-n", "1"]);
    std::thread::sleep(std::time::Duration::from_secs(2)); // the freeze itself
    assert_eq!(servers_on(&home.socket()).len(), 1);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("it is there");
    waiting.says("found running");
}

/// Somebody removed the socket of a running server: it is ended before another one opens its data.
#[test]
fn a_server_without_its_socket_is_not_doubled() {
    let home = Home::new();
    let first = home.start(&["up", "-n", "2", "--interval", "50ms"]);
    first.says("this process leads");
    wait_for("both of its members", || {
        home.status()["members"].as_array().filter(|members| members.len() == 2).map(|_| ())
    });
    let old = servers_on(&home.socket());
    std::fs::remove_file(home.socket()).expect("it is there");
    let second = home.start(&["up", "-n", "1", "--for", "60s"]);
    second.says("1 member on a private server");
    second.says("joined the fleet");
    let new = servers_on(&home.socket());
    assert_eq!(new.len(), 1, "one server");
    assert_ne!(new, old, "another one, with the same data");
    let mut status = serde_json::Value::Null;
    let start = std::time::Instant::now();
    while status["members"].as_array().is_none_or(|members| members.len() != 3) {
        status = home.status();
        let said = || format!("{status}\n{}\n{}", first.stderr(), second.stderr());
        assert!(start.elapsed() < artel_rig::DEADLINE, "one fleet of three: {}", said());
    }
    let members = status["members"].as_array().expect("a list");
    assert_eq!(members.iter().filter(|member| member["role"] == "generator").count(), 1);
    assert_eq!(status["messages"]["balance"], 0);
}

/// The starter is killed while its server is still coming up: the next one waits for that server.
#[test]
fn a_server_that_is_still_starting_is_not_doubled() {
    let home = Home::new();
    let kinds = [Kind::Redis, Kind::Valkey];
    let real = kinds.into_iter().find_map(Kind::program).expect("a server");
    let slow = home.dir.path().join("slow-server");
    let script = format!("#!/bin/sh\nsleep 1\nexec {} \"$@\"\n", real.display());
    std::fs::write(&slow, script).expect("writes");
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).expect("sets");
    let args = ["up", "-n", "1", "--server", &slow.display().to_string()];
    let mut first = home.start(&args);
    eventually("it to be starting", || !processes_of(&home.socket(), "slow-server").is_empty());
    first.kill();
    let second = home.start(&args);
    second.says("joined the fleet");
    assert_eq!(servers_on(&home.socket()).len(), 1);
}

/// Told to stop while it starts, at whatever moment: nothing stays.
#[test]
fn up_that_is_stopped_at_once_leaves_nothing_behind() {
    for delay_ms in [0, 5, 10, 20, 30, 40, 60, 80] {
        let home = Home::new();
        let mut up = home.start(&["up", "-n", "2"]);
        std::thread::sleep(std::time::Duration::from_millis(delay_ms)); // the moment itself
        up.terminate();
        up.exit_code();
        eventually("no process to be left", || {
            processes_of(Path::new(&home.data()), "").is_empty()
        });
        assert!(!home.socket().exists(), "after {delay_ms} ms");
        assert!(!home.dir.path().join("data/lock").exists(), "after {delay_ms} ms");
    }
}

/// The private server is killed like everything else: it comes back with its data, and so do all.
#[test]
fn up_starts_its_server_again() {
    let home = Home::new();
    let args =
        ["up", "-n", "2", "--interval", "20ms", "--snapshot-every", "200ms", "--lease", "2s"];
    let mut up = home.start(&args);
    up.says("this process leads");
    let generated = || home.status()["messages"]["generated"].as_u64().unwrap_or(0);
    eventually("some messages", || generated() > 20);
    kill(servers_on(&home.socket())[0]);
    up.says("the private server was gone: started again, with its data");
    let before = wait_for("its data", || Some(generated()).filter(|count| *count > 0));
    eventually("more messages", || generated() > before + 20);
    up.signal_interrupt();
    assert_eq!(up.exit_code(), Some(0), "{}", up.stderr());
    assert!(up.stdout().contains("balance 0"), "{}", up.stdout());
}

/// Just jobs in one terminal: what is sent is seen to be done or to fail, by whom and why; of very many only some
/// are shown, and the others are counted.
#[test]
fn up_shows_what_became_of_what_was_sent() {
    let home = Home::new();
    let handler = "read -r x; if [ \"$x\" = bad ]; then echo no customer >&2; exit 1; fi";
    let args = ["up", "-n", "2", "--snapshot-every", "1s", "--handler", handler];
    let up = home.start(&args);
    up.says("a --handler and no --generator: nobody leads, all work on what is sent");
    eventually("both to join", || up.stderr().matches("joined the fleet").count() == 2);
    let ids = home.run(&["send", "fine", "bad"]);
    let ids: Vec<&str> = ids.lines().collect();
    let done = up.says(&format!("message done  attempt=1  id={}", ids[0]));
    assert!(done.contains("worker") && done.contains("took="), "{done}");
    let failed = up.says("warn: message failed");
    assert!(failed.contains(ids[1]) && failed.contains("exit code 1: no customer"), "{failed}");
    let many: Vec<String> = (0..300).map(|n| format!("fine {n}")).collect();
    let mut args = vec!["send"];
    args.extend(many.iter().map(String::as_str));
    home.run(&args);
    up.says("more sent messages are done");
}

/// The second Ctrl-C ends everything at once, handlers included.
#[test]
fn a_second_signal_ends_handlers_too() {
    let home = Home::new();
    let seconds = 60_000 + std::process::id() % 1000;
    let handler = format!("sleep {seconds}");
    let generator = ["--generator", "echo x", "--interval", "50ms"];
    let args = [&["up", "-n", "2", "--handler", &handler][..], &generator].concat();
    let mut up = home.start(&args);
    up.says("this process leads");
    let sleepers = || {
        let line = format!("sleep\0{seconds}\0");
        std::fs::read_dir("/proc")
            .expect("a list")
            .flatten()
            .filter(|entry| {
                std::fs::read(entry.path().join("cmdline"))
                    .is_ok_and(|found| found.ends_with(line.as_bytes()))
            })
            .count()
    };
    eventually("handlers at work", || sleepers() > 0);
    up.signal_interrupt();
    up.says("stopping: members finish what they started");
    let code = up.insist(nix::sys::signal::Signal::SIGINT);
    assert_eq!(code, Some(130), "{}", up.stderr());
    eventually("no handler to be left", || sleepers() == 0);
    assert!(!home.socket().exists());
}

/// Quiet is quiet, and still says whom to kill and what came of it. What is configured elsewhere does
/// not reach the members.
#[test]
fn up_needs_nothing_from_its_surroundings() {
    let home = Home::new();
    let mut command = clean_command(
        artel(),
        &["up", "-q", "-n", "3", "--interval", "50ms", "--data-dir", &home.data()],
    );
    let elsewhere = [
        ("ARTEL_TLS_CA", "/nonexistent.pem"),
        ("ARTEL_REDIS_URL", "redis://127.0.0.1:1"),
        ("ARTEL_LABEL", "elsewhere"),
        ("ARTEL_LOG", "error"),
        ("ARTEL_FOR", "1h"),
    ];
    command.envs(elsewhere).stdin(std::process::Stdio::null());
    let mut up = Program::spawn(command);
    let line = up.says("See what happens: kill -9");
    assert!(up.says("In another terminal").contains(" --redis unix:/"));
    let generator: u32 = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
    kill(generator);
    let answer = up.says(&format!("generator {generator} died → "));
    assert!(answer.contains("0 lost · 0 doubled"), "{answer}");
    assert!(!up.stderr().contains("joined the fleet"));
    up.terminate();
    assert_eq!(up.exit_code(), Some(0), "{}", up.stderr());
}

/// `kill -9` the generator, then a worker at work: `up` says what it came to. Ctrl-C ends it all.
#[test]
fn up_answers_a_kill_and_leaves_nothing_behind() {
    let home = Home::new();
    let args = [
        "up",
        "-n",
        "4",
        "--interval",
        "20ms",
        "--work-time",
        "200ms",
        "--lease",
        "2s",
        "--concurrency",
        "2",
    ];
    let mut up = home.start(&args);
    let line = up.says("See what happens: kill -9");
    let generator: u32 = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
    kill(generator);
    let answer = up.says(&format!("generator {generator} died"));
    println!("{answer}");
    let words = answer.split_once("died → ").expect("an answer").1;
    let successor: u32 = words.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
    assert!(words.contains(" leads after ") && words.contains(" ms · 0 lost · 0 doubled · "));
    let worker = wait_for("a worker with messages in hand", || {
        let status = home.status();
        let busy = |member: &&serde_json::Value| {
            member["role"] == "worker" && member["in_flight"].as_u64() > Some(0)
        };
        let worker = status["members"].as_array()?.iter().find(busy)?;
        worker["pid"].as_u64().map(|pid| pid as u32)
    });
    kill(worker);
    let answer = up.says(&format!("worker {worker} died"));
    println!("{answer}");
    assert!(answer.contains("died · 0 lost · 0 doubled · "), "{answer}");
    assert!(!answer.contains(" 0 handed on"), "it had messages in hand: {answer}");
    up.signal_interrupt();
    assert_eq!(up.exit_code(), Some(0), "{}", up.stderr());
    assert!(up.stdout().starts_with("in ") && up.stdout().contains("balance 0"), "{}", up.stdout());
    for pid in [generator, successor, worker] {
        assert!(!is_running(pid));
    }
    eventually("no process to be left", || processes_of(Path::new(&home.data()), "").is_empty());
    assert!(!home.socket().exists() && !home.dir.path().join("data/lock").exists());
}

/// `up` itself is killed: its members notice and leave.
#[test]
fn members_leave_when_up_is_killed() {
    let home = Home::new();
    let mut up = home.start(&["up", "-n", "3", "--interval", "20ms"]);
    up.says("this process leads");
    let status = wait_for("three members", || {
        Some(home.status()).filter(|s| s["members"].as_array().is_some_and(|m| m.len() == 3))
    });
    let pids: Vec<u32> = status["members"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|member| member["pid"].as_u64().map(|pid| pid as u32))
        .collect();
    up.kill();
    eventually("them to be gone", || pids.iter().all(|pid| !is_running(*pid)));
    let status = home.status();
    assert_eq!(status["members"].as_array().map(Vec::len), Some(0), "they left: {status}");
    assert_eq!(status["messages"]["balance"], 0);
}

#[test]
fn up_ends_by_itself_and_prints_the_books() {
    let home = Home::new();
    let mut first = home.start(&["up", "-n", "2", "--for", "2s", "--interval", "50ms"]);
    assert_eq!(first.exit_code(), Some(0), "{}", first.stderr());
    // Where its members have their settings from is nobody's business.
    assert!(!first.stderr().contains("settings are read"), "{}", first.stderr());
    let stdout = first.stdout();
    let generated: u64 = stdout
        .split("generated ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert!(generated > 0 && stdout.contains("balance 0"), "{stdout}");
    assert!(!home.socket().exists());
    // The fleet goes on where it was.
    let again = home.run(&["up", "-n", "2", "--for", "1s", "--interval", "50ms"]);
    assert!(again.contains("the fleet in all: generated "), "{again}");
}

fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(pid as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it is there");
}

fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
