//! Kinds of which only so many run at once, and options that are wrong: nobody else is hurt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use artel::{Backoff, Config, Context, Error, Kind, Message, NewMessage, Outcome};
use artel_rig::Server;
use tokio::sync::Semaphore;

use crate::{config, errors, member, settled, stop, until};

fn of_kind(kind: &str, count: usize) -> Vec<NewMessage> {
    (0..count).map(|n| NewMessage::from(n.to_string()).with_kind(kind)).collect()
}

fn with_slots(slots: usize) -> Config {
    let mut config = config();
    config.concurrency = slots;
    config
}

/// A handler that waits for a gate, and how many of it run.
fn gated() -> (Arc<Semaphore>, Arc<AtomicU32>, impl Fn(Message, Context) -> futures::Gated + Clone)
{
    let (gate, running) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (own, count) = (gate.clone(), running.clone());
    let handler = move |_: Message, _: Context| futures::gated(own.clone(), count.clone());
    (gate, running, handler)
}

mod futures {
    use super::*;
    use std::pin::Pin;

    pub(super) type Gated = Pin<Box<dyn Future<Output = ()> + Send>>;

    pub(super) fn gated(gate: Arc<Semaphore>, running: Arc<AtomicU32>) -> Gated {
        Box::pin(async move {
            running.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.expect("open").forget();
            running.fetch_sub(1, Ordering::SeqCst);
        })
    }
}

/// Sixty of a kind of which one may run, and two slots: everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_waits_for_its_own_holds_up_nobody_else() {
    let server = Server::any();
    let (gate, running, narrow) = gated();
    let member = member(&server)
        .config(with_slots(2))
        .on(Kind::new("narrow").concurrency(1), narrow)
        .handle(|_: Message, _: Context| async {})
        .start()
        .await
        .expect("joins");
    let fleet = member.fleet();
    fleet.sender().send_all(&of_kind("narrow", 60)).await.expect("sent");
    until("one of them to run", async || running.load(Ordering::SeqCst) == 1).await;
    fleet.sender().send_all(&of_kind("other", 200)).await.expect("sent");
    settled(&member, 200).await;
    assert_eq!(running.load(Ordering::SeqCst), 1);
    gate.add_permits(60);
    settled(&member, 260).await;
    stop([member]).await;
}

/// The member stops: what waited for others of its kind was not started, and goes back without an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_own_kind_is_not_started() {
    let server = Server::any();
    let (gate, running, narrow) = gated();
    let mut config = with_slots(4);
    config.attempts_max = Some(1);
    config.stop_grace = Duration::from_secs(5);
    let build = |config: Config| {
        member(&server)
            .config(config)
            .on(Kind::new("narrow").concurrency(1), narrow.clone())
            .start()
    };
    let first = build(config.clone()).await.expect("joins");
    let fleet = first.fleet().clone();
    fleet.sender().send_all(&of_kind("narrow", 6)).await.expect("sent");
    until("one of them to run", async || running.load(Ordering::SeqCst) == 1).await;
    first.stop();
    let waiting = async || fleet.status().await.expect("answers").messages.waiting;
    until("the others to be given back", async || waiting().await == 5).await;
    gate.add_permits(1);
    first.stopped().await;
    let status = fleet.status().await.expect("answers");
    assert_eq!((status.messages.done, status.messages.failed, status.messages.waiting), (1, 0, 5));
    assert_eq!(status.messages.returned, 0, "nobody died over them");
    gate.add_permits(5);
    let second = build(config).await.expect("joins");
    settled(&second, 6).await;
    assert!(errors(&server).await.is_empty());
    stop([second]).await;
}

/// A handler that panics or runs too long gives its place to the next of its kind.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_among_its_kind_ends_with_the_handler_however_that_ends() {
    let server = Server::any();
    let kind = Kind::new("narrow").concurrency(1).timeout(Duration::from_millis(50));
    let handler = |message: Message, _: Context| async move {
        match message.text().parse::<u32>().expect("a number") % 3 {
            0 => panic!("as it should"),
            1 => std::future::pending().await,
            _ => {}
        }
    };
    let member =
        member(&server).config(with_slots(4)).on(kind, handler).start().await.expect("joins");
    member.fleet().sender().send_all(&of_kind("narrow", 12)).await.expect("sent");
    settled(&member, 12).await;
    let messages = member.fleet().status().await.expect("answers").messages;
    assert_eq!((messages.done, messages.failed), (4, 8));
    stop([member]).await;
}

/// A rule of the user that panics costs no slot: the usual back-off is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_back_off_that_panics_hurts_nobody() {
    let server = Server::any();
    let broken = Backoff::custom(|_| panic!("no rule"));
    let member = member(&server)
        .config(with_slots(1))
        .on(Kind::new("bad").retries(1).backoff(broken), |_: Message, _: Context| async {
            Outcome::retry("again")
        })
        .handle(|_: Message, _: Context| async {})
        .start()
        .await
        .expect("joins");
    member.fleet().sender().send_all(&of_kind("bad", 3)).await.expect("sent");
    until("them to be scheduled", async || {
        member.fleet().status().await.expect("answers").messages.scheduled == 3
    })
    .await;
    member.fleet().send("after them").await.expect("sent");
    settled(&member, 1).await;
    stop([member]).await;
}

/// A time-out beyond every bound is refused at the start, and not at the first message.
#[test]
fn a_time_out_beyond_every_bound_is_refused() {
    let fleet = artel::Fleet::open("redis://127.0.0.1", "x").expect("an address");
    let kind = Kind::new("k").timeout(Duration::MAX);
    let checked = fleet.join().on(kind, |_: Message, _: Context| async {}).check();
    assert!(matches!(checked, Err(Error::Config { field: "timeout", .. })), "{checked:?}");
}

/// A member that does not know a kind uses up none of its retries.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_know_a_kind_uses_up_no_retry() {
    let server = Server::any();
    let mut quick = config();
    quick.backoff = Backoff::fixed(Duration::from_millis(100));
    let stranger = member(&server)
        .config(quick.clone())
        .on("other", |_: Message, _: Context| async {})
        .start()
        .await
        .expect("joins");
    let fleet = stranger.fleet().clone();
    fleet.send(NewMessage::from("x").with_kind("known").retries(1)).await.expect("sent");
    let counts = async || {
        let name = format!("artel:{{{}}}:counts", crate::NAME);
        redis::cmd("HGET").arg(name).arg("snoozed").query::<Option<u64>>(&mut server.connect())
    };
    until("two misses", async || counts().await.expect("answers") >= Some(2)).await;
    stop([stranger]).await;
    let kind = Kind::new("known").backoff(Backoff::fixed(Duration::from_millis(100)));
    let handler =
        |_: Message, cx: Context| async move { if cx.retry == 0 { Err("once") } else { Ok(()) } };
    let member = member(&server).config(quick).on(kind, handler).start().await.expect("joins");
    settled(&member, 1).await;
    let messages = fleet.status().await.expect("answers").messages;
    assert_eq!((messages.done, messages.retried), (1, 1));
    stop([member]).await;
}
