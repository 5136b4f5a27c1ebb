use std::time::Duration;

use artel_testkit::{Fault, Kind, Program, Proxy, Server, eventually, script_hash};

use crate::crew::{Crew, FLEET, artel, on_each_server};

on_each_server! {
    /// The reply to every mutating script is lost once, right after the script took effect. Whoever
    /// sent it repeats it by itself, and it is applied once.
    fn every_lost_reply_is_survived(kind) {
        let options = ["--interval", "5ms", "--lease", "2s", "--work-time", "20ms",
            "--concurrency", "1", "--error-rate", "0.3"];
        let mut crew = Crew::start(kind, 0, &options);
        let proxy = Proxy::start(crew.server.port()).expect("a free port");
        let url = proxy.url();
        let mut lost = 0;
        let mut lose = |what: &str, pattern: Vec<u8>, act: &mut dyn FnMut()| {
            proxy.set(Fault::DropReplyTo(pattern));
            act();
            lost += 1;
            eventually(&format!("the reply to {what} to be lost"), || proxy.swallowed() == lost);
        };
        lose("join", script_hash("join"), &mut || { crew.add_at(&url); });
        for _ in 0..3 {
            crew.add_at(&url);
        }
        eventually("three or four members, and maybe a ghost", || crew.sessions().len() >= 3);
        for (what, pattern) in [
            ("heartbeat", script_hash("heartbeat")),
            ("look", script_hash("look")),
            ("push", script_hash("push")),
            ("fetch", script_hash("fetch")),
            ("settle", script_hash("settle")),
        ] {
            lose(what, pattern, &mut || {});
            let before = crew.done();
            crew.settled(before + 5);
        }
        lose("acquire", script_hash("acquire"), &mut || {
            let (_, leader) = crew.leader();
            crew.members[leader].kill();
        });
        // Redis knows the new generator before it does: wait until it generates.
        let generated = crew.count("generated");
        eventually("a generator at work", || crew.count("generated") > generated);
        crew.add_at(&url);
        lose("adopt", script_hash("adopt"), &mut || {
            let (_, worker) = crew.worker();
            crew.members[worker].kill();
        });
        crew.add_at(&url);
        eventually("a fleet again", || crew.sessions().len() >= 3);
        lose("resign", script_hash("resign"), &mut || {
            let (_, leader) = crew.leader();
            crew.members[leader].terminate();
        });
        crew.add_at(&url);
        crew.leader();
        lose("leave", script_hash("leave"), &mut || {
            let (_, worker) = crew.worker();
            crew.members[worker].terminate();
        });
        let mut taken = Vec::new();
        for (what, pattern) in
            [("take", script_hash("take")), ("confirm", script_hash("confirm"))]
        {
            eventually("errors to take", || !crew.look().errors.is_empty());
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
        artel_testkit::Audit::of(&crew.look(), &taken).assert_clean();
    }

    /// A generator whose link loses only the replies would hold office for ever if it kept
    /// refreshing its session. It does not.
    fn a_deaf_generator_does_not_stay_in_office(kind) {
        let mut crew = Crew::start(kind, 0, &["--interval", "10ms", "--lease", "1s"]);
        let proxy = Proxy::start(crew.server.port()).expect("a free port");
        let deaf = crew.add_at(&proxy.url());
        let (old, leader) = crew.leader();
        assert_eq!(leader, deaf);
        crew.add();
        crew.add();
        crew.settled(10);
        proxy.set(Fault::DropReplies);
        crew.next_leader(&old);
        proxy.set(Fault::Pass);
        crew.members[deaf].says("session lost");
        eventually("it to come back", || crew.sessions().len() == 3);
        crew.audit();
    }

    /// A push that was held up on its way arrives after another generator was elected: refused.
    fn a_late_write_of_a_deposed_generator_is_refused(kind) {
        let mut crew = Crew::start(kind, 0, &["--interval", "2ms", "--lease", "1s"]);
        let proxy = Proxy::start(crew.server.port()).expect("a free port");
        let slow = crew.add_at(&proxy.url());
        let (old, leader) = crew.leader();
        assert_eq!(leader, slow);
        crew.add();
        crew.add();
        crew.settled(10);
        proxy.set(Fault::Stall); // what it sends from now on waits inside the link
        crew.next_leader(&old);
        let audit = crew.audit();
        let (&term, seqs) = audit.terms.iter().next().expect("its term");
        let accepted = seqs.len();
        proxy.set(Fault::Pass); // and arrives now, late
        crew.members[slow].says("session lost");
        let before = crew.done();
        crew.settled(before + 50);
        assert_eq!(crew.audit().terms[&term].len(), accepted, "nothing more under the old term");
    }

    /// A link that is cut and comes back within the lease costs nothing: same sessions, no repeat.
    fn a_short_cut_costs_nothing(kind) {
        let (mut crew, proxy) = three_behind_a_proxy(kind, "3s");
        let before = crew.sessions();
        for _ in 0..5 {
            proxy.set(Fault::Cut);
            proxy.set(Fault::Pass);
            let settled = crew.done();
            crew.settled(settled + 10);
        }
        assert_eq!(crew.sessions(), before);
        assert!(!crew.anybody_says("claim lost"));
        crew.audit();
    }

    /// Presence ends with its connection; a living member is heard of again before it is judged.
    fn losing_presence_does_not_cost_the_session(kind) {
        let mut crew = Crew::start(kind, 3, &["--interval", "10ms", "--lease", "3s"]);
        let before = crew.sessions();
        for _ in 0..10 {
            let killed: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")
                .query(crew.connection()).expect("answers");
            let settled = crew.done();
            crew.settled(settled + 5);
            assert!(killed >= 0);
        }
        assert_eq!(crew.sessions(), before);
        crew.audit();
    }

    /// The session connection breaks and a new one takes long: the work connection speaks for it.
    fn a_slow_reconnect_does_not_cost_the_session(kind) {
        let (mut crew, proxy) = three_behind_a_proxy(kind, "3s");
        let before = crew.sessions();
        proxy.set(Fault::HoldNew);
        let _: i64 = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")
            .query(crew.connection()).expect("answers");
        // Three graces: the slow link is the fault itself.
        std::thread::sleep(Duration::from_millis(900));
        proxy.set(Fault::Pass);
        let settled = crew.done();
        crew.settled(settled + 20);
        assert_eq!(crew.sessions(), before);
        crew.audit();
    }

    /// A failover that leaves the old primary's connections open: it refuses every write, and the
    /// fleet follows to the new one.
    fn a_failover_with_open_connections_is_followed(kind) {
        let (mut crew, proxy) = three_behind_a_proxy(kind, "1s");
        let next = Server::start(kind);
        proxy.retarget(next.port());
        let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(next.port())
            .query(crew.connection()).expect("answers");
        let old = std::mem::replace(&mut crew.server, next);
        crew.reconnect();
        eventually("the fleet on the new primary", || crew.sessions().len() == 3);
        crew.settled(20);
        crew.audit();
        drop(old);
    }

    /// Slow is not dead.
    fn a_slow_link_loses_nothing(kind) {
        let mut crew = Crew::start(kind, 0, &["--interval", "20ms", "--lease", "3s"]);
        let proxy = Proxy::start(crew.server.port()).expect("a free port");
        proxy.set(Fault::Delay(Duration::from_millis(20)));
        for _ in 0..3 {
            crew.add_at(&proxy.url());
        }
        crew.settled(50);
        assert!(!crew.anybody_says("member died"));
        crew.audit();
    }
}

/// Three members that reach the server through a proxy, at work.
fn three_behind_a_proxy(kind: Kind, lease: &str) -> (Crew, Proxy) {
    let mut crew = Crew::start(kind, 0, &["--interval", "10ms", "--lease", lease]);
    let proxy = Proxy::start(crew.server.port()).expect("a free port");
    for _ in 0..3 {
        crew.add_at(&proxy.url());
    }
    eventually("all members", || crew.sessions().len() == 3);
    crew.settled(20);
    (crew, proxy)
}
