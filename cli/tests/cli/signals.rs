//! Events and locks from a shell: what they say, and with which exit code.

use artel_rig::{Program, Server, eventually, free_port};

use crate::screen::{any_server, artel, says, text};

struct Shell(Server);

impl Shell {
    fn new() -> Shell {
        Shell(any_server(&["--appendonly", "yes"]))
    }

    /// The exit code, and what was said on stdout and stderr.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let url = self.0.url();
        let mut all = vec!["--redis", &url];
        all.extend(args);
        let output = artel(&all);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    #[track_caller]
    fn says(&self, args: &[&str], code: i32, stdout: &str, stderr: &str) {
        let said = self.run(args);
        assert_eq!(said, (Some(code), stdout.to_owned(), stderr.to_owned()), "{args:?}");
    }

    fn start(&self, args: &[&str]) -> Program {
        let url = self.0.url();
        let mut all = vec!["--redis", &url];
        all.extend(args);
        Program::start(env!("CARGO_BIN_EXE_artel"), &all)
    }

    fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(&mut self.0.connect()).expect("answers")
    }
}

#[test]
fn an_event_is_set_seen_waited_for_and_cleared() {
    let shell = Shell::new();
    shell.says(&["event", "list"], 0, "no events\n", "");
    shell.says(&["event", "status", "new prices"], 5, "not set\n", "");
    shell.says(
        &["event", "wait", "new prices", "--timeout", "0"],
        4,
        "",
        "error: event \"new prices\" was not set within 0 s\n",
    );
    shell.says(
        &["event", "wait", "new prices", "--timeout", "20ms"],
        4,
        "",
        "error: event \"new prices\" was not set within 20 ms\n",
    );
    let waits = shell.start(&["event", "wait", "new prices", "--timeout", "36500d"]);
    shell.says(&["event", "set", "new prices"], 0, "", "");
    shell.says(&["event", "set", "new prices"], 0, "", "");
    let mut waits = waits;
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
    shell.says(&["event", "wait", "new prices"], 0, "", "");
    shell.says(&["event", "status", "new prices"], 0, "set\n", "");
    shell.says(&["event", "list"], 0, "EVENT       STATE\nnew prices  set\n", "");
    let (code, json, _) = shell.run(&["event", "status", "new prices", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("a document");
    assert_eq!((code, &json["v"], &json["set"]), (Some(0), &1.into(), &true.into()));
    assert_eq!(json["event"], "new prices");
    assert!(json["generation"].as_u64() > Some(0) && json["clears_in_ms"].is_null());
    let (_, json, _) = shell.run(&["event", "list", "--json"]);
    assert!(json.starts_with(r#"{"events":[{"#) && json.ends_with("\"v\":1}\n"), "{json}");
    shell.says(&["event", "clear", "new prices"], 0, "", "");
    shell.says(&["event", "status", "new prices"], 5, "not set\n", "");
    shell.says(&["event", "set", "short", "--ttl", "1ms"], 0, "", "");
    eventually("it to clear itself", || shell.run(&["event", "status", "short"]).0 == Some(5));
    shell.says(&["event", "set", "long", "--ttl", "1h"], 0, "", "");
    let (code, said, _) = shell.run(&["event", "status", "long"]);
    assert!(code == Some(0) && said.starts_with("set, for 59 min"), "{said}");
}

#[test]
fn a_command_runs_while_the_lock_is_held() {
    let shell = Shell::new();
    shell.says(&["lock", "list"], 0, "no locks are held\n", "");
    shell.says(&["lock", "status", "report"], 5, "not held\n", "");
    let (code, token, _) =
        shell.run(&["lock", "run", "report", "--", "sh", "-c", "echo $ARTEL_LOCK_TOKEN; exit 7"]);
    assert_eq!(code, Some(7), "the command's own");
    let token: u64 = token.trim().parse().expect("a token");
    let (code, ..) = shell.run(&["lock", "run", "report", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, Some(137), "as a shell says it");

    let holds = shell.start(&[
        "lock",
        "run",
        "report",
        "--label",
        "me",
        "--",
        "sh",
        "-c",
        "echo in; exec sleep 600",
    ]);
    eventually("the command", || holds.stdout() == "in\n");
    let (code, said, _) = shell.run(&["lock", "status", "report"]);
    assert!(code == Some(0) && said.contains("report  me       "), "{said}");
    let (_, json, _) = shell.run(&["lock", "list", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("a document");
    let lock = &json["locks"][0];
    assert_eq!(
        (&json["v"], &lock["name"], &lock["label"]),
        (&1.into(), &"report".into(), &"me".into())
    );
    assert!(lock["token"].as_u64() > Some(token), "tokens grow");
    let host = lock["host"].as_str().expect("a name").to_owned();
    let had =
        format!("error: lock \"report\" could not be had: me ({host}:{}) has it\n", holds.id());
    shell.says(&["lock", "run", "report", "--wait", "0", "--", "true"], 4, "", &had);
    shell.says(
        &["-q", "lock", "run", "report", "--wait", "30ms", "--conflict-exit", "77", "--", "true"],
        77,
        "",
        "",
    );
    // Whoever waits has it as soon as it is free; a signal goes on to the command.
    let mut waits = shell.start(&["lock", "run", "report", "--", "echo", "at last"]);
    eventually("somebody to wait", || {
        shell.ask::<u32>(&["ZCARD", "artel:{artel}:waiters:report"]) == 1
    });
    let mut holds = holds;
    holds.terminate();
    assert_eq!(holds.exit_code(), Some(143), "{}", holds.stderr());
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
    assert_eq!(waits.stdout(), "at last\n");
    // A wait can be interrupted, too.
    let mut holds =
        shell.start(&["lock", "run", "report", "--", "sh", "-c", "echo in; exec sleep 600"]);
    eventually("the command", || holds.stdout() == "in\n");
    let mut waits = shell.start(&["lock", "run", "report", "--", "true"]);
    eventually("somebody to wait", || {
        shell.ask::<u32>(&["ZCARD", "artel:{artel}:waiters:report"]) == 1
    });
    waits.signal_interrupt();
    assert_eq!(waits.exit_code(), Some(130), "{}", waits.stderr());
    holds.signal_interrupt();
    assert_eq!(holds.exit_code(), Some(130), "{}", holds.stderr());
    shell.says(&["lock", "list"], 0, "no locks are held\n", "");
    assert_eq!(shell.ask::<u32>(&["ZCARD", "artel:{artel}:members"]), 0, "everybody has left");
}

/// A command whose lock is lost is ended, with everything it started, unless that is not wanted.
#[test]
fn a_command_whose_lock_is_lost_is_ended() {
    let shell = Shell::new();
    let script = "trap '' TERM; sleep 600 & echo $! $ARTEL_LOCK_TOKEN; wait; wait";
    let mut holds = shell.start(&["lock", "run", "l", "--", "sh", "-c", script]);
    eventually("the command", || holds.stdout().lines().count() == 1);
    let said = holds.stdout();
    let grandchild = said.split_whitespace().next().expect("a process").to_owned();
    let judge_dead = || {
        let dead: Vec<String> = shell.ask(&["ZRANGE", "artel:{artel}:members", "0", "-1"]);
        let () = shell.ask(&["ZREM", "artel:{artel}:members", &dead[0]]);
    };
    judge_dead();
    assert_eq!(holds.exit_code(), Some(5));
    assert!(
        holds.stderr().contains("error: lock \"l\" was lost, so the command was ended\n\nhint: ")
    );
    eventually("what it started to end, too", || {
        !std::path::Path::new(&format!("/proc/{grandchild}")).exists()
            || std::fs::read_to_string(format!("/proc/{grandchild}/stat"))
                .is_ok_and(|stat| stat.contains(") Z "))
    });

    let script = "echo in; read line; echo out";
    let url = shell.0.url();
    let args =
        ["lock", "run", "m", "--on-lost", "ignore", "--redis", &url, "--", "sh", "-c", script];
    let mut command = artel_rig::clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    command.stdin(std::process::Stdio::piped());
    let mut holds = Program::spawn(command);
    eventually("the command", || holds.stdout() == "in\n");
    judge_dead();
    holds.says("lock \"m\" was lost; the command goes on");
    drop(holds.stdin());
    assert_eq!(holds.exit_code(), Some(0), "{}", holds.stderr());
    assert_eq!(holds.stdout(), "in\nout\n");
}

/// The only one who ever held it is dead, and nobody was there to judge: whoever asks next, if only
/// for a moment and long after, finds that out.
#[test]
fn the_lock_of_the_dead_is_had_although_nobody_else_is_there() {
    let shell = Shell::new();
    let script = "echo in; exec sleep 20";
    let mut holds = shell.start(&["lock", "run", "l", "--lease", "1s", "--", "sh", "-c", script]);
    eventually("the command", || holds.stdout() == "in\n");
    holds.kill();
    eventually("its holder to be overdue", || {
        let (seconds, _): (u64, u64) = shell.ask(&["TIME"]);
        let members = ["ZRANGE", "artel:{artel}:members", "0", "-1", "WITHSCORES"];
        let members: Vec<(String, f64)> = shell.ask(&members);
        members[0].1 / 1000.0 < seconds as f64
    });
    let (code, said, _) = shell.run(&["lock", "status", "l"]);
    assert!(code == Some(5) && said.contains("(overdue)"), "{said}");
    shell.says(&["lock", "run", "l", "--wait", "0", "--", "echo", "mine"], 0, "mine\n", "");
}

/// A lock that somebody happens to hold does not keep a fleet from having the lease it wants.
#[test]
fn a_lock_pins_nothing() {
    let shell = Shell::new();
    let holds = shell.start(&["lock", "run", "l", "--", "sh", "-c", "echo in; exec sleep 20"]);
    eventually("the command", || holds.stdout() == "in\n");
    let mut member = shell.start(&["run", "--lease", "10s"]);
    member.says("joined the fleet");
    member.terminate();
    assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
}

#[test]
fn wrong_names_and_keys() {
    let shell = Shell::new();
    let hint = "\n\nhint: try a name such as `new-prices`\n";
    let lock_hint = "\n\nhint: try a name such as `nightly-report`\n";
    let long = "x".repeat(201);
    for (name, problem) in [
        ("", "must not be empty"),
        ("a{b", "must have no braces and no control characters, and has '{'"),
        ("a\nb", "must have no braces and no control characters, and has '\\n'"),
        (long.as_str(), "must have at most 200 bytes, and has 201"),
    ] {
        for command in
            [["event", "set"], ["event", "wait"], ["event", "status"], ["event", "clear"]]
        {
            let error = format!("error: the name of the event {problem}{hint}");
            shell.says(&[command[0], command[1], name], 2, "", &error);
        }
        let error = format!("error: the name of the lock {problem}{lock_hint}");
        shell.says(&["lock", "status", name], 2, "", &error);
        shell.says(&["lock", "run", name, "--", "true"], 2, "", &error);
    }
    let () = shell.ask(&["SET", "artel:{artel}:event:e", "x"]);
    let () = shell.ask(&["RPUSH", "artel:{artel}:lock:l", "x"]);
    for (args, key) in [
        (&["event", "set", "e"][..], "event:e"),
        (&["event", "wait", "e"], "event:e"),
        (&["event", "status", "e"], "event:e"),
        (&["lock", "status", "l"], "lock:l"),
        (&["lock", "run", "l", "--", "true"], "lock:l"),
    ] {
        let error = format!(
            "error: Redis at {} cannot be used: key artel:{{artel}}:{key} holds something else\n\n\
             hint: use another name, or another `--fleet`\n",
            shell.0.url()
        );
        shell.says(args, 1, "", &error);
    }
    shell.says(&["event", "list"], 0, "no events\n", "");
    shell.says(
        &["event", "set", "e2", "--ttl", "0"],
        2,
        "",
        "error: --ttl must be between 1ms and 200 years, not 0ns\n\nhint: `artel event --help` shows what is allowed\n",
    );
    let (code, ..) = shell.run(&["lock", "run", "x", "--", "/etc/passwd"]);
    assert_eq!(code, Some(126), "as a shell says it");
    let (code, _, said) = shell.run(&["lock", "run", "x", "--", "/no/such/command"]);
    assert_eq!(code, Some(127), "as a shell says it");
    assert!(said.contains("error: cannot run /no/such/command: No such file"), "{said}");
    assert!(shell.run(&["lock", "run", "x"]).2.contains("required arguments were not provided"));
}

#[test]
fn no_redis() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let screen = format!(
        "error: cannot reach Redis at {url}: connection refused\n\nhint: start Redis, or pass `--redis <URL>`"
    );
    for command in [
        &["event", "set", "e"][..],
        &["event", "clear", "e"],
        &["event", "status", "e"],
        &["event", "wait", "e"],
        &["event", "list"],
        &["lock", "run", "l", "--", "true"],
        &["lock", "status", "l"],
        &["lock", "list"],
        &["stats"],
    ] {
        let mut all = vec!["--redis", &url];
        all.extend(command);
        says(&all, 3, &screen);
    }
}

/// Without the right to subscribe, waiting works by asking, and that is said once.
#[test]
fn a_user_that_may_not_subscribe_waits_all_the_same() {
    let shell = Shell::new();
    let () = shell.ask(&[
        "ACL",
        "SETUSER",
        "quiet",
        "on",
        ">secret",
        "~artel:{artel}:*",
        "resetchannels",
        "+@all",
    ]);
    let url = format!("redis://quiet:secret@127.0.0.1:{}", shell.0.port());
    let args = ["event", "wait", "e", "--consumer-timeout", "20ms", "--redis", &url];
    let mut waits = Program::start(env!("CARGO_BIN_EXE_artel"), &args);
    waits
        .says("this user may not subscribe to artel:{artel}:@0:event:e: asking every 20ms instead");
    shell.says(&["event", "set", "e"], 0, "", "");
    assert_eq!(waits.exit_code(), Some(0), "{}", waits.stderr());
    assert_eq!(waits.stderr().matches("may not subscribe").count(), 1);
}
