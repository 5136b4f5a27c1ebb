//! The promise holds over TLS, with the fewest rights, and on a unix socket.

use artel_rig::{Certs, Kind, Program, Server, eventually, free_port};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

const COUNT: i64 = 150;
const OPTIONS: [&str; 10] = [
    "--interval",
    "5ms",
    "--lease",
    "2s",
    "--max-messages",
    "150",
    "--error-rate",
    "0.2",
    "--work-time",
    "10ms",
];

/// Members that reach the server in this way; the generator and a worker are killed, everything is
/// completed, errors are listed, put back, taken; nothing is lost or doubled.
fn everything_works(mut fleet: TestFleet, way: &[&str]) {
    for _ in 0..4 {
        fleet.add_with(way);
    }
    for member in &fleet.members {
        member.says("joined the fleet");
    }
    let (leader, process) = fleet.leader();
    fleet.settled(10);
    fleet.members[process].kill();
    fleet.next_leader(&leader);
    fleet.settled(30);
    let (_, worker) = fleet.worker();
    fleet.members[worker].kill();
    fleet.complete(COUNT);
    let run = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--fleet", FLEET]);
        all.extend(way);
        let mut program = Program::start(artel(), &all);
        assert_eq!(program.exit_code(), Some(0), "{args:?}: {}", program.stderr());
        program.stdout()
    };
    run(&["status"]);
    run(&["clean", "--temp"]);
    let failed = fleet.look().errors.clone();
    assert!(!failed.is_empty());
    assert_eq!(run(&["errors", "list", "--limit", "3", "--json"]).lines().count(), 3);
    assert_eq!(run(&["errors", "export"]).lines().count(), failed.len());
    assert_eq!(run(&["errors", "requeue", "--yes", "--limit", "1", "--lane", "high"]), "1\n");
    assert_eq!(run(&["errors", "take", "--limit", "1", "--cause", "handler"]).lines().count(), 1);
    run(&["send", "--dedup", "k", "one more"]);
    run(&["send", "--dedup", "k", "one more"]);
    eventually("what was sent to be settled", || fleet.done() as i64 == COUNT + 2);
    run(&["getErrors"]);
    let mut taken = failed;
    let snapshot = fleet.look();
    taken.extend(
        snapshot
            .ledger
            .iter()
            .filter(|settled| settled.id.starts_with('s') && settled.outcome == "failed")
            .map(|settled| settled.id.clone()),
    );
    artel_rig::Audit::of(&snapshot, artel_rig::Taken::Ids(&taken)).assert_clean();
    for (at, member) in fleet.members.iter_mut().enumerate() {
        if member.is_alive() {
            member.terminate();
            assert_eq!(member.exit_code(), Some(0), "member {at}: {}", member.stderr());
        }
    }
}

/// TLS with an authority of our own and certificates on both sides. Valkey from PyPI has no TLS.
#[test]
fn the_promise_holds_over_tls() {
    if Kind::Redis.program().is_none() {
        return println!("no Redis with TLS here");
    }
    let (certs, port) = (Certs::new(), free_port());
    let options = certs.server_options("server", port, true);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let fleet = TestFleet::on(Server::with(Kind::Redis, &options), 0, &OPTIONS);
    let url = format!("rediss://localhost:{port}");
    let (ca, cert) = (certs.cert("ca"), certs.cert("client"));
    let key = certs.key("client");
    let files = [ca, cert, key].map(|path| path.display().to_string());
    let way =
        ["--redis", &url, "--tls-ca", &files[0], "--tls-cert", &files[1], "--tls-key", &files[2]];
    everything_works(fleet, &way);
}

/// The line of the page on operations that gives a user the fewest permissions.
fn acl_line() -> Vec<String> {
    let page = include_str!("../../../docs/operations.md");
    let start = page.find("ACL SETUSER artel ").expect("the page has it");
    let line = page[start..].split("```").next().expect("a block").replace("\\\n", " ");
    let line = line.replace("{orders}", &format!("{{{FLEET}}}"));
    line.split_whitespace().skip(2).map(str::to_owned).collect()
}

fn set_user(server: &Server, words: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER");
    for word in words {
        command.arg(word);
    }
    let () = command.query(&mut server.connect()).expect("a good line");
}

on_each_server! {
    /// With exactly the documented rights everything works.
    fn the_documented_rights_suffice(kind) {
        let fleet = TestFleet::start(kind, 0, &OPTIONS);
        set_user(&fleet.server, &acl_line());
        let url = format!("redis://artel:secret@127.0.0.1:{}", fleet.server.port());
        everything_works(fleet, &["--redis", &url]);
    }

    /// None of them can be left out: without any one, a member is refused at the start and told
    /// which right it lacks.
    fn every_documented_right_is_needed(kind) {
        let server = Server::start(kind);
        let url = format!("redis://artel:secret@127.0.0.1:{}", server.port());
        let line = acl_line();
        for at in (0..line.len()).filter(|&at| line[at].starts_with('+')) {
            let mut fewer = line.clone();
            let right = fewer.remove(at);
            let reset = ["artel".to_owned(), "reset".to_owned()];
            set_user(&server, &reset);
            set_user(&server, &fewer);
            let args = ["getErrors", "--redis", &url, "--fleet", FLEET];
            let mut program = Program::start(artel(), &args);
            assert_eq!(program.exit_code(), Some(1), "without {right}: {}", program.stderr());
            let (screen, right) = (program.stderr().to_lowercase(), right[1..].to_owned());
            let name = right.split('|').next().expect("a command");
            assert!(screen.contains("denies access") && screen.contains(name), "{right}: {screen}");
        }
    }

    fn the_promise_holds_on_a_unix_socket(kind) {
        let dir = tempfile::tempdir().expect("a dir");
        let socket = dir.path().join("redis.sock").display().to_string();
        let server = Server::with(kind, &["--unixsocket", &socket, "--appendonly", "yes"]);
        let fleet = TestFleet::on(server, 0, &OPTIONS);
        everything_works(fleet, &["--redis", &format!("unix:{socket}")]);
    }

    /// An address that is a secret comes from a file.
    fn an_address_can_come_from_a_file(kind) {
        let server = Server::start(kind);
        let dir = tempfile::tempdir().expect("a dir");
        let file = dir.path().join("url");
        std::fs::write(&file, format!("{}\n", server.url())).expect("writes");
        let args = ["send", "--redis-url-file", &file.display().to_string(), "hello"];
        let mut program = Program::start(artel(), &args);
        assert_eq!(program.exit_code(), Some(0), "{}", program.stderr());
    }
}

/// The password is changed under a member that runs: it says so, waits, and goes on when it may again.
#[test]
fn access_that_is_denied_after_a_reconnect_is_named() {
    let server = Server::any();
    let worker = Program::start(artel(), &["work", "--redis", &server.url(), "--lease", "1s"]);
    worker.says("joined the fleet");
    let mut connection = server.connect();
    let mut say = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query::<redis::Value>(&mut connection).expect("answers");
    };
    say(&["CONFIG", "SET", "requirepass", "changed"]);
    say(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    say(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
    let line = worker.says("Redis denies access now");
    assert!(line.contains("NOAUTH"), "{line}");
    say(&["CONFIG", "SET", "requirepass", ""]);
    worker.says("Redis answers again");
}
