//! What may wait, and for whom.

use artel_hub::{Cause, HubNotice, NOTICES};

use super::stuck::payloads;
use super::*;

/// Payloads that were handled stayed until 256 of them were.
#[test]
fn a_bound_of_events_bounds_what_is_alive() {
    static ALIVE: AtomicI64 = AtomicI64::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let counted: Topic<Counted> = Topic::new("counted");
    let hub = EventHub::new();
    let _kept = hub
        .subscribe(&counted)
        .on(Context::Thread)
        .queue(Queue::bounded(4))
        .spawn(|_: Delivery<'_, Counted>| ())
        .expect("subscribed");
    for _ in 0..1000 {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        hub.blocking_publish(&counted, Counted).expect("published");
        // Those that wait, the one in hand, and the one that was read last.
        assert!(ALIVE.load(Ordering::SeqCst) <= 6);
    }
    eventually("the last to go as well", || ALIVE.load(Ordering::SeqCst) == 0);
}

/// A member of a group that loses nothing was given every notice, however many waited.
#[test]
fn notices_to_a_group_are_bounded() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let slow = hub
        .subscribe(&NOTICES)
        .name("slow")
        .on(Context::Thread)
        .queue(Queue::bounded(4))
        .group("group", Share::round_robin())
        .spawn(move |_: Delivery<'_, HubNotice>| hold.pass())
        .expect("subscribed");
    let fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    for number in 0..50 {
        hub.blocking_publish(&N, number).expect("published");
    }
    eventually("all to fail", || fails.stats().letters == 50);
    gate.reached(1);
    assert!(slow.stats().lag <= 5, "{}", slow.stats().lag);
    eventually("the others to be counted", || slow.stats().dropped >= 90);
    gate.open();
}

/// Every publisher that had waited for the same room went in.
#[test]
fn many_publishers_keep_to_a_bound() {
    let (hub, gate, most) = (EventHub::new(), Gate::default(), Arc::new(AtomicU64::new(0)));
    let hold = gate.clone();
    let member = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(2))
        .group("group", Share::round_robin())
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    let over = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (most, over, member) = (&most, &over, &member);
        scope.spawn(move || {
            while over.load(Ordering::SeqCst) < 8 {
                most.fetch_max(member.stats().lag, Ordering::SeqCst);
            }
        });
        for _ in 0..8 {
            let hub = &hub;
            scope.spawn(move || {
                for number in 0..200 {
                    hub.blocking_publish(&N, number).expect("published");
                }
                over.fetch_add(1, Ordering::SeqCst);
            });
        }
        gate.open();
    });
    assert!(most.load(Ordering::SeqCst) <= 3, "two wait beside the one in hand: {most:?}");
    assert_eq!(member.blocking_stop(LONG).expect("stopped").processed, 1600);
}

/// A low event pushed a high one out.
#[test]
fn what_is_urgent_is_not_dropped_for_what_is_not() {
    for overflow in [Overflow::DropOldest, Overflow::KeepLatest] {
        let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<u64>::new());
        let (hold, see) = (gate.clone(), seen.clone());
        let subscription = hub
            .subscribe(Keys::<u64>::new(["numbers/*"]).expect("keys"))
            .on(Context::Thread)
            .queue(Queue::bounded(2).on_full(overflow))
            .spawn(move |number: Delivery<'_, u64>| {
                hold.pass();
                see.push(*number);
            })
            .expect("subscribed");
        let publish = |number: u64, priority| {
            let topic = N.at(format!("numbers/{number}"));
            let publisher = hub.publisher(&topic).expect("one").with_priority(priority);
            publisher.try_publish(number).expect("never waits")
        };
        publish(0, Priority::High);
        gate.reached(1);
        publish(1, Priority::High);
        publish(2, Priority::High);
        let receipt = publish(3, Priority::Low);
        assert_eq!((receipt.queued, receipt.dropped), (0, 1));
        let receipt = publish(4, Priority::High);
        assert_eq!((receipt.queued, receipt.dropped), (1, 1));
        gate.open();
        eventually("the others", || subscription.stats().lag == 0);
        assert_eq!(seen.all(), [0, 2, 4], "{overflow:?}");
    }
}

/// Letters delivered again to a subscriber that is busy piled up without bound.
#[test]
fn as_many_letters_are_delivered_again_as_may_wait() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let (hold, seen) = (gate.clone(), Arc::new(AtomicU64::new(0)));
    let count = seen.clone();
    let busy = hub
        .subscribe(&N)
        .name("busy")
        .on(Context::Thread)
        .queue(Queue::bounded(4))
        .spawn(move |_: Delivery<'_, u64>| match count.fetch_add(1, Ordering::SeqCst) {
            0..10 => Err(HandlerError::skip("not the first time")),
            _ => {
                hold.pass();
                Ok(())
            }
        })
        .expect("subscribed");
    for number in 0..10 {
        hub.blocking_publish(&N, number).expect("published");
    }
    eventually("ten letters", || busy.stats().letters == 10);
    hub.blocking_publish(&N, 10).expect("published");
    gate.reached(1);
    let again = hub.dead_letters().redeliver(&LetterFilter::all()).expect("delivered");
    assert_eq!((again.delivered, again.kept), (4, 6));
    assert_eq!(payloads(&hub), (4..10).collect::<Vec<_>>());
    gate.open();
    eventually("those to be handled", || busy.stats().processed == 5);
    let stats = busy.stats();
    assert_eq!((stats.lag, stats.letters), (0, 10));
}

/// A worker of a group that published to its own group was told that it waits for itself.
#[test]
fn a_worker_may_wait_for_the_others_of_its_group() {
    let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<u64>::new());
    let member = |name: &str| {
        let subscribe = hub.subscribe(&N).name(name).on(Context::Thread).queue(Queue::bounded(1));
        subscribe.group("group", Share::round_robin())
    };
    let (inner, see) = (hub.downgrade(), seen.clone());
    let _asks = member("asks")
        .spawn(move |number: Delivery<'_, u64>| {
            if *number == 0 {
                // More than wait anywhere.
                for more in 1..10 {
                    let hub = inner.upgrade().expect("still there");
                    hub.blocking_publish(&N, more).expect("the other one has time");
                }
            }
            see.push(*number);
        })
        .expect("subscribed");
    let (hold, see) = (gate.clone(), seen.clone());
    let _helps = member("helps")
        .spawn(move |number: Delivery<'_, u64>| {
            hold.pass();
            see.push(*number);
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    gate.reached(1);
    gate.open();
    eventually("all ten", || seen.len() == 10);
}

/// What its owner drops is gone, and counted.
#[test]
fn what_is_discarded_is_counted() {
    for queue in [Queue::default(), Queue::bounded(100).on_full(Overflow::DropNewest)] {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let hold = gate.clone();
        let subscribe = hub.subscribe(&N).on(Context::Thread).queue(queue);
        let dropped = subscribe.spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
        for number in 0..10 {
            hub.blocking_publish(&N, number).expect("published");
        }
        gate.reached(1);
        drop(dropped);
        assert_eq!(hub.stats().discarded, 9);
        gate.open();
        eventually("its end", || hub.stats().subscribers.is_empty());
        assert_eq!((hub.stats().discarded, payloads(&hub).len()), (9, 0));
    }
}

/// Why a letter is one, in one word.
#[test]
fn letters_say_their_cause() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let slow = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(1).on_full(Overflow::DropNewest))
        .keep_dropped()
        .spawn(move |_: Delivery<'_, u64>| {
            hold.pass();
            Err::<(), _>(HandlerError::skip("no"))
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    gate.reached(1);
    for number in 1..3 {
        hub.blocking_publish(&N, number).expect("published");
    }
    slow.blocking_stop(Duration::ZERO).expect_err("it is inside");
    gate.open();
    eventually("three letters", || payloads(&hub).len() == 3);
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    let causes: Vec<_> = letters.iter().map(|one| (one.sequence, one.cause)).collect();
    assert_eq!(causes, [(3, Cause::Dropped), (2, Cause::Left), (1, Cause::Failed)]);
}

/// Publishers were woken only once a quarter of the queue was free, which a handler that hangs may
/// never make it.
#[test]
fn a_publisher_gets_the_room_there_is() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let (hold, handled) = (gate.clone(), Arc::new(AtomicU64::new(0)));
    let count = handled.clone();
    let _stuck = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(10))
        .spawn(move |event: Delivery<'_, u64>| {
            match *event.get() {
                // The publisher waits before there is any room.
                0 => hold.pass(),
                2 => loop {
                    std::thread::park();
                },
                _ => {}
            }
            count.fetch_add(1, Ordering::Relaxed);
        })
        .expect("subscribed");
    let publisher = hub.clone();
    let publishing = std::thread::spawn(move || {
        (0..12).for_each(|number| {
            publisher.blocking_publish(&N, number).expect("published");
        });
    });
    gate.reached(1);
    eventually("the queue to be full", || hub.stats().subscribers[0].lag == 10);
    gate.open();
    eventually("all that fit to be published", || publishing.is_finished());
    assert_eq!(handled.load(Ordering::Relaxed), 2);
    assert_eq!(hub.stats().subscribers[0].lag, 10, "ten are not done with: one is in hand");
    hub.blocking_shutdown(Duration::ZERO);
}
