use std::time::{Duration, Instant};

use artel_rig::{Audit, Snapshot, Taken, eventually};

use crate::fleet::{FLEET, TestFleet, on_each_server, soak};

on_each_server! {
    /// Promise 1 and 5: the generator is killed again and again; another one leads each time.
    fn killed_generators_are_replaced(kind) {
        let (kills, messages, lease) = if soak() { (20, 4000, "3s") } else { (5, 1200, "1s") };
        let options = ["--interval", "5ms", "--lease", lease, "--max-messages", &messages.to_string()];
        let mut fleet = TestFleet::start(kind, 5, &options);
        let books = watch_the_books(fleet.server.connect());
        let (mut times, mut terms) = (Vec::new(), std::collections::BTreeSet::new());
        for _ in 0..kills {
            let (old, process) = fleet.leader();
            let highest = fleet.key("term");
            let term: u64 =
                redis::cmd("GET").arg(highest).query(fleet.connection()).expect("a term");
            terms.insert(term);
            let killed = Instant::now();
            fleet.members[process].kill();
            fleet.next_leader(&old);
            times.push(killed.elapsed());
            fleet.add();
            let generated = fleet.count("generated");
            eventually("the new one to generate", || fleet.count("generated") > generated);
        }
        let audit = fleet.complete(messages);
        // On a busy machine one may be killed before it has made anything.
        assert_eq!(terms.len(), kills, "every generator had its own term");
        assert!(!audit.terms.is_empty());
        books.all_balanced();
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{kind:?}: {kills} generators killed, next one after {median:?}, at most {worst:?}");
        if soak() {
            assert!(median < Duration::from_millis(700));
            assert!(worst < Duration::from_millis(3500));
        }
    }

    /// All members are frozen for longer than their lease while another one starts with another lease. Then
    /// they wake: there is one lease, and it is the new one.
    fn a_frozen_fleet_wakes_with_the_lease_it_finds(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--interval", "20ms", "--lease", "1s"]);
        fleet.leader();
        for member in &fleet.members {
            member.freeze();
        }
        let members = fleet.key("members");
        eventually("them to be overdue", || {
            let (seconds, _): (u64, u64) =
                redis::cmd("TIME").query(fleet.connection()).expect("answers");
            let alive: u64 = redis::cmd("ZCOUNT")
                .arg(&[&members, &(seconds * 1000).to_string(), "+inf"])
                .query(fleet.connection())
                .expect("answers");
            alive == 0
        });
        let url = fleet.server.url();
        let args = ["run", "--redis", &url, "--fleet", FLEET, "--lease", "4s", "--interval", "20ms"];
        let other = artel_rig::Program::start(crate::fleet::artel(), &args);
        other.says("joined the fleet");
        for member in &fleet.members {
            member.thaw();
            member.says("joining with the fleet's values instead");
        }
        eventually("all three to take part", || fleet.sessions().len() == 3);
        let config = fleet.key("config");
        let lease: String = redis::cmd("HGET")
            .arg(config)
            .arg("lease_ms")
            .query(fleet.connection())
            .expect("answers");
        assert_eq!(lease, "4000");
    }

    /// Promise 1: a generator that was frozen for three leases comes back as a worker, under a new
    /// id; whatever it still had to write was refused.
    fn frozen_generators_come_back_as_workers(kind) {
        let rounds = if soak() { 10 } else { 2 };
        let mut fleet = TestFleet::start(kind, 3, &["--interval", "5ms", "--lease", "1s"]);
        for _ in 0..rounds {
            let (old, frozen) = fleet.leader();
            let term = fleet.term();
            let seen = fleet.count("generated");
            eventually("it to be in the middle of its work", || fleet.count("generated") > seen);
            let joins = fleet.members[frozen].stderr().matches("joined the fleet").count();
            fleet.members[frozen].freeze();
            fleet.next_leader(&old);
            let accepted = of_term(&fleet.look(), term);
            // Three leases: the freeze is the fault itself.
            std::thread::sleep(Duration::from_secs(3));
            fleet.members[frozen].thaw();
            fleet.members[frozen].says(&format!("session lost, joining anew member={old}"));
            eventually("it to come back under a new id", || {
                fleet.members[frozen].stderr().matches("joined the fleet").count() > joins
                    && fleet.sessions().len() == 3
            });
            let snapshot = fleet.look();
            assert!(!snapshot.members.contains(&old), "an id never comes back");
            assert_eq!(of_term(&snapshot, term), accepted, "nothing more of its term was accepted");
        }
        fleet.audit();
    }

    /// A lease in the name of a member that does not exercise it (a late copy of its acquire) is
    /// given back, and the fleet goes on.
    fn a_lease_nobody_exercises_is_given_back(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--interval", "10ms", "--lease", "1s"]);
        let (worker, _) = fleet.worker();
        let (lease, term) = (fleet.key("lease"), fleet.key("term"));
        let granted: u64 = redis::cmd("INCR").arg(term).query(fleet.connection()).expect("a term");
        let () = redis::cmd("SET").arg(lease).arg(format!("{worker}|{granted}"))
            .query(fleet.connection()).expect("a lease");
        let before = fleet.count("generated");
        eventually("messages under a newer term", || {
            let snapshot = fleet.look();
            snapshot.count("generated") > before
                && snapshot.lease.is_some_and(|lease| !lease.ends_with(&format!("|{granted}")))
        });
        fleet.audit();
    }
}

/// How many messages of this term were accepted.
fn of_term(snapshot: &Snapshot, term: u64) -> usize {
    Audit::of(snapshot, Taken::Ids(&[])).terms.get(&term).map_or(0, |seqs| seqs.len())
}

/// Reads the whole fleet again and again beside a test, and audits every snapshot.
struct BooksWatch {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<(usize, Vec<String>)>,
}

fn watch_the_books(mut connection: redis::Connection) -> BooksWatch {
    let (stop, stopped) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (mut snapshots, mut problems) = (0, Vec::new());
        let pause = Duration::from_millis(20);
        while stopped.recv_timeout(pause).is_err() {
            problems.extend(
                Audit::of(&Snapshot::read(&mut connection, FLEET), Taken::Ids(&[])).problems,
            );
            snapshots += 1;
        }
        (snapshots, problems)
    });
    BooksWatch { stop, thread }
}

impl BooksWatch {
    #[track_caller]
    fn all_balanced(self) {
        let _ = self.stop.send(());
        let (snapshots, problems) = self.thread.join().expect("the watch ends well");
        assert!(problems.is_empty(), "{problems:?}");
        assert!(snapshots > if soak() { 200 } else { 20 }, "only {snapshots} snapshots");
        println!("{snapshots} snapshots, every one of them balanced");
    }
}
