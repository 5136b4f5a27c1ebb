use std::time::{Duration, Instant};

use artel_rig::{Fault, Program, Proxy, Server, eventually};

use crate::fleet::{TestFleet, artel, on_each_server, soak};

on_each_server! {
    /// A generator that is told to stop hands over at once.
    fn a_stopping_generator_hands_over(kind) {
        let rounds = if soak() { 20 } else { 3 };
        let mut fleet = TestFleet::start(kind, 4, &["--interval", "2ms", "--lease", "3s"]);
        let mut times = Vec::new();
        for _ in 0..rounds {
            fleet.settled(5);
            let (old, process) = fleet.leader();
            let told = Instant::now();
            fleet.members[process].terminate();
            fleet.next_leader(&old);
            times.push(told.elapsed());
            assert_eq!(fleet.members[process].exit_code(), Some(0));
            fleet.add();
        }
        fleet.audit();
        assert!(!fleet.anybody_says("member died"), "nobody died: they left");
        println!("{kind:?}: handed over after {times:?}");
        if soak() {
            times.sort();
            assert!(times[times.len() / 2] < Duration::from_millis(100), "{times:?}");
        }
    }

    /// A worker that is told to stop finishes what it started and hands back the rest; no attempt is
    /// counted.
    fn a_stopping_worker_hands_back_what_it_has_not_started(kind) {
        let options = ["--interval", "1ms", "--lease", "3s", "--work-time", "4ms",
            "--concurrency", "1", "--max-messages", "3000", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 4, &options);
        fleet.settled(300); // by now it fetches ahead
        let mut handed_back = false;
        for _ in 0..2 {
            let (_, process) = fleet.worker();
            fleet.members[process].terminate();
            assert_eq!(fleet.members[process].exit_code(), Some(0));
            handed_back |= fleet.members[process].stderr().contains("handed back unstarted");
            fleet.add();
        }
        fleet.complete(3000);
        assert!(handed_back, "there was something to hand back");
        let ledger = fleet.look().ledger;
        assert!(ledger.iter().all(|settled| settled.attempt == 1), "no attempt was counted");
    }

    /// A worker that is elected finishes what it started and hands back the rest.
    fn an_elected_worker_hands_back_what_it_has_not_started(kind) {
        let options = ["--interval", "1ms", "--lease", "3s", "--work-time", "4ms",
            "--concurrency", "1", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 2, &options);
        fleet.settled(300);
        let (old, process) = fleet.leader();
        fleet.members[process].terminate();
        let (_, elected) = fleet.next_leader(&old);
        fleet.members[elected].says("handed back unstarted");
        fleet.add();
        let before = fleet.done();
        fleet.settled(before + 100);
        let ledger = fleet.look().ledger;
        assert!(ledger.iter().all(|settled| settled.attempt == 1), "no attempt was counted");
        fleet.audit();
    }

    /// The last one out leaves nothing behind but the messages; the next one in goes on with them.
    fn an_empty_fleet_is_resumed(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--interval", "5ms", "--lease", "1s"]);
        fleet.settled(20);
        for process in 0..2 {
            fleet.members[process].terminate();
        }
        for process in 0..2 {
            assert_eq!(fleet.members[process].exit_code(), Some(0));
        }
        let snapshot = fleet.look();
        assert!(snapshot.members.is_empty() && snapshot.lease.is_none());
        assert!(snapshot.blocks.is_empty(), "nothing is claimed by nobody");
        fleet.audit();
        fleet.add();
        fleet.add();
        let before = fleet.done();
        fleet.settled(before + 20);
        fleet.audit();
    }

    /// One that is told to stop while it joins has left when it is gone: nobody takes it for dead.
    fn who_stops_while_it_joins_leaves(kind) {
        let server = Server::start(kind);
        let far = Proxy::start(server.port()).expect("a proxy");
        far.set(Fault::Delay(Duration::from_millis(30)));
        let mut member = Program::start(artel(), &["work", "--fleet", "f", "--redis", &far.url()]);
        let mut connection = server.connect();
        let mut members = || redis::cmd("ZCARD").arg("artel:{f}:members").query(&mut connection);
        while members().unwrap_or(0) == 0 {}
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        assert_eq!(members(), Ok(0), "it is a member still");
    }

    /// `--max-messages` counts per fleet, whoever leads; at N the generator keeps its lease.
    fn max_messages_counts_for_the_whole_fleet(kind) {
        let options = ["--interval", "2ms", "--lease", "1s", "--max-messages", "300"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        eventually("some messages", || fleet.count("generated") > 50);
        let (old, process) = fleet.leader();
        fleet.members[process].kill();
        fleet.next_leader(&old);
        fleet.complete(300);
        fleet.leader();
        assert_eq!(fleet.count("generated"), 300);
    }

    /// `--for` ends by itself and prints the books.
    fn a_run_with_an_end_prints_the_books(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--interval", "20ms", "--for", "2s", "--lease", "1s"]);
        for process in 0..2 {
            assert_eq!(fleet.members[process].exit_code(), Some(0));
            let books = fleet.members[process].stdout();
            assert!(books.starts_with("generated ") && books.ends_with("balance 0\n"), "{books}");
        }
        fleet.audit();
    }
}

/// A closed terminal drains a member like SIGTERM, unless whoever started it wants it to live on.
#[test]
fn a_hang_up_drains_unless_it_is_ignored() {
    use nix::sys::signal::Signal;
    let server = artel_rig::Server::any();
    let args = ["run", "--redis", &server.url(), "--interval", "20ms"];
    // Where the tests themselves are to survive a hang-up, every process they start is, too.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    if ignored & 1 == 0 {
        let mut member = artel_rig::Program::start(artel(), &args);
        member.says("this process leads");
        member.signal(Signal::SIGHUP);
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        assert!(member.stderr().contains("left the fleet"));
    }
    let line = format!("trap '' HUP; exec {} {}", artel(), args.join(" "));
    let mut member = artel_rig::Program::start("sh", &["-c", &line]);
    member.says("this process leads");
    member.signal(Signal::SIGHUP);
    let mut connection = server.connect();
    let mut generated = || -> i64 {
        redis::cmd("HGET")
            .arg("artel:{artel}:counts")
            .arg("generated")
            .query::<Option<i64>>(&mut connection)
            .expect("answers")
            .unwrap_or(0)
    };
    let before = generated();
    artel_rig::eventually("it to go on", || generated() > before + 5);
    member.terminate();
    assert_eq!(member.exit_code(), Some(0));
}
