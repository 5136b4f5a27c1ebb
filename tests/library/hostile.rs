//! Values that nobody of ours wrote, in every key there is: they are refused, and nothing worse.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use artel::{Address, Cursor, Fleet};
use artel_rig::{DEADLINE, Server};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const FLEET: &str = "hostile";
/// Values in all.
const VALUES: usize = 16_000;
/// Values between two looks.
const AT_ONCE: usize = 160;

/// What is put into keys, and into what stands in keys.
fn value(random: &mut ChaCha8Rng) -> Vec<u8> {
    const SAMPLES: [&str; 26] = [
        "",
        "0",
        "-1",
        "1",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "1e308",
        "nan",
        "inf",
        "|",
        "||",
        "a|b",
        "a|1",
        "1-1",
        "1794710083943807-12",
        "null",
        "{}",
        "[]",
        "{\"v\":1}",
        "\u{1b}[2J",
        "\u{202e}x",
        "1g-|1-1|1|1|x",
        "1gh|1-1|1|1|999999999:{}",
        "../../etc/passwd",
        "{artel}:x",
    ];
    match random.next_u32() % 8 {
        0..=4 => {
            let one = SAMPLES[random.next_u32() as usize % SAMPLES.len()].to_owned();
            let two = SAMPLES[random.next_u32() as usize % SAMPLES.len()];
            if random.next_u32().is_multiple_of(4) { (one + two).into() } else { one.into() }
        }
        5 => vec![b'A'; random.next_u32() as usize % 5000],
        _ => {
            let mut bytes = vec![0; random.next_u32() as usize % 64];
            random.fill_bytes(&mut bytes);
            bytes
        }
    }
}

/// One command that leaves something in a key, of whatever type.
fn poison(random: &mut ChaCha8Rng, ids: &[&str]) -> redis::Cmd {
    const NAMES: [&str; 34] = [
        "config",
        "members",
        "watch",
        "suspects",
        "blind",
        "orphans",
        "lease",
        "term",
        "last",
        "token",
        "wake",
        "errors",
        "drains",
        "unread",
        "gather",
        "counts",
        "ledger",
        "lane:high",
        "lane:normal",
        "lane:generated",
        "lane:low",
        "lane:returned",
        "member:<id>",
        "lock:<name>",
        "locks:<id>",
        "waiters:<name>",
        "event:<name>",
        "blocks:<id>",
        "block:<id>:1",
        "sent:<id>",
        "dedup:<name>",
        "semaphore:<name>",
        "stats:<name>",
        "drain:<id>",
    ];
    let name = NAMES[random.next_u32() as usize % NAMES.len()];
    let id = ids[random.next_u32() as usize % ids.len()];
    let name = name.replace("<id>", id).replace("<name>", "name");
    let key = format!("artel:{{{FLEET}}}:{name}");
    let own = match name.split(':').next().unwrap_or_default() {
        "members" | "waiters" => 3,
        "blind" | "orphans" => 2,
        "lease" | "term" | "last" | "token" | "lock" | "sent" | "dedup" => 0,
        "wake" | "lane" | "block" => 1,
        "errors" | "ledger" => 5,
        _ => 4,
    };
    // Mostly of the type that is expected there.
    let kind = if random.next_u32().is_multiple_of(4) { random.next_u32() % 6 } else { own };
    let mut command = redis::Cmd::new();
    match kind {
        0 => command.arg("SET").arg(key).arg(value(random)),
        1 => command.arg("RPUSH").arg(key).arg(value(random)).arg(value(random)),
        2 => command.arg("SADD").arg(key).arg(value(random)).arg(value(random)),
        3 => {
            let score = random.next_u64() as i64 as f64 / f64::from(random.next_u32() % 1000 + 1);
            command.arg("ZADD").arg(key).arg(score).arg(value(random))
        }
        4 => command.arg("HSET").arg(key).arg(value(random)).arg(value(random)),
        _ => command.arg("XADD").arg(key).arg("*").arg(value(random)).arg(value(random)),
    };
    command
}

/// Counts panics in the library itself, on whatever thread. Handlers of other tests may panic.
fn count_panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_some_and(|place| place.file().starts_with("src/")) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(panic);
    }));
    &PANICS
}

/// Everybody who only looks, looks. Nobody panics, and nobody hangs.
async fn look(url: &str, round: usize) {
    let address = Address::new(url);
    let redis = Fleet::open(&address, FLEET).expect("an address");
    let all = async {
        let _ = Fleet::open(&address, FLEET).expect("an address").status().await;
        let _ = redis.locks().await;
        let _ = redis.lock_status("name").await;
        let _ = redis.events().await;
        if let Ok(fleet) = Fleet::connect(&address, FLEET).await {
            let store = fleet.errors();
            let mut cursor = Cursor::default();
            let _ = store.page(&mut cursor, 50).await;
            let mut taker = store.take();
            let _ = taker.page().await;
            let _ = taker.release().await;
        }
        if round.is_multiple_of(20) {
            let _ = redis.gather_stats().await;
        }
    };
    tokio::time::timeout(DEADLINE, all).await.expect("everybody comes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_values_in_all_keys_are_refused() {
    let panics = count_panics();
    let server = Server::any();
    let url = server.url();
    let seed = 20_261_116;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut connection = server.connect();
    // A fleet lives beside it, in the middle of it.
    let mut config = super::config();
    config.lease = None;
    let member = Fleet::open(&url, FLEET).expect("an address").join().config(config.clone());
    let fleet = member
        .generate(|_: artel::Tick| std::future::ready(vec![artel::NewMessage::from("x")]))
        .handle(|_: artel::Message, _: artel::Context| async { artel::Outcome::done() })
        .start()
        .await
        .expect("joins");
    let id: String = redis::cmd("ZRANGE")
        .arg(format!("artel:{{{FLEET}}}:members"))
        .arg(0)
        .arg(0)
        .query::<Vec<String>>(&mut connection)
        .expect("answers")
        .remove(0);
    let ids = [id.as_str(), "somebody", "x\u{1b}y"];
    for round in 0..VALUES / AT_ONCE {
        for _ in 0..AT_ONCE {
            // Another type may be there: then this one is refused, and another time another.
            let _ = poison(&mut random, &ids).query::<redis::Value>(&mut connection);
        }
        look(&url, round).await;
        if round % 10 == 9 {
            let () = redis::cmd("FLUSHALL").query(&mut connection).expect("answers");
        }
    }
    fleet.stop();
    tokio::time::timeout(DEADLINE, fleet.stopped()).await.expect("it comes to an end");
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    // And nothing of it stays in a process: a fleet of another name is as if nothing had been.
    let other = Fleet::open(&url, "calm").expect("an address").join().config(config);
    let other = tokio::time::timeout(Duration::from_secs(30), other.start()).await;
    other.expect("in time").expect("joins").stop();
}

/// What cannot be put back is tried again now and then, not without pause; and what is no id hides no
/// orphan that is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_that_are_none_cost_nothing_and_hide_nobody() {
    let server = Server::any();
    let mut connection = server.connect();
    let key = |name: &str| format!("artel:{{{FLEET}}}:{name}");
    let mut run = |words: &[&str]| -> redis::Value {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).expect("answers")
    };
    for n in 0..3000 {
        run(&["SADD", &key("orphans"), &format!("bad id {n}")]);
    }
    run(&["HSET", &key("blocks:deadbeef"), "xyz", "1:1"]);
    run(&["HSET", &key("blocks:deadbee2"), "3", "1:5"]);
    run(&["RPUSH", &key("block:deadbee2:3"), "1n-|s1-1|1|5|hello"]);
    run(&["SADD", &key("orphans"), "deadbeef", "deadbee2"]);
    let handled = std::sync::Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let fleet = Fleet::open(server.url(), FLEET)
        .expect("an address")
        .join()
        .config(super::config())
        .handle(move |_: artel::Message, _: artel::Context| {
            count.fetch_add(1, Ordering::Relaxed);
            async { artel::Outcome::done() }
        })
        .start()
        .await
        .expect("joins");
    super::until("the message of the orphan to be handled", async || {
        handled.load(Ordering::Relaxed) == 1
    })
    .await;
    let commands = || -> u64 {
        let info: String =
            redis::cmd("INFO").arg("stats").query(&mut server.connect()).expect("answers");
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    };
    let left = |server: &Server| -> u64 {
        redis::cmd("SCARD").arg(key("orphans")).query(&mut server.connect()).expect("answers")
    };
    super::until("what is no id to be forgotten", async || left(&server) <= 1).await;
    let before = commands();
    tokio::time::sleep(Duration::from_secs(3)).await; // the time that is looked at
    let calls = commands() - before;
    println!("{calls} calls in three seconds");
    assert!(calls < 10_000, "{calls} calls: without pause there are tens of thousands a second");
    fleet.stop();
    fleet.stopped().await;
}

/// What somebody else writes into a drain does not keep errors from being listed and taken.
#[tokio::test]
async fn an_odd_drain_breaks_nothing() {
    let server = Server::any();
    let mut connection = server.connect();
    let key = |name: &str| format!("artel:{{{FLEET}}}:{name}");
    for value in ["garbage", "", "|", "a|", "|x", "a|99999999999999999999999"] {
        let () = redis::cmd("HSET")
            .arg(key("drains"))
            .arg(format!("token{}", value.len()))
            .arg(value)
            .query(&mut connection)
            .expect("answers");
    }
    let () = redis::cmd("XADD")
        .arg(key("errors"))
        .arg(&["*", "m", "1n-|s1-1|1|5|hello", "e", "{}"])
        .query(&mut connection)
        .expect("answers");
    let store = Fleet::connect(&Address::new(server.url()), FLEET).await.expect("opens").errors();
    let mut cursor = Cursor::default();
    assert_eq!(store.page(&mut cursor, 10).await.expect("a page").len(), 1);
    store.being_taken().await.expect("a count");
    let mut taker = store.take();
    let page = taker.page().await.expect("a page");
    assert_eq!(page.len(), 1);
    taker.confirm(&page).await.expect("confirmed");
    assert!(taker.page().await.expect("a page").is_empty());
}
