//! What cannot be sent: one clear error, what is certain, how to go on.

use std::io::Write;
use std::process::{ChildStdin, Stdio};

use artel_rig::{Program, Server, clean_command, eventually};

use crate::screen::{any_server, joined_server, output_says, says, text, with};

#[test]
fn lines_that_cannot_be_sent() {
    let server = joined_server();
    let url = server.url();
    let args = ["send", "--redis", &url];
    let huge = [b"one\ntwo\n".to_vec(), vec![b'x'; 100_000_000]].concat();
    for (stdin, screen) in [
        (
            &b"one\n\ntwo\n"[..],
            "error: line 2: it is empty\n\n\
             hint: `--empty skip` leaves empty ones out, `--empty send` sends them, too; line 1 is sent: go on with `tail -n +2`",
        ),
        (
            b"\xff\n",
            "error: line 1: not UTF-8 at byte 1\n\nhint: `--raw` sends any bytes; nothing was sent",
        ),
        (
            &huge,
            "error: line 3: larger than the limit of 1048576 bytes\n\n\
             hint: send what is large elsewhere, and its place as a message; lines 1 to 2 are sent: \
             go on with `tail -n +3`",
        ),
    ] {
        output_says(&with(&args, &[], stdin), &args, 1, screen);
    }
    let lane: Vec<String> = redis::cmd("LRANGE")
        .arg("artel:{artel}:lane:normal")
        .arg(0)
        .arg(-1)
        .query(&mut server.connect())
        .expect("answers");
    let payloads: Vec<&str> = lane.iter().filter_map(|line| line.rsplit('|').next()).collect();
    assert_eq!(payloads, ["one", "one", "two"], "exactly what was said to be sent");
}

#[test]
fn raw_lines_are_any_bytes() {
    let server = joined_server();
    let output = with(&["send", "--raw", "--redis", &server.url()], &[], b"\xff\n\nlast");
    assert_eq!((output.status.code(), text(&output.stderr).trim()), (Some(0), "sent 3"));
}

#[test]
fn a_payload_over_the_limit() {
    let server = joined_server();
    let large = "x".repeat(120_000);
    let args = ["send", "--redis", &server.url(), &large, &large];
    assert_eq!(with(&args, &[], b"").status.code(), Some(0), "large, and allowed");
    // An argument cannot be larger than the system allows; a line can.
    let line = "x".repeat((1 << 20) + 1);
    let args = ["send", "--redis", &server.url()];
    let output = with(&args, &[], line.as_bytes());
    output_says(
        &output,
        &args,
        1,
        "error: line 1: larger than the limit of 1048576 bytes\n\n\
         hint: send what is large elsewhere, and its place as a message; nothing was sent",
    );
}

#[test]
fn options_that_make_no_sense() {
    let server = joined_server();
    let url = server.url();
    says(
        &["send", "--redis", &url, "--dedup", "k", "one", "two"],
        2,
        "error: --dedup is for one message, given as an argument\n\n\
         hint: `artel send --dedup order-7 'pay order 7'`",
    );
    says(
        &["send", "--redis", &url, "", "two"],
        2,
        "error: message 1 is empty\n\nhint: `--empty skip` leaves empty ones out, `--empty send` sends them, too",
    );
    let long = "k".repeat(201);
    says(
        &["send", "--redis", &url, "--dedup", &long, "one"],
        2,
        "error: --dedup must have 1 to 200 bytes, and has 201\n\n\
         hint: `artel send --help` shows what is allowed",
    );
    says(
        &["send", "--redis", &url, "--kind", &long, "one"],
        2,
        "error: --kind must have at most 200 bytes and no control characters\n\n\
         hint: `artel send --help` shows what is allowed",
    );
    says(
        &["errors", "list", "--redis", &url, "--cursor", "yesterday"],
        2,
        "error: --cursor must be a position such as 1794710083950-0\n\n\
         hint: `artel errors list` says where the next page begins",
    );
    says(
        &["errors", "list", "--redis", &url, "--grep", "(open"],
        2,
        "error: --grep is not a regular expression: unclosed group\n\n\
         hint: put a backslash before a character that stands for itself, such as `\\(`",
    );
}

/// A Redis that may take no more holds up the sender; a signal ends the wait and says what is sent.
#[test]
fn a_full_lane_holds_up_the_sender() {
    let server = joined_server();
    limit_backlog(&server, 2);
    let (mut sender, mut stdin) = sender_of_one_line(&server, &[]);
    stdin.write_all(b"two\nthree\n").expect("it reads");
    sender.says("waiting for room: 2 messages wait in lane normal already");
    sender.terminate();
    assert_eq!(sender.exit_code(), Some(143));
    let screen = sender.stderr();
    let last = screen.lines().last().unwrap_or_default();
    assert!(last.starts_with("stopped; line") && last.contains("sent: go on with"), "{screen}");
}

/// As a member of that fleet would have set it.
fn limit_backlog(server: &Server, messages: u32) {
    let () = redis::cmd("HSET")
        .arg("artel:{artel}:config")
        .arg(&["protocol", "5", "backlog_max", &messages.to_string()])
        .query(&mut server.connect())
        .expect("answers");
}

/// A batch larger than the bound goes in pieces; it does not wait for room that can never be.
#[test]
fn a_bound_smaller_than_a_batch_is_no_obstacle() {
    let server = joined_server();
    limit_backlog(&server, 50);
    let args = ["send", "--redis", &server.url()];
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    command.stdin(Stdio::piped());
    let mut sender = Program::spawn(command);
    let mut stdin = sender.stdin();
    stdin.write_all("line\n".repeat(200).as_bytes()).expect("it reads");
    drop(stdin);
    let mut connection = server.connect();
    let mut sent = 0;
    eventually("all of them to be sent", || {
        let taken: Vec<String> = redis::cmd("LPOP")
            .arg("artel:{artel}:lane:normal")
            .arg(100)
            .query::<Option<Vec<String>>>(&mut connection)
            .expect("answers")
            .unwrap_or_default();
        assert!(taken.len() <= 50, "never more than allowed: {}", taken.len());
        sent += taken.len();
        sent == 200
    });
    assert_eq!(sender.exit_code(), Some(0), "{}", sender.stderr());
}

/// A sender that has sent its first line and waits for more.
fn sender_of_one_line(server: &Server, options: &[&str]) -> (Program, ChildStdin) {
    let url = server.url();
    let mut args = vec!["send", "--redis", &url];
    args.extend(options);
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    command.stdin(Stdio::piped());
    let mut sender = Program::spawn(command);
    let mut stdin = sender.stdin();
    stdin.write_all(b"one\n").expect("it reads");
    let mut connection = server.connect();
    eventually("the line to be sent", || {
        let there: i64 = redis::cmd("LLEN")
            .arg("artel:{artel}:lane:normal")
            .query(&mut connection)
            .expect("answers");
        there == 1
    });
    (sender, stdin)
}

/// Nothing comes, nothing is on its way: a signal ends it at once.
#[test]
fn a_sender_that_waits_for_lines_can_be_stopped() {
    let server = joined_server();
    let (mut sender, stdin) = sender_of_one_line(&server, &[]);
    sender.terminate();
    assert_eq!(sender.exit_code(), Some(143));
    assert!(sender.stderr().ends_with("stopped; line 1 is sent: go on with `tail -n +2`\n"));
    drop(stdin);
}

/// Redis is frozen while a batch is on its way: whether it was added is not known, and that is said.
#[test]
fn lines_without_an_answer_are_in_doubt() {
    let server = joined_server();
    let (mut sender, mut stdin) = sender_of_one_line(&server, &[]);
    server.freeze();
    stdin.write_all(b"two\nthree\n").expect("it reads");
    std::thread::sleep(std::time::Duration::from_millis(300)); // the freeze itself
    sender.terminate();
    assert_eq!(sender.exit_code(), Some(143));
    server.thaw();
    let screen = sender.stderr();
    assert!(screen.contains("error: lines 2 to 3 are in doubt: there was no answer"), "{screen}");
    assert!(screen.contains("line 1 is sent") && !screen.contains("tail"), "{screen}");
}

/// Replicas that are not there are missed before anything is sent; those that are away, after it was added.
#[test]
fn replicas_that_are_missing() {
    let server = joined_server();
    let url = server.url();
    for (durability, code, screen) in [
        ("twice", 2, "replicated:1 to replicated:100, or all, not \"twice\""),
        ("replicated:0", 2, "not \"replicated:0\""),
        ("all", 1, "0 replicas in sync, and 1 must have what is told"),
        ("replicated:2", 1, "start replicas, or leave out `--durability`"),
    ] {
        let args = ["send", "--redis", &url, "--durability", durability, "x"];
        let output = with(&args, &[], b"");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{durability}: {said}");
        assert!(said.contains(screen), "{durability}: {said}");
    }
    let port = server.port().to_string();
    let replica = any_server(&["--replicaof", "127.0.0.1", &port]);
    eventually("the replica to be in sync", || {
        artel_rig::replication_of(server.port()).contains("state=online")
    });
    replica.freeze();
    let args = ["send", "--redis", &url, "--durability", "all", "--timeout", "3s", "--file", "-"];
    let output = with(&args, &[], b"one\ntwo\n");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    for part in [
        "lines 1 to 2",
        "0 of 1 replicas have it",
        "lines 1 to 2 are sent: go on with `tail -n +3`",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let len = redis::cmd("LLEN").arg("artel:{artel}:lane:normal").query(&mut server.connect());
    assert_eq!(len, Ok(2), "each is there once");
}
