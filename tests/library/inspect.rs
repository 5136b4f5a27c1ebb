use std::sync::Arc;
use std::time::Duration;

use artel::{
    Config, Context, Data, Effect, Error, Fleet, Lane, Ledger, Message, MessageState, NewMessage,
    Outcome, WaitingIn,
};
use artel_rig::Server;
use tokio::sync::Semaphore;

use crate::{NAME, member, stop, until};

/// Every place in which a message can be, one after the other, by the same id.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_found_wherever_it_is() {
    let server = Server::any();
    let redis = Fleet::open(server.url(), NAME).expect("an address");
    let sender = redis.sender().lane(Lane::High);
    assert!(!redis.info().await.expect("answers").was_joined);
    let first: Vec<NewMessage> = (0..3000).map(|n| NewMessage::from(format!("fine {n}"))).collect();
    let mut ids = Vec::new();
    for some in first.chunks(1000) {
        ids.extend(sender.send_all(some).await.expect("sent"));
    }
    let bad = sender.send(NewMessage::from("bad").with_kind("order")).await.expect("sent").id;
    for (at, id) in [(0, &ids[0]), (1234, &ids[1234]), (3000, &bad)] {
        match redis.find(id.as_str()).await.expect("found") {
            MessageState::Waiting {
                line: WaitingIn::Lane(Lane::High), ahead, attempt: 1, ..
            } => {
                assert_eq!(ahead, at);
            }
            other => panic!("{other:?}"),
        }
    }
    let gate = Arc::new(Semaphore::new(0));
    let (held, mut config) = (gate.clone(), Config::default());
    config.ledger = Some(Ledger::All);
    config.concurrency = 2;
    config.label = "worker".to_owned();
    let fleet = Fleet::open(server.url(), NAME).expect("an address").join().config(config);
    let fleet = fleet.handle(move |message: Message, _: Context| {
        let held = held.clone();
        async move {
            held.acquire().await.expect("open").forget();
            match message.text().as_ref() {
                "bad" => Outcome::failed("no such customer"),
                _ => Outcome::done(),
            }
        }
    });
    let fleet = fleet.start().await.expect("joins");
    let member = fleet.id().expect("a session");
    until("it to be claimed", async || match redis.find(ids[0].as_str()).await.expect("found") {
        MessageState::Claimed { member: by, label, is_dead: false, attempt: 1, .. } => {
            assert_eq!((by, label.as_str()), (member.clone(), "worker"));
            true
        }
        MessageState::Waiting { .. } => false,
        other => panic!("{other:?}"),
    })
    .await;
    gate.add_permits(10_000);
    until("all to be settled", async || {
        fleet.fleet().status().await.expect("answers").messages.is_settled()
    })
    .await;
    match redis.find(ids[0].as_str()).await.expect("found") {
        MessageState::Done { member: by, attempt: 1, .. } => assert_eq!(by, Some(member)),
        other => panic!("{other:?}"),
    }
    match redis.find(bad.as_str()).await.expect("found") {
        MessageState::Failed { record, is_being_taken: false } => {
            assert_eq!(
                (record.reason.as_str(), record.kind.as_deref()),
                ("no such customer", Some("order"))
            );
        }
        other => panic!("{other:?}"),
    }
    let store = Fleet::connect(server.url(), NAME).await.expect("opens").errors();
    let mut taker = store.take();
    let page = taker.page().await.expect("a page");
    let state = redis.find(bad.as_str()).await.expect("found");
    assert!(matches!(state, MessageState::Failed { is_being_taken: true, .. }), "{state:?}");
    assert!(taker.confirm(&page).await.expect("confirmed"));
    let state = redis.find(bad.as_str()).await.expect("found");
    assert!(matches!(state, MessageState::FailedAndGone { .. }), "{state:?}");
    // Without a ledger only the numbers are left.
    let () = redis::cmd("DEL")
        .arg(format!("artel:{{{NAME}}}:ledger"))
        .query(&mut server.connect())
        .expect("answers");
    assert_eq!(
        redis.find(ids[0].as_str()).await.expect("found"),
        MessageState::Ended { is_done: false }
    );
    let name = ids[0].as_str().split('-').next().expect("a name");
    for nobody in
        [format!("{name}-99999"), "s0123456789abcdef-1".to_owned(), "1794710083943807-1".to_owned()]
    {
        assert_eq!(redis.find(&nobody).await.expect("looked"), MessageState::Unknown, "{nobody}");
    }
    for odd in ["", "x", "s1", "../../etc-1", &"9".repeat(300)] {
        assert!(matches!(redis.find(odd).await, Err(Error::Config { field: "id", .. })), "{odd:?}");
    }
    stop([fleet]).await;
}

/// A message whose worker died is found with the dead, or on its way to the next.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_held_is_found() {
    let server = Server::any();
    let redis = Fleet::open(server.url(), NAME).expect("an address");
    let set = |words: &[&str]| server.say(words);
    let key = |name: &str| format!("artel:{{{NAME}}}:{name}");
    set(&["SADD", &key("orphans"), "deadbeef"]);
    set(&["HSET", &key("blocks:deadbeef"), "7", "1:x", "hi", "7"]);
    set(&["RPUSH", &key("block:deadbeef:7"), "-", "1n-|s5f-3|2|1794710083950|hello"]);
    set(&["HSET", &key("member:deadbeef"), "label", "gone", "host", "h", "pid", "9"]);
    match redis.find("s5f-3").await.expect("found") {
        MessageState::Claimed { label, process, is_dead: true, attempt: 2, .. } => {
            assert_eq!((label.as_str(), process.as_str()), ("gone", "h:9"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_can_be_read() {
    let server = Server::any();
    let fleet = member(&server).handle(|message: Message, _: Context| async move {
        let text = message.text().into_owned();
        Outcome::done()
            .with(Effect::incr_by("count", 1))
            .with(Effect::set("last", b"\xff".to_vec()))
            .with(Effect::hset("by name", text.clone(), "seen"))
            .with(Effect::sadd("names", text.clone()))
            .with(Effect::rpush("order", text))
    });
    let fleet = fleet.start().await.expect("joins");
    assert_eq!(fleet.fleet().data("count").await.expect("answers"), None);
    for name in ["b", "a"] {
        fleet.fleet().send(name).await.expect("sent");
        until("it to be done", async || {
            fleet.fleet().status().await.expect("answers").messages.is_settled()
        })
        .await;
    }
    let bytes = |text: &str| text.as_bytes().to_vec();
    let data =
        async |name: &str| fleet.fleet().data(name).await.expect("answers").expect("written");
    assert_eq!(data("count").await.number(), Some(2));
    assert_eq!(data("last").await, Data::Text(vec![0xff]));
    let pair = |name: &str| (bytes(name), bytes("seen"));
    assert_eq!(data("by name").await, Data::Hash(vec![pair("a"), pair("b")]));
    assert_eq!(data("names").await, Data::Set(vec![bytes("a"), bytes("b")]));
    assert_eq!(data("order").await, Data::List(vec![bytes("b"), bytes("a")]));
    let key = format!("artel:{{{NAME}}}:data:many");
    let mut many = redis::cmd("RPUSH");
    many.arg(key).arg(vec!["x"; 100_001]);
    let () = many.query(&mut server.connect()).expect("answers");
    let refused = fleet.fleet().data("many").await.expect_err("too many");
    assert!(refused.to_string().contains("100001 elements"), "{refused}");
    stop([fleet]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fleets_are_listed_and_removed_when_nobody_is_in_them() {
    let server = Server::any();
    let redis = |name: &str| Fleet::open(server.url(), name).expect("an address");
    assert!(redis("any").fleets().await.expect("answers").is_empty());
    let fleet = Fleet::open(server.url(), "orders")
        .expect("an address")
        .join()
        .start()
        .await
        .expect("joins");
    fleet.fleet().send("hello").await.expect("sent");
    let typo = Fleet::connect(server.url(), "typo").await.expect("opens");
    assert!(!typo.info().await.expect("answers").was_joined);
    typo.send("hello").await.expect("sent");
    // Names that are no fleet's, and a fleet whose name is like a pattern.
    for key in ["artel:{bad name}:config", "artel:{x}:confetti", "other:{y}:config"] {
        let () =
            redis::cmd("HSET").arg(key).arg("a").arg("b").query(&mut server.connect()).expect("ok");
    }
    assert_eq!(redis("any").fleets().await.expect("answers"), ["orders", "typo"]);
    let busy = redis("orders").remove().await.expect_err("somebody is in it");
    assert!(matches!(busy, Error::InUse { members: 1, .. }), "{busy}");
    assert_eq!(redis("orders").status().await.expect("answers").messages.waiting, 1);

    // More keys than one page has; those of a fleet whose name begins alike stay.
    let mut connection = server.connect();
    for n in 0..2000 {
        let () = redis::cmd("SET")
            .arg(format!("artel:{{typo}}:dedup:{n}"))
            .arg("x")
            .query(&mut connection)
            .expect("ok");
    }
    let () = redis::cmd("HSET")
        .arg("artel:{typo2}:config")
        .arg("protocol")
        .arg("2")
        .query(&mut connection)
        .expect("ok");
    assert!(redis("typo").remove().await.expect("removed") >= 2002);
    let left: Vec<String> =
        redis::cmd("KEYS").arg("artel:{typo}*").query(&mut connection).expect("answers");
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(redis("any").fleets().await.expect("answers"), ["orders", "typo2"]);
    // What was sent through a sender that is still open is refused once, and begins anew then.
    stop([fleet]).await;
    redis("orders").remove().await.expect("removed");
    let again = Fleet::connect(server.url(), "orders").await.expect("opens");
    assert!(!again.info().await.expect("answers").was_joined);
}

/// Begun and not finished: nobody gets in until somebody has finished it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_being_removed_lets_nobody_in() {
    let server = Server::any();
    let config = format!("artel:{{{NAME}}}:config");
    let () = redis::cmd("HSET")
        .arg(&config)
        .arg("protocol")
        .arg("4294967295")
        .arg("removing")
        .arg("by-somebody")
        .query(&mut server.connect())
        .expect("answers");
    let removed = |error: &Error| matches!(error, Error::BeingRemoved { .. });
    let joined = member(&server).start().await;
    assert!(joined.as_ref().is_err_and(removed), "{:?}", joined.err());
    let client = Fleet::connect(server.url(), NAME).await;
    assert!(client.as_ref().is_err_and(removed), "{:?}", client.err());
    let redis = Fleet::open(server.url(), NAME).expect("an address");
    redis.remove().await.expect("finished");
    stop([member(&server).start().await.expect("joins")]).await;
}

/// Of many who take an event, one goes on each time it is set.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_taken_by_one() {
    let server = Server::any();
    let event = |_| {
        let redis = Fleet::open(server.url(), NAME).expect("an address");
        redis.event("work").expect("a name")
    };
    let (heard, mut taken) = tokio::sync::mpsc::unbounded_channel();
    for taker in 0..5 {
        let (event, heard) = (event(taker), heard.clone());
        tokio::spawn(async move {
            loop {
                event.take().await.expect("taken");
                if heard.send(taker).is_err() {
                    return;
                }
            }
        });
    }
    let setter = event(0);
    for _ in 0..20 {
        setter.set().await.expect("set");
        tokio::time::timeout(artel_rig::DEADLINE, taken.recv())
            .await
            .expect("in time")
            .expect("a taker");
        assert!(!setter.is_set().await.expect("answers"), "it was cleared");
    }
    // Nobody else has gone on: the next is the answer to the next set, and no other.
    assert!(taken.try_recv().is_err());
    let alone = tokio::time::timeout(Duration::from_millis(200), taken.recv()).await;
    assert!(alone.is_err(), "nobody set it");
}

/// The answer to whoever takes an event is lost for longer than it is asked for: it has the event all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_taken_without_an_answer_is_not_lost() {
    use artel_rig::{Fault, Proxy, eventually, script_hash};
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let redis = Fleet::open(proxy.url(), NAME).expect("an address");
    let event = redis.event("work").expect("a name");
    assert!(!event.is_set().await.expect("answers"));
    proxy.set(Fault::DropReplyTo(script_hash("event_take")));
    let taking = tokio::spawn(async move { event.take().await });
    let direct = Fleet::open(server.url(), NAME).expect("an address");
    let direct = direct.event("work").expect("a name");
    direct.set().await.expect("set");
    let proxy = tokio::task::spawn_blocking(move || {
        eventually("the reply to be lost", || proxy.swallowed() >= 1);
        proxy
    });
    let proxy = proxy.await.expect("no panic");
    let taken = tokio::time::timeout(artel_rig::DEADLINE, taking).await.expect("in time");
    taken.expect("no panic").expect("taken");
    assert!(!direct.is_set().await.expect("answers"));
    drop(proxy);
}
