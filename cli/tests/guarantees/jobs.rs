//! Just jobs: a handler and nothing else, in one process or many; and what is seen of each message.

use std::process::Stdio;

use artel_rig::{Program, Server, clean_command, eventually};

use crate::fleet::artel;

fn start(server: &Server, args: &[&str]) -> Program {
    let url = server.url();
    let mut all = args.to_vec();
    all.extend(["--redis", &url]);
    let mut command = clean_command(artel(), &all);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    Program::spawn(command)
}

/// What a command prints, and its exit code.
fn run(server: &Server, args: &[&str]) -> (String, Option<i32>) {
    let mut program = start(server, args);
    let code = program.exit_code();
    (program.stdout(), code)
}

fn status(server: &Server) -> (serde_json::Value, Option<i32>) {
    let (text, code) = run(server, &["status", "--json"]);
    (serde_json::from_str(&text).expect("a document"), code)
}

fn done(server: &Server, count: u64) {
    eventually("the messages to be done", || status(server).0["messages"]["done"] == count);
}

/// One process, a handler, no generator: it never leads, so it works, and all is well.
#[test]
fn a_handler_alone_works_alone() {
    for command in [&["run", "--handler", "cat"][..], &["work", "--handler", "cat"]] {
        let server = Server::any();
        let worker = start(&server, command);
        worker.says("joined the fleet");
        run(&server, &["send", "one", "two", "three"]);
        done(&server, 3);
        let (document, code) = status(&server);
        assert_eq!(code, Some(0), "{document}");
        assert!(document["generator"].is_null());
        assert_eq!(document["messages"]["generated"], 0);
        assert_eq!(document["members"][0]["can_lead"], false);
        assert_eq!(document["members"][0]["works"], true);
        let (page, _) = run(&server, &["status"]);
        assert!(page.contains("generator: none, no member can lead"), "{page}");
        assert!(!page.contains("trouble"), "{page}");
    }
}

/// Without a handler of the user's, the built-in one works for `work`, too, and nothing is generated.
#[test]
fn work_without_a_handler_generates_nothing() {
    let server = Server::any();
    let worker = start(&server, &["work", "--error-rate", "0"]);
    worker.says("joined the fleet");
    run(&server, &["send", "hello"]);
    done(&server, 1);
    assert_eq!(status(&server).0["messages"]["generated"], 0);
    let mut wrong = start(&server, &["work", "--generator", "date"]);
    assert_eq!(wrong.exit_code(), Some(2));
    assert!(wrong.stderr().contains("unexpected argument '--generator'"), "{}", wrong.stderr());
}

/// A generator alone keeps the built-in handler, and says so; nobody works until there is a second one.
#[test]
fn a_generator_alone_says_what_handles_and_what_is_missing() {
    let server = Server::any();
    let args = ["run", "--generator", "echo made", "--interval", "20ms"];
    let first = start(&server, &args);
    first.says("no --handler: the built-in one handles messages, and finds 5 % in error");
    first.says(
        "nobody works: start a second copy, or let this one work with `--leader-works alone`",
    );
    eventually("messages to pile up", || status(&server).1 == Some(6));
    let (page, code) = run(&server, &["status"]);
    assert_eq!(code, Some(6));
    assert!(page.contains("trouble: messages wait and nobody works"), "{page}");
    let second = start(&server, &args);
    second.says("joined the fleet");
    eventually("all to be well", || status(&server).1 == Some(0));
    assert!(
        status(&server).0["members"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|m| m["can_lead"] == true)
    );
}

#[test]
fn a_leader_that_may_works_alone() {
    let server = Server::any();
    let args = ["run", "--interval", "20ms", "--error-rate", "0", "--leader-works", "alone"];
    let first = start(&server, &args);
    first.says("generator: this process leads");
    done_at_least(&server, 10);
    assert_eq!(status(&server).1, Some(0));
    let second = start(&server, &args);
    second.says("joined the fleet");
    eventually("the leader to rest", || {
        let members = status(&server).0["members"].as_array().expect("a list").clone();
        members.len() == 2
            && members
                .iter()
                .any(|member| member["role"] == "generator" && member["works"] == false)
    });
    assert!(!first.stderr().contains("nobody works"), "{}", first.stderr());
    let mut wrong = start(&server, &["run", "--leader-works", "sometimes"]);
    assert_eq!(wrong.exit_code(), Some(2));
}

fn done_at_least(server: &Server, count: u64) {
    eventually("messages to be done", || {
        status(server).0["messages"]["done"].as_u64().is_some_and(|done| done >= count)
    });
}

#[test]
fn nobody_at_all_is_trouble() {
    let server = Server::any();
    let (page, code) = run(&server, &["status"]);
    assert_eq!(code, Some(6));
    assert!(page.contains("trouble: nobody ever joined this fleet"), "{page}");
    // Killed and not yet reaped is as good as nobody.
    let mut worker = start(&server, &["work", "--lease", "1s"]);
    worker.says("joined the fleet");
    assert_eq!(status(&server).1, Some(0));
    worker.kill();
    eventually("its lease to end", || status(&server).1 == Some(6));
}

/// A failure is seen at once, with what one needs to find it; a flood of them is counted, and nothing else
/// is hidden behind it. With `-v` everything that is done is said, too.
#[test]
fn failures_are_seen() {
    let server = Server::any();
    let handler =
        "read -r line; case $line in fine) ;; *) echo \"no customer $line\" >&2; exit 3 ;; esac";
    let mut worker = start(&server, &["work", "-v", "--handler", handler, "--concurrency", "1"]);
    worker.says("joined the fleet");
    let (id, _) = run(&server, &["send", "--kind", "order", "7"]);
    let line = worker.says("message failed");
    for part in [
        " WARN ",
        id.trim(),
        "kind=\"order\"",
        "attempt=1",
        "reason=\"exit code 3: no customer 7\"",
        "took=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let (id, _) = run(&server, &["send", "fine"]);
    let line = worker.says("message done");
    assert_eq!(run(&server, &["show", id.trim()]).0, "done\n", "nothing has left the store");
    assert!(
        line.contains(id.trim()) && line.contains("attempt=1") && line.contains("took="),
        "{line}"
    );
    let many: Vec<String> = (100..140).map(|n| n.to_string()).collect();
    let mut args = vec!["send"];
    args.extend(many.iter().map(String::as_str));
    run(&server, &args);
    eventually("all to have failed", || status(&server).0["messages"]["failed"] == 41);
    worker.terminate();
    assert_eq!(worker.exit_code(), Some(0));
    let log = worker.stderr();
    let singly = log
        .lines()
        .filter(|line| line.contains("message failed") && line.contains("attempt="))
        .count();
    assert!(singly < 15, "{singly} lines:\n{log}");
    let counted: u64 = log
        .lines()
        .filter(|line| line.contains("message failed"))
        .filter_map(|line| line.split("more=").nth(1)?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(singly as u64 + counted, 41, "each is said or counted:\n{log}");
}

#[test]
fn a_failing_generator_is_said_once_then_counted() {
    let server = Server::any();
    let mut leader = start(
        &server,
        &[
            "run",
            "--generator",
            "echo no database >&2; exit 1",
            "--interval",
            "20ms",
            "--handler",
            "cat",
        ],
    );
    leader.says("nothing generated");
    let began = std::time::Instant::now();
    eventually("it to be counted", || leader.stderr().contains("more="));
    println!("counted after {:?}", began.elapsed());
    leader.terminate();
    leader.exit_code();
    let log = leader.stderr();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("nothing generated")).collect();
    let single = lines.iter().filter(|line| line.contains("reason=\"exit code 1: no database\""));
    assert_eq!(single.count(), 1, "{log}");
    assert!(lines.len() <= 4, "{log}");
}

/// Where a message is, from the shell: waiting, with whom, failed why, done.
#[test]
fn a_message_is_shown_wherever_it_is() {
    let server = Server::any();
    let (id, _) = run(&server, &["send", "--lane", "low", "hang"]);
    let id = id.trim();
    let (page, code) = run(&server, &["show", id]);
    assert!(page.starts_with("waiting in lane low · 0 in front of it · added 2"), "{page}");
    assert_eq!(code, Some(0));
    let dir = tempfile::tempdir().expect("a dir");
    let gate = dir.path().join("gate").display().to_string();
    let handler =
        format!("while [ ! -e {gate} ]; do sleep 0.02; done; read -r x; [ \"$x\" = hang ]");
    let args = ["work", "--handler", &handler, "--label", "worker-1", "--ledger", "100"];
    let worker = start(&server, &args);
    worker.says("joined the fleet");
    eventually("it to be claimed", || {
        run(&server, &["show", id]).0.starts_with("claimed by worker-1 · ")
    });
    let (bad, _) = run(&server, &["send", "bad"]);
    std::fs::write(&gate, "").expect("writes");
    eventually("both to be settled", || status(&server).0["messages"]["failed"] == 1);
    eventually("the first to be done", || run(&server, &["show", id]).0.starts_with("done 2"));
    let (page, _) = run(&server, &["show", bad.trim()]);
    assert!(page.starts_with("failed\n") && page.contains("reason   exit code 1"), "{page}");
    let (document, _) = run(&server, &["show", "--json", bad.trim()]);
    let document: serde_json::Value = serde_json::from_str(&document).expect("a document");
    assert_eq!(
        (&document["state"], &document["record"]["payload"]),
        (&"failed".into(), &"bad".into())
    );
    assert_eq!(run(&server, &["show", "s0123456789abcdef-1"]).1, Some(5));
    assert_eq!(run(&server, &["show", "hello"]).1, Some(2));
}
