use std::time::Duration;

use artel_hub::{
    BuildError, Context, Delivery, EventHub, KeyError, Keys, Overflow, Queue, Refusal, Restart,
    SubscribeError, Topic,
};

use crate::{Gate, LONG, Seen, eventually, runtime};

const NUMBERS: Topic<u32> = Topic::new("numbers");

#[test]
fn wrong_keys_are_refused_and_the_payload_comes_back() {
    let hub = EventHub::new();
    let text: Topic<String> = Topic::new("x");
    for (key, wrong) in [
        ("", "empty"),
        ("a\u{0}b", "control character"),
        (&"k".repeat(513), "513 bytes"),
        ("orders/*", "wildcard"),
        ("orders/**", "wildcard"),
        ("/orders", "empty level"),
        ("orders//eu", "empty level"),
    ] {
        let refused = hub.blocking_publish(&text.at(key), "payload".into()).expect_err("refused");
        assert!(matches!(refused.reason(), Refusal::Key(_)), "{key}: {refused}");
        assert!(refused.to_string().contains(wrong), "{refused}");
        assert_eq!(refused.into_payload(), "payload");
        assert!(hub.publisher(&text.at(key)).is_err());
    }
    let subscribe = |pattern: &str| {
        let keys = Keys::<String>::new([pattern])?;
        Ok::<_, SubscribeError>(hub.subscribe(keys))
    };
    assert!(matches!(subscribe("a/**/b"), Err(SubscribeError::Key(KeyError::BadPattern { .. }))));
    let wild =
        hub.subscribe(text.at("a/*")).on(Context::Thread).spawn(|_: Delivery<'_, String>| ());
    assert!(matches!(wild, Err(SubscribeError::Key(KeyError::Wildcard { .. }))), "topics are keys");
    let only =
        hub.subscribe(&text).only("a*").on(Context::Thread).spawn(|_: Delivery<'_, String>| ());
    assert!(matches!(only, Err(SubscribeError::Key(KeyError::BadPattern { .. }))));
}

#[test]
fn wrong_subscribers_are_refused() {
    let hub = EventHub::new();
    let seen = Seen::<u32>::new();
    let new = || hub.subscribe(&NUMBERS).on(Context::Thread);
    let refused = |subscribe: artel_hub::Subscribe<u32>| {
        subscribe.spawn(seen.handler()).expect_err("refused")
    };
    assert!(matches!(refused(new().queue(Queue::bounded(0))), SubscribeError::NoRoom { .. }));
    assert!(matches!(
        refused(new().queue(Queue::bounded(1).bytes(0))),
        SubscribeError::NoRoom { .. }
    ));
    assert_eq!(refused(new().attempts(0)), SubscribeError::NoAttempts);
    let no_time = new().handler_timeout(std::time::Duration::ZERO);
    assert_eq!(refused(no_time), SubscribeError::NoTime);
    assert!(matches!(refused(new().name("")), SubscribeError::BadName { .. }));
    assert!(matches!(refused(new().name("a\nb")), SubscribeError::BadName { .. }));
    assert!(matches!(refused(new().name("n".repeat(257))), SubscribeError::BadName { .. }));
    assert_eq!(refused(new().on(Context::Task)), SubscribeError::NoRuntime);
    let _first = new().name("one").spawn(seen.handler()).expect("subscribed");
    assert!(matches!(refused(new().name("one")), SubscribeError::Duplicate { .. }));
    let overlaps = hub.subscribe(Keys::<u32>::new(["*"]).expect("keys")).on(Context::Thread);
    assert!(matches!(refused(overlaps.name("one")), SubscribeError::Duplicate { .. }));
    let apart = hub.subscribe(NUMBERS.at("other")).on(Context::Thread).name("one");
    let _apart = apart.spawn(seen.handler()).expect("other keys, so the name is free");
    assert_eq!(hub.subscriber_count("numbers"), 1);
    let builds = |hub: Result<EventHub, BuildError>| matches!(hub, Err(BuildError::Zero { .. }));
    assert!(builds(EventHub::builder().pool_threads(0).build()));
    assert!(builds(EventHub::builder().keys_max(0).build()));
    assert!(builds(EventHub::builder().letters_max(0).build()));
}

#[test]
fn a_key_has_one_type() {
    let hub = EventHub::new();
    let words: Topic<String> = Topic::new("numbers");
    let _kept = hub
        .subscribe(&NUMBERS)
        .on(Context::Thread)
        .spawn(|_: Delivery<'_, u32>| ())
        .expect("subscribed");
    let refused = hub.blocking_publish(&words, "x".into()).expect_err("it is for numbers");
    assert!(matches!(refused.reason(), Refusal::WrongType { expected: "u32", .. }), "{refused}");
    hub.blocking_publish(&NUMBERS, 1).expect("published");
    let refused = hub.subscribe(&words).on(Context::Thread).spawn(|_: Delivery<'_, String>| ());
    assert!(matches!(
        refused,
        Err(SubscribeError::WrongType { given: "alloc::string::String", .. })
    ));
}

#[test]
fn a_payload_that_is_too_heavy_comes_back() {
    let hub = EventHub::builder().payload_bytes_max(10).build().expect("a hub");
    let text: Topic<String> = Topic::new("text").weighed(String::len);
    hub.blocking_publish(&text, "0123456789".into()).expect("published");
    let refused = hub.blocking_publish(&text, "0123456789x".into()).expect_err("too heavy");
    assert_eq!(*refused.reason(), Refusal::TooLarge { bytes: 11, most: 10 });
    let publisher = hub.publisher(&text).expect("a publisher");
    let batch = ["a", "0123456789x", "b"].map(String::from);
    let refused = publisher.blocking_publish_batch(batch.clone()).expect_err("one is too heavy");
    assert_eq!(refused.into_payload(), batch, "all of it, in order");
}

/// A handler that publishes to itself is stopped by the depth, in every context.
#[test]
fn a_subscriber_that_publishes_to_itself_ends() {
    let runtime = runtime(2);
    let hub =
        EventHub::builder().runtime(runtime.handle().clone()).depth_max(20).build().expect("a hub");
    for (number, context) in [Context::Task, Context::Thread, Context::Pool].into_iter().enumerate()
    {
        let (own, seen) =
            (NUMBERS.at(format!("loop/{number}")), Seen::<Result<(), Refusal>>::new());
        let (inner, topic, see) = (hub.clone(), own.clone(), seen.clone());
        let _kept = hub
            .subscribe(&own)
            .on(context)
            .spawn(move |event: Delivery<'_, u32>| {
                let again = inner.try_publish(&topic, *event + 1);
                see.push(again.map(drop).map_err(|error| error.reason().clone()));
            })
            .expect("subscribed");
        hub.blocking_publish(&own, 0).expect("published");
        eventually("the end of it", || seen.len() == 21);
        assert_eq!(seen.all()[20], Err(Refusal::TooDeep { depth: 21 }));
    }
    let seen = Seen::<u32>::new();
    let (inner, see) = (hub.clone(), seen.clone());
    let _inline = hub
        .subscribe(&NUMBERS)
        .inline(move |event: Delivery<'_, u32>| {
            see.push(*event);
            let _ = inner.blocking_publish(&NUMBERS, *event + 1);
        })
        .expect("subscribed");
    hub.blocking_publish(&NUMBERS, 0).expect("published");
    assert_eq!(seen.all(), (0..=20).collect::<Vec<_>>());
    hub.blocking_shutdown(LONG);
}

/// Its own full queue: waiting for it would be waiting for itself.
#[test]
fn a_handler_that_would_wait_for_itself_is_refused() {
    let hub = EventHub::new();
    let seen = Seen::<Option<Refusal>>::new();
    let (inner, see) = (hub.clone(), seen.clone());
    let _kept = hub
        .subscribe(&NUMBERS)
        .queue(Queue::bounded(2))
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u32>| {
            if *event == 0 {
                for number in 1..4 {
                    let again = inner.blocking_publish(&NUMBERS, number);
                    see.push(again.err().map(|error| error.reason().clone()));
                }
            }
        })
        .expect("subscribed");
    hub.blocking_publish(&NUMBERS, 0).expect("published");
    eventually("all three", || seen.len() == 3);
    let deadlock = Some(Refusal::WouldDeadlock);
    assert_eq!(seen.all(), [None, deadlock.clone(), deadlock]);
    hub.blocking_shutdown(LONG);
}

/// Two that wait for each other: the second of them is refused, and both go on.
#[test]
fn a_circle_of_handlers_is_refused() {
    let hub = EventHub::new();
    let (ping, pong) = (NUMBERS.at("ping"), NUMBERS.at("pong"));
    let seen = Seen::<Refusal>::new();
    let mut kept = Vec::new();
    for (from, to) in [(&ping, &pong), (&pong, &ping)] {
        let (inner, to, see) = (hub.clone(), to.clone(), seen.clone());
        let subscribe = hub.subscribe(from).queue(Queue::bounded(1)).on(Context::Thread);
        let handler = move |event: Delivery<'_, u32>| {
            for number in 0..3 {
                if let Err(error) = inner.blocking_publish(&to, *event + number) {
                    see.push(error.reason().clone());
                }
            }
        };
        kept.push(subscribe.spawn(handler).expect("subscribed"));
    }
    hub.blocking_publish(&ping, 0).expect("published");
    eventually("a refusal", || seen.len() > 0);
    eventually("the end of it", || kept.iter().all(|one| one.stats().lag == 0));
    let fine = |one: &Refusal| matches!(one, Refusal::WouldDeadlock | Refusal::TooDeep { .. });
    assert!(seen.all().iter().all(fine), "{:?}", seen.all());
    hub.blocking_shutdown(LONG);
}

/// On a task or on the pool nothing may block; `publish` waits there without blocking.
#[test]
fn a_handler_on_a_shared_thread_must_not_block() {
    let runtime = runtime(1);
    let hub = EventHub::builder()
        .runtime(runtime.handle().clone())
        .pool_threads(1)
        .build()
        .expect("a hub");
    let (gate, seen) = (Gate::default(), Seen::<Refusal>::new());
    let hold = gate.clone();
    let _full = hub
        .subscribe(NUMBERS.at("full"))
        .queue(Queue::bounded(1))
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u32>| hold.pass())
        .expect("subscribed");
    hub.blocking_publish(&NUMBERS.at("full"), 0).expect("published");
    let mut kept = Vec::new();
    for context in [Context::Task, Context::Pool] {
        let (inner, see) = (hub.clone(), seen.clone());
        let handler = move |event: Delivery<'_, u32>| {
            let refused = inner.blocking_publish(&NUMBERS.at("full"), *event).expect_err("full");
            see.push(refused.reason().clone());
        };
        kept.push(hub.subscribe(&NUMBERS).on(context).spawn(handler).expect("subscribed"));
    }
    hub.blocking_publish(&NUMBERS, 1).expect("published");
    eventually("both to be refused", || seen.len() == 2);
    assert_eq!(seen.all(), [Refusal::WouldBlock, Refusal::WouldBlock]);
    gate.open();
    hub.blocking_shutdown(LONG);
}

/// A group whose hash panics refuses the event; a time to block of zero does not block.
#[test]
fn odd_choices_do_no_harm() {
    let hub = EventHub::new();
    let share = artel_hub::Share::by(|number: &u32| {
        assert!(*number != 13, "unlucky");
        *number
    });
    let seen = Seen::<u32>::new();
    let _kept = hub
        .subscribe(&NUMBERS)
        .group("lucky", share)
        .on(Context::Thread)
        .restart(Restart::never())
        .spawn(seen.handler())
        .expect("subscribed");
    hub.blocking_publish(&NUMBERS, 12).expect("published");
    let refused = hub.blocking_publish(&NUMBERS, 13).expect_err("it panicked");
    assert!(matches!(refused.reason(), Refusal::ShareFailed { group } if group == "lucky"));
    assert_eq!(refused.into_payload(), 13);
    let gate = Gate::default();
    let hold = gate.clone();
    let nothing = Overflow::BlockFor(Duration::ZERO);
    let _zero = hub
        .subscribe(NUMBERS.at("zero"))
        .queue(Queue::bounded(1).on_full(nothing))
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u32>| hold.pass())
        .expect("subscribed");
    let topic = NUMBERS.at("zero");
    hub.blocking_publish(&topic, 0).expect("published");
    gate.reached(1);
    hub.blocking_publish(&topic, 1).expect("published");
    assert_eq!(hub.blocking_publish(&topic, 2).expect("published").dropped, 1);
    gate.open();
    hub.blocking_shutdown(LONG);
}
