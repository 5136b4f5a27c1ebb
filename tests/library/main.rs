//! Proves what the library promises to whoever embeds it: user code that fails, panics, hangs or
//! blocks hurts nothing but its own message.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

mod databases; // fleets of one name in two databases do not meet
mod durability; // what was told survives, or is named
mod events;
mod groups; // no wake-up is lost
mod halves;
mod hoarding; // what is not started goes to whoever is idle
mod hostile; // values that nobody of ours wrote
mod hub; // notices on an event hub
mod inspect; // where a message is, what effects wrote, the end of a fleet
mod jobs; // retries, delays, periodic entries, follow-ups, orders
mod kinds; // a handler for each kind, and handlers without Redis
mod kinds_bounded; // only so many of a kind at once
mod leading; // who leads and works, and what a successor gets
mod locks; // one holder, which ends with its session
mod packs; // batches that travel as one string
mod recipes; // semaphores, latches, barriers
mod sending; // anybody may send, and put errors back to work
mod settings; // one value for the whole fleet
mod slots;
mod slow_links; // a large message over a slow link

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use artel::{
    Cause, Config, Context, Effect, ErrorStore, Fleet, Ledger, Member, MemberBuilder, Message,
    NewMessage,
};
use artel::{Notice, Notices, Outcome, Role, Tick};
use artel_rig::{Audit, DEADLINE, Server, Snapshot};

const NAME: &str = "library";

fn config() -> Config {
    let mut config = Config::default();
    config.lease = Some(Duration::from_secs(2));
    config.interval = Duration::from_millis(5);
    config.ledger = Some(Ledger::All);
    config
}

fn member(server: &Server) -> MemberBuilder {
    member_at(server.url())
}

fn member_at(url: String) -> MemberBuilder {
    Fleet::open(url, NAME).expect("an address").join().config(config())
}

/// A member that only generates these, once.
async fn generates(server: &Server, payloads: &[&str]) -> Member {
    let mut batch: Vec<NewMessage> = payloads.iter().map(|text| NewMessage::from(*text)).collect();
    let generate = move |_: Tick| std::future::ready(std::mem::take(&mut batch));
    member(server).generate(generate).start().await.expect("joins")
}

/// Waits for something that must come.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

async fn until<F: AsyncFnMut() -> bool>(what: &str, mut ask: F) {
    let waiting = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

async fn settled(member: &Member, count: u64) {
    until("settled messages", async || {
        let books = member.fleet().status().await.expect("answers").messages;
        assert_eq!(books.balance, 0);
        books.done + books.failed >= count
    })
    .await;
}

async fn notice(notices: &mut Notices, mut wanted: impl FnMut(&Notice) -> bool) {
    let waiting = async {
        while let Some(notice) = notices.next().await {
            if wanted(&notice) {
                return;
            }
        }
        panic!("the fleet ended first");
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the notice comes");
}

async fn errors(server: &Server) -> Vec<artel::ErrorRecord> {
    let mut taker = Fleet::connect(&server.url(), NAME).await.expect("opens").errors().take();
    taker.page().await.expect("a page")
}

async fn stop(members: impl IntoIterator<Item = Member>) {
    for member in members {
        member.shutdown().await;
    }
}

fn audit(server: &Server) {
    Audit::of(&Snapshot::read(&mut server.connect(), NAME), artel_rig::Taken::Ids(&[]))
        .assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_handler_fails_its_message_and_nothing_else() {
    let server = Server::any();
    let generator = generates(&server, &["fine", "panic", "panic later", "fine too"]).await;
    let handle = |message: Message, _: Context| {
        assert!(message.payload() != b"panic", "at once");
        async move {
            tokio::task::yield_now().await;
            assert!(message.payload() != b"panic later", "later");
            Outcome::done()
        }
    };
    let worker = member(&server).handle(handle).start().await.expect("joins");
    settled(&generator, 4).await;
    let books = worker.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.failed), (2, 2));
    for record in errors(&server).await {
        assert_eq!(record.cause, Cause::Handler);
        assert!(
            record.reason.contains("the handler panicked: at once")
                || record.reason.contains("the handler panicked: later"),
            "{}",
            record.reason
        );
    }
    audit(&server);
    stop([worker, generator]).await;
}

/// A quick message's outcome does not wait for the slow one that its slot took up next.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_does_not_wait_for_the_next_handler() {
    let server = Server::any();
    let (push, batches) = std::sync::mpsc::channel::<Vec<&str>>();
    let generate = move |_: Tick| {
        let batch = batches.try_recv().unwrap_or_default();
        std::future::ready(batch.into_iter().map(NewMessage::from).collect::<Vec<_>>())
    };
    let generator = member(&server).generate(generate).start().await.expect("joins");
    let mut config = config();
    config.concurrency = 1;
    let release = Arc::new(tokio::sync::Notify::new());
    let released = release.clone();
    let handle = move |message: Message, _: Context| {
        let released = released.clone();
        async move {
            match message.payload() {
                b"medium" => tokio::time::sleep(Duration::from_millis(6)).await,
                b"slow" => released.notified().await,
                _ => {}
            }
        }
    };
    let worker = member(&server).config(config).handle(handle).start().await.expect("joins");
    // It learns that messages take some milliseconds, and settles all of them…
    push.send(vec!["medium"; 40]).expect("the generator runs");
    settled(&generator, 40).await;
    // …so it takes a few together, wants no more, and has nothing else to say.
    push.send(vec!["quick", "slow", "quick", "quick", "quick"]).expect("the generator runs");
    settled(&generator, 41).await; // while the slow one runs
    release.notify_one();
    settled(&generator, 45).await;
    audit(&server);
    stop([worker, generator]).await;
}

/// What a panic carries may panic when it is dropped: still only its own message fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_whose_payload_panics_on_drop_costs_no_slot() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(());
        }
    }
    let server = Server::any();
    let generator = generates(&server, &["at once", "later", "fine", "fine"]).await;
    let mut config = config();
    config.concurrency = 1;
    let handle = |message: Message, _: Context| {
        if message.payload() == b"at once" {
            std::panic::panic_any(Bomb);
        }
        async move {
            tokio::task::yield_now().await;
            if message.payload() == b"later" {
                std::panic::panic_any(Bomb);
            }
        }
    };
    let worker = member(&server).config(config).handle(handle).start().await.expect("joins");
    settled(&generator, 4).await;
    let books = worker.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.failed), (2, 2));
    stop([worker, generator]).await;
}

/// A Redis that refuses for a reason that passes has lost nothing, however long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_that_pass_are_no_data_loss() {
    let server = Server::any();
    let generator = generates(&server, &["one"]).await;
    let mut config = config();
    config.lease = None;
    let replicas = |count: u32| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "min-replicas-to-write", &count.to_string()])
            .query(&mut server.connect())
            .expect("answers");
    };
    let began = Arc::new(tokio::sync::Notify::new());
    let told = began.clone();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let opens = gate.clone();
    let handle = move |_: Message, _: Context| {
        let (told, gate) = (told.clone(), gate.clone());
        async move {
            told.notify_one();
            gate.acquire().await.expect("never closed").forget();
        }
    };
    let mut worker = member(&server).config(config).handle(handle).start().await.expect("joins");
    let mut notices = worker.notices();
    soon(began.notified()).await;
    replicas(1); // NOREPLICAS, for every script that writes
    opens.add_permits(1);
    tokio::time::sleep(Duration::from_millis(1500)).await; // the fault itself
    replicas(0);
    settled(&generator, 1).await;
    worker.stop();
    stop([worker, generator]).await;
    while let Some(notice) = notices.next().await {
        let wrong = matches!(notice, Notice::DataLossSeen { .. } | Notice::Refused { .. });
        assert!(!wrong, "{notice:?}");
    }
    audit(&server);
}

/// Effects that Redis could not tell apart, or too many of them, fail their message and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn effects_are_named_and_bounded() {
    let server = Server::any();
    let generator = generates(&server, &["nul", "field", "many", "large", "fine"]).await;
    let handle = |message: Message, _: Context| async move {
        let done = Outcome::done().with(Effect::incr_by("sum", 1));
        match message.payload() {
            b"nul" => done.with(Effect::incr_by("a\0b", 1)),
            b"field" => done.with(Effect::hincr_by("h", "a\0b", 1)),
            b"many" => (0..Effect::MAX).fold(done, |done, _| done.with(Effect::incr_by("sum", 1))),
            b"large" => done.with(Effect::set("large", vec![0; Effect::BYTES_MAX])),
            _ => done,
        }
    };
    let worker = member(&server).handle(handle).start().await.expect("joins");
    settled(&generator, 5).await;
    let books = worker.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.failed), (1, 4));
    for record in errors(&server).await {
        assert!(record.reason.starts_with("its outcome cannot be recorded: "), "{}", record.reason);
    }
    let sum: i64 = redis::cmd("GET")
        .arg(format!("artel:{{{NAME}}}:data:sum"))
        .query(&mut server.connect())
        .expect("a number");
    assert_eq!(sum, 1);
    audit(&server);
    stop([worker, generator]).await;
}

/// Dropping what a stopped handler held may panic: still only its own message fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_when_stopped_fails_its_message_and_nothing_else() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "dropped");
        }
    }
    let server = Server::any();
    let generator = generates(&server, &["hang", "fine", "fine"]).await;
    let mut config = config();
    config.concurrency = 1;
    config.handler_timeout = Duration::from_millis(50);
    let handle = |message: Message, _: Context| async move {
        if message.payload() == b"hang" {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }
    };
    let worker = member(&server).config(config).handle(handle).start().await.expect("joins");
    settled(&generator, 3).await;
    let books = worker.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.failed), (2, 1));
    stop([worker, generator]).await;
}

#[derive(serde::Deserialize)]
struct Order {
    amount: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_decode_goes_to_the_error_store() {
    let server = Server::any();
    let generator = generates(&server, &[r#"{"amount":3}"#, "no json", r#"{"amount":-1}"#]).await;
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let handle = artel::json(move |order: Order, _: Context| {
        count.fetch_add(order.amount as usize, Ordering::Relaxed);
        std::future::ready(())
    });
    let worker = member(&server).handle(handle).start().await.expect("joins");
    settled(&generator, 3).await;
    assert_eq!(seen.load(Ordering::Relaxed), 3);
    let records = errors(&server).await;
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|record| record.cause == Cause::Decode && record.attempt == 1));
    stop([worker, generator]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_runs_too_long_is_stopped() {
    let server = Server::any();
    let generator = generates(&server, &["slow", "quick"]).await;
    let mut config = config();
    config.handler_timeout = Duration::from_millis(100);
    let handle = |message: Message, context: Context| async move {
        assert!(context.deadline > std::time::Instant::now());
        if message.payload() == b"slow" {
            std::future::pending::<()>().await;
        }
    };
    let worker = member(&server).config(config).handle(handle).start().await.expect("joins");
    settled(&generator, 2).await;
    let records = errors(&server).await;
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].cause, &records[0].payload[..]), (Cause::Timeout, &b"slow"[..]));
    stop([worker, generator]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_are_committed_with_their_outcome() {
    let server = Server::any();
    let generator = generates(&server, &["2", "3", "bad"]).await;
    let () = redis::cmd("RPUSH")
        .arg("artel:{library}:data:list")
        .arg("x")
        .query(&mut server.connect())
        .expect("answers");
    let handle = |message: Message, context: Context| async move {
        assert_eq!(context.term, context.id.term());
        match message.text().parse::<i64>() {
            Ok(n) => Outcome::done()
                .with(Effect::incr_by("sum", n))
                .with(Effect::sadd("ids", context.id.as_str())),
            Err(_) => Outcome::done().with(Effect::incr_by("list", 1)),
        }
    };
    let worker = member(&server).handle(handle).start().await.expect("joins");
    settled(&generator, 3).await;
    let mut connection = server.connect();
    let sum: i64 =
        redis::cmd("GET").arg("artel:{library}:data:sum").query(&mut connection).expect("a sum");
    let ids: i64 =
        redis::cmd("SCARD").arg("artel:{library}:data:ids").query(&mut connection).expect("a set");
    assert_eq!((sum, ids), (5, 2));
    let records = errors(&server).await;
    assert_eq!(records.len(), 1);
    assert!(records[0].reason.contains("its effect cannot be applied"), "{}", records[0].reason);
    stop([worker, generator]).await;
}

/// The session lives on a thread of its own: handlers that block every thread of the runtime for
/// longer than the lease cost nobody their session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_handlers_cannot_stop_the_heartbeat() {
    let server = Server::any();
    let program = std::thread::spawn({
        let url = server.url();
        move || {
            // A runtime of its own, whose threads are all blocked.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let mut config = config();
                config.lease = Some(Duration::from_secs(1));
                let handle = |_: Message, _: Context| async {
                    std::thread::sleep(Duration::from_secs(3)); // the blocking is the fault itself
                };
                let worker = Fleet::open(url, NAME)
                    .expect("an address")
                    .join()
                    .config(config)
                    .handle(handle)
                    .start()
                    .await
                    .expect("joins");
                let before = worker.id();
                until("the blocking handler to end", async || {
                    worker.fleet().status().await.is_ok_and(|status| status.messages.done == 1)
                })
                .await;
                assert_eq!(worker.id(), before, "the same session");
                stop([worker]).await;
            });
        }
    });
    until("the worker to join", async || {
        Snapshot::read(&mut server.connect(), NAME).members.len() == 1
    })
    .await;
    let mut config = config();
    config.lease = Some(Duration::from_secs(1));
    config.messages_max = Some(1);
    let generator = member(&server)
        .config(config)
        .generate(|_: Tick| std::future::ready("block"))
        .start()
        .await
        .expect("joins");
    settled(&generator, 1).await;
    let attempts: Vec<u32> = Snapshot::read(&mut server.connect(), NAME)
        .ledger
        .iter()
        .map(|entry| entry.attempt)
        .collect();
    assert_eq!(attempts, [1], "handled once");
    program.join().expect("the blocked member is fine");
    stop([generator]).await;
}

/// A heartbeat must prove work, not only life: a generator that hangs is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_generator_that_hangs_is_replaced() {
    let server = Server::any();
    let hangs = |_: Tick| std::future::pending::<NewMessage>();
    let mut stuck = member(&server).generate(hangs).start().await.expect("joins");
    let mut notices = stuck.notices();
    notice(&mut notices, |notice| matches!(notice, Notice::BecameGenerator { .. })).await;
    assert_eq!(stuck.role(), Role::Generator);
    let works = |tick: Tick| std::future::ready(format!("message {}", tick.seq));
    let other = member(&server).generate(works).start().await.expect("joins");
    notice(&mut notices, |notice| matches!(notice, Notice::LeaseLost { .. })).await;
    until("messages of the other", async || {
        other.fleet().status().await.expect("answers").messages.generated > 3
    })
    .await;
    assert_eq!(other.role(), Role::Generator);
    stop([stuck, other]).await;
}

/// ⚑ A lease that names a member which does not exercise it (a late copy of an acquire) is given back
/// by that member; otherwise its heartbeat would keep it for ever, and nobody would generate.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_the_name_of_one_that_cannot_lead_is_given_back() {
    let server = Server::any();
    let works = |tick: Tick| std::future::ready(format!("message {}", tick.seq));
    let generator = member(&server).generate(works).start().await.expect("joins");
    let worker =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    settled(&generator, 3).await;
    let id = worker.id().expect("a session");
    let status = generator.fleet().status().await.expect("answers");
    let term = status.generator.expect("one leads").term.get() + 1;
    let mut connection = server.connect();
    let () = redis::pipe()
        .cmd("SET")
        .arg("artel:{library}:term")
        .arg(term)
        .ignore()
        .cmd("SET")
        .arg("artel:{library}:lease")
        .arg(format!("{id}|{term}"))
        .ignore()
        .query(&mut connection)
        .expect("answers");
    until("a newer term of the generator", async || {
        let status = generator.fleet().status().await.expect("answers");
        status.generator.is_some_and(|leader| leader.term.get() > term)
    })
    .await;
    let done = generator.fleet().status().await.expect("answers").messages.done;
    settled(&generator, done + 3).await;
    audit(&server);
    stop([generator, worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_generator_is_told_and_tried_again() {
    let server = Server::any();
    let first = AtomicBool::new(true);
    let generate = move |_: Tick| {
        let fails = first.swap(false, Ordering::Relaxed);
        async move { if fails { Err("no source") } else { Ok("message") } }
    };
    let mut fleet = member(&server).generate(generate).start().await.expect("joins");
    let mut notices = fleet.notices();
    notice(
        &mut notices,
        |notice| matches!(notice, Notice::GenerateFailed { reason } if reason == "no source"),
    )
    .await;
    until("a message", async || {
        fleet.fleet().status().await.expect("answers").messages.generated > 0
    })
    .await;
    stop([fleet]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_payload_is_refused_whole() {
    let server = Server::any();
    let mut config = config();
    config.payload_bytes_max = 10;
    let mut batches = vec![vec!["fits"], vec!["ok", "this one is too large"]];
    let generate = move |_: Tick| {
        let batch: Vec<NewMessage> =
            batches.pop().unwrap_or_default().into_iter().map(NewMessage::from).collect();
        std::future::ready(batch)
    };
    let mut fleet = member(&server).config(config).generate(generate).start().await.expect("joins");
    let mut notices = fleet.notices();
    notice(&mut notices, |notice| {
        matches!(notice, Notice::GenerateFailed { reason } if reason.contains("larger than the limit of 10 bytes"))
    })
    .await;
    until("the other batch", async || {
        fleet.fleet().status().await.expect("answers").messages.generated > 0
    })
    .await;
    let lanes = Snapshot::read(&mut server.connect(), NAME).lanes;
    assert_eq!(lanes["generated"].len(), 1, "nothing of the batch with the large one");
    stop([fleet]).await;
}

/// A backlog bound smaller than a batch is back-pressure, not a dead end.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_backlog_makes_the_generator_wait() {
    let server = Server::any();
    let mut config = config();
    config.backlog_max = Some(10);
    config.messages_max = Some(100);
    let generate = |_: Tick| std::future::ready(vec![NewMessage::from("x"); 25]);
    let mut fleet = member(&server).config(config).generate(generate).start().await.expect("joins");
    let mut notices = fleet.notices();
    notice(&mut notices, |notice| matches!(notice, Notice::Full { .. })).await;
    assert_eq!(fleet.fleet().status().await.expect("answers").messages.waiting, 10);
    let worker =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    settled(&fleet, 100).await;
    notice(&mut notices, |notice| matches!(notice, Notice::Flowing)).await;
    audit(&server);
    stop([fleet, worker]).await;
}

/// A start that is given up, and a handle that is dropped, do not stay members.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_starts_and_is_dropped_leaves_no_ghost() {
    let server = Server::any();
    let start = member(&server).start();
    let _ = tokio::time::timeout(Duration::from_micros(50), start).await;
    until("no members", async || Snapshot::read(&mut server.connect(), NAME).members.is_empty())
        .await;
    let fleet = member(&server).start().await.expect("joins");
    assert_eq!(fleet.role(), Role::Observer);
    drop(fleet);
    until("no members", async || Snapshot::read(&mut server.connect(), NAME).members.is_empty())
        .await;
}

/// What the crate offers can be shared and sent between threads.
#[test]
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Fleet>();
    check::<ErrorStore>();
    check::<artel::Error>();
    check::<Notice>();
}
