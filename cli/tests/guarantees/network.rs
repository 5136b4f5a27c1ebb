use std::time::Duration;

use artel_rig::{Fault, Kind, Program, Proxy, Server, eventually, script_hash};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

on_each_server! {
    /// The reply to every mutating script is lost once, right after the script took effect. Whoever
    /// sent it repeats it by itself, and it is applied once.
    fn every_lost_reply_is_survived(kind) {
        let options = ["--interval", "5ms", "--lease", "2s", "--work-time", "20ms",
            "--concurrency", "1", "--error-rate", "0.3"];
        let mut fleet = TestFleet::start(kind, 0, &options);
        let proxy = Proxy::start(fleet.server.port()).expect("a free port");
        let url = proxy.url();
        let mut lost = 0;
        let mut lose = |what: &str, pattern: Vec<u8>, act: &mut dyn FnMut()| {
            proxy.set(Fault::DropReplyTo(pattern));
            act();
            lost += 1;
            eventually(&format!("the reply to {what} to be lost"), || proxy.swallowed() == lost);
        };
        lose("join", script_hash("join"), &mut || { fleet.add_at(&url); });
        for _ in 0..3 {
            fleet.add_at(&url);
        }
        eventually("three or four members, and maybe a ghost", || fleet.sessions().len() >= 3);
        for (what, pattern) in [
            ("heartbeat", script_hash("heartbeat")),
            ("look", script_hash("look")),
            ("push", script_hash("push")),
            ("fetch", script_hash("fetch")),
            ("settle", script_hash("settle")),
        ] {
            lose(what, pattern, &mut || {});
            let before = fleet.done();
            fleet.settled(before + 5);
        }
        lose("acquire", script_hash("acquire"), &mut || {
            let (_, leader) = fleet.leader();
            fleet.members[leader].kill();
        });
        // Redis knows the new generator before it does: wait until it generates.
        let generated = fleet.count("generated");
        eventually("a generator at work", || fleet.count("generated") > generated);
        fleet.add_at(&url);
        lose("adopt", script_hash("adopt"), &mut || {
            // One that holds a message: otherwise there is nothing to put back.
            eventually("a worker with a message", || {
                let (id, worker) = fleet.worker();
                fleet.members[worker].freeze();
                let block = format!("block:{id}:");
                let holds = fleet.look().blocks.iter().any(|(name, messages)| {
                    name.starts_with(&block) && !messages.is_empty()
                });
                match holds {
                    true => fleet.members[worker].kill(),
                    false => fleet.members[worker].thaw(),
                }
                holds
            });
        });
        fleet.add_at(&url);
        eventually("nothing to be left of it", || fleet.look().orphans.is_empty());
        let mut dead = String::new();
        lose("forget", script_hash("forget"), &mut || {
            let (id, worker) = fleet.worker();
            fleet.members[worker].kill();
            dead = id;
        });
        eventually("its session to be over", || !fleet.sessions().contains(&dead));
        fleet.add_at(&url);
        eventually("a fleet again", || fleet.sessions().len() >= 3);
        let mut resigned = 0;
        lose("resign", script_hash("resign"), &mut || {
            let (_, leader) = fleet.leader();
            fleet.members[leader].terminate();
            resigned = leader;
        });
        // Taken for a worker, it would be told to stop a second time, and would not leave then.
        eventually("it to be gone", || !fleet.members[resigned].is_alive());
        fleet.add_at(&url);
        fleet.leader();
        lose("leave", script_hash("leave"), &mut || {
            let (_, worker) = fleet.worker();
            fleet.members[worker].terminate();
        });
        let mut taken = Vec::new();
        for (what, pattern) in
            [("take", script_hash("take")), ("confirm", script_hash("confirm"))]
        {
            eventually("errors to take", || !fleet.look().errors.is_empty());
            let mut taker = None;
            lose(what, pattern, &mut || {
                let args = ["getErrors", "--json", "--redis", &url, "--fleet", FLEET];
                taker = Some(Program::start(artel(), &args));
            });
            let mut taker = taker.expect("started");
            assert_eq!(taker.exit_code(), Some(0), "{}", taker.stderr());
            assert!(!taker.stdout().is_empty());
            for line in taker.stdout().lines() {
                let record: serde_json::Value = serde_json::from_str(line).expect("a record");
                taken.push(record["id"].as_str().expect("an id").to_owned());
            }
        }
        // What was taken and what is left add up, each once.
        artel_rig::Audit::of(&fleet.look(), artel_rig::Taken::Ids(&taken)).assert_clean();
    }

    /// A generator whose link loses only the replies would hold office for ever if it kept
    /// refreshing its session. It does not.
    fn a_deaf_generator_does_not_stay_in_office(kind) {
        let mut fleet = TestFleet::start(kind, 0, &["--interval", "10ms", "--lease", "1s"]);
        let proxy = Proxy::start(fleet.server.port()).expect("a free port");
        let deaf = fleet.add_at(&proxy.url());
        let (old, leader) = fleet.leader();
        assert_eq!(leader, deaf);
        fleet.add();
        fleet.add();
        fleet.settled(10);
        proxy.set(Fault::DropReplies);
        fleet.next_leader(&old);
        proxy.set(Fault::Pass);
        fleet.members[deaf].says("session lost");
        eventually("it to come back", || fleet.sessions().len() == 3);
        fleet.audit();
    }

    /// A push that was held up on its way arrives after another generator was elected: refused.
    fn a_late_write_of_a_deposed_generator_is_refused(kind) {
        let mut fleet = TestFleet::start(kind, 0, &["--interval", "2ms", "--lease", "1s"]);
        let proxy = Proxy::start(fleet.server.port()).expect("a free port");
        let slow = fleet.add_at(&proxy.url());
        let (old, leader) = fleet.leader();
        assert_eq!(leader, slow);
        fleet.add();
        fleet.add();
        fleet.settled(10);
        proxy.set(Fault::Stall); // what it sends from now on waits inside the link
        fleet.next_leader(&old);
        let audit = fleet.audit();
        let (&term, seqs) = audit.terms.iter().next().expect("its term");
        let accepted = seqs.len();
        proxy.set(Fault::Pass); // and arrives now, late
        fleet.members[slow].says("session lost");
        let before = fleet.done();
        fleet.settled(before + 50);
        assert_eq!(fleet.audit().terms[&term].len(), accepted, "nothing more under the old term");
    }

    /// A link that is cut and comes back within the lease costs nothing: same sessions, no repeat.
    fn a_short_cut_costs_nothing(kind) {
        let (mut fleet, proxy) = three_behind_a_proxy(kind, "3s");
        let before = fleet.sessions();
        for _ in 0..5 {
            proxy.set(Fault::Cut);
            proxy.set(Fault::Pass);
            let settled = fleet.done();
            fleet.settled(settled + 10);
        }
        assert_eq!(fleet.sessions(), before);
        assert!(!fleet.anybody_says("claim lost"));
        fleet.audit();
    }

    /// Presence ends with its connection; a living member is heard of again before it is judged.
    fn losing_presence_does_not_cost_the_session(kind) {
        let mut fleet = TestFleet::start(kind, 3, &["--interval", "10ms", "--lease", "3s"]);
        let before = fleet.sessions();
        for _ in 0..10 {
            let killed: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")
                .query(fleet.connection()).expect("answers");
            let settled = fleet.done();
            fleet.settled(settled + 5);
            assert!(killed >= 0);
        }
        assert_eq!(fleet.sessions(), before);
        fleet.audit();
    }

    /// The session connection breaks and a new one takes long: the work connection speaks for it.
    fn a_slow_reconnect_does_not_cost_the_session(kind) {
        let (mut fleet, proxy) = three_behind_a_proxy(kind, "3s");
        let before = fleet.sessions();
        proxy.set(Fault::HoldNew);
        let _: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")
            .query(fleet.connection()).expect("answers");
        // Three graces: the slow link is the fault itself.
        std::thread::sleep(Duration::from_millis(900));
        proxy.set(Fault::Pass);
        let settled = fleet.done();
        fleet.settled(settled + 20);
        assert_eq!(fleet.sessions(), before);
        fleet.audit();
    }

    /// A failover that leaves the old primary's connections open: it refuses every write, and the
    /// fleet follows to the new one.
    fn a_failover_with_open_connections_is_followed(kind) {
        let (mut fleet, proxy) = three_behind_a_proxy(kind, "1s");
        let next = Server::start(kind);
        proxy.retarget(next.port());
        let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(next.port())
            .query(fleet.connection()).expect("answers");
        let old = std::mem::replace(&mut fleet.server, next);
        fleet.reconnect();
        eventually("the fleet on the new primary", || fleet.sessions().len() == 3);
        fleet.settled(20);
        fleet.audit();
        drop(old);
    }

    /// Slow is not dead.
    fn a_slow_link_loses_nothing(kind) {
        let mut fleet = TestFleet::start(kind, 0, &["--interval", "20ms", "--lease", "3s"]);
        let proxy = Proxy::start(fleet.server.port()).expect("a free port");
        proxy.set(Fault::Delay(Duration::from_millis(20)));
        for _ in 0..3 {
            fleet.add_at(&proxy.url());
        }
        fleet.settled(50);
        assert!(!fleet.anybody_says("member died"));
        fleet.audit();
    }
}

/// Three members that reach the server through a proxy, at work.
fn three_behind_a_proxy(kind: Kind, lease: &str) -> (TestFleet, Proxy) {
    let mut fleet = TestFleet::start(kind, 0, &["--interval", "10ms", "--lease", lease]);
    let proxy = Proxy::start(fleet.server.port()).expect("a free port");
    for _ in 0..3 {
        fleet.add_at(&proxy.url());
    }
    eventually("all members", || fleet.sessions().len() == 3);
    fleet.settled(20);
    (fleet, proxy)
}
