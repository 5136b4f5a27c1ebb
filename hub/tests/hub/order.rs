use std::collections::HashMap;
use std::sync::Arc;

use artel_hub::{Context, Delivery, EventHub, Keys, Priority, Queue, Share, SubscribeError, Topic};

use crate::{Gate, LONG, Seen, eventually, runtime};

const NUMBERS: Topic<(u32, u32)> = Topic::new("numbers");

/// Four publishers on threads, on one key: each one's events come in its order, to everybody, and
/// those who lose nothing and ask for the same see the very same order.
#[test]
fn order_is_kept_per_publisher_and_key() {
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let seen: Vec<Seen<(u32, u32)>> = (0..6).map(|_| Seen::new()).collect();
    let contexts = [Context::Task, Context::Task, Context::Thread, Context::Pool];
    let mut kept = Vec::new();
    for (context, seen) in contexts.into_iter().zip(&seen) {
        let subscribe = hub.subscribe(&NUMBERS).on(context).queue(Queue::bounded(16));
        kept.push(subscribe.spawn(seen.handler()).expect("subscribed"));
    }
    let keys = Keys::new(["num*".replace('*', "bers"), "other".into()]).expect("keys");
    kept.push(hub.subscribe(keys).spawn(seen[4].handler()).expect("subscribed"));
    let inline = seen[5].clone();
    kept.push(
        hub.subscribe(&NUMBERS)
            .inline(move |event: Delivery<'_, (u32, u32)>| inline.push(*event))
            .expect("subscribed"),
    );
    std::thread::scope(|scope| {
        for who in 0..4 {
            let publisher = hub.publisher(&NUMBERS).expect("a publisher");
            scope.spawn(move || {
                for number in 0..2000 {
                    publisher.blocking_publish((who, number)).expect("published");
                }
            });
        }
    });
    runtime.block_on(hub.idle());
    for seen in &seen {
        assert_eq!(seen.len(), 8000);
        let mut next = HashMap::new();
        for (who, number) in seen.all() {
            let expected = next.entry(who).or_insert(0);
            assert_eq!(number, *expected, "of publisher {who}");
            *expected += 1;
        }
    }
    for other in &seen[1..4] {
        assert!(other.all() == seen[0].all(), "those of one log see one order");
    }
}

#[tokio::test]
async fn what_is_urgent_comes_first_and_nothing_starves() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<(u32, u32)>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let _kept = hub
        .subscribe(&NUMBERS)
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, (u32, u32)>| {
            hold.pass();
            see.push(*event);
        })
        .expect("subscribed");
    let publisher = hub.publisher(&NUMBERS).expect("a publisher");
    publisher.publish((9, 0)).await.expect("published");
    gate.reached(1);
    for (lane, priority) in [Priority::Low, Priority::Normal, Priority::High].iter().enumerate() {
        let publisher = publisher.clone().with_priority(*priority);
        for number in 0..100 {
            publisher.publish((lane as u32, number)).await.expect("published");
        }
    }
    gate.open();
    hub.idle().await;
    let all = &seen.all()[1..];
    for lane in 0..3 {
        let numbers: Vec<u32> =
            all.iter().filter(|(one, _)| *one == lane).map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "order inside a lane");
    }
    let first: Vec<u32> = all[..32].iter().map(|(lane, _)| *lane).collect();
    let of = |lane: u32| first.iter().filter(|one| **one == lane).count();
    assert!(of(2) > of(1) && of(1) > of(0) && of(0) > 0, "{first:?}");
}

#[tokio::test]
async fn a_group_shares_its_events() {
    let hub = EventHub::new();
    let seen: Vec<Seen<(u32, u32)>> = (0..3).map(|_| Seen::new()).collect();
    let alone = Seen::new();
    let _alone = hub.subscribe(&NUMBERS).spawn(alone.handler()).expect("subscribed");
    let kept: Vec<_> = seen
        .iter()
        .map(|seen| {
            let subscribe = hub.subscribe(&NUMBERS).group("workers", Share::round_robin());
            subscribe.queue(Queue::bounded(8)).spawn(seen.handler()).expect("subscribed")
        })
        .collect();
    let other = hub.subscribe(&NUMBERS).group("workers", Share::by(|one: &(u32, u32)| one.0));
    let refused = other.spawn(alone.handler()).expect_err("it shares in another way");
    assert!(matches!(refused, SubscribeError::GroupDiffers { .. }));
    for number in 0..900 {
        let receipt = hub.publish(&NUMBERS, (0, number)).await.expect("published");
        assert_eq!((receipt.matched, receipt.queued, receipt.dropped), (2, 2, 0));
    }
    hub.idle().await;
    assert_eq!(alone.len(), 900);
    let mut all: Vec<u32> = seen.iter().flat_map(Seen::all).map(|(_, number)| number).collect();
    all.sort_unstable();
    assert_eq!(all, (0..900).collect::<Vec<_>>(), "each to one member");
    assert!(seen.iter().all(|one| one.len() >= 100), "nobody is left out");
    drop(kept);
}

#[tokio::test]
async fn a_group_by_hash_keeps_the_order_of_each_hash() {
    let hub = EventHub::new();
    let seen: Vec<Seen<(u32, u32)>> = (0..4).map(|_| Seen::new()).collect();
    let share = Share::by(|one: &(u32, u32)| one.0);
    let _kept: Vec<_> = seen
        .iter()
        .map(|seen| {
            let subscribe = hub.subscribe(&NUMBERS).group("by customer", share.clone());
            subscribe.queue(Queue::bounded(4)).spawn(seen.handler()).expect("subscribed")
        })
        .collect();
    for number in 0..2000 {
        hub.publish(&NUMBERS, (number % 50, number)).await.expect("published");
    }
    hub.idle().await;
    let mut owners = HashMap::new();
    for (member, seen) in seen.iter().enumerate() {
        let mut last = HashMap::new();
        for (customer, number) in seen.all() {
            assert_eq!(*owners.entry(customer).or_insert(member), member);
            assert!(last.insert(customer, number).is_none_or(|before| before < number));
        }
    }
    assert_eq!(seen.iter().map(Seen::len).sum::<usize>(), 2000);
    assert!(seen.iter().all(|one| one.len() > 0), "the hash spreads them");
}

/// What a member that goes had not handled is for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_leaves_hands_its_events_on() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<(u32, u32)>::new());
    let hold = gate.clone();
    let stuck = hub
        .subscribe(&NUMBERS)
        .group("workers", Share::round_robin())
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, (u32, u32)>| hold.pass())
        .expect("subscribed");
    hub.publish(&NUMBERS, (0, 0)).await.expect("published");
    gate.reached(1);
    for number in 1..=20 {
        hub.publish(&NUMBERS, (0, number)).await.expect("published");
    }
    let _other = hub
        .subscribe(&NUMBERS)
        .group("workers", Share::round_robin())
        .spawn(seen.handler())
        .expect("subscribed");
    drop(stuck);
    gate.open();
    eventually("the other to have them", || seen.len() == 20);
    let mut all: Vec<u32> = seen.all().into_iter().map(|(_, number)| number).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=20).collect::<Vec<_>>());
    assert_eq!(hub.shutdown(LONG).await.leftovers, 0);
}

/// A batch is as good as one by one, and bounded by the same queues.
#[tokio::test]
async fn a_batch_waits_for_room_in_the_middle() {
    let hub = EventHub::new();
    let seen: Arc<[Seen<(u32, u32)>; 2]> = Arc::new([Seen::new(), Seen::new()]);
    let _a =
        hub.subscribe(&NUMBERS).queue(Queue::bounded(3)).spawn(seen[0].handler()).expect("one");
    let _b =
        hub.subscribe(&NUMBERS).queue(Queue::bounded(50)).spawn(seen[1].handler()).expect("two");
    let batch: Vec<(u32, u32)> = (0..1000).map(|number| (0, number)).collect();
    let receipt = hub.publish_batch(&NUMBERS, batch.clone()).await.expect("published");
    assert_eq!((receipt.events, receipt.queued, receipt.sequence), (1000, 2000, 1000));
    hub.idle().await;
    assert!(seen[0].all() == batch && seen[1].all() == batch);
    assert_eq!(hub.publish_batch(&NUMBERS, Vec::new()).await.expect("nothing").events, 0);
}
