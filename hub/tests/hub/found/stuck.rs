//! Handlers that never return, and what waited behind them.

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

/// What the dead letters hold, sorted.
fn payloads(hub: &EventHub) -> Vec<u64> {
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    let of = |letter: artel_hub::Letter| letter.payload.and_then(|json| json.as_u64());
    let mut payloads: Vec<u64> = letters.into_iter().filter_map(of).collect();
    payloads.sort_unstable();
    payloads
}
