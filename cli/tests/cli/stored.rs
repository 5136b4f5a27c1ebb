//! Failed messages: listed, taken, put back, copied.

use artel_rig::Server;

use crate::screen::{any_server, artel, text, with};

/// A server with `count` failed messages, two hours old, every third a time-out.
fn with_errors(count: usize) -> Server {
    let server = any_server(&[]);
    let mut connection = server.connect();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("answers");
    for n in 1..=count {
        let cause = if n % 3 == 0 { "timeout" } else { "handler" };
        let age = if n <= count / 2 { 7200 } else { 60 };
        let () = redis::cmd("XADD")
            .arg("artel:{artel}:errors")
            .arg(format!("{}-{n}", (seconds - age) * 1000))
            .arg("m")
            .arg(format!("1g-|1794710083943807-{n}|1|1794710083950|payload {n}"))
            .arg("e")
            .arg(format!(
                r#"{{"v":1,"cause":"{cause}","reason":"why {n}","member":"m","label":"one"}}"#
            ))
            .query(&mut connection)
            .expect("answers");
    }
    // The books of a fleet to which this happened.
    let () = redis::cmd("HSET")
        .arg("artel:{artel}:counts")
        .arg("generated")
        .arg(count)
        .arg("failed")
        .arg(count)
        .query(&mut connection)
        .expect("answers");
    server
}

struct Errors(Server);

impl Errors {
    #[track_caller]
    fn run(&self, args: &[&str]) -> (String, String) {
        self.answer(args, b"")
    }

    #[track_caller]
    fn answer(&self, args: &[&str], stdin: &[u8]) -> (String, String) {
        let url = self.0.url();
        let mut all = args.to_vec();
        all.extend(["--redis", &url]);
        let output = with(&all, &[], stdin);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }

    fn left(&self) -> u64 {
        redis::cmd("XLEN")
            .arg("artel:{artel}:errors")
            .query(&mut self.0.connect())
            .expect("answers")
    }
}

#[test]
fn a_list_goes_on_where_the_page_before_ended() {
    let errors = Errors(with_errors(25));
    let (mut seen, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["errors", "list", "--json", "--limit", "10"];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let (stdout, stderr) = errors.run(&args);
        for line in stdout.lines() {
            let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
            seen.push(record["payload"].as_str().expect("text").to_owned());
        }
        match stderr.trim().split_once("older ones: --cursor ") {
            Some((_, next)) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, (1..=25).rev().map(|n| format!("payload {n}")).collect::<Vec<_>>());
    assert_eq!(errors.left(), 25, "nothing is removed");
    let (stdout, stderr) = errors.run(&["errors", "list", "--limit", "1"]);
    assert!(stdout.starts_with("1794710083943807-25 · 2"), "{stdout}");
    assert!(
        stdout.contains(" ago) · handler · attempt 1 · by one\n  reason   why 25\n"),
        "{stdout}"
    );
    assert!(stdout.ends_with("  payload  payload 25\n"), "{stdout}");
    assert!(stderr.starts_with("1 shown, 25 stored\nolder ones: "), "{stderr}");
    assert_eq!(
        errors.run(&["errors", "list", "--grep", "nothing"]).1,
        "none matches; 25 are stored\n"
    );
}

#[test]
fn filters_choose_by_text_cause_and_age() {
    let errors = Errors(with_errors(12));
    let count = |args: &[&str]| {
        let mut all = vec!["errors", "list", "--json"];
        all.extend(args);
        errors.run(&all).0.lines().count()
    };
    assert_eq!(count(&["--grep", "payload 1"]), 4, "1, 10, 11 and 12");
    assert_eq!(count(&["--grep", "^why 7$"]), 1, "the reason counts, too");
    assert_eq!(count(&["--cause", "timeout"]), 4);
    assert_eq!(count(&["--since", "10m"]), 6);
    assert_eq!(count(&["--since", "10m", "--cause", "timeout", "--limit", "1"]), 1);
}

#[test]
fn take_removes_what_it_printed_and_nothing_else() {
    let errors = Errors(with_errors(250));
    let (stdout, _) = errors.run(&["errors", "take", "--cause", "timeout", "--limit", "70"]);
    let expected: Vec<String> = (1..=70).map(|n| format!("payload {}", n * 3)).collect();
    assert_eq!(stdout.lines().collect::<Vec<_>>(), expected);
    assert_eq!(errors.left(), 180);
    let (stdout, _) = errors.run(&["getErrors", "--since", "10m", "--grep", "5"]);
    assert!(stdout.lines().all(|line| line.contains('5')) && !stdout.is_empty());
    let rest = errors.left();
    assert_eq!(errors.run(&["getErrors"]).0.lines().count() as u64, rest);
    assert_eq!(errors.left(), 0);
}

#[test]
fn requeue_asks_first_and_says_how_many() {
    let errors = Errors(with_errors(150));
    let args = ["errors", "requeue", "--cause", "timeout"];
    let url = errors.0.url();
    let mut nobody = args.to_vec();
    nobody.extend(["--redis", &url]);
    let output = with(&nobody, &[], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).ends_with(
        "error: nobody answers: nothing was changed\n\nhint: `--yes` does it without asking\n"
    ));
    for answer in [&b"n\n"[..], b"what\n"] {
        let (stdout, stderr) = errors.answer(&args, answer);
        assert_eq!(stdout, "");
        assert!(stderr.starts_with("put 50 failed messages back to work? [y/N] "), "{stderr}");
        assert!(stderr.trim_end().ends_with("nothing was changed"), "{stderr}");
    }
    assert_eq!(errors.left(), 150);
    assert_eq!(errors.answer(&args, b"y\n").0, "50\n");
    let (stdout, stderr) = errors.run(&["errors", "requeue", "--yes", "--lane", "high"]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("100\n", ""));
    let lengths: (u64, u64) = redis::pipe()
        .cmd("LLEN")
        .arg("artel:{artel}:lane:normal")
        .cmd("LLEN")
        .arg("artel:{artel}:lane:high")
        .query(&mut errors.0.connect())
        .expect("answers");
    assert_eq!(lengths, (50, 100));
    let (_, stderr) = errors.run(&["errors", "requeue"]);
    assert_eq!(stderr, "no failed message matches\n");
    let status = text(&artel(&["status", "--redis", &url]).stdout);
    assert!(
        status.contains(
            "generated 150 · sent 150 · waiting 150 · claimed 0 · done 0 · failed 150 · balance 0"
        ),
        "{status}"
    );
}

#[test]
fn export_copies_and_removes_nothing() {
    let errors = Errors(with_errors(120));
    let dir = tempfile::tempdir().expect("a dir");
    let file = dir.path().join("errors.jsonl");
    let path = file.display().to_string();
    let (stdout, stderr) = errors.run(&["errors", "export", "--output", &path]);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", "exported 120\n"));
    let content = std::fs::read_to_string(&file).expect("written");
    assert_eq!(content.lines().count(), 120);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a list").count(), 1, "no part is left");
    assert_eq!(errors.run(&["errors", "export"]).0, content);
    assert_eq!(errors.left(), 120);
    let url = errors.0.url();
    let args = ["errors", "export", "--redis", &url, "--output", "/nonexistent/x"];
    let output = artel(&args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: cannot write /nonexistent/x: No such file or directory (os error 2)\n\n\
         hint: nothing was removed; try another `--output`\n"
    );
}

/// What an interrupted take did not print is stored again, for every command to see.
#[test]
fn an_interrupted_take_hides_nothing() {
    let errors = Errors(with_errors(40));
    let mut child = artel_rig::clean_command(
        env!("CARGO_BIN_EXE_artel"),
        &["getErrors", "--redis", &errors.0.url()],
    )
    .stdout(std::process::Stdio::piped())
    .spawn()
    .expect("it runs");
    drop(child.stdout.take());
    assert!(child.wait().expect("its end").success());
    assert_eq!(errors.left(), 40);
    assert_eq!(errors.run(&["errors", "take", "--grep", "payload 7$"]).0, "payload 7\n");
    // One that was killed leaves a drain; it counts as dead once it was not refreshed for a while.
    let () = redis::pipe()
        .cmd("RENAME")
        .arg("artel:{artel}:errors")
        .arg("artel:{artel}:drain:dead")
        .ignore()
        .cmd("HSET")
        .arg("artel:{artel}:drains")
        .arg("dead")
        .arg("pid 1|1000")
        .ignore()
        .query(&mut errors.0.connect())
        .expect("answers");
    let since = errors.run(&["errors", "list", "--json", "--since", "10m", "--limit", "100"]).0;
    assert_eq!(since.lines().count(), 20, "each still knows when it failed");
    assert_eq!(errors.run(&["errors", "requeue", "--yes"]).0, "39\n");
}

#[test]
fn a_list_obeys_nothing_that_a_payload_says() {
    let server = any_server(&[]);
    let () = redis::cmd("XADD")
        .arg("artel:{artel}:errors")
        .arg("*")
        .arg("m")
        .arg("1g-|5-1|1|9|\u{1b}[2Jgone \u{7} \u{9b}31m")
        .arg("e")
        .arg(r#"{"reason":"\u001b]0;title\u0007"}"#)
        .query(&mut server.connect())
        .expect("answers");
    let (stdout, _) = Errors(server).run(&["errors", "list"]);
    assert!(!stdout.chars().any(|c| c.is_control() && c != '\n'), "{stdout:?}");
}

#[test]
fn export_follows_links_and_takes_a_dash_for_stdout() {
    let errors = Errors(with_errors(3));
    let dir = tempfile::tempdir().expect("a dir");
    let (file, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::write(&file, "old").expect("writes");
    std::os::unix::fs::symlink(&file, &link).expect("links");
    errors.run(&["errors", "export", "--output", &link.display().to_string()]);
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(&file).expect("there").lines().count(), 3);
    assert_eq!(errors.run(&["errors", "export", "-o", "-"]).0.lines().count(), 3);
    // A link to nothing yet is followed, too, and what is appended to stays.
    let (later, dangling) = (dir.path().join("later"), dir.path().join("dangling"));
    std::os::unix::fs::symlink(&later, &dangling).expect("links");
    errors.run(&["errors", "export", "--output", &dangling.display().to_string()]);
    assert!(dangling.is_symlink() && later.is_file());
    let line = format!(
        "{} errors export -o /dev/stdout --redis {} >> {}",
        env!("CARGO_BIN_EXE_artel"),
        errors.0.url(),
        file.display()
    );
    assert!(artel_rig::clean_command("sh", &["-c", &line]).status().expect("runs").success());
    assert_eq!(std::fs::read_to_string(&file).expect("there").lines().count(), 6);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a list").count(), 4, "no part is left");
}
