//! Proves events, locks and what is built from them with real processes, real `kill -9`, real
//! freezes and partitions, and clients in other languages.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

mod contest; // a lock under kill, freeze and partition
mod languages; // redis-cli and Python

use std::path::PathBuf;

use artel_rig::{Kind, Program, Server, eventually};

const FLEET: &str = "actors";

/// Is this the long run?
fn soak() -> bool {
    std::env::var_os("ARTEL_SOAK").is_some()
}

/// Examples are built beside the tests; the actor is one of them.
fn actor(words: &[&str]) -> Program {
    let test = std::env::current_exe().expect("a path");
    let actor: PathBuf = test.ancestors().nth(2).expect("the build folder").join("examples/actor");
    Program::start(actor, words)
}

fn servers() -> impl Iterator<Item = Server> {
    let kinds = [Kind::Redis, Kind::Valkey].into_iter();
    kinds.filter(|kind| kind.program().is_some()).map(Server::start)
}

fn key(name: &str) -> String {
    format!("artel:{{{FLEET}}}:{name}")
}

/// Waits until a process has said this so many times.
#[track_caller]
fn said(program: &Program, line: &str, times: usize) {
    eventually(&format!("{line:?} for the {times}th time"), || {
        program.stdout().lines().filter(|said| *said == line).count() >= times
    });
}

/// Sets the event and clears it again, in one piece: nobody can ever see that it is set.
fn pulse(connection: &mut redis::Connection) {
    let event = key("event:pulse");
    let () = redis::pipe()
        .atomic()
        .hincr(&event, "gen", 1)
        .ignore()
        .hset(&event, "flag", "1")
        .ignore()
        .cmd("SPUBLISH")
        .arg(key("@0:event:pulse"))
        .arg("set")
        .ignore()
        .hset(&event, "flag", "0")
        .ignore()
        .query(connection)
        .expect("pulses");
}

#[test]
fn a_pulse_wakes_everybody_who_waits() {
    let (processes, rounds) = if soak() { (50, 200) } else { (8, 50) };
    for server in servers() {
        let mut connection = server.connect();
        let count = rounds.to_string();
        let mut actors: Vec<Program> =
            (0..processes).map(|_| actor(&["wait", &server.url(), &count])).collect();
        for round in 0..rounds {
            for actor in &actors {
                said(actor, "waiting", round + 1);
            }
            pulse(&mut connection);
            for actor in &actors {
                said(actor, &format!("woken {round}"), 1);
            }
        }
        for actor in &mut actors {
            assert_eq!(actor.exit_code(), Some(0), "{}", actor.stderr());
        }
    }
}

#[test]
fn no_more_processes_than_permits_are_inside() {
    let server = Server::any();
    let file = server.dir().join("inside").display().to_string();
    let start = |rounds: &str| actor(&["semaphore", &server.url(), &file, "2", rounds]);
    let mut actors: Vec<Program> = (0..6).map(|_| start("20")).collect();
    // The first two to be done stay inside; whoever is killed there makes room.
    for _ in 0..4 {
        let inside = || {
            let last = |actor: &Program| actor.stdout().lines().any(|line| line == "in 20");
            (0..actors.len()).filter(|at| last(&actors[*at])).collect::<Vec<_>>()
        };
        eventually("two to stay inside", || inside().len() == 2);
        let at = inside()[0];
        let mut gone = actors.remove(at);
        let mut book = std::fs::File::options().append(true).open(&file).expect("a file");
        std::io::Write::write_all(&mut book, b"out\n").expect("writes");
        gone.kill();
    }
    let mut inside = 0;
    for line in std::fs::read_to_string(&file).expect("a file").lines() {
        inside += if line == "in" { 1 } else { -1 };
        assert!((0..=2).contains(&inside), "{inside} inside");
    }
}

#[test]
fn a_latch_holds_a_process_until_others_have_counted() {
    let server = Server::any();
    let waiting = actor(&["latch", &server.url(), "wait"]);
    said(&waiting, "waiting", 1);
    let latch = key("latch:imported");
    let mut connection = server.connect();
    // As a fourth program would begin it.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let redis = artel::Fleet::open(server.url(), FLEET).expect("an address");
        let latch = redis.latch("imported", 3).expect("a name");
        assert!(latch.start().await.expect("begins"));
    });
    for left in (0..3).rev() {
        assert!(!waiting.stdout().contains("open"), "{left} left");
        let mut counts = actor(&["latch", &server.url(), "down"]);
        assert_eq!(counts.exit_code(), Some(0), "{}", counts.stderr());
        assert_eq!(counts.stdout(), format!("left {left}\n"));
        let count: u32 =
            redis::cmd("HGET").arg(&latch).arg("count").query(&mut connection).expect("reads");
        assert_eq!(count, left);
    }
    said(&waiting, "open", 1);
}

#[test]
fn processes_go_through_a_barrier_together() {
    let server = Server::any();
    let file = server.dir().join("barrier").display().to_string();
    let start = || actor(&["barrier", &server.url(), &file, "4", "10"]);
    // Somebody must be there to judge the dead.
    let bystander = actor(&[
        "semaphore",
        &server.url(),
        &server.dir().join("x").display().to_string(),
        "1",
        "0",
    ]);
    said(&bystander, "in 0", 1);
    // One arrives and dies there: it does not count.
    let mut dies = start();
    let barrier = key("barrier:start");
    let mut connection = server.connect();
    eventually("its arrival", || {
        let fields: Vec<String> =
            redis::cmd("HKEYS").arg(&barrier).query(&mut connection).expect("reads");
        fields.iter().any(|field| field.starts_with("a:"))
    });
    dies.kill();
    let members = key("members");
    eventually("its session to end", || {
        redis::cmd("ZCARD").arg(&members).query(&mut connection).is_ok_and(|n: u32| n == 1)
    });
    std::fs::remove_file(&file).expect("a file");
    let mut actors: Vec<Program> = (0..4).map(|_| start()).collect();
    for actor in &mut actors {
        assert_eq!(actor.exit_code(), Some(0), "{}", actor.stderr());
    }
    let lines = std::fs::read_to_string(&file).expect("a file");
    for round in 0..10 {
        let at = |line: &str| {
            let found = |one: &str| *one == format!("{line} {round}");
            lines
                .lines()
                .enumerate()
                .filter(move |(_, l)| found(l))
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        };
        let (arrived, through) = (at("arrives"), at("through"));
        assert_eq!((arrived.len(), through.len()), (4, 4), "round {round}");
        assert!(arrived.iter().max() < through.iter().min(), "round {round}:\n{lines}");
    }
}
