use std::time::{Duration, SystemTime};

use artel_hub::{
    AnyEvent, Delivery, EventHub, HandlerError, Hours, Keys, LetterFilter, Rate, Topic,
};
use serde::{Deserialize, Serialize};

use crate::Seen;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u32,
    total: u32,
    address: Address,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Address {
    country: String,
}

const ORDERS: Topic<Order> = Topic::json("orders");

fn order(id: u32, total: u32, country: &str) -> Order {
    Order { id, total, address: Address { country: country.into() } }
}

fn ids(seen: &Seen<Order>) -> Vec<u32> {
    seen.all().iter().map(|order| order.id).collect()
}

/// A slash in a name meant a level.
#[tokio::test]
async fn a_slash_in_the_name_of_a_field_is_a_slash() {
    let topic: Topic<serde_json::Value> = Topic::json("json");
    let hub = EventHub::new();
    let [slash, dot] = [(); 2].map(|()| Seen::<serde_json::Value>::new());
    let _kept = [
        hub.subscribe(&topic).field("a/b", 1).spawn(slash.handler()).expect("subscribed"),
        hub.subscribe(&topic).field("a.b", 1).spawn(dot.handler()).expect("subscribed"),
    ];
    let values = [serde_json::json!({"a/b": 1}), serde_json::json!({"a": {"b": 1}})];
    for value in &values {
        hub.publish(&topic, value.clone()).await.expect("published");
    }
    hub.idle().await;
    assert_eq!((slash.all(), dot.all()), (vec![values[0].clone()], vec![values[1].clone()]));
}

#[tokio::test]
async fn payloads_are_filtered_by_predicate_field_and_key() {
    let hub = EventHub::new();
    let [large, french, both, keyed] = [(); 4].map(|()| Seen::<Order>::new());
    let large_ones = |order: &Order| order.total >= 100;
    let everywhere = Keys::new(["orders", "orders/*"]).expect("keys");
    let kept = [
        hub.subscribe(&ORDERS).filter(large_ones).spawn(large.handler()),
        hub.subscribe(&ORDERS).field("address.country", "fr").spawn(french.handler()),
        hub.subscribe(&ORDERS)
            .filter(large_ones)
            .field("address.country", "fr")
            .spawn(both.handler()),
        hub.subscribe(everywhere).only("orders/*").spawn(keyed.handler()),
    ];
    for (id, (total, country)) in [(50, "fr"), (100, "de"), (200, "fr")].into_iter().enumerate() {
        hub.publish(&ORDERS, order(id as u32, total, country)).await.expect("published");
    }
    hub.publish(&ORDERS.child("x"), order(9, 0, "fr")).await.expect("published");
    hub.idle().await;
    assert_eq!(ids(&large), [1, 2]);
    assert_eq!(ids(&french), [0, 2]);
    assert_eq!(ids(&both), [2]);
    assert_eq!(ids(&keyed), [9]);
    let stats = kept[2].as_ref().expect("subscribed").stats();
    assert_eq!((stats.processed, stats.filtered, stats.errors), (1, 2, 0));
}

#[tokio::test]
async fn events_are_filtered_by_the_time_they_were_published() {
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 + 12 * 3600);
    let hour = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let clock = hour.clone();
    let hub = EventHub::builder()
        .clock(move || {
            let hours = clock.load(std::sync::atomic::Ordering::SeqCst);
            noon + Duration::from_secs(hours * 3600)
        })
        .build()
        .expect("a hub");
    let seen = Seen::<Order>::new();
    let hours = Hours::between((11, 0), (14, 0)).expect("hours");
    let _kept = hub.subscribe(&ORDERS).between(hours).spawn(seen.handler()).expect("subscribed");
    for id in 0..24 {
        hour.store(u64::from(id), std::sync::atomic::Ordering::SeqCst);
        hub.publish(&ORDERS, order(id, 0, "fr")).await.expect("published");
    }
    hub.idle().await;
    assert_eq!(ids(&seen), [0, 1, 23]);
}

/// A rate lets a burst through and then no more than it says; the others are counted.
#[tokio::test]
async fn a_rate_lets_only_so_many_through() {
    let hub = EventHub::new();
    let seen = Seen::<Order>::new();
    let rate = Rate::one_in(Duration::from_secs(3600)).expect("a rate").burst(5);
    let subscription = hub.subscribe(&ORDERS).rate(rate).spawn(seen.handler()).expect("subscribed");
    for id in 0..50 {
        hub.publish(&ORDERS, order(id, 0, "fr")).await.expect("published");
    }
    hub.idle().await;
    assert_eq!(ids(&seen), [0, 1, 2, 3, 4]);
    assert_eq!(subscription.stats().filtered, 45);
}

/// A filter that fails or panics costs its own subscriber that event, and nobody else anything.
#[tokio::test]
async fn a_failing_filter_is_an_error_of_its_subscriber_only() {
    let hub = EventHub::new();
    let [healthy, panics, fails] = [(); 3].map(|()| Seen::<Order>::new());
    let _a = hub.subscribe(&ORDERS).spawn(healthy.handler()).expect("subscribed");
    let one = hub
        .subscribe(&ORDERS)
        .name("panics")
        .filter(|order: &Order| if order.id == 1 { panic!("no") } else { true })
        .spawn(panics.handler())
        .expect("subscribed");
    let two = hub
        .subscribe(&ORDERS)
        .name("fails")
        .try_filter(|order: &Order| match order.id {
            1 => Err(HandlerError::retry("cannot tell")),
            _ => Ok(true),
        })
        .spawn(fails.handler())
        .expect("subscribed");
    for id in 0..3 {
        hub.publish(&ORDERS, order(id, 0, "fr")).await.expect("published");
    }
    hub.idle().await;
    assert_eq!(ids(&healthy), [0, 1, 2]);
    for (subscription, seen) in [(&one, &panics), (&two, &fails)] {
        assert_eq!(ids(seen), [0, 2]);
        let stats = subscription.stats();
        assert_eq!((stats.processed, stats.errors, stats.letters), (2, 1, 1));
        let letters = LetterFilter::all().subscriber(subscription.name());
        let letters = hub.dead_letters().list(&letters).expect("letters");
        assert!(letters[0].reason.starts_with("its filter: "), "{letters:?}");
    }
}

/// Nothing is encoded that nobody asks for; a topic without an encoding says so.
#[tokio::test]
async fn a_field_needs_a_topic_that_can_be_encoded() {
    let hub = EventHub::new();
    let plain: Topic<u32> = Topic::new("plain");
    let subscription = hub
        .subscribe(Keys::any(["plain"]).expect("keys"))
        .field("x", 1)
        .spawn(|_: Delivery<'_, AnyEvent>| ())
        .expect("subscribed");
    hub.publish(&plain, 1).await.expect("published");
    hub.idle().await;
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    assert!(letters[0].reason.contains("Topic::json"), "{letters:?}");
    assert_eq!(subscription.stats().errors, 1);
}
