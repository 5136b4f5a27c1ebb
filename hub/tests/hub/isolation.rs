use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use artel_hub::{
    Backoff, Context, Delivery, EventHub, HubNotice, NOTICES, Overflow, Queue, Restart, State,
    Topic,
};

use crate::{Gate, Never, Seen, eventually, runtime};

const NUMBERS: Topic<u64> = Topic::new("numbers");

/// Of 64 subscribers one panics at every event, one sleeps a second for each, one never comes back:
/// the others and the publisher lose nothing, and the three are named.
#[test]
fn three_broken_subscribers_hurt_nobody() {
    const EVENTS: u64 = 20_000;
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let notices = Seen::<HubNotice>::new();
    let told = hub.subscribe(&NOTICES).queue(Queue::bounded(100_000)).name("told");
    let _told = told.spawn(notices.handler()).expect("subscribed");
    let lossy = || Queue::bounded(64).on_full(Overflow::DropNewest);
    let quick = Backoff::exponential(Duration::from_millis(1), Duration::from_millis(1));

    let counted: Vec<Arc<AtomicU64>> = (0..61).map(|_| Arc::default()).collect();
    let mut healthy = Vec::new();
    for (number, count) in counted.iter().enumerate() {
        let context = [Context::Task, Context::Pool, Context::Task, Context::Thread][number % 4];
        let count = count.clone();
        let handler = move |event: Delivery<'_, u64>| {
            // Exactly the next one: lost, doubled or out of order, this would say so.
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), *event);
        };
        healthy.push(hub.subscribe(&NUMBERS).on(context).spawn(handler).expect("subscribed"));
    }
    let panics = hub
        .subscribe(&NUMBERS)
        .name("panics")
        .attempts(1)
        .queue(lossy())
        .restart(Restart::times(3).backoff(quick))
        .spawn(|event: Delivery<'_, u64>| assert!(*event == u64::MAX, "every time"))
        .expect("subscribed");
    let sleeps = hub
        .subscribe(&NUMBERS)
        .name("sleeps")
        .queue(lossy())
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| std::thread::sleep(Duration::from_secs(1)))
        .expect("subscribed");
    let stuck =
        hub.subscribe(&NUMBERS).name("stuck").queue(lossy()).spawn(Never).expect("subscribed");

    let publisher = hub.publisher(&NUMBERS).expect("a publisher");
    for number in 0..EVENTS {
        publisher.blocking_publish(number).expect("published");
    }
    for count in &counted {
        eventually("everybody to be done", || count.load(Ordering::SeqCst) == EVENTS);
    }
    for subscription in &healthy {
        eventually("the count", || subscription.stats().processed == EVENTS);
        let stats = subscription.stats();
        assert_eq!((stats.errors, stats.dropped, stats.lag), (0, 0, 0));
    }
    eventually("the one that panics to be stopped", || panics.is_over());
    assert_eq!(panics.stats().state, State::Failed);
    assert!(sleeps.stats().dropped > 0 && stuck.stats().dropped > 0);
    eventually("the stuck one to be found", || stuck.stats().state == State::Stuck);
    let said = |check: &dyn Fn(&HubNotice) -> bool| {
        eventually("a notice", || notices.all().iter().any(check));
    };
    said(&|one| matches!(one, HubNotice::Stopped { subscriber, .. } if subscriber == "panics"));
    said(&|one| matches!(one, HubNotice::Stuck { subscriber, .. } if subscriber == "stuck"));
    said(&|one| matches!(one, HubNotice::Lagging { subscriber, .. } if subscriber == "sleeps"));
    drop((sleeps, stuck));
}

/// A handler that blocks its task is told of, and still does not stop those on other threads.
#[test]
fn a_handler_that_blocks_a_task_is_told_of() {
    let runtime = runtime(1);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let notices = Seen::<HubNotice>::new();
    let told = hub.subscribe(&NOTICES).on(Context::Thread);
    let _told = told.spawn(notices.handler()).expect("subscribed");
    let _blocks = hub
        .subscribe(&NUMBERS)
        .name("blocks")
        .spawn(|_: Delivery<'_, u64>| std::thread::sleep(Duration::from_millis(150)))
        .expect("subscribed");
    hub.blocking_publish(&NUMBERS, 1).expect("published");
    eventually("the notice", || {
        let blocks = |one: &HubNotice| matches!(one, HubNotice::Blocking { subscriber, for_ms } if subscriber == "blocks" && *for_ms >= 100);
        notices.all().iter().any(blocks)
    });
}

/// A payload whose `Drop` panics hurts neither the publisher nor any subscriber.
#[tokio::test]
async fn a_payload_that_panics_when_dropped_hurts_nobody() {
    struct Bomb(u64);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(self.0 % 2 == 1, "even ones explode");
        }
    }
    let bombs: Topic<Bomb> = Topic::new("bombs");
    let hub = EventHub::new();
    let seen = Seen::<u64>::new();
    let lossy = Queue::bounded(4).on_full(Overflow::DropOldest);
    let mut kept = Vec::new();
    for queue in [Queue::default(), lossy] {
        let see = seen.clone();
        let handler = move |bomb: Delivery<'_, Bomb>| see.push(bomb.0);
        kept.push(hub.subscribe(&bombs).queue(queue).spawn(handler).expect("subscribed"));
    }
    for number in 0..1000 {
        hub.publish(&bombs, Bomb(number)).await.expect("published");
    }
    hub.idle().await;
    let dropped = kept[1].stats().dropped;
    assert_eq!(seen.len() as u64, 2000 - dropped);
    assert_eq!(kept[0].stats().processed, 1000);
    assert!(kept.iter().all(|one| one.stats().errors == 0));
    drop(kept);
    drop(hub);
}

/// A handler whose `Drop` panics is replaced and stopped like any other.
#[tokio::test]
async fn a_handler_that_panics_when_dropped_hurts_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as it goes");
        }
    }
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<u64>::new());
    gate.open();
    let see = seen.clone();
    let quick = Backoff::exponential(Duration::from_millis(1), Duration::from_millis(1));
    let subscription = hub
        .subscribe(&NUMBERS)
        .restart(Restart::times(3).backoff(quick))
        .spawn_with(move || {
            let (bomb, see) = (Bomb, see.clone());
            move |event: Delivery<'_, u64>| {
                let _armed = &bomb;
                assert!(*event != 1 || event.attempt() > 1, "once");
                see.push(*event);
            }
        })
        .expect("subscribed");
    for number in 0..3 {
        hub.publish(&NUMBERS, number).await.expect("published");
    }
    hub.idle().await;
    let stopped = subscription.stop(Duration::from_secs(30)).await.expect("stopped");
    assert_eq!((stopped.processed, stopped.leftovers), (3, 0));
    assert_eq!(seen.all(), [0, 1, 2]);
}
