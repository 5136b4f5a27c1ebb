//! Handlers that never return, and what waited behind them.

use artel_hub::{HubNotice, LetterError, LetterStore, NOTICES};

use super::*;

/// What waited for a handler that never returned was lost with it.
#[test]
fn a_stuck_subscriber_takes_nothing_but_its_own_event_with_it() {
    for queue in [Queue::default(), Queue::bounded(100).on_full(Overflow::DropNewest)] {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let hold = gate.clone();
        let _stuck = hub
            .subscribe(&N)
            .on(Context::Thread)
            .queue(queue)
            .spawn(move |_: Delivery<'_, u64>| hold.pass())
            .expect("subscribed");
        hub.blocking_publish(&N, 0).expect("published");
        gate.reached(1);
        for number in 1..10 {
            hub.blocking_publish(&N, number).expect("published");
        }
        let report = hub.blocking_shutdown(Duration::from_millis(10));
        assert_eq!((report.stuck.len(), report.leftovers), (1, 9));
        let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
        assert_eq!(
            letters.iter().map(|one| one.sequence).collect::<Vec<_>>(),
            (2..=10).collect::<Vec<_>>()
        );
        gate.open();
    }
}

/// Which event was in its hand was guessed: with an urgent one there, a usual one was lost.
#[test]
fn a_stuck_subscriber_is_robbed_of_exactly_what_waits() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let _stuck = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    let usual = hub.publisher(&N).expect("a publisher");
    let urgent = usual.clone().with_priority(Priority::High);
    urgent.blocking_publish(0).expect("published");
    gate.reached(1);
    for number in 1..5 {
        usual.blocking_publish(number).expect("published");
        urgent.blocking_publish(10 + number).expect("published");
    }
    let report = hub.blocking_shutdown(Duration::from_millis(10));
    assert_eq!((report.stuck.len(), report.leftovers), (1, 8));
    assert_eq!(payloads(&hub), [1, 2, 3, 4, 11, 12, 13, 14]);
    gate.open();
}

/// A reader took a handful from its queue, and stuck at the first it kept the others.
#[test]
fn a_stuck_subscriber_has_one_event_in_its_hand() {
    let (hub, made, gate) = (EventHub::new(), Gate::default(), Gate::default());
    let (start, hold) = (made.clone(), gate.clone());
    let _stuck = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(100).on_full(Overflow::DropNewest))
        .spawn_with(move || {
            start.pass(); // until all are published
            let hold = hold.clone();
            move |_: Delivery<'_, u64>| hold.pass()
        })
        .expect("subscribed");
    for number in 0..20 {
        hub.blocking_publish(&N, number).expect("published");
    }
    made.open();
    gate.reached(1);
    let report = hub.blocking_shutdown(Duration::from_millis(10));
    assert_eq!((report.stuck.len(), report.leftovers), (1, 19));
    assert_eq!(payloads(&hub), (1..20).collect::<Vec<_>>());
    gate.open();
}

/// Stuck after it had begun to drain, it kept what waited behind.
#[test]
fn a_subscriber_that_gets_stuck_while_it_drains_keeps_nothing_but_its_own_event() {
    let (hub, first, others) = (EventHub::new(), Gate::default(), Gate::default());
    let (begin, hold) = (first.clone(), others.clone());
    let stuck = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(
            move |number: Delivery<'_, u64>| if *number == 0 { begin.pass() } else { hold.pass() },
        )
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    first.reached(1);
    for number in 1..10 {
        hub.blocking_publish(&N, number).expect("published");
    }
    let report = std::thread::scope(|scope| {
        let over = scope.spawn(|| hub.blocking_shutdown(Duration::from_secs(2)));
        eventually("it to drain", || stuck.stats().state == State::Draining);
        first.open();
        others.reached(1);
        over.join().expect("no panic")
    });
    assert_eq!((report.stuck.len(), report.leftovers), (1, 8));
    assert_eq!(payloads(&hub), (2..10).collect::<Vec<_>>());
    // It comes back after all, and finds that nothing is left for it.
    others.open();
    eventually("its end", || stuck.is_over());
    assert_eq!(payloads(&hub), (2..10).collect::<Vec<_>>());
}

/// Letters that are delivered again were all taken out of the queue at once: stuck at the first, the
/// subscriber took the others with it, and no counter knew of them.
#[test]
fn letters_delivered_again_to_a_subscriber_that_hangs_are_letters_again() {
    for queue in [Queue::default(), Queue::bounded(100).on_full(Overflow::DropNewest)] {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let (hold, first) = (gate.clone(), Arc::new(AtomicU64::new(0)));
        let stuck = hub
            .subscribe(&N)
            .name("stuck")
            .on(Context::Thread)
            .queue(queue)
            .spawn(move |_: Delivery<'_, u64>| match first.fetch_add(1, Ordering::SeqCst) {
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
        eventually("ten letters", || stuck.stats().letters == 10);
        let again = hub.dead_letters().redeliver(&LetterFilter::all()).expect("delivered");
        assert_eq!((again.delivered, again.kept), (10, 0));
        gate.reached(1);
        stuck.blocking_stop(Duration::from_millis(10)).expect_err("it is inside");
        assert_eq!(payloads(&hub), (1..10).collect::<Vec<_>>());
        gate.open();
    }
}

/// Quick handlers showed only now and then how far they were: robbed of what waited, they were
/// robbed of what they had handled, too.
#[test]
fn what_a_quick_subscriber_has_handled_is_no_letter() {
    for _ in 0..20 {
        let (hub, seen, gate) = (EventHub::new(), Seen::<u64>::new(), Gate::default());
        let (see, hold) = (seen.clone(), gate.clone());
        let quick = hub
            .subscribe(&N)
            .name("quick")
            .on(Context::Thread)
            .spawn(move |number: Delivery<'_, u64>| {
                if *number == 1000 {
                    hold.pass();
                }
                see.push(*number);
            })
            .expect("subscribed");
        // Long enough for it to be known as quick.
        hub.publisher(&N).expect("one").blocking_publish_batch(0..1020).expect("published");
        gate.reached(1);
        quick.blocking_stop(Duration::ZERO).expect_err("it is inside");
        assert_eq!(payloads(&hub), (1001..1020).collect::<Vec<_>>());
        gate.open();
        eventually("its end", || hub.stats().subscribers.is_empty());
        assert_eq!(seen.all(), (0..=1000).collect::<Vec<_>>());
        assert_eq!(payloads(&hub), (1001..1020).collect::<Vec<_>>());
    }
}

/// It did nothing before its handler returned.
#[test]
fn a_stuck_subscriber_is_detached_at_once() {
    let (hub, gate, notices) = (EventHub::new(), Gate::default(), Seen::<HubNotice>::new());
    let listen = hub.subscribe(&NOTICES).on(Context::Thread);
    let _hears = listen.spawn(notices.handler()).expect("subscribed");
    let hold = gate.clone();
    let stuck = hub
        .subscribe(&N)
        .name("stuck")
        .on(Context::Thread)
        .queue(Queue::bounded(2).on_full(Overflow::Detach))
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    gate.reached(1);
    for number in 1..=3 {
        hub.try_publish(&N, number).expect("never waits");
    }
    assert_eq!(payloads(&hub), [1, 2]);
    assert_eq!((stuck.stats().state, hub.stats().failed), (State::Failed, 1));
    eventually("the critical notice", || {
        let stopped = |one: &HubNotice| matches!(one, HubNotice::Stopped { leftovers: 2, .. });
        notices.all().iter().any(stopped)
    });
    gate.open();
    eventually("its end", || stuck.is_over());
    let said = |one: &&HubNotice| matches!(one, HubNotice::Stopped { .. });
    assert_eq!((notices.all().iter().filter(said).count(), payloads(&hub).len()), (1, 2));
}

/// What waited for it waited until its handler returned.
#[test]
fn what_waits_for_a_stuck_member_goes_to_the_others_when_it_is_dropped() {
    let (hub, gate, seen) = (EventHub::new(), Gate::default(), Seen::<u64>::new());
    let member = |name: &str| {
        let subscribe = hub.subscribe(&N).name(name).on(Context::Thread);
        subscribe.group("group", Share::round_robin())
    };
    let hold = gate.clone();
    let stuck = member("stuck").spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
    for number in 0..10 {
        hub.blocking_publish(&N, number).expect("published");
    }
    gate.reached(1);
    let _other = member("other").spawn(seen.handler()).expect("subscribed");
    drop(stuck);
    eventually("the others to be handled", || seen.len() == 9);
    assert_eq!(seen.all(), (1..10).collect::<Vec<_>>());
    gate.open();
}

/// Each was given half a second of its own, one after the other.
#[test]
fn a_shutdown_waits_for_all_that_hang_at_the_same_time() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let _stuck: Vec<_> = (0..12)
        .map(|number| {
            let hold = gate.clone();
            let subscribe = hub.subscribe(&N).name(format!("stuck-{number}")).on(Context::Thread);
            subscribe.spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed")
        })
        .collect();
    hub.blocking_publish(&N, 0).expect("published");
    gate.reached(12);
    let begun = Instant::now();
    let report = hub.blocking_shutdown(Duration::from_millis(100));
    println!("shut down after {:?}", begun.elapsed());
    assert_eq!(report.stuck.len(), 12);
    // Twelve graces alone are six seconds.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    gate.open();
}

/// Half a second was waited for a store of dead letters that was not there.
#[test]
fn a_shutdown_with_nothing_to_wait_for_does_not_wait() {
    let begun = Instant::now();
    for _ in 0..40 {
        let hub = EventHub::new();
        let _idle = hub.subscribe(&N).on(Context::Thread).spawn(ignore).expect("subscribed");
        hub.blocking_shutdown(LONG);
    }
    println!("shut down 40 times after {:?}", begun.elapsed());
    // Forty half seconds are twenty.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// A store that hung was waited for without end.
#[test]
fn a_shutdown_does_not_wait_for_a_store_that_hangs() {
    struct Hangs(Gate);
    impl LetterStore for Hangs {
        fn append(&mut self, _: &mut [artel_hub::Letter]) -> Result<(), LetterError> {
            self.0.pass();
            Ok(())
        }
        fn read(&mut self) -> Result<Vec<artel_hub::Letter>, LetterError> {
            Ok(Vec::new())
        }
        fn remove(&mut self, _: &[u64]) -> Result<(), LetterError> {
            Ok(())
        }
    }
    let gate = Gate::default();
    let hub = EventHub::builder().dead_letters(Hangs(gate.clone())).build().expect("a hub");
    let _fails = hub
        .subscribe(&N)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u64>| Err::<(), _>(HandlerError::skip("no")))
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    gate.reached(1);
    hub.blocking_publish(&N, 2).expect("published");
    let inner = hub.clone();
    in_time(move || inner.blocking_shutdown(Duration::from_millis(10)));
    assert_eq!(hub.stats().letters_lost, 2, "the one that waits, and the one in doubt");
    gate.open();
    eventually("the store to come back", || hub.stats().letters_lost == 1);
}

/// What the dead letters hold, sorted.
pub(super) fn payloads(hub: &EventHub) -> Vec<u64> {
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    let of = |letter: artel_hub::Letter| letter.payload.and_then(|json| json.as_u64());
    let mut payloads: Vec<u64> = letters.into_iter().filter_map(of).collect();
    payloads.sort_unstable();
    payloads
}
