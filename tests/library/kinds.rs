//! A handler for each kind of message; and handlers that are tested without Redis.

use artel::{Batch, Cause, Context, Effect, Message, NewMessage, Outcome, Tick, json, testing};
use artel_rig::Server;
use serde::Deserialize;

use crate::{errors, member, settled, stop};

#[derive(Deserialize)]
struct Mail {
    to: String,
}

/// Each goes to the handler of its kind; what nobody is there for is kept, with a cause of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_to_the_handler_of_its_kind() {
    let server = Server::any();
    let mail = json(|mail: Mail, _: Context| async move {
        Outcome::done().with(Effect::rpush("mails", mail.to))
    });
    let report = |message: Message, _: Context| async move {
        Outcome::done().with(Effect::rpush("reports", message.into_payload()))
    };
    let member =
        member(&server).on("mail", mail).on("report", report).start().await.expect("joins");
    let fleet = member.fleet();
    let sent = [
        NewMessage::from(r#"{"to":"ann"}"#).with_kind("mail"),
        NewMessage::from("of the year").with_kind("report"),
        NewMessage::from("nonsense").with_kind("mail"),
        NewMessage::from("x").with_kind("fax").retries(0),
        NewMessage::from("y").retries(0),
    ];
    fleet.sender().send_all(&sent).await.expect("sent");
    settled(&member, 5).await;
    let list = async |name| match fleet.data(name).await.expect("answers") {
        Some(artel::Data::List(items)) => items,
        other => panic!("{other:?}"),
    };
    assert_eq!(list("mails").await, [b"ann"]);
    assert_eq!(list("reports").await, [b"of the year"]);
    let mut failed: Vec<_> = errors(&server).await;
    failed.sort_by(|a, b| a.payload.cmp(&b.payload));
    let causes: Vec<Cause> = failed.iter().map(|record| record.cause).collect();
    assert_eq!(causes, [Cause::Decode, Cause::Kind, Cause::Kind]);
    assert_eq!(failed[1].reason, "no handler for the kind \"fax\": only for mail, report");
    stop([member]).await;
}

/// What has no kind of its own, or one that nobody named, goes to the handler for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_goes_to_the_handler_without_a_kind() {
    let server = Server::any();
    let member = member(&server)
        .on("mail", |_: Message, _: Context| async { Outcome::failed("not here") })
        .handle(|_: Message, _: Context| async {})
        .start()
        .await
        .expect("joins");
    let sent = [NewMessage::from("x").with_kind("fax"), NewMessage::from("y")];
    member.fleet().sender().send_all(&sent).await.expect("sent");
    settled(&member, 2).await;
    assert_eq!(member.fleet().status().await.expect("answers").messages.done, 2);
    stop([member]).await;
}

/// What a worker would record is what a test gets.
#[tokio::test]
async fn a_handler_is_tested_without_redis() {
    let mail = || json(|mail: Mail, _: Context| async move { Outcome::failed(mail.to) });
    let outcome = testing::handle(mail(), r#"{"to":"ann"}"#).await;
    assert_eq!((outcome.cause(), outcome.reason()), (Some(Cause::Handler), Some("ann")));
    assert_eq!(testing::handle(mail(), "nonsense").await.cause(), Some(Cause::Decode));
    let panics = |message: Message, _: Context| async move {
        assert!(message.payload().is_empty(), "no");
    };
    let outcome = testing::handle(panics, "x").await;
    assert_eq!(outcome.reason(), Some("the handler panicked: no"));
    let message = testing::message(NewMessage::from("x").with_kind("k"));
    let context = testing::context(&message);
    assert_eq!((message.kind(), context.attempt, message.attempt()), (Some("k"), 1, 1));
}

#[tokio::test]
async fn a_generator_is_tested_without_redis() {
    let mut pages = |tick: Tick| async move {
        let done: u64 =
            std::str::from_utf8(tick.state()).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        Batch::new([format!("order {}", done + 1)]).with_state((done + 1).to_string())
    };
    let batch = testing::generate(&mut pages, testing::tick(1, "")).await.expect("made");
    assert_eq!((batch.messages()[0].payload(), batch.state()), (&b"order 1"[..], Some(&b"1"[..])));
    let batch = testing::generate(&mut pages, testing::tick(2, "41")).await.expect("made");
    assert_eq!(batch.messages()[0].payload(), b"order 42");
}
