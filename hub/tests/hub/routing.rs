use artel_hub::{AnyEvent, Context, Delivery, EventHub, Keys, Queue, Topic};

use crate::{LONG, Seen, runtime};

const ORDERS: Topic<u32> = Topic::new("orders/created");

#[tokio::test]
async fn an_event_reaches_those_who_ask_for_its_key_and_nobody_else() {
    let hub = EventHub::new();
    let [exact, other, star, rest, several, all] = [(); 6].map(|()| Seen::<u32>::new());
    let keys = |patterns: &[&str]| Keys::<u32>::new(patterns).expect("keys");
    let subscriptions = [
        hub.subscribe(&ORDERS).spawn(exact.handler()),
        hub.subscribe(ORDERS.at("orders/closed")).spawn(other.handler()),
        hub.subscribe(keys(&["orders/*"])).spawn(star.handler()),
        hub.subscribe(keys(&["orders/**"])).spawn(rest.handler()),
        hub.subscribe(keys(&["orders/created", "returns"])).spawn(several.handler()),
        hub.subscribe(keys(&["**"])).spawn(all.handler()),
    ];
    assert!(subscriptions.iter().all(Result::is_ok));
    for (number, key) in
        ["orders/created", "orders/closed", "orders/created/eu", "returns", "orders"]
            .iter()
            .enumerate()
    {
        hub.publish(&ORDERS.at(*key), number as u32).await.expect("published");
    }
    hub.idle().await;
    assert_eq!(exact.all(), [0]);
    assert_eq!(other.all(), [1]);
    assert_eq!(star.all(), [0, 1]);
    assert_eq!(rest.all(), [0, 1, 2]);
    assert_eq!(several.all(), [0, 3]);
    assert_eq!(all.all(), [0, 1, 2, 3, 4]);
    assert_eq!(hub.subscriber_count("orders/created"), 5);
    assert_eq!(hub.subscriber_count("nobody/published/this"), 1);
}

/// A key that is matched by two of a subscriber's patterns is still one delivery.
#[tokio::test]
async fn nobody_gets_an_event_twice() {
    let hub = EventHub::new();
    let seen = Seen::<u32>::new();
    let keys = Keys::new(["orders/created", "orders/*", "**"]).expect("keys");
    let _kept = hub.subscribe(keys).spawn(seen.handler()).expect("subscribed");
    let receipt = hub.publish(&ORDERS, 7).await.expect("published");
    assert_eq!((receipt.sequence, receipt.matched, receipt.queued), (1, 1, 1));
    hub.idle().await;
    assert_eq!(seen.all(), [7]);
}

#[tokio::test]
async fn types_keep_apart_what_patterns_would_mix() {
    let hub = EventHub::new();
    let (numbers, anything) = (Seen::<u32>::new(), Seen::<String>::new());
    let any = anything.clone();
    let _a = hub
        .subscribe(Keys::<u32>::new(["**"]).expect("keys"))
        .spawn(numbers.handler())
        .expect("subscribed");
    let _b = hub
        .subscribe(Keys::any(["**"]).expect("keys"))
        .spawn(move |event: Delivery<'_, AnyEvent>| {
            any.push(format!("{} {:?}", event.key(), event.payload::<u32>()));
        })
        .expect("subscribed");
    hub.publish(&ORDERS, 1).await.expect("published");
    hub.publish(&Topic::<String>::new("names"), "x".into()).await.expect("published");
    hub.idle().await;
    assert_eq!(numbers.all(), [1]);
    assert_eq!(anything.all(), ["orders/created Some(1)", "names None"]);
}

/// From inside a handler everything is allowed: subscribe, publish, unsubscribe.
#[tokio::test]
async fn a_handler_may_subscribe_publish_and_unsubscribe() {
    let hub = EventHub::new();
    let seen = Seen::<u32>::new();
    let (inner, results) = (hub.clone(), seen.clone());
    let _kept = hub
        .subscribe(&ORDERS)
        .spawn_with(move || {
            let (hub, seen, mut kept) = (inner.clone(), results.clone(), Vec::new());
            let inside = ORDERS.at("inner");
            move |event: Delivery<'_, u32>| match *event {
                1 => kept.push(hub.subscribe(&inside).spawn(seen.handler()).expect("subscribed")),
                2 => kept.clear(),
                other => drop(hub.try_publish(&inside, other * 10).expect("published")),
            }
        })
        .expect("subscribed");
    for number in [3, 1, 4, 5] {
        hub.publish(&ORDERS, number).await.expect("published");
    }
    hub.idle().await;
    for number in [2, 6] {
        hub.publish(&ORDERS, number).await.expect("published");
    }
    hub.idle().await;
    assert_eq!(seen.all(), [40, 50]);
    hub.shutdown(LONG).await; // the handler holds the hub, so nothing else ends it
}

#[test]
fn all_contexts_deliver() {
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let seen: Vec<Seen<u32>> = (0..4).map(|_| Seen::new()).collect();
    let contexts = [Context::Task, Context::Thread, Context::Pool];
    let mut kept: Vec<_> = contexts
        .iter()
        .zip(&seen)
        .map(|(context, seen)| {
            hub.subscribe(&ORDERS).on(*context).spawn(seen.handler()).expect("subscribed")
        })
        .collect();
    let inline = seen[3].clone();
    kept.push(
        hub.subscribe(&ORDERS)
            .inline(move |event: Delivery<'_, u32>| inline.push(*event))
            .expect("subscribed"),
    );
    let publisher = hub.publisher(&ORDERS).expect("a publisher");
    for number in 0..500 {
        publisher.blocking_publish(number).expect("published");
        assert_eq!(seen[3].len(), number as usize + 1, "inline is done when publish returns");
    }
    publisher.blocking_publish_batch(500..1000).expect("published");
    runtime.block_on(hub.idle());
    for seen in &seen {
        assert_eq!(seen.all(), (0..1000).collect::<Vec<_>>());
    }
    let contexts: Vec<_> = kept.iter().map(|one| one.stats().context).collect();
    assert_eq!(contexts, ["task", "thread", "pool", "inline"]);
    assert_eq!(hub.blocking_shutdown(LONG).leftovers, 0);
}

#[tokio::test]
async fn unsubscribing_takes_effect_at_once() {
    let hub = EventHub::new();
    let seen = Seen::<u32>::new();
    let subscription = hub
        .subscribe(&ORDERS)
        .queue(Queue::bounded(4))
        .name("one")
        .spawn(seen.handler())
        .expect("subscribed");
    hub.publish(&ORDERS, 1).await.expect("published");
    hub.idle().await;
    drop(subscription);
    assert_eq!(hub.subscriber_count("orders/created"), 0);
    assert_eq!(hub.publish(&ORDERS, 2).await.expect("published").matched, 0);
    let again = hub.subscribe(&ORDERS).name("one").spawn(seen.handler()).expect("the name is free");
    hub.publish(&ORDERS, 3).await.expect("published");
    hub.idle().await;
    assert_eq!(seen.all(), [1, 3]);
    drop(again);
}

/// A key nobody holds is forgotten when there are too many; its numbers still grow.
#[tokio::test]
async fn keys_are_bounded() {
    let hub = EventHub::builder().keys_max(100).build().expect("a hub");
    let held = hub.publisher(&ORDERS).expect("a publisher");
    held.publish(0).await.expect("published");
    for number in 0..1000 {
        hub.publish(&ORDERS.at(format!("orders/{number}")), number).await.expect("published");
    }
    assert!(hub.stats().topics.len() <= 100);
    assert_eq!(held.publish(1).await.expect("published").sequence, 2);
    let first = hub.publish(&ORDERS.at("orders/0"), 0).await.expect("published").sequence;
    assert!(first > 1, "numbers never go back: {first}");
}
