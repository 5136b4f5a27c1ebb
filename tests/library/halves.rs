//! A primary is cut off together with half of the fleet, and another one takes over for the other half.

use std::time::{Duration, Instant};

use artel::{Context, Durability, Member, Message, Tick};
use artel_rig::{
    Fault, Kind, Proxy, Server, ask_port, eventually, is_in_sync, replication_of, soak,
};
use tokio::runtime::Runtime;

use crate::durability::{Sending, count};
use crate::{audit, config, member_at, stop};

/// One half of the fleet: two members and a sender, and the way on which they find the primary.
struct Half {
    way: Proxy,
    members: Vec<Member>,
    sending: Sending,
}

impl Half {
    fn start(runtime: &Runtime, primary: &Server, durability: Durability) -> Half {
        let way = Proxy::start(primary.port()).expect("a proxy");
        let mut config = config();
        config.durability = durability;
        let join = || {
            let generate = |tick: Tick| std::future::ready(format!("message {}", tick.seq));
            let handle = |_: Message, _: Context| async {};
            let builder = member_at(way.url()).config(config.clone());
            runtime.block_on(builder.generate(generate).handle(handle).start()).expect("joins")
        };
        let members = vec![join(), join()];
        let sending = Sending::start(&way.url(), durability, 0);
        Half { way, members, sending }
    }

    fn ids(&self) -> Vec<String> {
        let ids = self.members.iter().filter_map(Member::id);
        ids.map(|id| id.to_string()).collect()
    }

    /// The way leads to another server.
    fn leads_to(&self, server: &Server) {
        self.way.retarget(server.port());
        self.way.set(Fault::Pass);
    }
}

fn replica_of(server: &Server, of: &Server) {
    let port = of.port().to_string();
    let () = ask_port(server.port(), &["REPLICAOF", "127.0.0.1", &port]).expect("a replica");
}

/// Nothing that either half was told is lost, and both go on together.
fn cut_in_two(kind: Kind, durability: Durability) {
    let old = Server::start(kind);
    let between = Proxy::start(old.port()).expect("a proxy");
    let port = between.port().to_string();
    let [new, third] = [0, 1].map(|_| Server::with(kind, &["--replicaof", "127.0.0.1", &port]));
    let online = |server: &Server| replication_of(server.port()).matches("state=online").count();
    eventually("replicas to be in sync", || {
        [&new, &third].iter().all(|one| is_in_sync(one.port()))
    });
    let runtime = Runtime::new().expect("a runtime");
    let [left, right] = [0, 1].map(|_| Half::start(&runtime, &old, durability));
    left.sending.goes_on(50);
    right.sending.goes_on(50);

    between.set(Fault::Cut);
    right.way.set(Fault::Cut);
    eventually("the primary to be alone", || online(&old) == 0);
    let told = left.sending.told();
    // As sentinels do: the one that has most. `replicated:1` does not say which of them has it.
    let offset = |server: &Server| -> u64 {
        let said = replication_of(server.port());
        let line = said.lines().find_map(|line| line.strip_prefix("slave_repl_offset:"));
        line.and_then(|offset| offset.trim().parse().ok()).unwrap_or(0)
    };
    let (new, third) = if offset(&third) > offset(&new) { (third, new) } else { (new, third) };
    let () = ask_port(new.port(), &["REPLICAOF", "NO", "ONE"]).expect("promoted");
    replica_of(&third, &new);
    right.leads_to(&new);
    let lease = || -> String {
        let asked = redis::cmd("GET").arg("artel:{library}:lease").query(&mut new.connect());
        asked.unwrap_or(None).unwrap_or_default()
    };
    let leads = || right.ids().iter().any(|id| lease().starts_with(id.as_str()));
    match durability {
        // One replica is there: the right half goes on alone, with a generator of its own.
        Durability::Replicated(1) => {
            right.sending.goes_on(50);
            eventually("one of them to lead", leads);
        }
        // Not all are there, so that nobody is told of anything.
        _ => {
            let (before, begun) = (right.sending.told(), Instant::now());
            while begun.elapsed() < Duration::from_secs(5) {
                assert!(right.sending.told() <= before + 1, "it goes on without all replicas");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    // What was under way may be answered still.
    assert!(left.sending.told() <= told + 1, "it goes on without a replica");

    replica_of(&old, &new);
    left.leads_to(&new);
    left.sending.goes_on(50);
    right.sending.goes_on(50);
    let members = || -> Vec<String> {
        let mut asked = redis::cmd("ZRANGE");
        asked.arg(&["artel:{library}:members", "0", "-1"]);
        asked.query(&mut new.connect()).unwrap_or_default()
    };
    eventually("all members to be there", || {
        let there = members();
        let ids = [left.ids(), right.ids()].concat();
        ids.len() == 4 && ids.iter().all(|id| there.contains(id))
    });
    let mut told = 0;
    for half in [left, right] {
        let (heard, forgotten) = half.sending.end();
        assert_eq!(forgotten, 0, "{kind:?} {durability}");
        told += heard;
        runtime.block_on(stop(half.members));
    }
    let sent = count(&new, "sent");
    assert!(sent >= told, "{kind:?} {durability}: told of {told}, there are {sent}");
    audit(&new);
}

/// ⚑ Nothing that either half was told is lost. The half with the old primary stands still, and comes back by itself.
#[test]
fn a_primary_is_cut_off_with_half_of_the_fleet() {
    artel_rig::each_server(|kind| {
        for _ in 0..if soak() { 20 } else { 1 } {
            cut_in_two(kind, Durability::All);
        }
        if soak() {
            (0..20).for_each(|_| cut_in_two(kind, Durability::Replicated(1)));
        }
    });
}
