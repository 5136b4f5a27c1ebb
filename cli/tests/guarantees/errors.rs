use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use artel_rig::{Kind, Program, Server, clean_command, eventually};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

const STORED: usize = 10_000;

on_each_server! {
    /// Two takers at once: each record is printed by exactly one of them, and then nothing is left.
    fn two_takers_never_print_the_same(kind) {
        let server = store(kind, STORED);
        let mut takers = [get_errors(&server), get_errors(&server)];
        let mut printed = BTreeMap::new();
        for taker in &mut takers {
            assert_eq!(taker.exit_code(), Some(0), "{}", taker.stderr());
            for line in taker.stdout().lines() {
                *printed.entry(line.to_owned()).or_insert(0) += 1;
            }
        }
        assert_eq!(printed.len(), STORED);
        assert!(printed.values().all(|times| *times == 1));
        assert_nothing_left(&server);
    }

    /// `getErrors | head -1` loses nothing: what `head` did not print is still stored.
    fn a_reader_that_goes_away_loses_nothing(kind) {
        let server = store(kind, 500);
        let mut printed = BTreeSet::new();
        for lines in [1, 7] {
            let pipe = format!("'{}' getErrors --redis {} --fleet {FLEET} | head -{lines}", artel(), server.url());
            let output = clean_command("sh", &["-c", &pipe]).output().expect("sh runs");
            let text = String::from_utf8(output.stdout).expect("text");
            assert_eq!(text.lines().count(), lines);
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            for line in text.lines() {
                assert!(printed.insert(line.to_owned()), "{line} twice");
            }
        }
        let mut taker = get_errors(&server);
        assert_eq!(taker.exit_code(), Some(0));
        for line in taker.stdout().lines() {
            assert!(printed.insert(line.to_owned()), "{line} twice");
        }
        assert_eq!(printed.len(), 500);
        assert_nothing_left(&server);
    }

    /// A taker is killed with -9: at most the page in flight is printed again, nothing is lost.
    fn a_killed_taker_loses_nothing(kind) {
        let server = store(kind, 2_000);
        let mut taker = get_errors(&server);
        eventually("some lines", || taker.stdout().lines().count() > 150);
        taker.kill();
        let first: Vec<String> = whole_lines(&taker.stdout());
        let mut second = Vec::new();
        eventually("the drain of the dead taker to be inherited", || {
            let mut heir = get_errors(&server);
            assert_eq!(heir.exit_code(), Some(0));
            second.extend(whole_lines(&heir.stdout()));
            left(&server) == 0
        });
        let all: BTreeSet<&String> = first.iter().chain(&second).collect();
        assert_eq!(all.len(), 2_000, "nothing is lost");
        let again = first.len() + second.len() - 2_000;
        assert!(again <= 100, "{again} printed again");
        assert_nothing_left(&server);
    }

    /// The permanent spellings, and what `getErrors` leaves in the books.
    fn failed_messages_are_kept_and_taken(kind) {
        let options = ["--interval", "2ms", "--lease", "1s", "--error-rate", "0.5", "--max-messages", "200"];
        let mut fleet = TestFleet::start(kind, 2, &options);
        fleet.complete(200);
        let failed = fleet.look().errors.len();
        assert!(failed > 50 && failed < 150, "{failed} of 200 with an error rate of 0.5");
        let url = fleet.server.url();
        let mut printed = 0;
        for spelling in [&["--getErrors", "yes"][..], &["--getErrors"], &["getErrors"]] {
            let mut args = vec!["--redis", &url, "--fleet", FLEET];
            args.extend(spelling);
            let mut taker = Program::start(artel(), &args);
            assert_eq!(taker.exit_code(), Some(0), "{}", taker.stderr());
            printed += taker.stdout().lines().count();
        }
        assert_eq!(printed, failed, "all of them, once");
        assert_eq!(fleet.look().errors.len(), 0);
        assert_eq!(fleet.count("taken"), failed as i64);
    }

    /// What dead members left is put back by `--cleanTemp`; live work is not touched.
    fn clean_temp_puts_back_what_the_dead_left(kind) {
        let options = ["--interval", "50ms", "--lease", "1s", "--work-time", "60s", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        eventually("claimed messages", || fleet.look().blocks.values().flatten().count() >= 4);
        for process in 0..3 {
            fleet.members[process].kill();
        }
        assert!(fleet.look().unsettled() > 0);
        let url = fleet.server.url();
        for spelling in [&["--cleanTemp", "yes"][..], &["--cleanTemp"], &["clean", "--temp"]] {
            let mut args = vec!["--redis", &url, "--fleet", FLEET];
            args.extend(spelling);
            let mut clean = Program::start(artel(), &args);
            assert_eq!(clean.exit_code(), Some(0), "{}", clean.stderr());
            assert!(clean.stdout().contains("messages put back"), "{}", clean.stdout());
        }
        let snapshot = fleet.look();
        assert!(snapshot.blocks.is_empty() && snapshot.members.is_empty());
        assert!(!snapshot.lanes["returned"].is_empty());
        fleet.audit();
    }
}

/// Whoever puts back what the dead left goes by the fleet's limit of attempts and its ledger, not by its own.
#[test]
fn clean_temp_goes_by_the_settings_of_the_fleet() {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let options =
        ["--interval", "50ms", "--lease", "1s", "--work-time", "60s", "--error-rate", "0"];
    let mut fleet = TestFleet::start(kind, 2, &[&options[..], &["--attempts-max", "1"]].concat());
    eventually("a claimed message", || fleet.look().blocks.values().flatten().count() >= 1);
    for process in 0..2 {
        fleet.members[process].kill();
    }
    let url = fleet.server.url();
    let mut clean =
        Program::start(artel(), &["clean", "--temp", "--redis", &url, "--fleet", FLEET]);
    assert_eq!(clean.exit_code(), Some(0), "{}", clean.stderr());
    let said = clean.stdout();
    assert!(said.contains("messages put back: 0\n"), "{said}");
    assert!(said.contains("messages failed, their attempts used up: "), "{said}");
    let snapshot = fleet.look();
    assert!(!snapshot.errors.is_empty() && !snapshot.ledger.is_empty());
    fleet.audit();
}

/// A server with this many failed messages, stored as the scripts store them.
fn store(kind: Kind, count: usize) -> Server {
    let server = Server::start(kind);
    let mut pipe = redis::pipe();
    let prefix = format!("artel:{{{FLEET}}}:");
    for seq in 1..=count {
        let envelope = format!("1g-|1794710083943807-{seq}|1|1794710083950|message {seq}");
        let why = r#"{"v":1,"cause":"handler","reason":"found in error","member":"m","label":"l"}"#;
        pipe.cmd("XADD").arg(format!("{prefix}errors")).arg("*");
        pipe.arg("m").arg(envelope).arg("e").arg(why).ignore();
    }
    let () = pipe.query(&mut server.connect()).expect("stored");
    server
}

fn get_errors(server: &Server) -> Program {
    Program::start(artel(), &["getErrors", "--redis", &server.url(), "--fleet", FLEET])
}

fn whole_lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
}

fn left(server: &Server) -> usize {
    artel_rig::Snapshot::read(&mut server.connect(), FLEET).errors.len()
}

#[track_caller]
fn assert_nothing_left(server: &Server) {
    assert_eq!(left(server), 0);
    let output = Command::new(artel())
        .args(["getErrors", "--redis", &server.url(), "--fleet", FLEET])
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert!(output.status.success() && output.stdout.is_empty());
}

/// Ctrl-C while a reader takes its time: what it has is deleted, the rest is stored, nothing twice.
#[test]
fn an_interrupted_taker_deletes_exactly_what_its_reader_has() {
    use std::io::{BufRead, BufReader};
    let server = artel_rig::Server::any();
    let mut connection = server.connect();
    for n in 0..60 {
        let () = redis::cmd("XADD")
            .arg("artel:{artel}:errors")
            .arg("*")
            .arg("m")
            .arg(format!("1g-|5-{n}|1|9|{}", "x".repeat(70_000)))
            .arg("e")
            .arg("{}")
            .query(&mut connection)
            .expect("answers");
    }
    let args = ["getErrors", "--json", "--redis", &server.url()];
    let mut child = artel_rig::clean_command(crate::fleet::artel(), &args)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    // Larger than a pipe: the reader has no more than what it has read.
    let mut reader = BufReader::with_capacity(1, child.stdout.take().expect("piped"));
    let mut line = String::new();
    for _ in 0..20 {
        line.clear();
        reader.read_line(&mut line).expect("a line");
    }
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it is there");
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    let left: usize =
        redis::cmd("XLEN").arg("artel:{artel}:errors").query(&mut connection).expect("answers");
    assert!(left == 40 || left == 41, "twenty were read, one may be on its way: {left}");
}
