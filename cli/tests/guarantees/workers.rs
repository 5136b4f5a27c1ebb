use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel_rig::{Program, Server, Snapshot, clean_command, eventually, wait_for};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server, soak};

on_each_server! {
    /// Promise 3 and 5: a worker is killed in the middle of a slow handler while others are idle;
    /// its messages start elsewhere, with one outcome each.
    fn killed_workers_give_their_messages_back(kind) {
        let kills = if soak() { 10 } else { 2 };
        let options =
            ["--interval", "700ms", "--lease", "1s", "--work-time", "2s", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 4, &options);
        let mut times = Vec::new();
        for _ in 0..kills {
            let (worker, held) = busy_worker(&mut fleet);
            let process = fleet.process_of(&worker).expect("it runs");
            let killed = Instant::now();
            fleet.members[process].kill();
            eventually("its message to start elsewhere", || {
                let snapshot = fleet.look();
                snapshot.blocks.iter().any(|(name, ids)| {
                    !name.contains(&worker) && ids.iter().any(|id| held.contains(id))
                })
            });
            times.push(killed.elapsed());
            fleet.add();
            eventually("its messages to be settled", || {
                let settled = fleet.look().ledger;
                held.iter().all(|id| settled.iter().any(|done| done.id == *id))
            });
            let ledger = fleet.look().ledger;
            for id in &held {
                let attempts: Vec<u32> =
                    ledger.iter().filter(|entry| entry.id == *id).map(|entry| entry.attempt).collect();
                assert_eq!(attempts.len(), 1, "one outcome");
                assert!(attempts[0] >= 2, "counted as another attempt");
            }
            fleet.audit();
        }
        println!("{kind:?}: messages of killed workers started elsewhere after {times:?}");
        if soak() {
            assert!(times.iter().all(|time| *time < Duration::from_secs(1)));
        }
    }

    /// Promise 3: the late outcome of a worker that was frozen past its lease is refused.
    fn the_late_outcome_of_a_frozen_worker_is_lost(kind) {
        let options =
            ["--interval", "700ms", "--lease", "1s", "--work-time", "1s", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 4, &options);
        let (worker, held) = busy_worker(&mut fleet);
        let process = fleet.process_of(&worker).expect("it runs");
        fleet.members[process].freeze();
        eventually("its messages to be settled by others", || {
            let settled = fleet.look().ledger;
            held.iter().all(|id| settled.iter().any(|entry| entry.id == *id))
        });
        fleet.members[process].thaw();
        fleet.members[process].says("claim lost");
        eventually("it to come back under a new id", || fleet.sessions().len() == 4);
        for id in &held {
            let by: Vec<String> = fleet.look().ledger.into_iter()
                .filter(|entry| entry.id == *id).map(|entry| entry.member).collect();
            assert_eq!(by.len(), 1, "one outcome");
            assert_ne!(by[0], worker);
        }
        fleet.audit();
    }

    /// ⚑ Token or time-out, a fetch follows: a message whose wake token was eaten, by a worker that
    /// froze with it in its hands, is found by an idle worker all the same.
    fn a_message_without_a_wake_token_is_found(kind) {
        let options = ["--interval", "5ms", "--lease", "1s", "--max-messages", "5"];
        let mut fleet = TestFleet::start(kind, 2, &options);
        fleet.complete(5);
        let last = fleet.look().ledger.iter().map(|entry| entry.id.clone()).max().expect("five");
        let term = last.split_once('-').expect("term-seq").0;
        // A sixth, as a push leaves it, but with its token gone.
        let envelope = format!("1g-|{term}-6|1|1794710083950|forgotten");
        let (lane, counts) = (fleet.key("lane:generated"), fleet.key("counts"));
        let () = redis::pipe().atomic()
            .cmd("RPUSH").arg(lane).arg(envelope).ignore()
            .cmd("HINCRBY").arg(counts).arg("generated").arg(1).ignore()
            .query(fleet.connection()).expect("answers");
        fleet.complete(6);
    }

    /// 3,000 messages travel as packs, without a ledger. Workers are killed with -9 in the middle of them: what they
    /// had not settled comes back, and every message has one outcome.
    fn what_is_left_of_a_killed_workers_packs_comes_back(kind) {
        let server = Server::start(kind);
        let (url, mut connection) = (server.url(), server.connect());
        let run = |args: &[&str]| {
            let mut all = args.to_vec();
            all.extend(["--redis", &url, "--fleet", FLEET]);
            clean_command(artel(), &all)
        };
        let mut command = run(&["send"]);
        command.stdin(Stdio::piped());
        let mut sender = Program::spawn(command);
        let lines: String = (0..3000).map(|n| format!("{n}\n")).collect();
        sender.stdin().write_all(lines.as_bytes()).expect("it reads");
        assert_eq!(sender.exit_code(), Some(0), "{}", sender.stderr());
        let chunks: Vec<String> = redis::cmd("KEYS").arg(format!("artel:{{{FLEET}}}:chunk:*"))
            .query(&mut connection).expect("answers");
        assert!(!chunks.is_empty(), "they travel as packs");
        let work = ["work", "--error-rate", "0.05", "--work-time", "200us", "--lease", "1s", "--concurrency", "2"];
        for died_at in [300, 900, 1500] {
            let mut worker = Program::spawn(run(&work));
            eventually("some of them to be settled", || {
                let now = Snapshot::read(&mut connection, FLEET);
                assert!(now.torn.is_empty(), "{:?}", now.torn);
                now.count("done") + now.count("failed") >= died_at
            });
            worker.kill();
        }
        let _last = Program::spawn(run(&work));
        eventually("all of them to be settled", || {
            let now = Snapshot::read(&mut connection, FLEET);
            now.count("done") + now.count("failed") >= 3000
        });
        let now = Snapshot::read(&mut connection, FLEET);
        assert_eq!((now.waiting(), now.claimed(), now.torn.len()), (0, 0, 0), "{now:?}");
        assert_eq!((now.count("sent"), now.count("claimed")), (3000, 0));
        assert_eq!(now.count("done") + now.count("failed"), 3000, "one outcome each");
        assert_eq!(now.count("failed") as usize, now.errors.len(), "each failed one is kept once");
    }
}

/// A worker in the middle of a handler, and what it holds.
#[track_caller]
fn busy_worker(fleet: &mut TestFleet) -> (String, Vec<String>) {
    wait_for("a busy worker", || {
        let snapshot = fleet.look();
        let leader = snapshot.leader()?.to_owned();
        let (name, held) = snapshot.blocks.iter().find(|(_, ids)| !ids.is_empty())?;
        let worker = name.split(':').nth(1)?.to_owned();
        // Others must be idle: nothing waits, so whoever is free could start it.
        let free = snapshot.lanes.values().all(Vec::is_empty);
        let alive = worker != leader && snapshot.members.contains(&worker);
        (free && alive).then(|| (worker, held.clone()))
    })
}
