use std::time::Duration;

use artel_testkit::{Server, eventually};

use crate::crew::{Crew, on_each_server, soak};

/// About 1,000 messages a second, each taking a little while.
const LOAD: [&str; 8] =
    ["--interval", "1ms", "--lease", "3s", "--work-time", "1ms", "--concurrency", "8"];

on_each_server! {
    /// Redis is killed, restarted, stopped for long, and frozen for longer than the lease, in the
    /// middle of the work. Nobody is restarted, nobody healthy is reaped, nothing is lost.
    fn an_outage_of_redis_costs_nothing_but_time(kind) {
        let mut crew = Crew::start(kind, 4, &LOAD);
        crew.settled(200);
        let before = crew.sessions();

        crew.server.kill();
        crew.server.restart();
        crew.reconnect();
        more(&mut crew);

        crew.server.kill();
        for member in &crew.members {
            member.says("Redis does not answer");
        }
        // So long it was away: the outage is the fault itself.
        std::thread::sleep(Duration::from_secs(if soak() { 10 } else { 4 }));
        crew.server.restart();
        crew.reconnect();
        for member in &crew.members {
            member.says("Redis answers again");
        }
        more(&mut crew);

        crew.server.freeze();
        std::thread::sleep(Duration::from_millis(4500)); // one and a half leases: the freeze itself
        crew.server.thaw();
        more(&mut crew);

        assert_eq!(crew.sessions(), before, "the same sessions, all of them");
        assert!(crew.members.iter_mut().all(|member| member.is_alive()));
        assert!(!crew.anybody_says("member died") && !crew.anybody_says("claim lost"));
        crew.audit();
    }

    /// A Redis that stalls for less than a lease costs nobody their session, whatever was on its way
    /// when it stalled and runs first when it goes on.
    fn a_stall_of_redis_costs_no_session(kind) {
        let mut crew = Crew::start(kind, 6, &["--interval", "20ms", "--lease", "3s"]);
        crew.settled(20);
        let before = crew.sessions();
        let stalls: &[u64] = if soak() { &[500, 700, 1000, 1500, 2000, 2600, 2850, 3300] } else { &[700, 1400, 2850] };
        for stall in stalls {
            crew.server.freeze();
            std::thread::sleep(Duration::from_millis(*stall)); // the stall is the fault itself
            crew.server.thaw();
            let settled = crew.done();
            crew.settled(settled + 60);
            assert_eq!(crew.sessions(), before, "a stall of {stall} ms");
        }
        assert!(!crew.anybody_says("member died") && !crew.anybody_says("session lost"));
        crew.audit();
    }

    /// Handlers that ran while Redis was away keep their claims.
    fn handlers_that_outlive_an_outage_keep_their_claims(kind) {
        let options = ["--interval", "200ms", "--lease", "3s", "--work-time", "3s",
            "--concurrency", "4", "--error-rate", "0"];
        let mut crew = Crew::start(kind, 3, &options);
        eventually("handlers at work", || crew.look().blocks.values().flatten().count() >= 4);
        let held: Vec<String> = crew.look().blocks.values().flatten().cloned().collect();
        crew.server.kill();
        crew.server.restart();
        crew.reconnect();
        eventually("their outcomes", || {
            let ledger = crew.look().ledger;
            held.iter().all(|id| ledger.iter().any(|entry| entry.0 == *id))
        });
        let ledger = crew.look().ledger;
        for id in held {
            let attempts: Vec<u32> =
                ledger.iter().filter(|entry| entry.0 == id).map(|entry| entry.3).collect();
            assert_eq!(attempts, [1], "{id}: recorded once, of the first attempt");
        }
        crew.audit();
    }

    /// A full Redis stops generating, and nothing else; with room again, everything goes on.
    fn a_full_redis_loses_nothing(kind) {
        let mut crew = Crew::start(kind, 3, &LOAD);
        crew.settled(100);
        let before = crew.sessions();
        let full = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1")
            .query::<()>(crew.connection());
        full.expect("can be set");
        let (_, leader) = crew.leader();
        crew.members[leader].says("generating waits");
        eventually("what waits to be drained", || crew.look().unsettled() == 0);
        let room = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0")
            .query::<()>(crew.connection());
        room.expect("can be set");
        more(&mut crew);
        crew.members[leader].says("generating goes on");
        assert_eq!(crew.sessions(), before, "the same sessions, all of them");
        crew.audit();
    }

    /// A stop does not wait for a Redis that is away.
    fn a_member_can_be_stopped_while_redis_is_away(kind) {
        let mut crew = Crew::start(kind, 2, &["--interval", "10ms", "--lease", "1s"]);
        crew.settled(10);
        crew.server.kill();
        for process in 0..2 {
            crew.members[process].terminate();
        }
        for process in 0..2 {
            assert_eq!(crew.members[process].exit_code(), Some(0));
        }
    }

    /// Without an append-only file a killed Redis forgets everything. That is not promised away: it
    /// is noticed and named, and the fleet goes on.
    fn a_forgetful_redis_is_noticed_and_survived(kind) {
        let server = Server::with(kind, &["--appendonly", "no"]);
        let mut crew = Crew::on(server, 3, &["--interval", "10ms", "--lease", "1s"]);
        crew.settled(20);
        crew.server.kill();
        crew.server.restart();
        crew.reconnect();
        eventually("everybody to be back", || crew.sessions().len() == 3);
        crew.settled(20);
        for member in &crew.members {
            member.says("data loss: Redis has lost acknowledged writes");
        }
        assert!(crew.members.iter_mut().all(|member| member.is_alive()));
        crew.audit();
    }
}

/// The fleet generates and settles again.
#[track_caller]
fn more(crew: &mut Crew) {
    let before = crew.done();
    crew.settled(before + 100);
}
