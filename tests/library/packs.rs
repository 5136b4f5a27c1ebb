//! Batches that travel as packs, with real workers.

use std::sync::Arc;

use artel::{
    Config, Context, Effect, Fleet, Message, MessageState, NewMessage, Notice, Outcome, Sender,
};
use artel_rig::{Server, Snapshot};
use tokio::sync::Semaphore;

use crate::{NAME, notice, stop, until};

/// A worker that takes whole packs at once.
fn wide() -> Config {
    let mut config = Config::default();
    config.concurrency = 200;
    config
}

fn numbered(count: usize, kind: Option<&str>) -> Vec<NewMessage> {
    let message = |n: usize| match kind.filter(|_| n.is_multiple_of(7)) {
        Some(kind) => NewMessage::from(n.to_string()).with_kind(kind),
        None => NewMessage::from(n.to_string()),
    };
    (0..count).map(message).collect()
}

async fn sender(server: &Server) -> Sender {
    Fleet::connect(server.url(), NAME).await.expect("an address").sender()
}

/// Kinds, payloads, ids, effects and failures of a pack are those of its messages.
#[tokio::test]
async fn messages_come_out_of_a_pack_as_they_went_in() {
    let server = Server::any();
    let messages = numbered(300, Some("seven"));
    let ids = sender(&server).await.send_all(&messages).await.expect("sent");
    let fleet = Fleet::connect(server.url(), NAME).await.expect("an address");
    let handler = |message: Message, cx: Context| async move {
        let n: usize = message.text().parse().expect("a number");
        assert_eq!(message.kind().is_some(), n.is_multiple_of(7));
        match n % 20 {
            0 => Outcome::failed(format!("{n} {}", cx.id)),
            _ => Outcome::done().with(Effect::incr_by("sum", n as i64)),
        }
    };
    let worker = fleet.join().config(wide()).handle(handler).start().await.expect("joins");
    until("all of them to be settled", async || {
        let messages = fleet.status().await.expect("answers").messages;
        messages.done + messages.failed == 300
    })
    .await;
    let sum: i64 = (0..300).filter(|n| n % 20 != 0).sum();
    let data = fleet.data("sum").await.expect("answers");
    assert_eq!(data.and_then(|data| data.number()), Some(sum));
    let mut cursor = artel::Cursor::default();
    let page = fleet.errors().page(&mut cursor, 100).await.expect("answers");
    assert_eq!(page.len(), 15);
    for record in page {
        let n: usize = String::from_utf8(record.payload).expect("text").parse().expect("a number");
        assert_eq!((record.id.clone(), record.reason), (ids[n].clone(), format!("{n} {}", ids[n])));
        assert_eq!(record.kind.is_some(), n.is_multiple_of(7));
    }
    stop([worker]).await;
}

/// A message in a chunk, and in a pack, is found by its id.
#[tokio::test]
async fn a_message_is_found_in_a_pack() {
    let server = Server::any();
    let sender = sender(&server).await;
    sender.send("first").await.expect("sent");
    let ids = sender.send_all(&numbered(100, Some("seven"))).await.expect("sent");
    sender.send_all(&numbered(100, None)).await.expect("sent");
    let fleet = Fleet::connect(server.url(), NAME).await.expect("an address");
    match fleet.find(ids[41].as_str()).await.expect("found") {
        MessageState::Waiting { ahead, attempt, .. } => assert_eq!((ahead, attempt), (42, 1)),
        other => panic!("{other:?}"),
    }
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let handler = move |_: Message, _: Context| {
        let held = held.clone();
        async move { held.acquire().await.expect("open").forget() }
    };
    let worker = fleet.join().config(wide()).handle(handler).start().await.expect("joins");
    until("it to be claimed", async || {
        matches!(
            fleet.find(ids[41].as_str()).await.expect("found"),
            MessageState::Claimed { attempt: 1, is_dead: false, .. }
        )
    })
    .await;
    gate.add_permits(201);
    until("all to be done", async || fleet.status().await.expect("answers").messages.done == 201)
        .await;
    stop([worker]).await;
}

/// A pack that somebody damaged costs its worker the session, and nothing is held up: what can be read is handled, the
/// rest is kept as an error.
#[tokio::test]
async fn a_damaged_pack_holds_up_nobody() {
    let server = Server::any();
    let ids = sender(&server).await.send_all(&numbered(100, None)).await.expect("sent");
    let chunk = format!("artel:{{{NAME}}}:chunk:{}", ids[0]);
    let () = redis::cmd("APPEND").arg(chunk).arg("x").query(&mut server.connect()).expect("longer");
    let fleet = Fleet::connect(server.url(), NAME).await.expect("an address");
    let handler = |_: Message, _: Context| async {};
    let mut worker = fleet.join().config(wide()).handle(handler).start().await.expect("joins");
    let mut notices = worker.notices();
    notice(&mut notices, |notice| matches!(notice, Notice::SessionLost { .. })).await;
    until("everything to be settled", async || {
        let messages = fleet.status().await.expect("answers").messages;
        messages.done == 100 && messages.failed == 1
    })
    .await;
    let snapshot = Snapshot::read(&mut server.connect(), NAME);
    assert_eq!((snapshot.waiting(), snapshot.claimed()), (0, 0), "{snapshot:?}");
    stop([worker]).await;
}
