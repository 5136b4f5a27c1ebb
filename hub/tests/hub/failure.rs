use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use artel_hub::{
    Backoff, Context, Delivery, EventHub, Handler, HandlerError, HubNotice, JsonLinesLetters,
    LetterFilter, NOTICES, Restart, Severity, SqliteLetters, State, Topic,
};

use crate::{Gate, LONG, Seen, eventually};

const NUMBERS: Topic<u32> = Topic::json("numbers");

fn quick() -> Backoff {
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(5))
}

fn all() -> LetterFilter {
    LetterFilter::all()
}

#[tokio::test]
async fn an_event_is_tried_again_and_then_becomes_a_dead_letter() {
    let hub = EventHub::new();
    let seen = Seen::<(u32, u32)>::new();
    let see = seen.clone();
    let subscription = hub
        .subscribe(&NUMBERS)
        .name("picky")
        .attempts(3)
        .restart(Restart::times(5).backoff(quick()))
        .spawn(move |event: Delivery<'_, u32>| {
            see.push((*event, event.attempt()));
            match (*event, event.attempt()) {
                (1, 1) => Err(HandlerError::retry("not yet")),
                (2, _) => Err(HandlerError::retry("never").with_severity(Severity::Critical)),
                (3, _) => Err(HandlerError::skip("not this one")),
                _ => Ok(()),
            }
        })
        .expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..5).await.expect("published");
    hub.idle().await;
    let tried = [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)];
    assert_eq!(seen.all(), tried);
    let stats = subscription.stats();
    assert_eq!((stats.processed, stats.errors, stats.retries, stats.letters), (3, 5, 3, 2));
    assert_eq!((stats.restarts, stats.lag), (0, 0));
    let letters = hub.dead_letters().list(&all()).expect("letters");
    let short: Vec<_> =
        letters.iter().map(|one| (one.sequence, one.attempts, &*one.reason)).collect();
    assert_eq!(short, [(3, 3, "never"), (4, 1, "not this one")]);
    assert_eq!(letters[0].severity, Severity::Critical);
    assert_eq!(letters[0].payload, Some(2.into()));
}

/// Counts itself when it is made, and fails as it is told.
struct Fragile {
    seen: Seen<u32>,
}

impl Handler<u32> for Fragile {
    async fn handle(&mut self, event: Delivery<'_, u32>) -> Result<(), HandlerError> {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            match std::mem::replace(&mut yielded, true) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        match (*event % 10, event.attempt()) {
            (3, 1) => panic!("at {}", *event),
            (7, 1) => Err(HandlerError::fatal("the connection is gone")),
            _ => {
                self.seen.push(*event);
                Ok(())
            }
        }
    }
}

/// Panics and fatal errors make a new handler; nothing that waits is lost, nothing comes twice.
#[tokio::test]
async fn a_restart_keeps_the_queue() {
    let hub = EventHub::new();
    for context in [Context::Task, Context::Thread, Context::Pool] {
        let (made, seen) = (Arc::new(AtomicU32::new(0)), Seen::new());
        let (counter, see) = (made.clone(), seen.clone());
        let subscription = hub
            .subscribe(&NUMBERS)
            .on(context)
            .restart(Restart::times(100).backoff(quick()))
            .spawn_with(move || {
                counter.fetch_add(1, Ordering::SeqCst);
                Fragile { seen: see.clone() }
            })
            .expect("subscribed");
        hub.publish_batch(&NUMBERS, 0..100).await.expect("published");
        hub.idle().await;
        assert_eq!(seen.all(), (0..100).collect::<Vec<_>>());
        let stats = subscription.stats();
        assert_eq!((stats.restarts, stats.panics, stats.errors), (20, 10, 20));
        assert_eq!(made.load(Ordering::SeqCst), 21);
        assert_eq!(stats.processed, 100);
    }
}

#[tokio::test]
async fn a_spent_budget_leaves_dead_letters_that_can_be_delivered_again() {
    let hub = EventHub::new();
    let notices = Seen::<HubNotice>::new();
    let _told = hub.subscribe(&NOTICES).spawn(notices.handler()).expect("subscribed");
    let gate = Gate::default();
    let hold = gate.clone();
    let subscription = hub
        .subscribe(&NUMBERS)
        .name("doomed")
        .on(Context::Thread)
        .attempts(10)
        .restart(Restart::times(2).backoff(quick()))
        .spawn(move |event: Delivery<'_, u32>| {
            hold.pass();
            assert!(*event > 100, "always");
        })
        .expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..10).await.expect("published");
    gate.open();
    eventually("its end", || subscription.is_over());
    let stats = subscription.stats();
    assert_eq!((stats.state, stats.restarts, stats.abandoned), (State::Failed, 2, 9));
    assert_eq!(stats.letters, 1, "the one that spent the budget is a letter of its own");
    assert_eq!(hub.subscriber_count("numbers"), 0, "it has disappeared by itself");
    hub.idle().await;
    let critical = notices.all().into_iter().find(|one| one.severity() == Severity::Critical);
    let Some(HubNotice::Stopped { leftovers, reason, .. }) = critical else {
        panic!("{critical:?}")
    };
    assert_eq!((leftovers, &*reason), (9, "panicked: always"));

    let nobody = hub.dead_letters().redeliver(&all()).expect("asked");
    assert_eq!((nobody.delivered, nobody.kept), (0, 10), "its subscriber is not there");
    let (healthy, other) = (Seen::new(), Seen::new());
    let _other = hub.subscribe(&NUMBERS).name("other").spawn(other.handler()).expect("subscribed");
    let _healed =
        hub.subscribe(&NUMBERS).name("doomed").spawn(healthy.handler()).expect("subscribed");
    let some = all().ids([1, 2]);
    assert_eq!(hub.dead_letters().redeliver(&some).expect("delivered").delivered, 2);
    let again = hub.dead_letters().redeliver(&all()).expect("delivered");
    assert_eq!((again.delivered, again.kept), (8, 0));
    hub.idle().await;
    assert_eq!(healthy.all(), (0..10).collect::<Vec<_>>());
    assert_eq!(other.len(), 0, "nobody else sees it");
    assert_eq!(hub.dead_letters().count().expect("counted"), 0);
}

#[tokio::test]
async fn a_factory_that_panics_is_tried_again() {
    let hub = EventHub::new();
    let (made, seen) = (Arc::new(AtomicU32::new(0)), Seen::<u32>::new());
    let (counter, see) = (made.clone(), seen.clone());
    let _kept = hub
        .subscribe(&NUMBERS)
        .restart(Restart::times(5).backoff(quick()))
        .spawn_with(move || {
            assert!(counter.fetch_add(1, Ordering::SeqCst) >= 2, "not ready");
            see.handler()
        })
        .expect("subscribed");
    hub.publish(&NUMBERS, 1).await.expect("published");
    hub.idle().await;
    assert_eq!(seen.all(), [1]);
    assert_eq!(made.load(Ordering::SeqCst), 3);
}

/// Inline, there is no pause and no queue, but the same rules.
#[test]
fn inline_failures_stay_with_their_subscriber() {
    let hub = EventHub::new();
    let seen = Seen::<u32>::new();
    let see = seen.clone();
    let panics = hub
        .subscribe(&NUMBERS)
        .name("panics")
        .attempts(2)
        .restart(Restart::times(3))
        .inline(|event: Delivery<'_, u32>| assert!(*event != 1, "not one"))
        .expect("subscribed");
    let _healthy = hub
        .subscribe(&NUMBERS)
        .inline(move |event: Delivery<'_, u32>| see.push(*event))
        .expect("subscribed");
    for number in [0, 1, 2, 1, 3] {
        hub.blocking_publish(&NUMBERS, number).expect("published");
    }
    assert_eq!(seen.all(), [0, 1, 2, 1, 3]);
    // Two attempts at the first `1`, two at the second: the fourth restart is one too many.
    let stats = panics.stats();
    assert_eq!((stats.state, stats.processed, stats.panics), (State::Failed, 2, 4));
    assert_eq!(hub.dead_letters().count().expect("counted"), 2);
    assert_eq!(hub.subscriber_count("numbers"), 1);
}

/// Letters on a disk outlive the hub, and come back as what they were.
#[test]
fn letters_survive_the_process_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = |store: &dyn Fn() -> EventHub| {
        let hub = store();
        let failing = hub
            .subscribe(&NUMBERS)
            .name("worker")
            .on(Context::Thread)
            .spawn(|event: Delivery<'_, u32>| match *event % 2 {
                0 => Ok(()),
                _ => Err(HandlerError::skip("odd")),
            })
            .expect("subscribed");
        hub.publisher(&NUMBERS).expect("one").blocking_publish_batch(0..6).expect("published");
        eventually("all to be handled", || failing.stats().lag == 0);
        drop(failing);
        hub.blocking_shutdown(LONG);
        drop(hub); // and with it the file, which only one may have

        let hub = store();
        let letters = hub.dead_letters().list(&all()).expect("letters");
        let payloads: Vec<_> = letters.iter().map(|one| one.payload.clone().unwrap()).collect();
        assert_eq!(payloads, [1, 3, 5]);
        assert_eq!((&*letters[0].reason, &*letters[0].subscriber), ("odd", "worker"));
        let seen = Seen::<u32>::new();
        let _kept = hub
            .subscribe(&NUMBERS)
            .name("worker")
            .on(Context::Thread)
            .spawn(seen.handler())
            .expect("subscribed");
        let unknown = hub.dead_letters().redeliver(&all()).expect("asked");
        assert_eq!((unknown.delivered, unknown.kept), (0, 3), "nobody said how to decode it");
        let _publisher = hub.publisher(&NUMBERS).expect("a publisher");
        let one = all().ids([letters[1].id]);
        assert_eq!(hub.dead_letters().remove(&one).expect("removed"), 1);
        assert_eq!(hub.dead_letters().redeliver(&all()).expect("delivered").delivered, 2);
        eventually("both", || seen.len() == 2);
        assert_eq!(seen.all(), [1, 5]);
        assert_eq!(hub.dead_letters().count().expect("counted"), 0);
        hub.blocking_shutdown(LONG);
    };
    let path = folder.path().join("letters.jsonl");
    let json = || JsonLinesLetters::open(&path).expect("opened");
    runs(&|| EventHub::builder().dead_letters(json()).build().expect("a hub"));
    let path = folder.path().join("letters.db");
    let sqlite = || SqliteLetters::open(&path).expect("opened");
    runs(&|| EventHub::builder().dead_letters(sqlite()).build().expect("a hub"));
}

/// The desk is bounded, and what does not fit is counted and told.
#[tokio::test]
async fn letters_are_bounded_and_losses_are_told() {
    let hub = EventHub::builder().letters_max(3).build().expect("a hub");
    let notices = Seen::<HubNotice>::new();
    let _told = hub.subscribe(&NOTICES).spawn(notices.handler()).expect("subscribed");
    let _kept = hub
        .subscribe(&NUMBERS)
        .spawn(|_: Delivery<'_, u32>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..5).await.expect("published");
    hub.idle().await;
    let letters = hub.dead_letters().list(&all()).expect("letters");
    assert_eq!(letters.iter().map(|one| one.sequence).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(hub.stats().letters_lost, 2);
    assert!(notices.all().iter().any(|one| matches!(one, HubNotice::LettersLost { .. })));
}
