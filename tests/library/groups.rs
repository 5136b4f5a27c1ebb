//! Sends of one process that travel together.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use artel::{Config, Error, Fleet, Lane, Sender, Sent};
use artel_rig::Server;
use futures_util::future::join_all;

type Sending = Pin<Box<dyn Future<Output = Result<Sent, Error>> + Send>>;

/// A server that hears nothing for now, and this many sends to it, `0` and so on. The first one is on its way, the
/// others wait for it.
async fn waiting(server: &Server, sender: &Sender, count: usize) -> Vec<Sending> {
    server.freeze();
    let mut calls = Vec::new();
    for n in 0..count {
        let sender = sender.clone();
        let mut call: Sending = Box::pin(async move { sender.send(n.to_string()).await });
        assert!(futures_util::poll!(&mut call).is_pending());
        calls.push(call);
    }
    calls
}

async fn sender(server: &Server) -> Sender {
    let sender = Fleet::connect(server.url(), "f").await.expect("reachable").sender();
    sender.send("before").await.expect("sent");
    sender.timeout(Duration::from_secs(60))
}

/// What waits in the lane `normal`, by id. Packs are opened by a worker, so each message is named once.
async fn arrived(server: &Server) -> BTreeMap<String, String> {
    let (heard, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let fleet = Fleet::connect(server.url(), "f").await.expect("reachable");
    let worker = fleet.join().handle(move |message: artel::Message, _: artel::Context| {
        let _ = heard.send((message.id().to_string(), message.text().into_owned()));
        async {}
    });
    let worker = worker.start().await.expect("joins");
    let handled = async {
        let mut all = BTreeMap::new();
        loop {
            while let Ok((id, payload)) = hear.try_recv() {
                assert!(all.insert(id, payload).is_none(), "none of them twice");
            }
            let messages = fleet.status().await.expect("answers").messages;
            if messages.waiting + messages.claimed == 0 && messages.done == all.len() as u64 {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = tokio::time::timeout(artel_rig::DEADLINE, handled).await.expect("in time");
    worker.shutdown().await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_at_the_same_time_travel_together() {
    let server = Server::any();
    let sender = sender(&server).await;
    let calls = waiting(&server, &sender, 1500).await;
    server.thaw();
    server.say(&["CONFIG", "RESETSTAT"]);
    let mut ids = BTreeSet::new();
    for (n, sent) in join_all(calls).await.into_iter().enumerate() {
        let sent = sent.unwrap_or_else(|error| panic!("{n}: {error}"));
        assert!(sent.is_new && ids.insert(sent.id.to_string()), "{n}: an id of its own");
    }
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).expect("answers");
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha")).count();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls: u64 = calls.and_then(|line| line.split(',').next()?.parse().ok()).expect("a count");
    println!("1,500 sends in {calls} calls of scripts ({scripts} rows)");
    // The first alone, then 1,000 and 499. A new name costs a call, too, and so does a script that is not loaded.
    assert!(calls < 20, "{calls} calls");
    let arrived = arrived(&server).await;
    assert_eq!(arrived.len(), 1501);
    assert!(ids.iter().all(|id| arrived.contains_key(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_takes_nobody_with_it() {
    let server = Server::any();
    let sender = sender(&server).await;
    let mut calls = waiting(&server, &sender, 6).await;
    drop(calls.remove(2));
    // The one on its way: whoever waits behind it goes on without it.
    drop(calls.remove(0));
    server.thaw();
    let ids: Vec<String> =
        join_all(calls).await.into_iter().map(|sent| sent.expect("sent").id.to_string()).collect();
    let arrived = arrived(&server).await;
    let payloads: Vec<&str> = ids.iter().map(|id| arrived[id].as_str()).collect();
    assert_eq!(payloads, ["1", "3", "4", "5"]);
    assert!(arrived.values().all(|payload| payload != "2"), "it was dropped before it was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_time_is_over_before_its_batch_sends_nothing() {
    let server = Server::any();
    let sender = sender(&server).await;
    let mut calls = waiting(&server, &sender, 2).await;
    let hasty = sender.clone().timeout(Duration::from_millis(200)).send("hasty").await;
    assert!(
        hasty.is_err_and(|error| error.is_retryable() && !error.is_in_doubt()),
        "nothing was sent"
    );
    server.thaw();
    for call in calls.drain(..) {
        call.await.expect("sent");
    }
    assert!(arrived(&server).await.values().all(|payload| payload != "hasty"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_each_call_has_its_own_id_in_doubt() {
    let server = Server::any();
    let sender = sender(&server).await;
    // Two calls at once, so that two names are known to Redis.
    let urgent = sender.clone().lane(Lane::High);
    server.freeze();
    let (mut one, mut two) = (Box::pin(urgent.send("high")), Box::pin(sender.send("normal")));
    assert!(
        futures_util::poll!(&mut one).is_pending() && futures_util::poll!(&mut two).is_pending()
    );
    server.thaw();
    one.await.expect("sent");
    two.await.expect("sent");

    let mut calls = waiting(&server, &sender.clone().timeout(Duration::from_secs(2)), 5).await;
    // The others are on their way now.
    drop(calls.remove(0));
    let answers = join_all(calls).await;
    server.thaw();
    let mut doubts = BTreeMap::new();
    for (n, answer) in (1..).zip(answers) {
        match answer {
            Err(Error::InDoubt { id, messages: 1, under_key: false, .. }) => {
                assert!(doubts.insert(id.to_string(), n.to_string()).is_none(), "its own id");
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    let arrived = arrived(&server).await;
    for (id, payload) in doubts {
        // It was added once or not at all: under this id there is no other message.
        assert!(arrived.get(&id).is_none_or(|found| *found == payload), "{id} {payload}");
        let there = arrived.iter().filter(|(_, found)| **found == payload);
        assert!(there.into_iter().all(|(found, _)| *found == id), "{payload} is not {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn near_a_bound_as_many_are_added_as_fit() {
    let server = Server::any();
    let mut small = Config::default();
    small.backlog_max = Some(11);
    let member = Fleet::open(server.url(), "f").expect("an address").join().config(small);
    let member = member.start().await.expect("joins");
    let sender = sender(&server).await;
    let calls = waiting(&server, &sender, 40).await;
    server.thaw();
    let (mut added, mut full) = (0, 0);
    for answer in join_all(calls).await {
        match answer {
            Ok(_) => added += 1,
            Err(Error::Full { .. }) => full += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((added, full), (10, 30));
    let messages = member.fleet().status().await.expect("answers").messages;
    assert_eq!((messages.waiting, messages.balance), (11, 0));
    member.shutdown().await;
}

/// A batch of several messages joins, too, and stays whole.
#[tokio::test(flavor = "multi_thread")]
async fn batches_that_travel_with_others_stay_whole() {
    let server = Server::any();
    let sender = sender(&server).await;
    server.freeze();
    let batches: Vec<Vec<artel::NewMessage>> =
        (1..50).map(|size| (0..size).map(|n| format!("{size}.{n}").into()).collect()).collect();
    let mut calls = Vec::new();
    for batch in &batches {
        let mut call = Box::pin(sender.send_all(batch));
        assert!(futures_util::poll!(&mut call).is_pending());
        calls.push(call);
    }
    server.thaw();
    let mut ids = Vec::new();
    for (call, batch) in calls.into_iter().zip(&batches) {
        ids.push(call.await.expect("sent"));
        assert_eq!(ids[ids.len() - 1].len(), batch.len());
    }
    let arrived = arrived(&server).await;
    for (ids, batch) in ids.iter().zip(&batches) {
        for (id, message) in ids.iter().zip(batch) {
            assert_eq!(arrived[id.as_str()].as_bytes(), message.payload());
        }
    }
    assert_eq!(arrived.len(), 1 + (1..50).sum::<usize>());
}

/// The first call is not polled any more, and those behind it are sent without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_polls_holds_up_nobody() {
    let server = Server::any();
    let sender = sender(&server).await;
    let mut first = Box::pin(sender.send("first"));
    // Its answer must not be there at once.
    server.freeze();
    assert!(futures_util::poll!(&mut first).is_pending());
    server.thaw();
    sender.send("second").await.expect("sent");
    let other = sender.clone();
    tokio::spawn(async move { other.send("third").await }).await.expect("no panic").expect("sent");
    first.await.expect("sent");
    assert_eq!(arrived(&server).await.len(), 4);
}

/// The first call is dropped where there is no runtime, so it cannot start the next batch.
#[test]
fn a_call_that_is_dropped_outside_of_the_runtime_holds_up_nobody() {
    let server = Server::any();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let sender = runtime.block_on(sender(&server));
    let mut first = Box::pin(sender.send("first"));
    let mut second = Box::pin(sender.send("second"));
    runtime.block_on(async {
        server.freeze();
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
    });
    drop(first);
    server.thaw();
    runtime.block_on(second).expect("sent");
    runtime.block_on(sender.send("third")).expect("sent");
}

/// Redis has forgotten the name of a batch: a caller that left in doubt is not sent under another id.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_doubt_is_never_added_under_another_id() {
    let server = Server::any();
    let sender = sender(&server).await;
    let urgent = sender.clone().lane(Lane::High);
    let (mut one, mut two) = (Box::pin(sender.send("one")), Box::pin(urgent.send("two")));
    server.freeze();
    assert!(
        futures_util::poll!(&mut one).is_pending() && futures_util::poll!(&mut two).is_pending()
    );
    server.thaw();
    one.await.expect("sent");
    two.await.expect("sent");
    let mut connection = server.connect();
    let names: Vec<String> =
        redis::cmd("KEYS").arg("artel:{f}:sent:*").query(&mut connection).expect("answers");
    let () = redis::cmd("DEL").arg(&names).query(&mut connection).expect("deleted");
    let mut calls = waiting(&server, &sender.clone().timeout(Duration::from_millis(400)), 3).await;
    drop(calls.remove(0));
    let left = join_all(calls).await;
    server.thaw();
    sender.send("last").await.expect("sent");
    let arrived = arrived(&server).await;
    for (n, answer) in (1..).zip(left) {
        let under: Vec<&String> =
            arrived.iter().filter(|(_, text)| **text == n.to_string()).map(|(id, _)| id).collect();
        match answer {
            Err(Error::InDoubt { id, .. }) => {
                assert!(under.is_empty() || under == [id.as_str()], "{under:?} {id}");
            }
            Err(error) => assert!(error.is_retryable() && under.is_empty(), "{under:?} {error}"),
            Ok(sent) => assert_eq!(under, [sent.id.as_str()]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_there_is_no_room_everybody_is_told_so() {
    let server = Server::any();
    let mut small = Config::default();
    small.backlog_max = Some(1);
    let member = Fleet::open(server.url(), "f").expect("an address").join().config(small);
    let member = member.start().await.expect("joins");
    let sender = sender(&server).await;
    let calls: Vec<_> = (0..5000)
        .map(|n| {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(n.to_string()).await })
        })
        .collect();
    for call in calls {
        let answer = call.await.expect("no panic");
        assert!(matches!(answer, Err(Error::Full { .. })), "{answer:?}");
    }
    member.shutdown().await;
}
