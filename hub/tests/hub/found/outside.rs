//! What was found at the edges: alerts, notices, stores, and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use artel_hub::notify::{ALERTS, Alert, Notifier, Send, SendError};
use artel_hub::{
    Context, Delivery, EventHub, HandlerError, HubNotice, JsonLinesLetters, Keys, LetterError,
    LetterFilter, LetterStore, NOTICES, Queue, Refusal, Severity, Share, SubscribeError, Topic,
};

use super::{N, ignore};
use crate::{Never, Seen, eventually, runtime};

/// Fails or works, and says whom it told.
struct Channel(Arc<AtomicU64>, Seen<String>);

impl Send for Channel {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        if self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(SendError::new("no network"));
        }
        self.1.push(alert.to_string());
        Ok(())
    }
}

/// One dead channel silenced all behind it, and what nobody was told cooled down.
#[test]
fn a_dead_channel_silences_nobody_and_cools_nothing_down() {
    let (hub, told) = (EventHub::new(), Seen::new());
    let (dead, alive) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let notifier = Notifier::new()
        .to(Channel(dead, Seen::new()))
        .to(Channel(alive, told.clone()))
        .start(&hub)
        .expect("started");
    hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "a", "x")).expect("published");
    eventually("the other one to be told", || told.len() == 1);
    drop(notifier);

    let (sick, late) = (Arc::new(AtomicU64::new(1)), Seen::new());
    let notifier = Notifier::new().to(Channel(sick, late.clone())).start_as(&hub, "second");
    let notifier = notifier.expect("started");
    for _ in 0..3 {
        hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "b", "x")).expect("published");
    }
    eventually("it to be told in the end", || late.len() == 1);
    eventually("the others to be held back", || notifier.stats().processed == 3);
    assert_eq!(late.len(), 1);
}

/// A listener that is stuck, with a queue that blocks, kept notices from everybody.
#[test]
fn a_stuck_listener_keeps_notices_from_nobody() {
    let runtime = runtime(1);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let heard = Seen::<HubNotice>::new();
    let _stuck = hub.subscribe(&NOTICES).queue(Queue::bounded(1)).spawn(Never).expect("subscribed");
    let all = hub.subscribe(Keys::<HubNotice>::new(["artel-hub/*"]).expect("keys"));
    let _hears = all.on(Context::Thread).spawn(heard.handler()).expect("subscribed");
    let _fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    for number in 0..5 {
        hub.blocking_publish(&N, number).expect("published");
    }
    eventually("all ten notices", || heard.len() >= 10);
    assert!(hub.stats().notices_lost > 0, "the stuck one missed some");
}

/// A file that was not letters was emptied; a second opener took the first one's file away.
#[test]
fn opening_letters_destroys_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letters.jsonl");
    std::fs::write(&path, "my notes\n{\"half\": ").expect("written");
    let hub = EventHub::builder().dead_letters(JsonLinesLetters::open(&path).expect("opened"));
    let hub = hub.build().expect("a hub");
    let error = JsonLinesLetters::open(&path).expect_err("it is open");
    assert!(error.to_string().contains("somebody else writes there"), "{error}");
    let fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    hub.publisher(&N).expect("one").blocking_publish_batch([1, 2]).expect("published");
    eventually("both to fail", || fails.stats().letters == 2);
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    assert_eq!(letters.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(hub.dead_letters().remove(&LetterFilter::all().ids([1])).expect("removed"), 1);
    let text = std::fs::read_to_string(&path).expect("a file");
    assert!(text.starts_with("my notes\n{\"half\": \n{\"id\":2,"), "{text}");
}

/// A store that panics killed the clerk; one that fails was only traced.
#[test]
fn a_sick_store_of_letters_is_told_of() {
    struct Sick(u64);
    impl LetterStore for Sick {
        fn append(&mut self, _: &mut [artel_hub::Letter]) -> Result<(), LetterError> {
            self.0 += 1;
            assert!(self.0 > 1, "once");
            Err(LetterError::new("not written", "no disk"))
        }
        fn read(&mut self) -> Result<Vec<artel_hub::Letter>, LetterError> {
            Ok(Vec::new())
        }
        fn remove(&mut self, _: &[u64]) -> Result<(), LetterError> {
            Ok(())
        }
    }
    let hub = EventHub::builder().dead_letters(Sick(0)).build().expect("a hub");
    let heard = Seen::<HubNotice>::new();
    let listen = hub.subscribe(&NOTICES).on(Context::Thread);
    let _hears = listen.spawn(heard.handler()).expect("subscribed");
    let _fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    eventually("a notice", || {
        heard.all().iter().any(|one| matches!(one, HubNotice::LettersWait { waiting: 1, .. }))
    });
    hub.blocking_shutdown(Duration::from_millis(10));
    assert_eq!(hub.stats().letters_lost, 1);
}

/// Counting letters read every one of them.
#[test]
fn counting_letters_reads_none() {
    struct Knows(usize);
    impl LetterStore for Knows {
        fn append(&mut self, letters: &mut [artel_hub::Letter]) -> Result<(), LetterError> {
            self.0 += letters.len();
            Ok(())
        }
        fn read(&mut self) -> Result<Vec<artel_hub::Letter>, LetterError> {
            Err(LetterError::new("not read", "nobody wants to read them"))
        }
        fn count(&mut self) -> Result<usize, LetterError> {
            Ok(self.0)
        }
        fn remove(&mut self, _: &[u64]) -> Result<(), LetterError> {
            Ok(())
        }
    }
    let hub = EventHub::builder().dead_letters(Knows(0)).build().expect("a hub");
    let fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    hub.publisher(&N).expect("one").blocking_publish_batch([1, 2, 3]).expect("published");
    eventually("all to fail", || fails.stats().letters == 3);
    assert_eq!(hub.dead_letters().count().expect("counted"), 3);
}

/// A handler that held a clone of its hub kept it alive for ever.
#[test]
fn a_weak_hub_keeps_nothing_alive() {
    let hub = EventHub::new();
    let (weak, seen) = (hub.downgrade(), Seen::<bool>::new());
    let (inner, see) = (weak.clone(), seen.clone());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u64>| see.push(inner.upgrade().is_some()))
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    eventually("the event", || seen.len() == 1);
    assert_eq!(seen.all(), [true]);
    drop(hub);
    assert!(weak.upgrade().is_none());
    eventually("its end", || subscription.is_over());
}

/// That letters are lost was held back because it had been told a moment ago that letters wait.
#[test]
fn one_trouble_of_the_hub_does_not_cool_another_down() {
    let (hub, told) = (EventHub::new(), Seen::new());
    let alive = Arc::new(AtomicU64::new(0));
    let notifier = Notifier::new().to(Channel(alive, told.clone())).start(&hub).expect("started");
    let waits = || HubNotice::LettersWait { waiting: 1, reason: "no disk".into() };
    let lost = HubNotice::LettersLost { letters: 1, reason: "no disk".into() };
    for notice in [waits(), waits(), lost] {
        hub.blocking_publish(&NOTICES, notice).expect("published");
    }
    eventually("all three to be seen", || notifier.stats().processed == 3);
    let told = told.all();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].contains("could not be kept"), "{told:?}");
}

#[test]
fn what_cannot_work_is_refused() {
    let hub = EventHub::new();
    let words: Topic<String> = Topic::new("numbers");
    let _first = hub.subscribe(&N).on(Context::Thread).spawn(ignore).expect("subscribed");
    let second = hub.subscribe(&words).on(Context::Thread).spawn(|_: Delivery<'_, String>| ());
    assert!(matches!(second, Err(SubscribeError::WrongType { .. })), "nobody could publish");
    let group = hub.subscribe(&N).group("group", Share::round_robin()).inline(ignore);
    assert!(matches!(group, Err(SubscribeError::NotInline { what: "a group" })));
    let taken = hub.blocking_publish(&Topic::<u8>::new("artel-hub/notices"), 1);
    assert!(matches!(taken.expect_err("it is ours").reason(), Refusal::WrongType { .. }));
    let any = hub.subscribe(Keys::any(["**"]).expect("keys")).on(Context::Thread);
    let any = any.group("group", Share::by(|event: &artel_hub::AnyEvent| event.sequence()));
    let refused = any.spawn(|_: Delivery<'_, artel_hub::AnyEvent>| ());
    assert!(matches!(refused, Err(SubscribeError::NeedsType { .. })));
    let heavy: Topic<u64> = Topic::new("heavy").weighed(|_| panic!("no scales"));
    let refused = hub.blocking_publish(&heavy, 7).expect_err("it cannot be weighed");
    assert_eq!((refused.reason().clone(), refused.into_payload()), (Refusal::WeighFailed, 7));
}

/// A payload that publishes another one when it is dropped.
struct Echo(Option<EventHub>);

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some(hub) = self.0.take() {
            let _ = hub.try_publish(&ECHOES, Echo(None));
        }
    }
}

const ECHOES: Topic<Echo> = Topic::new("echoes");

/// An event that found nobody in its log was dropped under that log's lock.
#[test]
fn a_payload_that_nobody_reads_is_dropped_without_a_lock() {
    let (hub, (done, over)) = (EventHub::new(), std::sync::mpsc::channel());
    let (publisher, guests) = (hub.clone(), hub.clone());
    std::thread::spawn(move || {
        for _ in 0..50_000 {
            let _ = publisher.try_publish(&ECHOES, Echo(Some(publisher.clone())));
        }
        done.send(()).expect("somebody waits");
    });
    // They come and go until the hub is shut down.
    std::thread::spawn(move || {
        let handler = |_: Delivery<'_, Echo>| ();
        while guests.subscribe(&ECHOES).on(Context::Pool).spawn(handler).is_ok() {}
    });
    over.recv_timeout(crate::LONG).expect("the publisher does not hang");
    hub.blocking_shutdown(crate::LONG);
}
