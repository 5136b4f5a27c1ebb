use std::sync::Arc;
use std::time::Duration;

use artel::{
    Config, Context, Data, Effect, Error, Fleet, Lane, Ledger, ListCursor, Message, MessageState,
    NewMessage, Outcome, WaitingIn,
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

/// All pages of a list, of this size.
async fn pages(
    fleet: &Fleet,
    line: Option<&WaitingIn>,
    count: usize,
) -> Vec<(String, String, ListCursor)> {
    let (mut cursor, mut all) = (ListCursor::default(), Vec::new());
    while !cursor.is_over() {
        let page = match line {
            Some(line) => fleet.waiting(line, &mut cursor, count).await,
            None => fleet.claimed(&mut cursor, count).await,
        };
        let page = page.expect("a page");
        assert!(page.len() <= count);
        let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
        all.extend(page.into_iter().map(|one| (one.id.to_string(), text(&one.payload), one.at)));
        // What was handed on as text goes on where it was.
        if !cursor.is_over() {
            cursor = cursor.to_string().parse().expect("a cursor");
        }
    }
    all
}

/// Single messages, packs, a pack that was cut and a large message: each is listed once, in order, whatever the size of a page.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_and_what_is_claimed_is_listed() {
    let server = Server::any();
    let fleet = Fleet::open(server.url(), NAME).expect("an address");
    let (sender, line) = (fleet.sender().lane(Lane::High), WaitingIn::Lane(Lane::High));
    let mut sent: Vec<(String, String)> = Vec::new();
    for batch in [3, 200, 1, 1000, 64] {
        let texts: Vec<String> = (0..batch).map(|n| format!("{batch}/{n}: ü")).collect();
        let messages: Vec<NewMessage> = texts
            .iter()
            .map(|text| {
                NewMessage::from(text.as_str()).with_kind(if batch == 64 { "k" } else { "" })
            })
            .collect();
        let ids = sender.send_all(&messages).await.expect("sent");
        sent.extend(ids.iter().map(ToString::to_string).zip(texts));
    }
    let large = "x".repeat(300_000);
    let id = sender.send(large.as_str()).await.expect("sent").id.to_string();
    for count in [1, 7, 500] {
        let listed = pages(&fleet, Some(&line), count).await;
        let known: Vec<(String, String)> = listed
            .iter()
            .take(sent.len())
            .map(|(id, text, _)| (id.clone(), text.clone()))
            .collect();
        assert_eq!(known, sent, "pages of {count}");
        let (last, shown, at) = listed.last().expect("one");
        assert!(*last == id && shown.len() < 5000 && large.starts_with(shown));
        let whole = fleet.whole_payload(&line, &id, at).await.expect("read").expect("there");
        assert_eq!(whole, large.as_bytes());
        assert_eq!(fleet.whole_payload(&line, "s1-1", at).await.expect("read"), None);
    }
    assert!(pages(&fleet, Some(&WaitingIn::Returned), 10).await.is_empty());
    assert!(pages(&fleet, None, 10).await.is_empty());
    // A worker with one slot takes parts of packs and holds them.
    let gate = Arc::new(Semaphore::new(0));
    let (held, mut config) = (gate.clone(), Config::default());
    config.concurrency = 1;
    let join = Fleet::open(server.url(), NAME).expect("an address").join().config(config);
    let join = join.handle(move |_: Message, _: Context| {
        let held = held.clone();
        async move {
            held.acquire().await.expect("open").forget();
            Outcome::done()
        }
    });
    let worker = join.start().await.expect("joins");
    until("it to hold some", async || !pages(&fleet, None, 10).await.is_empty()).await;
    gate.add_permits(5);
    until("all to be listed, here or there", async || {
        let status = fleet.status().await.expect("answers");
        let (claimed, waiting) =
            (pages(&fleet, None, 3).await, pages(&fleet, Some(&line), 100).await);
        let mut all: Vec<&String> = claimed.iter().chain(&waiting).map(|(id, ..)| id).collect();
        all.sort();
        all.dedup();
        let still = status.messages.waiting + status.messages.claimed;
        // It moves on meanwhile: once it stands still, everything is listed once.
        status.messages.done >= 5
            && all.len() as u64 == still
            && (claimed.len() + waiting.len()) as u64 == still
    })
    .await;
    gate.add_permits(10_000);
    until("all to be done", async || fleet.status().await.expect("answers").messages.is_settled())
        .await;
    assert!(pages(&fleet, None, 10).await.is_empty());
    stop([worker]).await;
}

/// Whoever acts for somebody is named in the log; what no script writes is noted.
#[tokio::test]
async fn the_log_says_who_acted() {
    let server = Server::any();
    let fleet =
        Fleet::connect(server.url(), NAME).await.expect("reachable").acting_as("anna\x1b[2J");
    fleet.pause(Lane::Low).await.expect("paused");
    fleet.log_action("set the event `open`").await.expect("noted");
    let id = fleet
        .send(NewMessage::from("later").after(Duration::from_secs(60)))
        .await
        .expect("sent")
        .id;
    assert!(fleet.schedule().cancel(&id).await.expect("cancelled"));
    let mut history = fleet.history();
    let texts: Vec<String> =
        history.page_back().await.expect("a page").iter().map(artel::LogEntry::text).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts.iter().all(|text| text.ends_with(", by anna[2J")), "{texts:?}");
    assert!(history.page_back().await.expect("a page").is_empty());
    let all = fleet.history().page().await.expect("a page");
    let rest = fleet.history().after(&all[0].id).expect("an id").page().await.expect("a page");
    assert_eq!(rest, all[1..]);
    let before = fleet.history().before(&all[2].id).expect("an id").page_back().await;
    assert_eq!(before.expect("a page").len(), 2);
    for wrong in ["", "-", "1", "x-1", "1-x", "123456789012345678901-0"] {
        assert!(fleet.history().after(wrong).is_err(), "{wrong}");
    }
}

/// Headers make a pack larger than its payloads: what is behind the first window is listed, too, and read whole.
#[tokio::test]
async fn a_pack_that_is_larger_than_a_window_is_listed_to_its_end() {
    let server = Server::any();
    let fleet = Fleet::connect(server.url(), NAME).await.expect("reachable");
    let (line, kind) = (WaitingIn::Lane(Lane::Normal), "k".repeat(199));
    let text = |n: usize| format!("{n:04}{}", "x".repeat(1041));
    let messages: Vec<NewMessage> =
        (0..1000).map(|n| NewMessage::from(text(n)).with_kind(&*kind)).collect();
    fleet.sender().send_all(&messages).await.expect("sent");
    for count in [300, 500] {
        let listed = pages(&fleet, Some(&line), count).await;
        let texts: Vec<&String> = listed.iter().map(|(_, text, _)| text).collect();
        assert_eq!(texts.len(), 1000);
        assert!(texts.iter().enumerate().all(|(n, shown)| **shown == text(n)));
        let (id, _, at) = &listed[900];
        let whole = fleet.whole_payload(&line, id, at).await.expect("read").expect("there");
        assert_eq!(whole, text(900).as_bytes());
    }
}
