//! What was found by trying to break it. Each of these failed once.

mod bounds; // what may wait, and for whom
mod late; // handlers that take too long
mod outside; // alerts, notices, stores, refusals
mod stuck; // handlers that never return

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use artel_hub::{
    Backoff, Context, Delivery, EventHub, Handler, HandlerError, Keys, LetterFilter, Overflow,
    Priority, Queue, Rate, Refusal, Restart, Share, State, Topic,
};

use crate::{Gate, LONG, Never, Seen, eventually};

const N: Topic<u64> = Topic::json("numbers");
const M: Topic<u64> = Topic::json("others");

fn quick() -> Backoff {
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(1))
}

fn ignore(_: Delivery<'_, u64>) {}

/// Runs on a thread of its own, so that a hang is a failure and not a hang.
#[track_caller]
fn in_time<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(f()));
    told.recv_timeout(LONG).expect("it ends in time")
}

/// The last reader of an old log that left late took the route of a new one with it.
#[test]
fn who_comes_while_others_go_keeps_its_route() {
    let hub = EventHub::builder().pool_threads(2).build().expect("a hub");
    let due = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < due {
                    let subscribe = hub.subscribe(&N).on(Context::Pool);
                    let _one = subscribe.spawn(ignore).expect("subscribed");
                    assert!(hub.blocking_publish(&N, 1).expect("published").matched > 0);
                }
            });
        }
    });
}

/// A listener of everything, itself full, with a full desk: telling that led to telling that.
#[test]
fn a_notice_about_a_notice_ends() {
    let hub = EventHub::builder().letters_max(1).build().expect("a hub");
    let gate = Gate::default();
    let hold = gate.clone();
    let _all = hub
        .subscribe(Keys::any(["**"]).expect("keys"))
        .on(Context::Thread)
        .queue(Queue::bounded(1).on_full(Overflow::DropNewest))
        .keep_dropped()
        .spawn(move |_: Delivery<'_, artel_hub::AnyEvent>| hold.pass())
        .expect("subscribed");
    for number in 0..10 {
        hub.blocking_publish(&N, number).expect("published");
    }
    gate.open();
    assert!(hub.stats().notices_lost > 0);
}

/// A publisher waited for the one member whose turn it was, and that one never had room again.
#[test]
fn a_full_group_takes_whoever_has_room_first() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let member = |name: &str| {
        let subscribe = hub.subscribe(&N).name(name).on(Context::Thread).queue(Queue::bounded(1));
        subscribe.group("group", Share::round_robin())
    };
    let _stuck =
        member("stuck").spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
    let _good = member("good").spawn(ignore).expect("subscribed");
    let inner = hub.clone();
    in_time(move || {
        for number in 0..50 {
            inner.blocking_publish(&N, number).expect("published");
        }
    });
    gate.open();
}

/// What the handler does with its thread's token is its own business.
#[test]
fn a_handler_that_parks_its_thread_loses_no_wake_up() {
    let hub = EventHub::new();
    // With more readers than a few nobody looks again before it sleeps.
    let _others: Vec<_> = (0..6)
        .map(|_| hub.subscribe(&N).on(Context::Pool).spawn(ignore).expect("subscribed"))
        .collect();
    let seen = Seen::<u64>::new();
    let see = seen.clone();
    let _parks = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u64>| {
            std::thread::park_timeout(Duration::from_millis(5));
            see.push(*event);
        })
        .expect("subscribed");
    for number in 0..50 {
        hub.blocking_publish(&N, number).expect("published");
        if number % 5 == 4 {
            eventually("all so far", || seen.len() == number as usize + 1);
        }
    }
}

/// Collects ten; panics at 666.
#[derive(Clone)]
struct Collects(Seen<u64>);

impl Handler<u64> for Collects {
    async fn handle(&mut self, event: Delivery<'_, u64>) -> Result<(), HandlerError> {
        assert!(*event != 666, "poison");
        self.0.push(*event);
        Ok(())
    }

    fn collects(&self) -> usize {
        10
    }
}

/// Collects ten; panics at the first attempt at 1 and at 2.
#[derive(Clone)]
struct Stumbles(Seen<(u64, u32)>);

impl Handler<u64> for Stumbles {
    async fn handle(&mut self, event: Delivery<'_, u64>) -> Result<(), HandlerError> {
        self.0.push((*event, event.attempt()));
        assert!(event.attempt() > 1 || ![1, 2].contains(&*event), "the first time");
        Ok(())
    }

    fn collects(&self) -> usize {
        10
    }
}

/// Only the last of them was remembered: given again, the other one failed for the first time again.
#[test]
fn two_events_of_a_collection_that_each_fail_once_are_handled() {
    let (hub, seen) = (EventHub::new(), Seen::new());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .restart(Restart::times(5).backoff(quick()))
        .spawn(Stumbles(seen.clone()))
        .expect("subscribed");
    hub.publisher(&N).expect("one").blocking_publish_batch([1, 2, 3]).expect("published");
    eventually("all to be committed", || subscription.stats().lag == 0);
    let stats = subscription.stats();
    assert_eq!((stats.processed, stats.letters, stats.restarts), (3, 0, 2), "{:?}", seen.all());
}

/// What it had collected was given to it again, and each of those was taken for progress.
#[test]
fn a_poisonous_event_in_a_collection_becomes_a_letter() {
    let (hub, seen) = (EventHub::new(), Seen::new());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .restart(Restart::times(1000).backoff(quick()))
        .spawn(Collects(seen.clone()))
        .expect("subscribed");
    hub.publisher(&N).expect("one").blocking_publish_batch([1, 2, 666, 3]).expect("published");
    eventually("all to be committed", || subscription.stats().lag == 0);
    let stats = subscription.stats();
    assert_eq!((stats.letters, stats.processed, stats.restarts), (1, 3, 3));
    assert!(seen.all().ends_with(&[1, 2, 3]), "{:?}", seen.all());
}

/// A subscriber that drains was forgotten by everybody else who waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_drains_is_still_waited_for() {
    let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<u64>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u64>| {
            hold.pass();
            see.push(*event);
        })
        .expect("subscribed");
    hub.publish_batch(&N, 0..20).await.expect("published");
    gate.reached(1);
    let stopping = tokio::spawn(subscription.stop(LONG));
    eventually("it to drain", || hub.subscriber_count("numbers") == 0);
    assert_eq!(hub.stats().subscribers[0].state, State::Draining);
    let others: Vec<_> = (0..2)
        .map(|_| {
            let hub = hub.clone();
            tokio::spawn(async move { hub.shutdown(LONG).await })
        })
        .collect();
    let idle = tokio::spawn({
        let hub = hub.clone();
        async move { hub.idle().await }
    });
    tokio::task::yield_now().await;
    assert!(!idle.is_finished());
    gate.open();
    idle.await.expect("no panic");
    assert_eq!(seen.len(), 20, "idle when all is handled");
    let stopped = stopping.await.expect("no panic").expect("stopped");
    assert_eq!((stopped.processed, stopped.leftovers), (20, 0));
    for other in others {
        assert_eq!(other.await.expect("no panic").stuck, Vec::<String>::new());
    }
}

#[test]
fn a_letter_is_delivered_again_to_an_inline_subscriber() {
    let (hub, calls) = (EventHub::new(), Arc::new(AtomicU64::new(0)));
    let count = calls.clone();
    let subscription = hub
        .subscribe(&N)
        .name("inline")
        .inline(move |_: Delivery<'_, u64>| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err(HandlerError::skip("not the first time")),
            _ => Ok(()),
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    let again = hub.dead_letters().redeliver(&LetterFilter::all()).expect("delivered");
    assert_eq!((again.delivered, calls.load(Ordering::SeqCst)), (1, 2));
    assert_eq!((subscription.stats().lag, hub.dead_letters().count().expect("counted")), (0, 0));
}

/// Payloads that were handled stayed until their whole segment was done.
#[test]
fn a_bound_of_bytes_bounds_what_is_alive() {
    static ALIVE: AtomicI64 = AtomicI64::new(0);
    struct Big;
    impl Drop for Big {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let big: Topic<Big> = Topic::new("big").weighed(|_| 10_000_000);
    let hub = EventHub::new();
    let _kept = hub
        .subscribe(&big)
        .on(Context::Thread)
        .queue(Queue::bounded(1024).bytes(20_000_000))
        .spawn(|_: Delivery<'_, Big>| ())
        .expect("subscribed");
    for _ in 0..300 {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        hub.blocking_publish(&big, Big).expect("published");
        assert!(ALIVE.load(Ordering::SeqCst) <= 4);
    }
    eventually("the last to go as well", || ALIVE.load(Ordering::SeqCst) == 0);
}

/// An inline handler that publishes on another hub worked on its own hub's books there.
#[test]
fn inline_handlers_of_two_hubs_keep_apart() {
    let (one, two) = (EventHub::new(), EventHub::new());
    let other = two.publisher(&M).expect("a publisher");
    let _calls = one
        .subscribe(&N)
        .name("calls")
        .inline(move |_: Delivery<'_, u64>| other.try_publish(1).map(|_| ()))
        .expect("subscribed");
    let _dies = two
        .subscribe(&M)
        .name("dies")
        .restart(Restart::never())
        .inline(|event: Delivery<'_, u64>| assert!(*event > 9, "too small"))
        .expect("subscribed");
    one.blocking_publish(&N, 1).expect("published");
    assert_eq!((one.subscriber_count("numbers"), two.subscriber_count("others")), (1, 0));
    assert_eq!(two.dead_letters().count().expect("counted"), 1);
}

/// The event being handled does not wait, so taking it is room; nobody was told.
#[tokio::test]
async fn room_that_a_reader_makes_by_taking_is_told() {
    let hub = EventHub::new();
    let group = hub.subscribe(&N).group("group", Share::round_robin()).queue(Queue::bounded(1));
    let _kept = group.spawn(Never).expect("subscribed");
    for number in 0..2 {
        tokio::time::timeout(LONG, hub.publish(&N, number))
            .await
            .expect("there is room")
            .expect("published");
    }
}

/// Every publisher waits for an inline handler, so it must not wait itself.
#[test]
fn an_inline_handler_must_not_block() {
    let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<Refusal>::new());
    let (hold, inner, see) = (gate.clone(), hub.clone(), seen.clone());
    let _full = hub
        .subscribe(&M)
        .queue(Queue::bounded(1))
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    hub.blocking_publish(&M, 0).expect("published");
    let _inline = hub
        .subscribe(&N)
        .inline(move |event: Delivery<'_, u64>| {
            let refused = inner.blocking_publish(&M, *event).expect_err("it is full");
            see.push(refused.reason().clone());
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    assert_eq!(seen.all(), [Refusal::WouldBlock]);
    gate.open();
    hub.blocking_shutdown(LONG);
}

/// An async handler, to which other rules applied by mistake.
#[derive(Clone)]
struct Publishes(EventHub, Seen<Result<(), Refusal>>);

impl Handler<u64> for Publishes {
    async fn handle(&mut self, event: Delivery<'_, u64>) -> Result<(), HandlerError> {
        let again = self.0.publish(&N, *event + 1).await;
        self.1.push(again.map(drop).map_err(|error| error.reason().clone()));
        Ok(())
    }
}

#[tokio::test]
async fn depth_and_circles_hold_for_async_handlers_and_filters() {
    let hub = EventHub::builder().depth_max(20).build().expect("a hub");
    let seen = Seen::new();
    let _kept = hub.subscribe(&N).spawn(Publishes(hub.clone(), seen.clone())).expect("subscribed");
    hub.publish(&N, 0).await.expect("published");
    hub.idle().await;
    assert_eq!(seen.all().last(), Some(&Err(Refusal::TooDeep { depth: 21 })));

    let (inner, asked) = (hub.publisher(&M).expect("one"), Seen::new());
    let ask = asked.clone();
    let _filters = hub
        .subscribe(&M)
        .on(Context::Thread)
        .queue(Queue::bounded(1))
        .filter(move |number: &u64| {
            if *number == 1 {
                ask.push(inner.blocking_publish(2).map_err(|error| error.reason().clone()));
            }
            true
        })
        .spawn(Never)
        .expect("subscribed");
    hub.publish(&M, 1).await.expect("published");
    eventually("an answer", || asked.len() == 1);
    assert_eq!(asked.all(), [Err(Refusal::WouldDeadlock)]);
    hub.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn who_waits_for_quiet_is_told_when_the_last_is_dropped() {
    let hub = EventHub::new();
    let stuck = hub.subscribe(&N).spawn(Never).expect("subscribed");
    hub.publish(&N, 1).await.expect("published");
    let idle = tokio::spawn({
        let hub = hub.clone();
        async move { hub.idle().await }
    });
    tokio::task::yield_now().await;
    drop(stuck);
    tokio::time::timeout(LONG, idle).await.expect("it is told").expect("no panic");
}

/// A rate, asked again for an attempt it had let through, said no: the event was gone.
#[tokio::test]
async fn what_a_filter_let_through_is_tried_again() {
    let hub = EventHub::new();
    let subscription = hub
        .subscribe(&N)
        .rate(Rate::one_in(Duration::from_secs(3600)).expect("a rate"))
        .restart(Restart::times(1).backoff(quick()))
        .spawn(|event: Delivery<'_, u64>| match event.attempt() {
            1 => Err(HandlerError::retry("once")),
            _ => Ok(()),
        })
        .expect("subscribed");
    hub.publish(&N, 1).await.expect("published");
    hub.idle().await;
    let stats = subscription.stats();
    assert_eq!((stats.processed, stats.filtered), (1, 0));
}

/// A lag was told with an event that was filtered or failed, and so to nobody.
#[test]
fn a_lag_is_told_until_somebody_has_heard_it() {
    let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<(u64, u64)>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(1).on_full(Overflow::DropOldest))
        .restart(Restart::times(1).backoff(quick()))
        .filter(|number: &u64| *number != 3)
        .spawn(move |event: Delivery<'_, u64>| {
            hold.pass();
            if *event == 4 && event.attempt() == 1 {
                return Err(HandlerError::retry("once"));
            }
            see.push((*event, event.lagged()));
            Ok(())
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    gate.reached(1);
    for number in 1..=3 {
        hub.blocking_publish(&N, number).expect("published");
    }
    gate.open();
    eventually("those to be done with", || subscription.stats().lag == 0);
    hub.blocking_publish(&N, 4).expect("published");
    eventually("the last", || subscription.stats().lag == 0);
    assert_eq!(seen.all(), [(0, 0), (4, 2)]);
}
