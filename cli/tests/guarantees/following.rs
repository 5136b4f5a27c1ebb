//! A primary that changes: a slot that is moved, a node that dies, sentinels that name another server. The same sessions go
//! on, and work flows again.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel_rig::{
    Audit, Cluster, Kind, Program, Sentinels, Server, Snapshot, Taken, clean_command, eventually,
    wait_for,
};
use redis::Connection;

use crate::fleet::{FLEET, artel, on_each_server, soak};

pub(crate) fn key(name: &str) -> String {
    format!("artel:{{{FLEET}}}:{name}")
}

/// Its lease is long: on a busy machine everybody is heard of again within it.
pub(crate) fn start(url: &str, more: &[&str]) -> Program {
    let mut args =
        vec!["run", "--fleet", FLEET, "--ledger", "all", "--lease", "10s", "--redis", url];
    args.extend(more);
    Program::start(artel(), &args)
}

/// Runs a command about the fleet: its code, its stdout, its stderr.
pub(crate) fn run(url: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let all = [args, &["--redis", url, "--fleet", FLEET]].concat();
    let mut command = clean_command(artel(), &all);
    command.stdin(Stdio::null());
    let mut program = Program::spawn(command);
    (program.exit_code(), program.stdout(), program.stderr())
}

fn sessions(connection: &mut Connection) -> BTreeSet<String> {
    let members = redis::cmd("ZRANGE").arg(&[&key("members"), "0", "-1"]).query(connection);
    members.expect("answers")
}

/// How many messages have an outcome, if this server can say it now.
fn done(connection: &mut Connection) -> Option<u64> {
    redis::cmd("XLEN").arg(key("ledger")).query(connection).ok()
}

/// The sum of all counts.
fn steps(connection: &mut Connection) -> u64 {
    let counts: std::collections::HashMap<String, String> =
        redis::cmd("HGETALL").arg(key("counts")).query(connection).expect("answers");
    let count = |name: &&str| counts.get(*name).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    ["generated", "sent", "done", "failed", "returned"].iter().map(count).sum()
}

/// The kinds of entries in the common log.
fn log(connection: &mut Connection) -> Vec<String> {
    type Entries = Vec<(String, std::collections::HashMap<String, String>)>;
    let entries: Entries =
        redis::cmd("XRANGE").arg(&[&key("notices"), "-", "+"]).query(connection).expect("answers");
    entries.into_iter().filter_map(|(_, fields)| fields.get("kind").cloned()).collect()
}

/// Waits until more messages have an outcome than now, on the server that is right then.
#[track_caller]
fn flows(connect: impl Fn() -> Connection) {
    let before = wait_for("a primary that answers", || done(&mut connect()));
    eventually("work to flow", || done(&mut connect()).is_some_and(|now| now > before + 5));
}

/// How long after each promotion work flowed. The time is asserted where nothing else runs.
fn flows_soon(kind: Kind, mut times: Vec<Duration>, members: &[Program]) {
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{kind:?}: work flowed {median:?} (median), {worst:?} (worst) after {} promotions",
        times.len()
    );
    let said = || members.iter().map(Program::stderr).collect::<Vec<_>>().join("\n\n");
    assert!(!soak() || worst < Duration::from_secs(1), "{times:?}\n{}", said());
}

/// Waits until the presence of all three members is visible. A session whose end was forgotten may be there beside theirs.
#[track_caller]
fn all_are_seen(connect: impl Fn() -> Connection) {
    eventually("everybody to be seen", || {
        let mut connection = connect();
        let channel = |id: String| format!("artel:{{{FLEET}}}:@0:alive:{id}");
        let channels: Vec<String> = sessions(&mut connection).into_iter().map(channel).collect();
        let asked = redis::cmd("PUBSUB").arg("SHARDNUMSUB").arg(&channels).query(&mut connection);
        let answer: Vec<redis::Value> = asked.unwrap_or_default();
        let seen = answer.iter().filter(|part| matches!(part, redis::Value::Int(n) if *n > 0));
        seen.count() >= 3
    });
}

/// Nothing was lost: the same sessions are there, nobody was judged dead, and nobody spoke of a loss.
#[track_caller]
fn nothing_happened(members: &[Program], before: &BTreeSet<String>, connection: &mut Connection) {
    assert_eq!(&sessions(connection), before, "the same sessions");
    let log = log(connection);
    for odd in ["died", "data-loss", "session-lost"] {
        assert!(!log.iter().any(|kind| kind == odd), "{odd}: {log:?}");
    }
    for member in members {
        let said = member.stderr();
        for odd in ["data loss", "lost data", "session lost", "lost acknowledged"] {
            assert!(!said.contains(odd), "{odd}: {said}");
        }
    }
}

/// Everybody stops, and the books are right.
#[track_caller]
fn ends_well(members: Vec<Program>, connection: &mut Connection) {
    for mut member in members {
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
    }
    let audit = Audit::of(&Snapshot::read(connection, FLEET), Taken::Ids(&[]));
    audit.assert_clean();
    println!("{} messages settled", audit.settled);
}

/// A cluster, members that were each given another node, and the slot of the fleet.
fn members_of(cluster: &Cluster, more: &[&str]) -> (Vec<Program>, u16) {
    let slot = cluster.slot(&key("config"));
    let urls = cluster.nodes.iter().map(Server::url).cycle().take(3);
    let members: Vec<Program> = urls.map(|url| start(&url, more)).collect();
    eventually("all to join", || sessions(&mut cluster.connect(slot)).len() == members.len());
    flows(|| cluster.connect(slot));
    (members, slot)
}

on_each_server! {
    /// Whichever node is asked, the owner of the slot answers: also what has no key, such as a list of events.
    fn any_node_of_a_cluster_is_an_address(kind) {
        let cluster = Cluster::start(kind, 3, 1);
        let (members, slot) = members_of(&cluster, &["--interval", "20ms"]);
        let before = sessions(&mut cluster.connect(slot));
        let first = cluster.nodes[0].url();
        assert_eq!(run(&first, &["event", "set", "ready"]).0, Some(0));
        for url in cluster.nodes.iter().map(Server::url).chain([cluster.url()]) {
            let (code, out, err) = run(&url, &["event", "list"]);
            assert!(code == Some(0) && out.contains("ready"), "{url}: {out}{err}");
            let (code, _, err) = run(&url, &["send", "x"]);
            assert_eq!(code, Some(0), "{url}: {err}");
            let (code, out, err) = run(&url, &["status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&out).expect("a document");
            assert!(code == Some(0) && status["members"].as_array().map(Vec::len) == Some(3), "{url}: {out}{err}");
        }
        let (code, _, err) = run(&format!("{first}/1"), &["status"]);
        assert!(code != Some(0) || kind == Kind::Valkey, "a cluster has one database: {err}");
        nothing_happened(&members, &before, &mut cluster.connect(slot));
        ends_well(members, &mut cluster.connect(slot));
    }

    /// The slot goes to and fro, key by key and at once, while messages are made and handled.
    fn a_slot_that_is_moved_costs_nothing(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let (members, slot) = members_of(&cluster, &["--interval", "5ms"]);
        let before = sessions(&mut cluster.connect(slot));
        let (moves, mut at_once) = (if soak() { 100 } else { 3 }, 0);
        for _ in 0..moves {
            let to = 1 - cluster.owner(slot);
            cluster.open_migration(slot, to);
            // Half-way: nothing can be done, and nothing is decided.
            std::thread::sleep(Duration::from_millis(100)); // the time for which it is open
            cluster.end_migration(slot, to);
            flows(|| cluster.connect(slot));
            if cluster.move_at_once(slot, 1 - to) {
                at_once += 1;
                flows(|| cluster.connect(slot));
            }
        }
        println!("{kind:?}: moved {moves} times key by key, {at_once} times at once");
        nothing_happened(&members, &before, &mut cluster.connect(slot));
        ends_well(members, &mut cluster.connect(slot));
    }

    /// Packs wait in the lanes while the slot is moved key by key, and more are sent and handled meanwhile.
    fn lanes_full_of_packs_are_moved(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let (slot, url) = (cluster.slot(&key("config")), cluster.url());
        let dir = tempfile::tempdir().expect("a folder");
        let (file, many) = (dir.path().join("lines"), 20_000);
        let lines: String = (0..many).map(|n| format!("message {n}\n")).collect();
        std::fs::write(&file, lines).expect("written");
        let send = ["send", "--file", file.to_str().expect("text"), "--redis", &url, "--fleet", FLEET];
        assert_eq!(Program::start(artel(), &send).exit_code(), Some(0));
        let chunks: u64 = redis::cmd("LLEN").arg(key("lane:normal")).query(&mut cluster.connect(slot)).expect("answers");
        assert!(0 < chunks && chunks < many, "{chunks} entries of {many} messages");
        let moved = || {
            let to = 1 - cluster.owner(slot);
            cluster.open_migration(slot, to);
            std::thread::sleep(Duration::from_millis(100)); // the time for which it is open
            cluster.end_migration(slot, to);
        };
        moved();
        let work = ["work", "--fleet", FLEET, "--ledger", "all", "--lease", "10s", "--work-time", "1ms", "--redis", &url];
        let members: Vec<Program> = (0..3).map(|_| Program::start(artel(), &work)).collect();
        eventually("work to begin", || done(&mut cluster.connect(slot)).is_some_and(|done| done > 0));
        let mut sender = Program::start(artel(), &send);
        for _ in 0..if soak() { 10 } else { 2 } {
            moved();
        }
        assert_eq!(sender.exit_code(), Some(0), "{}", sender.stderr());
        eventually("all to be handled", || done(&mut cluster.connect(slot)) == Some(2 * many));
        ends_well(members, &mut cluster.connect(slot));
    }

    /// A slot is left open: that is said, everything waits, and goes on when the slot is there. Commands say it, too.
    fn a_slot_that_stays_open_is_named(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let (members, slot) = members_of(&cluster, &["--interval", "5ms"]);
        let before = sessions(&mut cluster.connect(slot));
        let to = 1 - cluster.owner(slot);
        cluster.open_migration(slot, to);
        eventually("it to be said", || {
            members.iter().all(|member| member.stderr().contains("slot of this fleet is being moved: everything waits"))
        });
        let (code, _, err) = run(&cluster.url(), &["send", "x"]);
        assert!(code == Some(6) && err.contains(&format!("slot {slot}")) && err.contains("--cluster fix"), "{code:?} {err}");
        cluster.end_migration(slot, to);
        flows(|| cluster.connect(slot));
        all_are_seen(|| cluster.connect(slot));
        nothing_happened(&members, &before, &mut cluster.connect(slot));
        ends_well(members, &mut cluster.connect(slot));
    }

    /// Subscriptions end unasked while calls are under way: no answer is taken for another one, and everybody is seen again.
    fn subscriptions_that_end_unasked_come_back(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let (members, slot) = members_of(&cluster, &["--interval", "5ms"]);
        let before = sessions(&mut cluster.connect(slot));
        let flips = if soak() { 1000 } else { 20 };
        for _ in 0..flips {
            cluster.flip(slot);
            all_are_seen(|| cluster.connect(slot));
        }
        flows(|| cluster.connect(slot));
        nothing_happened(&members, &before, &mut cluster.connect(slot));
        ends_well(members, &mut cluster.connect(slot));
    }

    /// A replica takes over, first with the consent of the primary, then because that was killed.
    fn another_node_takes_over(kind) {
        let mut cluster = Cluster::start(kind, 3, 1);
        let (members, slot) = members_of(&cluster, &["--interval", "5ms"]);
        let before = sessions(&mut cluster.connect(slot));
        let owner = cluster.owner(slot);
        cluster.hand_over(3 + owner);
        flows(|| cluster.connect(slot));
        all_are_seen(|| cluster.connect(slot));
        nothing_happened(&members, &before, &mut cluster.connect(slot));
        let (kills, mut times) = (if soak() { 20 } else { 2 }, Vec::new());
        for _ in 0..kills {
            let owner = cluster.owner(slot);
            cluster.nodes[owner].kill();
            eventually("another owner, and a cluster that works", || {
                cluster.owner(slot) != owner && cluster.works(slot)
            });
            let promoted = Instant::now();
            flows(|| cluster.connect(slot));
            times.push(promoted.elapsed());
            println!("{}: {:?}", times.len(), promoted.elapsed());
            cluster.nodes[owner].restart();
            let (status, url) = (&["status", "--json"], cluster.url());
            let (_, out, err) = run(&url, status);
            let status: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
            assert_eq!(status["messages"]["balance"], 0, "{out}");
            all_are_seen(|| cluster.connect(slot));
            eventually("the one that was killed to be a replica in sync", || cluster.is_in_sync(owner));
        }
        flows_soon(kind, times, &members);
        drop(members);
    }

    /// Sentinels name another primary, because the first one was asked to go, or was killed.
    fn the_primary_that_sentinels_name_is_followed(kind) {
        let mut all = Sentinels::start(kind, 3);
        let url = all.url();
        let members: Vec<Program> = (0..3).map(|_| start(&url, &["--interval", "5ms"])).collect();
        let connect = |all: &Sentinels| all.servers[all.primary()].connect();
        eventually("all to join", || sessions(&mut connect(&all)).len() == 3);
        flows(|| connect(&all));
        all.hand_over();
        flows(|| connect(&all));
        let (kills, mut times) = (if soak() { 20 } else { 2 }, Vec::new());
        for _ in 0..kills {
            all.in_sync();
            let primary = all.primary();
            all.servers[primary].kill();
            eventually("another primary", || all.primary() != primary);
            let promoted = Instant::now();
            flows(|| connect(&all));
            times.push(promoted.elapsed());
            println!("{}: {:?}", times.len(), promoted.elapsed());
            all.servers[primary].restart();
            let (_, out, err) = run(&url, &["status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
            assert_eq!(status["messages"]["balance"], 0, "{out}");
            all_are_seen(|| connect(&all));
        }
        flows_soon(kind, times, &members);
        // One sentinel is enough for an address.
        all.kill_sentinel(0);
        let (code, _, err) = run(&url, &["send", "x"]);
        assert_eq!(code, Some(0), "{err}");
        drop(members);
    }

    /// Replication is cut for a while, and then the primary dies: what was acknowledged meanwhile is gone, and that is named.
    fn what_a_failover_forgot_is_named(kind) {
        let mut all = Sentinels::start(kind, 2);
        let url = all.url();
        let members: Vec<Program> = (0..3).map(|_| start(&url, &["--interval", "2ms"])).collect();
        let connect = |all: &Sentinels| all.servers[all.primary()].connect();
        eventually("all to join", || sessions(&mut connect(&all)).len() == 3);
        flows(|| connect(&all));
        let (_, out, _) = run(&url, &["status", "--json"]);
        assert!(out.contains("\"losses\":[]"), "{out}");
        let (old, new) = (all.primary(), 1 - all.primary());
        all.cut_replication(new);
        let mut primary = all.servers[old].connect();
        let kept = steps(&mut primary);
        eventually("many steps that only the primary knows", || steps(&mut primary) > kept + 500);
        // Somebody must have heard of some of them.
        let known = done(&mut primary).expect("answers");
        eventually("a heartbeat", || {
            let ids = sessions(&mut primary);
            let done = |id: &String| -> u64 {
                let field = redis::cmd("HGET").arg(key(&format!("member:{id}"))).arg("done").query(&mut primary);
                field.unwrap_or(None).unwrap_or(0)
            };
            ids.iter().map(done).sum::<u64>() >= known
        });
        let most = steps(&mut primary) + 1000; // what is made until it is dead
        all.servers[old].kill();
        all.servers[new].thaw();
        eventually("another primary", || all.primary() == new);
        flows(|| connect(&all));
        let loss = wait_for("the loss in the status", || {
            let (_, out, _) = run(&url, &["status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&out).ok()?;
            status["losses"].get(0).cloned()
        });
        let forgotten = loss["steps"].as_u64().expect("a number");
        assert!(forgotten > 0 && forgotten <= most - kept, "{forgotten} of {kept} to {most}");
        let (_, out, _) = run(&url, &["status"]);
        assert!(out.contains("Redis forgot at least"), "{out}");
        assert!(members.iter().any(|member| member.stderr().contains("has forgotten steps")));
        assert!(log(&mut connect(&all)).iter().any(|kind| kind == "server-changed"));
        println!("{kind:?}: at least {forgotten} steps of about {}", most - 1000 - kept);
    }
}
