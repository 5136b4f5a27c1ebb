use std::time::Duration;

use artel_rig::{Server, eventually};

use crate::fleet::{TestFleet, on_each_server, soak};

/// About 1,000 messages a second, each taking a little while.
const LOAD: [&str; 8] =
    ["--interval", "1ms", "--lease", "3s", "--work-time", "1ms", "--concurrency", "8"];

on_each_server! {
    /// Redis is killed, restarted, stopped for long, and frozen for longer than the lease, in the
    /// middle of the work. Nobody is restarted, nobody healthy is reaped, nothing is lost.
    fn an_outage_of_redis_costs_nothing_but_time(kind) {
        let mut fleet = TestFleet::start(kind, 4, &LOAD);
        fleet.settled(200);
        let before = fleet.sessions();

        fleet.server.kill();
        fleet.server.restart();
        fleet.reconnect();
        more(&mut fleet);

        fleet.server.kill();
        for member in &fleet.members {
            member.says("Redis does not answer");
        }
        // So long it was away: the outage is the fault itself.
        std::thread::sleep(Duration::from_secs(if soak() { 10 } else { 4 }));
        fleet.server.restart();
        fleet.reconnect();
        for member in &fleet.members {
            member.says("Redis answers again");
        }
        more(&mut fleet);

        fleet.server.freeze();
        std::thread::sleep(Duration::from_millis(4500)); // one and a half leases: the freeze itself
        fleet.server.thaw();
        more(&mut fleet);

        assert_eq!(fleet.sessions(), before, "the same sessions, all of them");
        assert!(fleet.members.iter_mut().all(|member| member.is_alive()));
        assert!(!fleet.anybody_says("member died") && !fleet.anybody_says("claim lost"));
        fleet.audit();
    }

    /// A Redis that stalls for less than a lease costs nobody their session, whatever was on its way
    /// when it stalled and runs first when it goes on.
    fn a_stall_of_redis_costs_no_session(kind) {
        let mut fleet = TestFleet::start(kind, 6, &["--interval", "20ms", "--lease", "3s"]);
        fleet.settled(20);
        let before = fleet.sessions();
        let stalls: &[u64] = if soak() { &[500, 700, 1000, 1500, 2000, 2600, 2850, 3300] } else { &[700, 1400, 2850] };
        for stall in stalls {
            fleet.server.freeze();
            std::thread::sleep(Duration::from_millis(*stall)); // the stall is the fault itself
            fleet.server.thaw();
            let settled = fleet.done();
            fleet.settled(settled + 60);
            assert_eq!(fleet.sessions(), before, "a stall of {stall} ms");
        }
        assert!(!fleet.anybody_says("member died") && !fleet.anybody_says("session lost"));
        fleet.audit();
    }

    /// Handlers that ran while Redis was away keep their claims.
    fn handlers_that_outlive_an_outage_keep_their_claims(kind) {
        let options = ["--interval", "200ms", "--lease", "3s", "--work-time", "3s",
            "--concurrency", "4", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        eventually("handlers at work", || fleet.look().blocks.values().flatten().count() >= 4);
        let held: Vec<String> = fleet.look().blocks.values().flatten().cloned().collect();
        fleet.server.kill();
        fleet.server.restart();
        fleet.reconnect();
        eventually("their outcomes", || {
            let ledger = fleet.look().ledger;
            held.iter().all(|id| ledger.iter().any(|entry| entry.id == *id))
        });
        let ledger = fleet.look().ledger;
        for id in held {
            let attempts: Vec<u32> =
                ledger.iter().filter(|entry| entry.id == id).map(|entry| entry.attempt).collect();
            assert_eq!(attempts, [1], "{id}: recorded once, of the first attempt");
        }
        fleet.audit();
    }

    /// A full Redis stops generating, and nothing else; with room again, everything goes on.
    fn a_full_redis_loses_nothing(kind) {
        let mut fleet = TestFleet::start(kind, 3, &LOAD);
        fleet.settled(100);
        let before = fleet.sessions();
        let full = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1")
            .query::<()>(fleet.connection());
        full.expect("can be set");
        let (_, leader) = fleet.leader();
        fleet.members[leader].says("generating waits");
        eventually("what waits to be drained", || fleet.look().unsettled() == 0);
        let room = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0")
            .query::<()>(fleet.connection());
        room.expect("can be set");
        more(&mut fleet);
        fleet.members[leader].says("generating goes on");
        assert_eq!(fleet.sessions(), before, "the same sessions, all of them");
        fleet.audit();
    }

    /// A stop does not wait for a Redis that is away.
    fn a_member_can_be_stopped_while_redis_is_away(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--interval", "10ms", "--lease", "1s"]);
        fleet.settled(10);
        fleet.server.kill();
        for process in 0..2 {
            fleet.members[process].terminate();
        }
        for process in 0..2 {
            assert_eq!(fleet.members[process].exit_code(), Some(0));
        }
    }

    /// Without an append-only file a killed Redis forgets everything. That is not promised away: it
    /// is noticed and named, and the fleet goes on.
    fn a_forgetful_redis_is_noticed_and_survived(kind) {
        let server = Server::with(kind, &["--appendonly", "no"]);
        let mut fleet = TestFleet::on(server, 3, &["--interval", "10ms", "--lease", "1s"]);
        fleet.settled(20);
        fleet.server.kill();
        fleet.server.restart();
        fleet.reconnect();
        eventually("everybody to be back", || fleet.sessions().len() == 3);
        fleet.settled(20);
        for member in &fleet.members {
            member.says("data loss: Redis has lost acknowledged writes");
        }
        assert!(fleet.members.iter_mut().all(|member| member.is_alive()));
        fleet.audit();
    }

    /// As docs/operations.md says: replicate, stop everybody, wait, promote, start. Nothing is lost.
    fn a_fleet_moves_to_another_redis(kind) {
        let options = ["--interval", "5ms", "--lease", "1s"];
        let (mut fleet, new) = (TestFleet::start(kind, 3, &options), Server::start(kind));
        fleet.settled(50);
        let replicate = |host: &str, port: &str| {
            let command = redis::cmd("REPLICAOF").arg(host).arg(port).exec(&mut new.connect());
            command.expect("it obeys");
        };
        replicate("127.0.0.1", &fleet.server.port().to_string());
        for member in &mut fleet.members {
            member.terminate();
        }
        for member in &mut fleet.members {
            assert_eq!(member.exit_code(), Some(0));
        }
        eventually("the new server to have everything", || {
            let said = |server: &Server, name: &str| {
                let info = redis::cmd("INFO").arg("replication").query::<String>(&mut server.connect());
                let info = info.expect("it answers");
                info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
            };
            let offset = said(&new, "slave_repl_offset:");
            said(&new, "master_link_status:").as_deref() == Some("up")
                && offset.is_some() && offset == said(&fleet.server, "master_repl_offset:")
        });
        replicate("NO", "ONE");
        let (before, generated) = (fleet.done(), fleet.count("generated"));
        fleet.server.kill();
        let mut moved = TestFleet::on(new, 3, &options);
        assert!(moved.done() >= before && moved.count("generated") >= generated);
        moved.settled(before + 50);
        moved.audit();
        assert!(!moved.anybody_says("data loss"));
    }
}

/// The fleet generates and settles again.
#[track_caller]
fn more(fleet: &mut TestFleet) {
    let before = fleet.done();
    fleet.settled(before + 100);
}
