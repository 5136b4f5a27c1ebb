//! What a user was told survives the failover that it was meant to survive, and what was forgotten is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use artel::{Context, Durability, Error, Fleet, Message, Notice, Tick};
use artel_rig::{
    Fault, Kind, Proxy, Sentinels, Server, ask_port, eventually, is_in_sync, replication_of, soak,
};
use tokio::runtime::Runtime;

use crate::{NAME, audit, config, member, notice, settled, stop};

pub(crate) fn count(server: &Server, field: &str) -> u64 {
    let counts = format!("artel:{{{NAME}}}:counts");
    let count = redis::cmd("HGET").arg(counts).arg(field).query(&mut server.connect());
    count.unwrap_or(None).unwrap_or(0)
}

/// Sends one message after another, and counts what it was told.
pub(crate) struct Sending {
    runtime: Runtime,
    told: Arc<AtomicU64>,
    /// Messages of which it was told that they are forgotten.
    forgotten: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Sending {
    pub(crate) fn start(url: &str, durability: Durability, keep: usize) -> Sending {
        let runtime = Runtime::new().expect("a runtime");
        let (told, forgotten) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let over = Arc::new(AtomicBool::new(false));
        let (url, sums) = (url.to_owned(), (told.clone(), forgotten.clone(), over.clone()));
        runtime.spawn(async move {
            let (told, forgotten, over) = sums;
            let fleet = Fleet::connect(url, NAME).await.expect("connects");
            let fleet = fleet.durable(durability).await.expect("enough replicas");
            let sender = fleet.sender().timeout(Duration::from_secs(60)).keep(keep);
            while !over.load(Ordering::Acquire) {
                match sender.send("x").await {
                    Ok(_) => told.fetch_add(1, Ordering::AcqRel),
                    Err(Error::Forgotten { messages }) => {
                        forgotten.fetch_add(messages, Ordering::AcqRel)
                    }
                    Err(_) => 0,
                };
            }
        });
        Sending { runtime, told, forgotten, over }
    }

    pub(crate) fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// Waits until it was told of this many more.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: u64) {
        let before = self.told();
        eventually("messages to be sent", || self.told() >= before + more);
    }

    /// Ends, and returns what it was told, and how many of these are forgotten.
    pub(crate) fn end(self) -> (u64, u64) {
        self.over.store(true, Ordering::Release);
        self.runtime.shutdown_timeout(Duration::from_secs(60));
        (self.told.load(Ordering::Acquire), self.forgotten.load(Ordering::Acquire))
    }
}

/// Has the only replica miss what is written from now on, and lets it take over. Returns what the sender was told, and what
/// the new primary has, after that.
fn fail_over_without_the_last(all: &mut Sentinels, sending: &Sending, stands: bool) -> (u64, u64) {
    all.in_sync();
    sending.goes_on(50);
    let (old, new) = (all.primary(), 1 - all.primary());
    all.cut_replication(new);
    match stands {
        // What was under way may be answered still.
        true => {
            let before = sending.told();
            std::thread::sleep(Duration::from_millis(1500));
            assert!(sending.told() <= before + 1, "it goes on without a replica");
        }
        false => sending.goes_on(200),
    }
    all.servers[old].kill();
    let told = sending.told();
    all.servers[new].thaw();
    eventually("another primary", || all.primary() == new);
    let has = count(&all.servers[new], "sent");
    (told, has)
}

/// ⚑ A replica that lacks what was told takes over. With `replicated:1` and with `all` nothing that was told is missing there:
/// nothing was told while it was away.
#[test]
fn what_was_told_is_there_after_a_failover() {
    artel_rig::each_server(|kind| {
        for durability in [Durability::Replicated(1), Durability::All] {
            for _ in 0..if soak() { 20 } else { 1 } {
                let mut all = Sentinels::start(kind, 2);
                let sending = Sending::start(&all.url(), durability, 0);
                let (told, has) = fail_over_without_the_last(&mut all, &sending, true);
                assert!(has >= told, "{kind:?} {durability}: told of {told}, there are {has}");
                // It stands still, and goes on when there is a replica again.
                let old = 1 - all.primary();
                all.servers[old].restart();
                sending.goes_on(50);
                let (told, forgotten) = sending.end();
                let sent = count(&all.servers[all.primary()], "sent");
                assert!(forgotten == 0 && sent >= told, "{forgotten} forgotten, {sent} of {told}");
            }
        }
    });
}

/// ⚑ With `local` what was told may be forgotten, and the sender says how much: exactly.
#[test]
fn a_sender_says_how_much_is_forgotten() {
    artel_rig::each_server(|kind| {
        let mut all = Sentinels::start(kind, 2);
        let sending = Sending::start(&all.url(), Durability::Local, 0);
        let (told, _) = fail_over_without_the_last(&mut all, &sending, false);
        sending.goes_on(50);
        let (all_told, forgotten) = sending.end();
        let sent = count(&all.servers[all.primary()], "sent");
        println!("{kind:?}: told of {told} until the primary died, {forgotten} of them forgotten");
        // A message whose answer was lost counts at the server alone.
        assert!(forgotten > 0 && sent + forgotten >= all_told, "{sent} + {forgotten} < {all_told}");
        assert!(sent + forgotten <= all_told + 2, "{sent} + {forgotten} > {all_told}");
    });
}

/// The primary dies while everything is well. With `local` the last of what was told may be forgotten, and is counted; with
/// `all` none of it is.
#[test]
fn a_primary_dies_while_replication_is_healthy() {
    artel_rig::each_server(|kind| {
        for durability in [Durability::Local, Durability::All] {
            let mut all = Sentinels::start(kind, 3);
            let sending = Sending::start(&all.url(), durability, 0);
            let (mut kills, mut told) = (0, 0);
            while kills < if soak() { 20 } else { 1 } {
                all.in_sync();
                sending.goes_on(200);
                let primary = all.primary();
                all.servers[primary].kill();
                eventually("another primary", || all.primary() != primary);
                all.servers[primary].restart();
                (kills, told) = (kills + 1, sending.told());
            }
            sending.goes_on(50);
            let (all_told, forgotten) = sending.end();
            let sent = count(&all.servers[all.primary()], "sent");
            println!(
                "{kind:?}, {durability}, {kills} kills: told of {told}, {forgotten} forgotten"
            );
            assert!(sent + forgotten >= all_told, "{sent} + {forgotten} < {all_told}");
            assert!(
                durability == Durability::Local || forgotten == 0,
                "{forgotten} were forgotten"
            );
        }
    });
}

/// A sender that keeps its last messages sends again what was forgotten.
#[test]
fn what_is_forgotten_is_sent_again_if_it_was_kept() {
    let mut all = Sentinels::start(any(), 2);
    let sending = Sending::start(&all.url(), Durability::Local, 100_000);
    fail_over_without_the_last(&mut all, &sending, false);
    sending.goes_on(50);
    let (told, forgotten) = sending.end();
    let sent = count(&all.servers[all.primary()], "sent");
    assert!(forgotten == 0 && sent >= told, "{forgotten} forgotten, {sent} of {told}");
}

fn any() -> Kind {
    if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey }
}

/// A server and its replicas, without anybody who would replace it.
fn replicated(replicas: usize) -> (Server, Vec<Server>) {
    let primary = Server::start(any());
    let port = primary.port().to_string();
    let start = |_| Server::with(any(), &["--replicaof", "127.0.0.1", &port]);
    let replicas: Vec<Server> = (0..replicas).map(start).collect();
    eventually("replicas to be in sync", || {
        let online = replication_of(primary.port()).matches("state=online").count();
        online == replicas.len() && replicas.iter().all(|replica| is_in_sync(replica.port()))
    });
    (primary, replicas)
}

/// ⚑ `all` never becomes cheaper by itself: a replica that is gone is waited for. A number is what it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_gone_does_not_make_the_promise_cheaper() {
    let (primary, mut replicas) = replicated(2);
    let fleet = Fleet::connect(primary.url(), NAME).await.expect("connects");
    let durable = async |durability| fleet.durable(durability).await.expect("enough replicas");
    let (all, one) = (durable(Durability::All).await, durable(Durability::Replicated(1)).await);
    let three = fleet.durable(Durability::Replicated(3)).await.map(drop).expect_err("two replicas");
    assert!(matches!(three, Error::TooFewReplicas { replicas: 2, wanted: 3, .. }), "{three}");
    let short = |fleet: &Fleet| fleet.sender().timeout(Duration::from_secs(3));
    short(&all).send("x").await.expect("two have it");
    replicas[1].kill();
    eventually("one to be gone", || replication_of(primary.port()).contains("connected_slaves:1"));
    let refused = short(&all).send("x").await.expect_err("one is gone");
    assert!(matches!(refused, Error::Unreplicated { replicas: 1, wanted: 2 }), "{refused}");
    short(&one).send("x").await.expect("one has it");
    // For other calls, too.
    let event = all.event("ready").expect("a name");
    let told = event.set().await.expect_err("one is gone");
    assert!(matches!(told, Error::Unreplicated { wanted: 2, .. }), "{told}");
    assert!(event.is_set().await.expect("answers"), "it was done, and is not told as done");
    replicas[1].restart();
    while short(&all).send("x").await.is_err() {}
}

/// A client that waits for replicas does not lend its messages to one that does not: they travel apart.
#[tokio::test(flavor = "multi_thread")]
async fn what_must_last_does_not_travel_with_what_need_not() {
    let (primary, replicas) = replicated(1);
    let local = Fleet::connect(primary.url(), NAME).await.expect("connects");
    let all = local.durable(Durability::All).await.expect("one replica");
    all.send("warm").await.expect("the replica has it");
    replicas[0].freeze();
    eventually("the primary to be alone", || {
        let port = primary.port();
        let _ = ask_port::<redis::Value>(port, &["CLIENT", "KILL", "TYPE", "replica"]);
        replication_of(port).contains("connected_slaves:0")
    });
    let send = |fleet: &Fleet| {
        let sender = fleet.sender().timeout(Duration::from_secs(2));
        async move { sender.send("x").await }
    };
    let sends = (0..40).map(|n| send(if n % 2 == 0 { &local } else { &all }));
    for (n, sent) in futures_util::future::join_all(sends).await.into_iter().enumerate() {
        match n % 2 {
            0 => drop(sent.expect("the primary has it")),
            _ => drop(sent.expect_err("no replica has it")),
        }
    }
    // An event that is told as set is there, too.
    assert!(all.event("ready").expect("a name").set().await.is_err());
}

/// With `Replicated(n)` a push and an outcome count only when n replicas have them: a replica that is
/// away is waited for, and nothing is lost meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_replica_is_waited_for() {
    let (server, replicas) = replicated(1);
    let mut config = config();
    config.durability = Durability::Replicated(1);
    let generate = |tick: Tick| std::future::ready(format!("message {}", tick.seq));
    let handle = |_: Message, _: Context| async {};
    let builder = || member(&server).config(config.clone()).generate(generate).handle(handle);
    let mut one = builder().start().await.expect("joins");
    let two = builder().start().await.expect("joins");
    settled(&one, 5).await;
    let mut notices = one.notices();
    let term = async || one.fleet().status().await.expect("answers").generator.expect("one").term;
    let before = term().await;
    replicas[0].freeze();
    notice(&mut notices, |notice| matches!(notice, Notice::Unreplicated { wanted: 1, .. })).await;
    // For longer than a generator may make no progress: this one works, and keeps its term.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(term().await, before, "nobody was deposed");
    replicas[0].thaw();
    // It was told once, and its end is told, too.
    let mut told = 0;
    notice(&mut notices, |notice| {
        told += usize::from(matches!(notice, Notice::Unreplicated { .. }));
        matches!(notice, Notice::Replicated { .. })
    })
    .await;
    assert_eq!(told, 0, "it was told again");
    let done = one.fleet().status().await.expect("answers").messages.done;
    settled(&one, done + 20).await;
    audit(&server);
    stop([one, two]).await;
}

/// The sum of all counts.
fn steps(server: &Server) -> u64 {
    ["generated", "sent", "done", "failed", "returned"].map(|name| count(server, name)).iter().sum()
}

/// A primary, a replica that takes over without the last steps, and an address that leads to the one and then to the other.
pub(crate) struct Pair {
    pub(crate) old: Server,
    replicas: Vec<Server>,
    pub(crate) way: Proxy,
}

impl Pair {
    pub(crate) fn start() -> Pair {
        let (old, replicas) = replicated(1);
        let way = Proxy::start(old.port()).expect("a proxy");
        Pair { old, replicas, way }
    }

    pub(crate) fn successor(&self) -> &Server {
        &self.replicas[0]
    }

    /// The replica misses what is written from now on.
    pub(crate) fn cut_replication(&self) {
        let offset = |server: &Server| {
            let said = replication_of(server.port());
            let line = said.lines().find(|line| line.starts_with("master_repl_offset:"));
            line.map(str::to_owned)
        };
        eventually("the replica to have everything", || {
            offset(&self.old) == offset(self.successor())
        });
        self.successor().freeze();
        let _ = ask_port::<redis::Value>(self.old.port(), &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// The primary dies, and the replica takes over. Nobody finds it yet who goes this way.
    pub(crate) fn take_over(&mut self) {
        self.way.set(Fault::Cut);
        self.old.kill();
        self.successor().thaw();
        eventually("it to take over", || {
            ask_port::<redis::Value>(self.successor().port(), &["REPLICAOF", "NO", "ONE"]).is_ok()
                && replication_of(self.successor().port()).contains("role:master")
        });
    }

    pub(crate) fn lead_on(&self) {
        self.way.retarget(self.successor().port());
        self.way.set(Fault::Pass);
    }
}

/// ⚑ A new primary lacks what a member has heard of. All of that is named, however much is done there before the member comes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_on_a_new_primary_hides_no_loss() {
    let mut pair = Pair::start();
    let fleet = Fleet::connect(pair.way.url(), NAME).await.expect("connects");
    let member = fleet.join().handle(|_: Message, _: Context| async {}).start().await;
    let (mut member, own) = (member.expect("joins"), Fleet::connect(pair.old.url(), NAME).await);
    let (mut notices, own) = (member.notices(), own.expect("connects"));
    own.send("x").await.expect("sent");
    settled(&member, 1).await;
    pair.cut_replication();
    for _ in 0..100 {
        own.send("x").await.expect("sent");
    }
    settled(&member, 101).await;
    let id = member.id().expect("it has joined");
    let told = format!("artel:{{{NAME}}}:member:{id}");
    eventually("a heartbeat after the last of them", || {
        let done = redis::cmd("HGET").arg(&told).arg("done").query(&mut pair.old.connect());
        done.unwrap_or(None) == Some(101)
    });
    let heard = steps(&pair.old);
    pair.take_over();
    let kept = steps(pair.successor());
    let other = Fleet::connect(pair.successor().url(), NAME).await.expect("connects");
    for _ in 0..500 {
        other.send("x").await.expect("sent");
    }
    pair.lead_on();
    let mut named = 0;
    notice(&mut notices, |notice| match notice {
        Notice::ServerChanged { forgotten, .. } => {
            named = *forgotten;
            true
        }
        _ => false,
    })
    .await;
    assert_eq!(named, heard - kept, "{heard} steps were heard of, and {kept} are there");
    member.shutdown().await;
}

/// A sender waits for an answer when its server dies, and the next one lacks what it was told before. It is told how much, and
/// that the message under way was not sent: no number follows a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_waits_for_an_answer_is_told_what_is_forgotten() {
    let mut pair = Pair::start();
    let fleet = Fleet::connect(pair.way.url(), NAME).await.expect("connects");
    let sender = fleet.sender().timeout(Duration::from_secs(60));
    for n in 0..17 {
        if n == 10 {
            pair.cut_replication();
        }
        sender.send("x").await.expect("sent");
    }
    pair.way.set(Fault::DropReplies);
    let waiting = tokio::spawn({
        let sender = sender.clone();
        async move { sender.send("x").await }
    });
    eventually("the primary to have it", || count(&pair.old, "sent") == 18);
    pair.take_over();
    pair.lead_on();
    let told = waiting.await.expect("no panic").expect_err("it is not there");
    assert!(matches!(told, Error::Forgotten { messages: 7 }), "{told:?}");
    sender.send("x").await.expect("sent");
    assert_eq!((count(pair.successor(), "sent"), sender.forgotten().await), (11, 0));
}

/// ⚑ A lock is not told as held before replicas have it: the server that takes over could give it to somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_not_replicated_is_not_told() {
    let (primary, replicas) = replicated(1);
    let fleet = Fleet::connect(primary.url(), NAME).await.expect("connects");
    let fleet = fleet.durable(Durability::All).await.expect("one replica");
    let member = fleet.join().start().await.expect("joins");
    let lock = member.lock("nightly").expect("a name");
    drop(lock.acquire().await.expect("held"));
    replicas[0].freeze();
    let held = Arc::new(AtomicBool::new(false));
    let (says, lock) = (held.clone(), member.lock("report").expect("a name"));
    let waiting = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("held");
        says.store(true, Ordering::Release);
        drop(guard);
    });
    let key = format!("artel:{{{NAME}}}:lock:report");
    eventually("the primary to grant it", || {
        redis::cmd("EXISTS").arg(&key).query::<bool>(&mut primary.connect()).unwrap_or(false)
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!held.load(Ordering::Acquire), "told before a replica has it");
    replicas[0].thaw();
    waiting.await.expect("no panic");
    assert!(held.load(Ordering::Acquire));
    member.shutdown().await;
}

/// With a rule of durability switched off, the test that is meant for it fails.
#[cfg(feature = "mutants")]
#[test]
fn every_rule_of_durability_is_needed() {
    let fails_without = |rule: &str, test: &str| {
        let program = std::env::current_exe().expect("this test");
        let output = std::process::Command::new(program)
            .args(["--exact", test])
            .env("MUTANT_OF_ARTEL", rule)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("running 1 test"), "{test} is no test: {said}");
        assert!(!output.status.success(), "{test} does not need {rule}");
    };
    // Most of their time is waiting.
    std::thread::scope(|scope| {
        for (rule, test) in [
            (
                "AllNeverShrinks",
                "durability::a_replica_that_is_gone_does_not_make_the_promise_cheaper",
            ),
            ("GrantsLast", "durability::a_grant_that_is_not_replicated_is_not_told"),
            ("CompareHolds", "recipes::permits_are_right_after_a_failover"),
            ("ListFirst", "durability::what_is_done_on_a_new_primary_hides_no_loss"),
            ("SendersSpeak", "durability::what_is_forgotten_is_sent_again_if_it_was_kept"),
        ] {
            scope.spawn(move || fails_without(rule, test));
        }
    });
}
