//! What the commands show on screens of 80 and of 60 columns, with and without colour: no line is wrapped, what
//! is wrong is marked, and the words say it, too.

use std::process::Stdio;

use artel_rig::{Program, Server, clean_command, eventually};

use crate::screen::{any_server, artel, on_terminal, screen_of, text, with};

const RED: &str = "\u{1b}[31m";

/// Each screen there is: its columns, and whether it has colour.
const SCREENS: [(u16, bool); 4] = [(80, false), (80, true), (60, false), (60, true)];

fn plain(screen: &str) -> String {
    let mut text = String::new();
    let mut rest = screen;
    while let Some(at) = rest.find('\u{1b}') {
        text.push_str(&rest[..at]);
        let end =
            rest[at..].find(|c: char| c.is_ascii_alphabetic()).expect("the end of a sequence");
        rest = &rest[at + end + 1..];
    }
    text.push_str(rest);
    text.replace("\r\n", "\n")
}

/// Shows it on every screen; what is on each without its colours.
#[track_caller]
fn shows(args: &[&str], marked: bool, check: impl Fn(&str, u16)) {
    for (columns, coloured) in SCREENS {
        let screen = on_terminal(args, columns, coloured);
        let text = plain(&screen);
        for line in text.lines() {
            assert!(
                line.chars().count() <= usize::from(columns),
                "{args:?}: {line:?} on {columns} columns"
            );
        }
        assert_eq!(
            screen.contains(RED),
            coloured && marked,
            "{args:?}, colour {coloured}:\n{screen:?}"
        );
        if !coloured {
            assert!(!screen.contains('\u{1b}'), "{args:?}: {screen:?}");
        }
        check(&text, columns);
    }
}

fn member(server: &Server, args: &[&str]) -> Program {
    let url = server.url();
    let mut all = args.to_vec();
    all.extend(["--redis", &url]);
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &all);
    command.stdin(Stdio::null());
    Program::spawn(command)
}

fn send(server: &Server, args: &[&str]) -> String {
    let url = server.url();
    let mut all = vec!["send", "--redis", &url];
    all.extend(args);
    let output = artel(&all);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_fleet_fits_on_the_screen() {
    let server = any_server(&[]);
    let url = server.url();
    let status = ["status", "--redis", &url];
    shows(&status, true, |screen, _| {
        assert!(screen.contains("trouble: nobody ever joined this fleet"), "{screen}");
    });
    let label = "a-rather-long-label-";
    let names: Vec<String> = [10, 9, 1].iter().map(|n| format!("{label}{n}")).collect();
    let mut members: Vec<Program> = names
        .iter()
        .map(|name| {
            member(&server, &["run", "--label", name, "--interval", "20ms", "--lease", "1s"])
        })
        .collect();
    members.iter().for_each(|member| drop(member.says("joined the fleet")));
    eventually("somebody to lead", || {
        members.iter().any(|member| member.stderr().contains("this process leads"))
    });
    shows(&status, false, |screen, columns| {
        let rows: Vec<&str> =
            screen.lines().skip_while(|line| !line.starts_with("LABEL")).collect();
        assert_eq!(rows.len(), 4, "{screen}");
        assert!(
            rows[0].contains("ROLE  ") && rows[0].contains("DONE") && rows[0].contains("FAILED")
        );
        assert!(!rows[0].contains("MEMBER"), "no room for it: {screen}");
        if columns >= 60 {
            let ends: Vec<bool> = ["-1 ", "-9 ", "-10 "]
                .iter()
                .zip(&rows[1..])
                .map(|(end, row)| row.contains(end))
                .collect();
            assert!(ends.iter().all(|end| *end), "sorted as people count:\n{screen}");
        }
        assert!(screen.contains("generated ") && screen.contains("balance 0"), "{screen}");
        assert!(screen.contains(" UTC"), "{screen}");
    });
    shows(&["stats", "--redis", &url], false, |screen, _| {
        assert!(screen.contains("3 of 3 members answered"), "{screen}");
    });
    shows(&["fleets", "--redis", &url], false, |screen, _| {
        assert!(screen.starts_with("FLEET  MEMBERS  GENERATOR"), "{screen}");
    });
    // One that is dead and not yet judged is marked.
    for member in &mut members {
        member.kill();
    }
    eventually("them to be overdue", || {
        text(&artel(&status).stdout).matches("overdue").count() == 3
    });
    shows(&status, true, |screen, _| assert!(screen.contains("overdue"), "{screen}"));
    // Nobody looks: no line is cut.
    let whole = text(&artel(&status).stdout);
    assert!(
        whole.contains(&names[0]) && whole.contains("HOST:PID") && whole.contains("MEMBER"),
        "{whole}"
    );
}

#[test]
fn failed_messages_are_listed_newest_first_with_a_total() {
    let server = any_server(&[]);
    let url = server.url();
    let worker = member(
        &server,
        &["work", "--handler", "read -r x; echo no $x >&2; exit 1", "--label", "w"],
    );
    worker.says("joined the fleet");
    let list = |more: &[&str]| {
        let mut args = vec!["errors", "list", "--redis", &url];
        args.extend(more);
        artel(&args)
    };
    assert_eq!(text(&list(&[]).stderr).trim(), "no failed message is stored");
    for n in 1..=25 {
        let kind = if n % 5 == 0 { "order" } else { "other" };
        send(&server, &["--kind", kind, &format!("message {n}")]);
        eventually("it to fail", || {
            let status = artel(&["status", "--json", "--redis", &url]);
            let status: serde_json::Value =
                serde_json::from_slice(&status.stdout).expect("a document");
            status["messages"]["failed"] == n
        });
    }
    let payloads = |output: &std::process::Output| -> Vec<String> {
        let lines = text(&output.stdout);
        let payloads = lines.lines().filter_map(|line| line.strip_prefix("  payload  message "));
        payloads.map(str::to_owned).collect()
    };
    let first = list(&["--limit", "20"]);
    let expected: Vec<String> = (6..=25).rev().map(|n| n.to_string()).collect();
    assert_eq!(payloads(&first), expected);
    let remark = text(&first.stderr);
    assert!(remark.starts_with("20 shown, 25 stored\nolder ones: --cursor "), "{remark}");
    let cursor = remark.trim().rsplit(' ').next().expect("a position").to_owned();
    let rest = list(&["--cursor", &cursor]);
    assert_eq!(payloads(&rest), ["5", "4", "3", "2", "1"]);
    assert_eq!(payloads(&list(&["--kind", "order"])), ["25", "20", "15", "10", "5"]);
    shows(&["errors", "list", "--limit", "3", "--redis", &url], false, |screen, _| {
        assert!(screen.contains(" ago)") && screen.contains("kind order"), "{screen}");
    });
    let newest = list(&["--limit", "1", "--json"]);
    let newest: serde_json::Value = serde_json::from_slice(&newest.stdout).expect("a record");
    let id = newest["id"].as_str().expect("an id");
    shows(&["show", id, "--redis", &url], false, |screen, _| {
        assert!(
            screen.starts_with("failed\n")
                && screen.contains("reason   exit code 1: no message 25"),
            "{screen}"
        );
    });
    let one = list(&["--id", id]);
    assert_eq!(payloads(&one), ["25"], "by its id");
    // Dropped: asked first, then counted.
    let drop = |stdin: &[u8], more: &[&str]| {
        let mut args = vec!["errors", "drop", "--kind", "order", "--redis", &url];
        args.extend(more);
        with(&args, &[], stdin)
    };
    let no = drop(b"n\n", &[]);
    let asked = text(&no.stderr);
    assert!(asked.starts_with("remove 5 failed messages for good? [y/N] "), "{asked}");
    assert!(asked.contains("nothing was changed"), "{asked}");
    assert_eq!(drop(b"", &[]).status.code(), Some(1), "nobody answers");
    assert_eq!(text(&drop(b"y\n", &[]).stdout), "5\n");
    assert!(text(&drop(b"", &["--yes"]).stderr).contains("no failed message matches"));
    shows(&["status", "--redis", &url], false, |screen, _| {
        assert!(screen.contains("errors stored 20 · dropped 5"), "{screen}");
    });
}

#[test]
fn a_wrong_fleet_is_noticed() {
    let server = any_server(&[]);
    let url = server.url();
    let worker = member(&server, &["work", "--fleet", "orders"]);
    worker.says("joined the fleet");
    let sent = artel(&["send", "--fleet", "ordres", "--redis", &url, "hello"]);
    assert_eq!(sent.status.code(), Some(0));
    assert_eq!(
        text(&sent.stderr).trim(),
        "warning: nobody has ever joined fleet \"ordres\": what is sent waits until somebody does; there are \
         orders"
    );
    assert!(text(&artel(&["send", "--fleet", "orders", "--redis", &url, "x"]).stderr).is_empty());
    shows(&["fleets", "--redis", &url], true, |screen, _| {
        assert!(screen.contains("orders") && screen.contains("ordres"), "{screen}");
    });
    // Removed only when nobody is in it, and after asking.
    let remove = |name: &str, stdin: &[u8], more: &[&str]| {
        let mut args = vec!["fleet", "remove", name, "--redis", &url];
        args.extend(more);
        with(&args, &[], stdin)
    };
    let busy = remove("orders", b"y\n", &[]);
    assert_eq!(busy.status.code(), Some(1));
    let screen = text(&busy.stderr);
    assert!(screen.contains("was not removed: 1 member is in it"), "{screen}");
    let asked = remove("ordres", b"n\n", &[]);
    let screen = text(&asked.stderr);
    let question = format!(
        "remove fleet \"ordres\" on {url} with everything in it (not done: 1, failed and stored: 0)? [y/N] "
    );
    assert!(screen.starts_with(&question) && screen.contains("nothing was changed"), "{screen}");
    let removed = remove("ordres", b"yes\n", &[]);
    assert!(
        text(&removed.stderr).contains("fleet \"ordres\" is removed"),
        "{}",
        text(&removed.stderr)
    );
    let gone = remove("ordres", b"", &["--yes"]);
    assert_eq!(gone.status.code(), Some(5));
    assert_eq!(
        text(&artel(&["fleets", "--redis", &url, "--json"]).stdout).matches("\"fleet\"").count(),
        1
    );
}

#[test]
fn lines_come_from_files_and_may_be_empty_or_end_with_a_nul() {
    let server = any_server(&[]);
    let url = server.url();
    let dir = tempfile::tempdir().expect("a dir");
    let path = dir.path().join("lines").display().to_string();
    std::fs::write(&path, "a\n\nb\n").expect("writes");
    let lane = || -> Vec<String> {
        let key = "artel:{artel}:lane:normal";
        let all: Vec<String> = redis::cmd("LRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .query(&mut server.connect())
            .expect("answers");
        let () = redis::cmd("DEL").arg(key).query(&mut server.connect()).expect("answers");
        all.iter().filter_map(|line| line.splitn(5, '|').nth(4)).map(str::to_owned).collect()
    };
    let send = |args: &[&str], stdin: &[u8]| {
        let mut all = vec!["send", "--redis", &url];
        all.extend(args);
        with(&all, &[], stdin)
    };
    let refused = send(&["--file", &path], b"");
    assert_eq!(refused.status.code(), Some(1));
    let screen = text(&refused.stderr);
    assert!(screen.contains("line 2: it is empty") && screen.contains("--empty skip"), "{screen}");
    assert_eq!(lane(), ["a"]);
    assert_eq!(send(&["--file", &path, "--empty", "skip"], b"").status.code(), Some(0));
    assert_eq!(lane(), ["a", "b"]);
    assert_eq!(send(&["-f", &path, "--empty", "send"], b"").status.code(), Some(0));
    assert_eq!(lane(), ["a", "", "b"]);
    assert_eq!(send(&["-0"], b"one\nline\0two\0").status.code(), Some(0));
    assert_eq!(lane(), ["one\nline", "two"]);
    assert_eq!(send(&["--file", "-"], b"x\n").status.code(), Some(0));
    assert_eq!(lane(), ["x"]);
    for (args, words) in [
        (&["--file", "/no/such/file"][..], "cannot read /no/such/file: No such file"),
        (&["--file", "/tmp"], "cannot read /tmp: is a directory"),
        (&["--file", &path, "and this"], "cannot be used with"),
    ] {
        let output = send(args, b"");
        assert_ne!(output.status.code(), Some(0));
        assert!(text(&output.stderr).contains(words), "{args:?}: {}", text(&output.stderr));
    }
    assert!(lane().is_empty());
}

/// `yes` and `no` as people and programs write them; `no` is as if it were not there.
#[test]
fn commands_as_flags_take_yes_and_no() {
    let server = any_server(&[]);
    let url = server.url();
    for yes in
        ["--getErrors", "--getErrors=yes", "--getErrors=true", "--getErrors=1", "--getErrors=YES"]
    {
        let output = artel(&[yes, "--redis", &url]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{yes}");
    }
    for no in ["no", "false", "0"] {
        let flag = format!("--cleanTemp={no}");
        // Not a command, so it is `run`, which ends by itself here.
        let output = artel(&[&flag, "--redis", &url, "--for", "10ms", "--quiet"]);
        assert_eq!(output.status.code(), Some(0), "{no}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("balance 0"), "{no}");
    }
    let odd = artel(&["--getErrors=maybe", "--redis", &url]);
    assert_eq!(odd.status.code(), Some(2));
    assert!(
        text(&odd.stderr).contains("must be yes, no, true, false, 1 or 0"),
        "{}",
        text(&odd.stderr)
    );
}

#[test]
fn effects_can_be_read_from_a_shell() {
    let server = any_server(&[]);
    let url = server.url();
    let set = |words: &[&str]| server.say(words);
    let key = |name: &str| format!("artel:{{artel}}:data:{name}");
    set(&["SET", &key("count"), "7"]);
    set(&["HSET", &key("by name"), "b", "2", "a", "1"]);
    set(&["RPUSH", &key("log"), "first", "two\nlines"]);
    let get = |name: &str, more: &[&str]| {
        let mut args = vec!["data", "get", name, "--redis", &url];
        args.extend(more);
        artel(&args)
    };
    assert_eq!(text(&get("count", &[]).stdout), "7\n");
    assert_eq!(text(&get("by name", &[]).stdout), "a\t1\nb\t2\n");
    assert_eq!(text(&get("log", &[]).stdout), "first\ntwo\\nlines\n");
    let document: serde_json::Value =
        serde_json::from_slice(&get("by name", &["--json"]).stdout).expect("a document");
    assert_eq!(document["value"]["b"], "2");
    assert_eq!(get("nothing", &[]).status.code(), Some(5));
}

#[test]
fn a_lock_says_for_whom_it_waits_and_an_event_can_be_taken() {
    let server = any_server(&[]);
    let url = server.url();
    let holder = member(&server, &["lock", "run", "--label", "the-holder", "job"]);
    drop(holder);
    let mut args =
        vec!["lock", "run", "--redis", &url, "--label", "the-holder", "job", "--", "sleep", "600"];
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    command.stdin(Stdio::null());
    let holder = Program::spawn(command);
    eventually("it to be held", || {
        text(&artel(&["lock", "status", "job", "--redis", &url]).stdout).contains("the-holder")
    });
    args = vec!["lock", "run", "--redis", &url, "--label", "second", "job", "--", "true"];
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    command.stdin(Stdio::null());
    let mut second = Program::spawn(command);
    let line = second.says("waiting for lock \"job\": the-holder (");
    assert!(line.contains(") has had it for "), "{line}");
    holder.terminate();
    assert_eq!(second.exit_code(), Some(0), "{}", second.stderr());
    shows(&["lock", "list", "--redis", &url], false, |_, _| {});

    let mut waiting = member(&server, &["event", "wait", "--clear", "new-data"]);
    assert_eq!(artel(&["event", "set", "new-data", "--redis", &url]).status.code(), Some(0));
    assert_eq!(waiting.exit_code(), Some(0), "{}", waiting.stderr());
    let state = artel(&["event", "status", "new-data", "--redis", &url]);
    assert_eq!((state.status.code(), text(&state.stdout)), (Some(5), "not set\n".to_owned()));
    let none = artel(&["event", "wait", "--clear", "--timeout", "0", "new-data", "--redis", &url]);
    assert_eq!(none.status.code(), Some(4));
    shows(&["event", "list", "--redis", &url], false, |screen, _| {
        assert!(screen.starts_with("EVENT"), "{screen}");
    });
}

/// The private server is named once in a terminal session, or with `-v`, or where nobody sits at a terminal.
#[test]
fn where_redis_is_is_said_once_in_a_session() {
    if std::net::TcpStream::connect("127.0.0.1:6379").is_ok() {
        return; // that one would be used
    }
    let dir = tempfile::tempdir().expect("a dir");
    let data = dir.path().join("d").display().to_string();
    let mut command = clean_command(
        env!("CARGO_BIN_EXE_artel"),
        &["work", "--data-dir", &data, "--server", &program()],
    );
    command.stdin(Stdio::null());
    let worker = Program::spawn(command);
    worker.says("no Redis configured: started the private server");
    worker.says("joined the fleet");
    let look = ["event", "list", "--data-dir", &data];
    let said = "no Redis configured: using the private server";
    let count = |screen: &str| screen.matches(said).count();
    // A session of its own, whose first process lives as long as the test looks.
    let in_session = |script: &str| {
        let args = ["--wait", "sh", "-c", script, env!("CARGO_BIN_EXE_artel"), &data];
        screen_of(clean_command("setsid", &args), 80, false)
    };
    let twice = "\"$0\" event list --data-dir \"$1\"; \"$0\" event list --data-dir \"$1\"";
    for session in ["first", "second"] {
        let screen = in_session(twice);
        assert_eq!(count(&screen), 1, "{session}: {screen}");
    }
    let screen = in_session(&format!("{twice} -v"));
    assert_eq!(count(&screen), 2, "with -v: {screen}");
    for _ in 0..2 {
        assert!(text(&artel(&look).stderr).contains(said), "a log has no session");
    }
    worker.terminate();
    artel(&["embedded", "stop", "--data-dir", &data]);
}

fn program() -> String {
    use artel_rig::Kind;
    let program = Kind::Valkey.program().or_else(|| Kind::Redis.program());
    program.expect("a server").display().to_string()
}

/// On a terminal the manual is read; into a pipe it goes as it is.
#[test]
fn the_manual_is_shown_on_a_terminal() {
    let source = text(&artel(&["man", "send"]).stdout);
    assert!(source.contains(".TH"), "{source}");
    let screen = on_terminal(&["man", "send"], 80, false);
    assert!(
        !screen.contains(".TH") && screen.to_lowercase().contains("put messages into a lane"),
        "{screen}"
    );
}

/// A misspelt option is never taken for something to send.
#[test]
fn nobody_is_told_to_send_a_misspelt_option() {
    for args in [
        &["send", "--lan", "high", "x"][..],
        &["send", "--kid", "x"],
        &["event", "set", "--tt", "1s"],
    ] {
        let output = artel(args);
        assert_eq!(output.status.code(), Some(2));
        let screen = text(&output.stderr);
        assert!(screen.contains("unexpected argument"), "{screen}");
        assert!(!screen.contains("as a value") && !screen.contains("-- --"), "{screen}");
    }
    assert!(text(&artel(&["send", "--lan", "high", "x"]).stderr).contains("'--lane'"));
}
