use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use artel_testkit::{eventually, wait_for};

use crate::crew::{Crew, on_each_server, soak};

on_each_server! {
    /// Promise 3 and 5: a worker is killed in the middle of a slow handler while others are idle;
    /// its messages start elsewhere, with one outcome each.
    fn killed_workers_give_their_messages_back(kind) {
        let kills = if soak() { 10 } else { 2 };
        let options =
            ["--interval", "700ms", "--lease", "1s", "--work-time", "2s", "--error-rate", "0"];
        let mut crew = Crew::start(kind, 4, &options);
        let mut times = Vec::new();
        for _ in 0..kills {
            let (worker, held) = busy_worker(&mut crew);
            let process = crew.process_of(&worker).expect("it runs");
            let killed = Instant::now();
            crew.members[process].kill();
            eventually("its message to start elsewhere", || {
                let snapshot = crew.look();
                snapshot.blocks.iter().any(|(name, ids)| {
                    !name.contains(&worker) && ids.iter().any(|id| held.contains(id))
                })
            });
            times.push(killed.elapsed());
            crew.add();
            eventually("its messages to be settled", || {
                let settled = crew.look().ledger;
                held.iter().all(|id| settled.iter().any(|(done, ..)| done == id))
            });
            let ledger = crew.look().ledger;
            for id in &held {
                let attempts: Vec<u32> =
                    ledger.iter().filter(|entry| entry.0 == *id).map(|entry| entry.3).collect();
                assert_eq!(attempts.len(), 1, "one outcome");
                assert!(attempts[0] >= 2, "counted as another attempt");
            }
            crew.audit();
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
        let mut crew = Crew::start(kind, 4, &options);
        let (worker, held) = busy_worker(&mut crew);
        let process = crew.process_of(&worker).expect("it runs");
        crew.members[process].freeze();
        eventually("its messages to be settled by others", || {
            let settled = crew.look().ledger;
            held.iter().all(|id| settled.iter().any(|entry| entry.0 == *id))
        });
        crew.members[process].thaw();
        crew.members[process].says("claim lost");
        eventually("it to come back under a new id", || crew.look().members.len() == 4);
        for id in &held {
            let by: Vec<String> = crew.look().ledger.into_iter()
                .filter(|entry| entry.0 == *id).map(|entry| entry.2).collect();
            assert_eq!(by.len(), 1, "one outcome");
            assert_ne!(by[0], worker);
        }
        crew.audit();
    }

    /// A wake token that somebody else ate delays a message, it does not lose it.
    fn an_eaten_wake_token_loses_nothing(kind) {
        let mut crew = Crew::start(kind, 2, &["--interval", "300ms", "--lease", "1s"]);
        crew.settled(2);
        // Thieves that block for the token, too: whoever waits longest gets it.
        let over = Arc::new(AtomicBool::new(false));
        let thieves: Vec<_> = (0..4)
            .map(|_| {
                let (mut thief, wake, over) = (crew.server.connect(), crew.key("wake"), over.clone());
                std::thread::spawn(move || {
                    let mut eaten = 0;
                    while !over.load(Ordering::Acquire) {
                        let token: Option<(String, String)> = redis::cmd("BLPOP")
                            .arg(&wake).arg(1).query(&mut thief).expect("answers");
                        eaten += u32::from(token.is_some());
                    }
                    eaten
                })
            })
            .collect();
        let before = crew.look().ledger.len();
        crew.settled(before + 8);
        over.store(true, Ordering::Release);
        let eaten: u32 = thieves.into_iter().map(|thief| thief.join().expect("ends well")).sum();
        assert!(eaten > 0, "tokens were eaten");
        crew.audit();
    }
}

/// A worker in the middle of a handler, and what it holds.
#[track_caller]
fn busy_worker(crew: &mut Crew) -> (String, Vec<String>) {
    wait_for("a busy worker", || {
        let snapshot = crew.look();
        let leader = snapshot.leader()?.to_owned();
        let (name, held) = snapshot.blocks.iter().find(|(_, ids)| !ids.is_empty())?;
        let worker = name.split(':').nth(1)?.to_owned();
        // Others must be idle: nothing waits, so whoever is free could start it.
        let free = snapshot.lanes.values().all(Vec::is_empty);
        let alive = worker != leader && snapshot.members.contains(&worker);
        (free && alive).then(|| (worker, held.clone()))
    })
}
