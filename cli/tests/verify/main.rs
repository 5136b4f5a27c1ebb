//! Proves `artel verify`: it breaks a real fleet and finds its promises kept, says what it cannot
//! prove, and leaves nothing behind.
#![allow(missing_docs, clippy::print_stdout)]

#[cfg(feature = "mutants")]
mod job_rules;
#[cfg(feature = "mutants")]
mod mutants; // the checker is checked
mod rules;

use std::path::{Path, PathBuf};

use artel_rig::{Kind, Program, Server, clean_command, eventually, wait_for};
use serde_json::Value;

const ARTEL: &str = env!("CARGO_BIN_EXE_artel");

fn start(args: &[&str]) -> Program {
    Program::start(ARTEL, &[&["verify"], args].concat())
}

/// Runs it to its end. Its exit code, and what it wrote to the report.
fn verify(kind: Kind, args: &[&str]) -> (Option<i32>, Value, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let report = dir.path().join("report.json");
    let server = kind.program().expect("a server").display().to_string();
    let mut all = vec!["verify", "--server", &server, "--report", report.to_str().expect("text")];
    all.extend(args);
    let mut command = clean_command(ARTEL, &all);
    // Temporary folders of this run only, so that what is left behind is seen.
    command.env("TMPDIR", dir.path()).stdin(std::process::Stdio::null());
    let output = command.output().expect("it runs");
    let text = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said)).concat();
    println!("{text}");
    let json = std::fs::read(&report).expect("a report");
    if output.status.code() == Some(0) {
        std::fs::remove_file(&report).expect("removed");
        assert_eq!(dir.path().read_dir().expect("a folder").count(), 0, "something is left");
    }
    (output.status.code(), serde_json::from_slice(&json).unwrap_or_default(), text)
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// Runs it for the first of these times; on a machine so busy that it did not come to what must be seen, for the
/// next one. No run may find anything broken.
fn until_seen(
    kind: Kind,
    times: &[&str],
    args: &[&str],
    seen: impl Fn(&Value) -> bool,
) -> (Value, String) {
    for time in times {
        let (code, report, text) = verify(kind, &[&["--for", time], args].concat());
        assert_eq!(report["violations"], Value::Array(Vec::new()), "{text}");
        assert_eq!(code, Some(0), "{text}");
        if seen(&report) {
            return (report, text);
        }
    }
    panic!("not even the longest run came to it: see the reports above");
}

/// Short, or an hour.
fn keeps_its_promises(kind: Kind, seed: &str) {
    let hour = artel_rig::soak() && (kind == Kind::Redis || Kind::Redis.program().is_none());
    let times: &[&str] = match artel_rig::soak() {
        true if hour => &["61m"],
        true => &["10m"],
        false => &["30s", "60s", "120s"],
    };
    let seen = |report: &Value| {
        let number = |path: &str| number(report, path);
        let killed = |more: &str| number(&format!("/outages/generator killed{more}/times"));
        ["kill-generator", "kill-worker", "freeze-long", "redis-kill"]
            .iter()
            .all(|kind| number(&format!("/faults/{kind}")) > 0)
            && number("/seen/settled") > 1000
            && number("/seen/terms") > 1
            && killed("") + killed(", and more") > 0
            && number("/seen/woken") > 0
    };
    let (report, text) = until_seen(kind, times, &["--seed", seed, "--rate", "700/s"], seen);
    assert_eq!(number(&report, "/seen/accepted"), number(&report, "/seen/settled"), "{text}");
    let kill = |whom: &str| number(&report, &format!("/faults/kill-{whom}"));
    if hour {
        // On a machine where no clock can be set the rest is proved.
        let untried = report["untried"].as_array().into_iter().flatten();
        let untried = untried.filter(|what| !what.to_string().contains("libfaketime"));
        assert_eq!(untried.count(), 0, "{text}");
        let network =
            ["cut", "one-way-out", "one-way-in", "half-open", "delay", "jitter", "slow", "reset"];
        let faults = |name: &&str| number(&report, &format!("/faults/{name}"));
        assert!(network.iter().map(faults).sum::<u64>() >= 600, "{text}");
        assert!(kill("generator") + kill("worker") + kill("taker") >= 3000, "{text}");
        assert!(kill("generator") >= 600, "{text}");
        assert!(number(&report, "/faults/freeze-long") >= 600, "{text}");
        assert!(number(&report, "/faults/redis-kill") >= 150, "{text}");
        assert!(number(&report, "/seen/settled") >= 1_000_000, "{text}");
    }
}

#[test]
fn a_broken_fleet_on_redis_keeps_its_promises() {
    if Kind::Redis.program().is_some() {
        keeps_its_promises(Kind::Redis, "1");
    }
}

#[test]
fn a_broken_fleet_on_valkey_keeps_its_promises() {
    if Kind::Valkey.program().is_some() {
        keeps_its_promises(Kind::Valkey, "2");
    }
}

/// Servers that replace one another: nothing that anybody was told is lost, whichever of them takes over.
fn keeps_its_promises_on(topology: &str, kind: Kind) {
    let time = if artel_rig::soak() { "1h" } else { "25s" };
    let args = ["--topology", topology, "--for", time, "--members", "4", "--rate", "300/s"];
    let (code, report, text) = verify(kind, &args);
    assert_eq!(report["violations"], Value::Array(Vec::new()), "{text}");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(report["topology"], topology, "{text}");
    for fault in ["failover", "failover-planned", "primary-cut", "replica-cut", "promote-behind"] {
        assert!(number(&report, &format!("/faults/{fault}")) > 0, "{fault}: {text}");
    }
    assert!(number(&report, "/seen/settled") > 500, "{text}");
}

#[test]
fn with_sentinels_nothing_that_was_told_is_lost() {
    let kinds = [Kind::Redis, Kind::Valkey].into_iter().filter(|kind| kind.program().is_some());
    kinds
        .take(if artel_rig::soak() { 2 } else { 1 })
        .for_each(|kind| keeps_its_promises_on("sentinel", kind));
}

#[test]
fn in_a_cluster_nothing_that_was_told_is_lost() {
    let kinds = [Kind::Valkey, Kind::Redis].into_iter().filter(|kind| kind.program().is_some());
    kinds
        .take(if artel_rig::soak() { 2 } else { 1 })
        .for_each(|kind| keeps_its_promises_on("cluster", kind));
}

/// Nobody waits for replicas: what was told may be lost, and all of it is named.
fn names_what_it_loses(topology: &str, kind: Kind) {
    let times: &[&str] = if artel_rig::soak() { &["15m"] } else { &["25s", "60s", "120s"] };
    let args =
        ["--topology", topology, "--durability", "local", "--members", "4", "--rate", "300/s"];
    let (report, text) =
        until_seen(kind, times, &args, |report| number(report, "/seen/told_and_lost") > 0);
    assert!(number(&report, "/seen/named") >= number(&report, "/seen/told_and_lost"), "{text}");
    assert!(report["followed"]["times"].as_u64() > Some(0), "{text}");
}

#[test]
fn with_sentinels_what_is_lost_is_named() {
    names_what_it_loses("sentinel", any());
}

#[test]
fn in_a_cluster_what_is_lost_is_named() {
    if artel_rig::soak() {
        names_what_it_loses("cluster", any());
    }
}

fn any() -> Kind {
    if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey }
}

/// A sender, or a member, that does not name what is lost is found out.
#[cfg(feature = "mutants")]
#[test]
fn a_loss_that_nobody_names_is_found() {
    let steps =
        "heartbeat\u{1f}forgotten = math.max(tonumber(ARGV[9]) - kept, 0)\u{1f}forgotten = 0";
    for rule in ["SendersSpeak", steps] {
        let dir = tempfile::tempdir().expect("a folder");
        let (report, keep) = (dir.path().join("report.json"), dir.path().join("history"));
        let (program, found) = (any().program().expect("a server"), "no-loss-unnamed");
        let is_found = |seed: u64| {
            let mut command = clean_command(ARTEL, &["verify", "--topology", "sentinel"]);
            command.args([
                "--durability",
                "local",
                "--for",
                "40s",
                "--members",
                "4",
                "--rate",
                "300/s",
            ]);
            command
                .args(["--faults", "promote-behind", "--seed", &seed.to_string(), "--server"])
                .arg(&program);
            command.arg("--report").arg(&report).arg("--keep").arg(keep.join(seed.to_string()));
            command.env("MUTANT_OF_ARTEL", rule).stdin(std::process::Stdio::null());
            let output = command.output().expect("it runs");
            println!("{}", String::from_utf8_lossy(&output.stdout));
            std::fs::read_to_string(&report).expect("a report").contains(found)
        };
        assert!((1..5).any(is_found), "{rule} is not needed");
    }
}

/// What is well is found to be well, however often one looks.
#[test]
fn there_is_no_false_alarm() {
    let (runs, time) = if artel_rig::soak() { (20, "30s") } else { (2, "5s") };
    let kinds: Vec<Kind> =
        [Kind::Redis, Kind::Valkey].into_iter().filter(|kind| kind.program().is_some()).collect();
    for (run, kind) in (0..runs).zip(kinds.into_iter().cycle()) {
        let (code, report, text) =
            verify(kind, &["--for", time, "--seed", &(100 + run).to_string()]);
        assert_eq!((code, &report["violations"]), (Some(0), &Value::Array(Vec::new())), "{text}");
    }
}

/// Sessions, terms and waits go by no wall clock, and bear it when that of Redis is set.
#[test]
fn wall_clocks_may_be_wrong() {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let args = ["--seed", "3", "--faults", "clock", "--members", "3"];
    let (code, _, text) = verify(kind, &[&["--for", "1s"][..], &args].concat());
    if code == Some(2) {
        assert!(text.contains("libfaketime is not installed"), "{text}");
        return;
    }
    until_seen(kind, &["12s", "30s", "60s"], &args, |report| {
        number(report, "/faults/clock-member") > 0
            && number(report, "/paths/clocks_seen") > 0
            && report["verdict"] == "held"
    });
}

/// A Redis that is given may want a password, which nobody else gets to see.
#[test]
fn a_password_is_passed_on_and_not_shown() {
    let server = Server::any();
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("requirepass").arg("opensesame");
    let () = set.query(&mut server.connect()).expect("set");
    let url = server.url().replace("redis://", "redis://:opensesame@");
    let (_dir, keep) = folder();
    let kept = keep.to_str().expect("text");
    let args =
        ["--for", "1h", "--redis", &url, "--members", "2", "--faults", "delay", "--keep", kept];
    let mut run = start(&args);
    let member = keep.join("m2.1.history");
    eventually("work", || {
        std::fs::read_to_string(&member).is_ok_and(|text| text.contains("joined"))
    });
    let words = processes(&keep);
    assert!(
        !words.is_empty() && !words.iter().any(|line| line.contains("opensesame")),
        "{words:?}"
    );
    run.signal_interrupt();
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
    assert!(!run.stderr().contains("opensesame") && !run.stdout().contains("opensesame"));
    for file in keep.read_dir().expect("a folder").flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        assert!(!text.contains("opensesame"), "{}", file.path().display());
    }
}

#[test]
fn what_redis_loses_is_reported_as_loss() {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let args = ["--for", "12s", "--seed", "4", "--faults", "redis-loss,kill-worker"];
    let (code, report, text) = verify(kind, &args);
    assert_eq!((code, &report["violations"]), (Some(0), &Value::Array(Vec::new())), "{text}");
    assert!(number(&report, "/faults/redis-loss") > 0, "{text}");
    assert!(number(&report, "/seen/loss_noticed") > 0, "{text}");
    let (lost, seen) = (number(&report, "/seen/lost_with_redis"), &report["seen"]);
    let settled = number(seen, "/settled");
    // Some of the last term before the loss may have been pushed and never heard of again.
    assert!(number(seen, "/accepted") >= settled + lost || lost == 0, "{text}");
    assert!(text.contains("without an append-only file was killed"), "{text}");
}

#[test]
fn somebody_elses_redis_is_left_alone() {
    let server = Server::any();
    let mut connection = server.connect();
    let () = redis::cmd("SET").arg("theirs").arg(1).query(&mut connection).expect("set");
    let url = server.url();
    let mut refused = start(&["--for", "1s", "--redis", &url]);
    assert_eq!(refused.exit_code(), Some(2));
    assert!(refused.stderr().contains("not empty: it has 1 keys"), "{}", refused.stderr());
    assert!(refused.stderr().contains("--i-know"), "{}", refused.stderr());

    let mut known = start(&["--for", "2s", "--redis", &url, "--i-know", "--members", "2"]);
    assert_eq!(known.exit_code(), Some(0), "{}", known.stderr());
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
    assert_eq!(keys, ["theirs"], "its own are gone, theirs are not");
}

/// Killed in the middle of writing a script's commands, a server keeps half of them in its file and carries them out
/// at the start after the next. One that is started again here does not.
#[test]
fn half_a_script_in_a_torn_file_is_never_carried_out() {
    for kind in [Kind::Redis, Kind::Valkey].into_iter().filter(|kind| kind.program().is_some()) {
        let mut server = Server::with(kind, &["--appendonly", "yes", "--appendfsync", "always"]);
        let two = |server: &Server, keys: [&str; 2]| {
            let both = "redis.call('INCR', KEYS[1]) redis.call('INCR', KEYS[2])";
            let mut call = redis::cmd("EVAL");
            call.arg(both).arg(2).arg(&keys);
            let () = call.query(&mut server.connect()).expect("written");
        };
        two(&server, ["a", "b"]);
        server.kill();
        let files = std::fs::read_dir(server.dir().join("appendonlydir")).expect("its files");
        let grows = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
        let file = files.flatten().map(|file| file.path()).find(grows).expect("its file");
        let bytes = std::fs::read(&file).expect("its file");
        std::fs::write(&file, &bytes[..bytes.len() - 3]).expect("torn");
        server.restart();
        two(&server, ["c", "d"]);
        server.kill();
        server.restart();
        let mut all = redis::cmd("MGET");
        all.arg(&["a", "b", "c", "d"]);
        let values: [Option<u64>; 4] = all.query(&mut server.connect()).expect("values");
        assert_eq!(values, [None, None, Some(1), Some(1)], "{kind:?}");
    }
}

/// An address in the environment may be anybody's: only one on the command line is used.
#[test]
fn an_address_in_the_environment_is_not_used() {
    let server = Server::any();
    let mut command = clean_command(ARTEL, &["verify", "--for", "1s", "--members", "2"]);
    command.env("ARTEL_REDIS_URL", server.url()).stdin(std::process::Stdio::null());
    let mut run = Program::spawn(command);
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connect()).expect("a number");
    assert_eq!(keys, 0);
}

/// Processes that write their history to this folder, or serve from it: how they were started.
fn processes(dir: &Path) -> Vec<String> {
    found(dir).into_iter().map(|(_, line)| line).collect()
}

fn processes_of(dir: &Path) -> Vec<String> {
    found(dir).into_iter().map(|(pid, _)| pid).collect()
}

fn found(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // A server writes another name over its command line, but it stays where it is.
        let there =
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        let ours = there || line.contains(&dir.display().to_string());
        if ours && !line.contains(" verify --") {
            found.push((entry.file_name().to_string_lossy().into_owned(), line));
        }
    }
    found
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let keep = dir.path().join("kept");
    (dir, keep)
}

#[test]
fn ctrl_c_cleans_up_and_reports_what_there_is() {
    let (_dir, keep) = folder();
    let kept = keep.to_str().expect("text");
    let mut run = start(&["--for", "1h", "--members", "3", "--faults", "kill", "--keep", kept]);
    // Whose it is depends on the seed.
    let third = |member| keep.join(format!("m{member}.3.history"));
    eventually("a member's third life", || (1..=3).any(|member| third(member).exists()));
    assert!(!processes(&keep).is_empty());
    run.signal_interrupt();
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
    assert!(run.stdout().contains("ended early"), "{}", run.stdout());
    assert!(run.stdout().contains("kill -9 of a worker"), "{}", run.stdout());
    assert_eq!(processes(&keep), Vec::<String>::new());
}

/// At a terminal it is typed to all who were started there.
#[test]
fn ctrl_c_at_a_terminal_is_for_verify_alone() {
    use std::os::unix::process::CommandExt;
    let (_dir, keep) = folder();
    let kept = keep.to_str().expect("text");
    let args = ["verify", "--for", "1h", "--members", "2", "--faults", "kill", "--keep", kept];
    let mut command = clean_command(ARTEL, &args);
    command.stdin(std::process::Stdio::null()).process_group(0);
    let mut run = Program::spawn(command);
    let second = |member| keep.join(format!("m{member}.2.history"));
    eventually("a member's second life", || (1..=2).any(|member| second(member).exists()));
    run.type_interrupt();
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
    assert!(run.stdout().contains("ended early"), "{}", run.stdout());
    assert_eq!(processes(&keep), Vec::<String>::new());
}

/// Twice means at once; and yet nobody is left.
#[test]
fn ctrl_c_twice_ends_at_once_and_leaves_nobody() {
    let dir = tempfile::tempdir().expect("a folder");
    let args = ["verify", "--for", "1h", "--members", "2", "--faults", "kill"];
    let mut command = clean_command(ARTEL, &args);
    command.env("TMPDIR", dir.path()).stdin(std::process::Stdio::null());
    let mut run = Program::spawn(command);
    let begun = || run.stderr().contains("breaking a fleet");
    eventually("it begins", begun);
    run.signal_interrupt();
    eventually("it is heard", || run.stderr().contains("once more ends at once"));
    let code = run.insist(nix::sys::signal::Signal::SIGINT);
    assert!(matches!(code, Some(0 | 3)), "{code:?} {}", run.stderr()); // 0: it was quicker
    assert_eq!(processes(dir.path()), Vec::<String>::new());
    assert_eq!(dir.path().read_dir().expect("a folder").count(), 0, "something is left");
}

/// Whatever ends it, nothing outlives it for long.
#[test]
fn a_kill_leaves_nobody_behind() {
    let (_dir, keep) = folder();
    let kept = keep.to_str().expect("text");
    let faults = "freeze-long,clock";
    let mut run = start(&["--for", "1h", "--members", "2", "--faults", faults, "--keep", kept]);
    let frozen = || {
        processes_of(&keep).into_iter().any(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        })
    };
    eventually("somebody is frozen", frozen);
    let server = std::fs::read_to_string(keep.join("server/server.pid")).expect("a number");
    run.kill();
    eventually("all members to end, and the server", || processes(&keep).is_empty());
    let left = format!("/dev/shm/faketime_shm_{}", server.trim());
    eventually("what its clock left", || !Path::new(&left).exists());
}

/// Also no sentinel, and no server that is frozen.
#[test]
fn a_kill_leaves_no_server_behind() {
    for topology in ["sentinel", "cluster"] {
        let (_dir, keep) = folder();
        let kept = keep.to_str().expect("text");
        let faults = ["--topology", topology, "--faults", "replica-cut", "--keep", kept];
        let mut run = start(&[&["--for", "1h", "--members", "2"], &faults[..]].concat());
        eventually("a fault", || {
            let said = std::fs::read_to_string(keep.join("faults.history")).unwrap_or_default();
            said.contains("replica-cut")
        });
        run.kill();
        eventually("everything to end", || processes(&keep).is_empty());
    }
}

#[test]
fn a_history_that_cannot_be_written_is_no_fault_of_the_fleet() {
    let (_dir, keep) = folder();
    let kept = keep.to_str().expect("text");
    let args = ["--for", "1h", "--members", "2", "--faults", "kill-worker", "--keep", kept];
    let mut run = start(&args);
    wait_for("the folder", || keep.exists().then_some(()));
    // As on a full disk: nobody can begin another life. Many of them, as some are killed before they know.
    for life in 2..50 {
        for member in ["m1", "m2"] {
            let _ = std::fs::create_dir(keep.join(format!("{member}.{life}.history")));
        }
    }
    assert_eq!(run.exit_code(), Some(3), "{}", run.stderr());
    assert!(run.stderr().contains("the history cannot be written"), "{}", run.stderr());
    assert_eq!(processes(&keep), Vec::<String>::new());
}

#[test]
fn wrong_input_is_told_before_anything_is_started() {
    let (_dir, keep) = folder();
    std::fs::create_dir(&keep).expect("a folder");
    std::fs::write(keep.join("x"), b"").expect("a file");
    let kept = keep.to_str().expect("text");
    for (args, code, what) in [
        (vec!["--faults", "earthquake"], 2, "no fault is called \"earthquake\""),
        (vec!["--topology", "ring"], 2, "must be single, sentinel or cluster"),
        (vec!["--topology", "cluster", "--faults", "clock"], 2, "can happen to cluster"),
        (vec!["--faults", "failover"], 2, "can happen to single"),
        (vec!["--topology", "sentinel", "--redis", "redis://127.0.0.1:1"], 2, "servers of its own"),
        (vec!["--members", "1"], 2, "1 is not in 2..=100"),
        (vec!["--rate", "many"], 2, "messages a second"),
        (vec!["--rate", "800/s"], 2, "at most 750/s"),
        (vec!["--port", "6379"], 2, "verify knows no --port"),
        (
            vec!["--redis", "redis://127.0.0.1:1", "--faults", "redis-loss"],
            2,
            "a server of our own only",
        ),
        (vec!["--keep", "/dev/null/x"], 2, "cannot make the folder /dev/null/x"),
        (vec!["--lease", "10ms"], 2, "lease"),
        (vec!["--redis", "redis://10.0.0.1:6379"], 2, "must be on this machine"),
        (vec!["--redis", "redis://127.0.0.1:1"], 3, "refused"),
        (vec!["--server", "/bin/false"], 3, "/bin/false ended instead of answering"),
        (vec!["--server", "/nowhere/redis-server"], 3, "/nowhere/redis-server"),
        (vec!["--report", "/nowhere/report"], 2, "cannot write /nowhere/report"),
        (vec!["--keep", kept], 2, "is not empty"),
        (
            vec!["--faketime", "/nowhere/libfaketime.so.1"],
            2,
            "/nowhere/libfaketime.so.1: No such file",
        ),
    ] {
        let mut run = start(&[&["--for", "1s"], &args[..]].concat());
        let got = run.exit_code();
        assert_eq!(got, Some(code), "{args:?}: {}", run.stderr());
        assert!(run.stderr().contains(what), "{args:?}: {}", run.stderr());
        assert_eq!(run.stdout(), "");
    }
}

#[test]
fn one_can_read_in_the_help_what_is_broken() {
    let mut help = Program::start(ARTEL, &["verify", "--help"]);
    assert_eq!(help.exit_code(), Some(0));
    for word in ["--for", "--members", "--rate", "--seed", "--faults", "--report", "--i-know"] {
        assert!(help.stdout().contains(word), "{word}: {}", help.stdout());
    }
}
