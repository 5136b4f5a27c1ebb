use std::time::Duration;

use artel_hub::{
    Context, Delivery, EventHub, HubNotice, LetterFilter, NOTICES, Overflow, Priority, Queue,
    Refusal, State, Topic,
};

use crate::{Gate, LONG, Seen, eventually};

const NUMBERS: Topic<u32> = Topic::json("numbers");

/// A subscriber that is held at its first event, and what it saw.
fn held(hub: &EventHub, queue: Queue) -> (artel_hub::Subscription, Gate, Seen<(u32, u64)>) {
    let (gate, seen) = (Gate::default(), Seen::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let subscription = hub
        .subscribe(&NUMBERS)
        .name("slow")
        .queue(queue)
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u32>| {
            hold.pass();
            see.push((*event, event.lagged()));
        })
        .expect("subscribed");
    (subscription, gate, seen)
}

/// Publishes 0, and waits until it is in the handler.
async fn first(hub: &EventHub, gate: &Gate) {
    hub.publish(&NUMBERS, 0).await.expect("published");
    gate.reached(1);
}

fn numbers(seen: &Seen<(u32, u64)>) -> Vec<u32> {
    seen.all().into_iter().map(|(number, _)| number).collect()
}

#[tokio::test]
async fn block_loses_nothing_and_try_is_refused() {
    let hub = EventHub::new();
    let (subscription, gate, seen) = held(&hub, Queue::bounded(4));
    for number in 0..4 {
        hub.publish(&NUMBERS, number).await.expect("published");
    }
    let refused = hub.try_publish(&NUMBERS, 99).expect_err("it is full");
    assert_eq!(*refused.reason(), Refusal::Full);
    assert_eq!(refused.into_payload(), 99);
    let waiting = tokio::spawn({
        let hub = hub.clone();
        async move { hub.publish(&NUMBERS, 4).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    gate.open();
    waiting.await.expect("no panic").expect("published");
    hub.idle().await;
    assert_eq!(numbers(&seen), [0, 1, 2, 3, 4]);
    assert_eq!(subscription.stats().dropped, 0);
}

#[tokio::test]
async fn the_bytes_of_a_queue_are_bounded_too() {
    let hub = EventHub::new();
    let texts: Topic<String> = Topic::new("texts").weighed(String::len);
    let gate = Gate::default();
    let hold = gate.clone();
    let _kept = hub
        .subscribe(&texts)
        .queue(Queue::bounded(100).bytes(10))
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, String>| hold.pass())
        .expect("subscribed");
    hub.try_publish(&texts, "123456".into()).expect("there is room");
    assert!(hub.try_publish(&texts, "123456".into()).is_err());
    hub.try_publish(&texts, "1234".into()).expect("there is room for this one");
    gate.open();
    hub.idle().await;
    hub.try_publish(&texts, "x".repeat(1000)).expect("one event always fits");
    hub.idle().await;
}

#[tokio::test]
async fn block_for_waits_and_then_drops() {
    let hub = EventHub::new();
    let wait = Overflow::BlockFor(Duration::from_millis(30));
    let (_kept, gate, seen) = held(&hub, Queue::bounded(1).on_full(wait));
    first(&hub, &gate).await;
    hub.publish(&NUMBERS, 1).await.expect("there is room");
    let begun = std::time::Instant::now();
    let receipt = hub.publish(&NUMBERS, 2).await.expect("published");
    assert_eq!((receipt.matched, receipt.queued, receipt.dropped), (1, 0, 1));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    gate.open();
    hub.idle().await;
    let receipt = hub.publish(&NUMBERS, 3).await.expect("published");
    assert_eq!(receipt.queued, 1);
    hub.idle().await;
    assert_eq!(seen.all(), [(0, 0), (1, 0), (3, 1)]);
}

#[tokio::test]
async fn drop_newest_keeps_what_waits() {
    let hub = EventHub::new();
    let queue = Queue::bounded(2).on_full(Overflow::DropNewest);
    let (subscription, gate, seen) = held(&hub, queue);
    first(&hub, &gate).await;
    for number in 1..=5 {
        hub.try_publish(&NUMBERS, number).expect("never waits");
    }
    assert_eq!(subscription.stats().dropped, 3);
    gate.open();
    hub.idle().await;
    hub.publish(&NUMBERS, 6).await.expect("published");
    hub.idle().await;
    assert_eq!(seen.all(), [(0, 0), (1, 0), (2, 0), (6, 3)]);
    assert_eq!(hub.stats().topics.iter().find(|one| one.key == "numbers").unwrap().dropped, 3);
}

#[tokio::test]
async fn drop_oldest_keeps_what_is_new() {
    let hub = EventHub::new();
    let queue = Queue::bounded(2).on_full(Overflow::DropOldest);
    let (_kept, gate, seen) = held(&hub, queue);
    first(&hub, &gate).await;
    for number in 1..=5 {
        let receipt = hub.try_publish(&NUMBERS, number).expect("never waits");
        assert_eq!((receipt.queued, receipt.dropped), (1, u64::from(number > 2)));
    }
    gate.open();
    hub.idle().await;
    assert_eq!(seen.all(), [(0, 0), (4, 3), (5, 0)]);
}

/// What is urgent is dropped last.
#[tokio::test]
async fn drop_oldest_drops_the_least_urgent_first() {
    let hub = EventHub::new();
    let queue = Queue::bounded(3).on_full(Overflow::DropOldest);
    let (_kept, gate, seen) = held(&hub, queue);
    first(&hub, &gate).await;
    let publisher = hub.publisher(&NUMBERS).expect("a publisher");
    let high = publisher.clone().with_priority(Priority::High);
    let low = publisher.clone().with_priority(Priority::Low);
    high.try_publish(1).expect("published");
    low.try_publish(2).expect("published");
    publisher.try_publish(3).expect("published");
    publisher.try_publish(4).expect("published");
    gate.open();
    hub.idle().await;
    assert_eq!(numbers(&seen), [0, 1, 3, 4]);
}

#[tokio::test]
async fn keep_latest_keeps_one_of_each_key() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<(String, u32)>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let keys = artel_hub::Keys::<u32>::new(["price/*"]).expect("keys");
    let subscription = hub
        .subscribe(keys)
        .queue(Queue::bounded(10).on_full(Overflow::KeepLatest))
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u32>| {
            hold.pass();
            see.push((event.event().key().to_string(), *event));
        })
        .expect("subscribed");
    let price: Topic<u32> = Topic::new("price/a");
    hub.publish(&price, 0).await.expect("published");
    gate.reached(1);
    for number in 1..=3 {
        hub.publish(&price, number).await.expect("published");
        hub.publish(&price.at("price/b"), number * 10).await.expect("published");
    }
    gate.open();
    hub.idle().await;
    let all: Vec<_> = seen.all().into_iter().map(|(_, number)| number).collect();
    assert_eq!(all, [0, 3, 30]);
    assert_eq!(subscription.stats().dropped, 4);
}

#[tokio::test]
async fn detach_stops_the_one_that_cannot_keep_up() {
    let hub = EventHub::new();
    let notices = Seen::<HubNotice>::new();
    let _told = hub.subscribe(&NOTICES).spawn(notices.handler()).expect("subscribed");
    let queue = Queue::bounded(2).on_full(Overflow::Detach);
    let (subscription, gate, seen) = held(&hub, queue);
    first(&hub, &gate).await;
    for number in 1..=3 {
        hub.try_publish(&NUMBERS, number).expect("never waits");
    }
    assert_eq!(hub.subscriber_count("numbers"), 0);
    gate.open();
    eventually("its end", || subscription.is_over());
    assert_eq!(subscription.stats().state, State::Failed);
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    let payloads: Vec<_> = letters.iter().map(|one| one.payload.clone().unwrap()).collect();
    assert_eq!(payloads, [1, 2]);
    assert_eq!(numbers(&seen), [0]);
    hub.idle().await;
    assert!(notices.all().iter().any(|one| matches!(one, HubNotice::Stopped { leftovers: 2, .. })));
}

/// What is dropped can be kept, and delivered again.
#[tokio::test]
async fn dropped_events_can_be_dead_letters() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<u32>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let _kept = hub
        .subscribe(&NUMBERS)
        .name("slow")
        .queue(Queue::bounded(2).on_full(Overflow::DropNewest))
        .keep_dropped()
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u32>| {
            hold.pass();
            see.push(*event);
        })
        .expect("subscribed");
    first(&hub, &gate).await;
    for number in 1..=4 {
        hub.try_publish(&NUMBERS, number).expect("never waits");
    }
    gate.open();
    hub.idle().await;
    assert_eq!(seen.all(), [0, 1, 2]);
    let again = hub.dead_letters().redeliver(&LetterFilter::all()).expect("delivered");
    assert_eq!((again.delivered, again.kept), (2, 0));
    hub.idle().await;
    assert_eq!(seen.all(), [0, 1, 2, 3, 4]);
    assert_eq!(hub.dead_letters().count().expect("counted"), 0);
    hub.shutdown(LONG).await;
}
