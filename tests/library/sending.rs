use std::time::{Duration, Instant};

use artel::{Cursor, Effect, Error, Fleet, Lane, NewMessage, Outcome, Sender};
use artel_rig::{Fault, Proxy, Server, eventually, script_hash};

fn lane(server: &Server, name: &str) -> Vec<String> {
    let key = format!("artel:{{f}}:lane:{name}");
    redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut server.connect()).expect("answers")
}

fn payloads(server: &Server, name: &str) -> Vec<String> {
    let lane = lane(server, name);
    lane.iter().filter_map(|message| message.rsplit('|').next()).map(str::to_owned).collect()
}

fn memory_max(server: &Server, bytes: u64) {
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg(bytes)
        .query(&mut server.connect())
        .expect("answers");
}

/// The reply is lost, then Redis is full: that a copy is refused says nothing about the first one. The
/// message is there once, its number is used up, and the next message gets another one.
#[tokio::test]
async fn a_refusal_after_a_lost_reply_is_not_believed() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let sender = Fleet::connect(proxy.url(), "f").await.expect("reachable").sender();
    sender.send("warm").await.expect("sent");
    proxy.set(Fault::DropReplyTo(script_hash("send")));
    let sending = tokio::spawn({
        let sender = sender.clone();
        async move { sender.send("A").await }
    });
    let (server, _proxy) = tokio::task::spawn_blocking(move || {
        eventually("the reply to be lost", || proxy.swallowed() == 1);
        memory_max(&server, 1);
        std::thread::sleep(std::time::Duration::from_millis(500)); // the shortage itself
        memory_max(&server, 0);
        (server, proxy)
    })
    .await
    .expect("no panic");
    let first = sending.await.expect("no panic").expect("sent");
    let second = sender.send("B").await.expect("sent");
    assert_ne!(first.id, second.id);
    assert_eq!(payloads(&server, "normal"), ["warm", "A", "B"]);
}

#[tokio::test]
async fn a_refused_batch_is_not_added_and_uses_no_number() {
    let server = Server::any();
    let mut small = artel::Config::default();
    small.backlog_max = Some(2);
    let fleet = Fleet::open(server.url(), "f").expect("an address").join().config(small);
    let _fleet = fleet.start().await.expect("joins");
    let client = Fleet::connect(server.url(), "f").await.expect("reachable");
    assert_eq!(client.info().await.expect("answers").backlog_max, 2, "the fleet's");
    let sender = client.sender();
    let batch: Vec<NewMessage> = ["1", "2", "3"].map(NewMessage::from).to_vec();
    assert!(matches!(sender.send_all(&batch).await, Err(Error::Full { .. })));
    let ids = sender.send_all(&batch[..2]).await.expect("room for two");
    assert!(ids[0].as_str().ends_with("-1") && ids[1].as_str().ends_with("-2"), "{ids:?}");
    assert!(sender.send("4").await.is_err_and(|error| error.is_full() && error.is_retryable()));
    let large = NewMessage::from(vec![0; (1 << 20) + 1]);
    assert!(matches!(sender.send(large).await, Err(Error::PayloadTooLarge { .. })));
    let many = vec![NewMessage::from("x"); 1001];
    assert!(matches!(sender.send_all(&many).await, Err(Error::BatchTooLarge { .. })));
    let generated = sender.clone().lane(Lane::Generated).send("x").await;
    assert!(matches!(generated, Err(Error::Config { field: "lane", .. })));
    let kind = NewMessage::from("x").with_kind("k".repeat(201));
    assert!(matches!(sender.send(kind).await, Err(Error::Config { field: "kind", .. })));
    assert_eq!(payloads(&server, "normal"), ["1", "2"]);
}

/// Whoever drops a send leaves its number in doubt: the next one goes under another name.
#[tokio::test]
async fn a_dropped_send_is_added_once_or_not_at_all() {
    let server = Server::any();
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    for n in 0..50u64 {
        let wait = std::time::Duration::from_micros(n * 20);
        let _ = tokio::time::timeout(wait, sender.send(format!("dropped {n}"))).await;
    }
    sender.send("last").await.expect("sent");
    let mut seen = payloads(&server, "normal");
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "none of them twice");
    assert!(seen.contains(&"last".to_owned()));
}

/// A fleet handles what it sends itself, with what travels beside the payload.
#[tokio::test]
async fn a_fleet_sends_to_itself() {
    let server = Server::any();
    let fleet = Fleet::open(server.url(), "f")
        .expect("an address")
        .join()
        .handle(|message: artel::Message, context: artel::Context| async move {
            let note = format!("{} {:?} {:?}", message.lane(), message.kind(), context.term);
            Outcome::done().with(Effect::rpush("seen", note))
        })
        .start()
        .await
        .expect("starts");
    fleet.fleet().send(NewMessage::from("x").with_kind("greeting")).await.expect("sent");
    fleet.fleet().sender().lane(Lane::High).send("y").await.expect("sent");
    let mut connection = server.connect();
    let mut seen: Vec<String> = Vec::new();
    while seen.len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        seen = redis::cmd("LRANGE")
            .arg("artel:{f}:data:seen")
            .arg(0)
            .arg(-1)
            .query(&mut connection)
            .expect("answers");
    }
    seen.sort();
    assert_eq!(seen, ["high None None", "normal Some(\"greeting\") None"]);
    assert_eq!(fleet.fleet().status().await.expect("answers").messages.balance, 0);
    fleet.stop();
    fleet.stopped().await;
}

fn with_errors(server: &Server, count: usize) {
    for n in 0..count {
        let () = redis::cmd("XADD")
            .arg("artel:{f}:errors")
            .arg("*")
            .arg("m")
            .arg(format!("1g-|5-{n}|1|9|bad {n}"))
            .arg("e")
            .arg("{}")
            .query(&mut server.connect())
            .expect("answers");
    }
}

/// A call whose answer was never heard is not mistaken for the next one.
#[tokio::test]
async fn a_dropped_requeue_is_not_mistaken_for_the_next() {
    let server = Server::any();
    with_errors(&server, 6);
    let proxy = Proxy::start(server.port()).expect("a free port");
    let errors = Fleet::connect(proxy.url(), "f").await.expect("reachable").errors();
    let records = errors.page(&mut Cursor::default(), 100).await.expect("answers");
    let mut requeuer = errors.requeue(None);
    // Redis knows the script from now on.
    assert_eq!(requeuer.put_back(&records[5..]).await.expect("answers").messages, 1);
    proxy.set(Fault::DropReplies);
    let wait = std::time::Duration::from_millis(500); // the silence itself
    let dropped = tokio::time::timeout(wait, requeuer.put_back(&records[..2])).await;
    assert!(dropped.is_err());
    proxy.set(Fault::Pass);
    let done = requeuer.put_back(&records[2..5]).await.expect("answers");
    assert_eq!((done.messages, done.unreadable), (3, 0));
    assert_eq!(requeuer.done().messages, 4, "as far as it was answered");
    let mut there = payloads(&server, "normal");
    there.sort();
    assert_eq!(there.len(), 6, "{there:?}");
    assert!(errors.page(&mut Cursor::default(), 100).await.expect("answers").is_empty());
}

/// A page that was dropped before it came is the next page.
#[tokio::test]
async fn a_dropped_page_of_a_choosing_taker_comes_again() {
    let server = Server::any();
    with_errors(&server, 6);
    let proxy = Proxy::start(server.port()).expect("a free port");
    let errors = Fleet::connect(proxy.url(), "f").await.expect("reachable").errors();
    let mut left = 4;
    let mut taker = errors.take_where(Cursor::default(), move |_| {
        left -= i32::from(left > 0);
        left > 0
    });
    proxy.set(Fault::DropReplyTo(script_hash("pick")));
    // Dropped again and again, each time a little later.
    for tries in 1..100 {
        let wait = std::time::Duration::from_millis(tries * tries);
        if let Ok(page) = tokio::time::timeout(wait, taker.page()).await {
            let page = page.expect("answers");
            assert_eq!(page.len(), 3, "each was asked about once");
            assert!(taker.confirm(&page).await.expect("answers"));
            assert!(taker.page().await.expect("answers").is_empty());
            assert_eq!(errors.count().await.expect("answers"), 3);
            return;
        }
    }
    panic!("no page, however long it is waited for");
}

/// A page over a slow link takes longer than what a taker holds may go without a sign of life.
#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_reads_slowly_is_alive() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let mut connection = server.connect();
    let () = redis::cmd("XADD")
        .arg(&["artel:{f}:errors", "*", "m", "1n-|s1-1|1|9|x", "e", "{}"])
        .query(&mut connection)
        .expect("answers");
    let store = Fleet::connect(proxy.url(), "f").await.expect("opens").errors();
    let mut taker = store.take();
    assert_eq!(taker.page().await.expect("a page").len(), 1);
    proxy.set(Fault::HoldReplies);
    let reading = tokio::spawn(async move { (taker.page().await, taker) });
    let mut deadline = || -> u64 {
        let drains: Vec<String> =
            redis::cmd("HVALS").arg("artel:{f}:drains").query(&mut connection).expect("answers");
        drains[0].rsplit('|').next().and_then(|ms| ms.parse().ok()).expect("a time")
    };
    let mut last = deadline();
    for _ in 0..2 {
        eventually("a sign of life", || deadline() > last);
        last = deadline();
    }
    proxy.set(Fault::Pass);
    let (page, mut taker) = reading.await.expect("no panic");
    let page = page.expect("a page");
    assert_eq!(page.len(), 1);
    assert!(taker.confirm(&page).await.expect("answers"), "it is still its own");
}

/// Redis is away: calls fail side by side, each after its own time, and nothing was sent.
#[tokio::test(flavor = "multi_thread")]
async fn sends_fail_side_by_side_while_redis_is_away() {
    let mut server = Server::any();
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    sender.send("before").await.expect("sent");
    let sender = sender.timeout(Duration::from_secs(2));
    server.kill();
    let began = Instant::now();
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(format!("{n}")).await })
        })
        .collect();
    let mut in_doubt = 0;
    for call in calls {
        let error = call.await.expect("no panic").expect_err("nobody is there");
        // The one that was on its way when the connection broke may be in doubt; the others are not.
        in_doubt += usize::from(error.is_in_doubt());
        assert!(error.is_unreachable() && (error.is_retryable() || error.is_in_doubt()), "{error}");
    }
    println!("200 calls failed after {:?}, {in_doubt} of them in doubt", began.elapsed());
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "one after the other they would take minutes"
    );
    server.restart();
    eventually_sent(&sender).await;
    assert_eq!(payloads(&server, "normal").iter().filter(|payload| *payload == "after").count(), 1);
}

async fn eventually_sent(sender: &Sender) {
    let sending = async {
        while let Err(error) = sender.send("after").await {
            assert!(error.is_retryable(), "nothing may come twice: {error}");
        }
    };
    tokio::time::timeout(artel_rig::DEADLINE, sending).await.expect("in time");
}

/// Redis hears and does not answer: the call ends after five seconds, in doubt, and names the id under which
/// the message can be looked for. It is there once, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_without_an_answer_is_in_doubt_and_says_so() {
    let server = Server::any();
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    sender.send("before").await.expect("sent");
    server.freeze();
    let (plain, keyed) = tokio::join!(sender.send("plain"), sender.send_once("order 7", "keyed"));
    server.thaw();
    let plain = plain.expect_err("no answer");
    assert!(plain.is_in_doubt() && !plain.is_retryable(), "{plain}");
    let Error::InDoubt { id, messages: 1, after, under_key: false } = plain else {
        panic!("{plain}")
    };
    assert!(after >= Duration::from_secs(5), "{after:?}");
    // The second one was not even made known to Redis, or it is in doubt: either way it can be repeated.
    let keyed = keyed.expect_err("no answer");
    assert!(keyed.is_retryable(), "{keyed}");
    let again = sender.send_once("order 7", "keyed").await.expect("sent");
    let redis = Fleet::open(server.url(), "f").expect("an address");
    let state = redis.find(id.as_str()).await.expect("answers");
    let there = payloads(&server, "normal");
    let count = |text: &str| there.iter().filter(|payload| *payload == text).count();
    match state {
        artel::MessageState::Waiting { .. } => assert_eq!(count("plain"), 1, "{there:?}"),
        artel::MessageState::Unknown => assert_eq!(count("plain"), 0, "{there:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(count("keyed"), 1, "{there:?} {again:?}");
    let zero = sender.clone().timeout(Duration::ZERO).send("x").await;
    assert!(matches!(zero, Err(Error::Config { field: "timeout", .. })));
}

/// A right is taken away while the sender is open: what is refused is not added, and its number is not somebody
/// else's.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_denied_is_not_added_and_takes_no_other_message_with_it() {
    let server = Server::any();
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    sender.send("first").await.expect("sent");
    let allow = |right: &str| {
        let mut rule = redis::cmd("ACL");
        let () =
            rule.arg("SETUSER").arg("default").arg(right).query(&mut server.connect()).expect("ok");
    };
    for right in ["hset", "set", "rpush"] {
        allow(&format!("-{right}"));
        let denied = sender.send("denied").await.expect_err("no right");
        assert!(matches!(denied, Error::Denied { .. }), "{denied}");
        allow("+@all");
    }
    let third = sender.send("third").await.expect("sent");
    assert!(third.is_new);
    assert_eq!(payloads(&server, "normal"), ["first", "third"]);
}

/// The number of a duplicate is used up and has no message: nobody says that it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_not_taken_for_a_message_that_is_done() {
    let server = Server::any();
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    let first = sender.send_once("k", "x").await.expect("sent").id;
    for _ in 0..2 {
        assert!(!sender.send_once("k", "x").await.expect("answered").is_new);
    }
    let redis = Fleet::open(server.url(), "f").expect("an address");
    let name = first.as_str().strip_suffix("-1").expect("the first number");
    let state = redis.find(&format!("{name}-3")).await.expect("answers");
    assert_eq!(state, artel::MessageState::Duplicate { of: first.clone() });
    let state = redis.find(&format!("{name}-2")).await.expect("answers");
    assert_eq!(state, artel::MessageState::Ended { is_done: false });
}

/// A request under a key is repeated by two processes at once, after a lost reply, and when the fleet was full.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_a_key_is_added_once() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let messages: Vec<NewMessage> = (0..200).map(|n| NewMessage::from(format!("m{n}"))).collect();
    let one = Fleet::connect(proxy.url(), "f").await.expect("reachable").sender();
    let two = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    proxy.set(Fault::DropReplyTo(script_hash("send")));
    let lost =
        one.send_all_once("import 7", &messages).await.expect("repeated until it is answered");
    assert_eq!(proxy.swallowed(), 1);
    proxy.set(Fault::Pass);
    let (first, second) = tokio::join!(
        one.send_all_once("import 7", &messages),
        two.send_all_once("import 7", &messages)
    );
    let ids = first.expect("answered");
    assert_eq!((&ids, &ids), (&second.expect("answered"), &lost));
    let numbers: Vec<u64> = ids
        .iter()
        .map(|id| id.as_str().split_once('-').expect("a number").1.parse().expect("a number"))
        .collect();
    assert_eq!(ids[0].as_str().split('-').next().map(str::len), Some("s".len() + 32));
    assert_eq!(numbers, (numbers[0]..numbers[0] + 200).collect::<Vec<u64>>());
    assert_eq!(two.send_all_once("import 7", &messages).await.expect("answered"), ids);
    // Others of the same number, in another lane, or later.
    let mut others = messages.clone();
    others[7] = NewMessage::from("m7").with_kind("k");
    let urgent = two.clone().lane(Lane::High);
    for refused in [
        two.send_all_once("import 7", &others).await,
        urgent.send_all_once("import 7", &messages).await,
    ] {
        let refused = refused.expect_err("another request").to_string();
        assert!(refused.contains("was used for another request"), "{refused}");
    }
    for other in [199, 201] {
        let other: Vec<NewMessage> = (0..other).map(|n| NewMessage::from(format!("{n}"))).collect();
        let refused = two.send_all_once("import 7", &other).await.expect_err("another request");
        assert!(refused.to_string().contains("was used for another request"), "{refused}");
    }
    // Delayed messages, and a fleet without room, which uses up nothing.
    let later: Vec<NewMessage> =
        (0..3).map(|n| NewMessage::from(format!("l{n}")).after(Duration::from_secs(60))).collect();
    let ids = two.send_all_once("later", &later).await.expect("sent");
    assert_eq!(one.send_all_once("later", &later).await.expect("sent"), ids);
    memory_max(&server, 1);
    let full = two.send_all_once("full", &messages).await.expect_err("no room");
    assert!(full.is_full(), "{full}");
    memory_max(&server, 0);
    two.send_all_once("full", &messages).await.expect("there is room");
    let fleet = Fleet::connect(server.url(), "f").await.expect("reachable");
    let counts = fleet.counts().await.expect("answers");
    assert_eq!(
        (counts.messages.sent, counts.messages.waiting, counts.messages.scheduled),
        (403, 400, 3)
    );
    // A day, also after it was used; other senders are forgotten after an hour.
    let mut connection = server.connect();
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("artel:{f}:sent:*").query(&mut connection).expect("answers");
    for key in keys {
        let left: u64 = redis::cmd("PTTL").arg(&key).query(&mut connection).expect("answers");
        let is_of_key = key.split(':').nth(3).map(str::len) == Some(32);
        assert_eq!(left > 3_600_000, is_of_key, "{key}: {left} ms");
    }
    // A key that was forgotten while its messages still wait: what is sent under it now has other ids.
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("artel:{f}:sent:*").query(&mut connection).expect("answers");
    let _: i64 = redis::cmd("DEL").arg(keys).query(&mut connection).expect("answers");
    let anew = two.send_all_once("later", &later).await.expect("sent");
    assert!(anew.iter().all(|id| !ids.contains(id)), "{anew:?} {ids:?}");
    let _ = two.send_all_once("", &messages).await.expect_err("no key");
    assert!(two.send_all_once("none", &[]).await.expect("nothing to do").is_empty());
}
