use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use artel_hub::{Delivery, EventHub, Queue, Subscription, Topic};

use crate::{LONG, eventually, runtime, soaks};

const NUMBERS: Topic<u64> = Topic::new("numbers");

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_hundred_thousand_subscribers_on_two_threads() {
    const MANY: u64 = 100_000;
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let count = Arc::new(AtomicU64::new(0));
    let before = resident_bytes();
    let kept: Vec<Subscription> = (0..MANY)
        .map(|_| {
            let count = count.clone();
            let handler = move |event: Delivery<'_, u64>| {
                count.fetch_add(*event, Ordering::Relaxed);
            };
            hub.subscribe(&NUMBERS).spawn(handler).expect("subscribed")
        })
        .collect();
    println!("{} bytes each", (resident_bytes() - before) / MANY);
    assert_eq!(hub.subscriber_count("numbers"), MANY as usize);
    for number in 1..=20 {
        let receipt = hub.blocking_publish(&NUMBERS, number).expect("published");
        assert_eq!(receipt.queued, MANY);
    }
    eventually("all to be handled", || count.load(Ordering::Relaxed) == MANY * 210);
    let begun = Instant::now();
    drop(kept);
    assert_eq!(hub.subscriber_count("numbers"), 0);
    eventually("their tasks to end", || runtime.metrics().num_alive_tasks() == 0);
    println!("gone after {:?}", begun.elapsed());
}

/// Subscribers come and go under full load, and those who stay lose nothing. In the soak ten
/// thousand a second for five minutes, and memory stays as it is.
#[test]
fn coming_and_going_under_load_costs_nobody_anything() {
    let (time, rate) =
        if soaks() { (Duration::from_secs(300), 10_000) } else { (Duration::from_secs(3), 2_000) };
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let next: Vec<Arc<AtomicU64>> = (0..16).map(|_| Arc::default()).collect();
    let kept: Vec<Subscription> = next
        .iter()
        .map(|next| {
            let next = next.clone();
            let handler = move |event: Delivery<'_, u64>| {
                assert_eq!(next.fetch_add(1, Ordering::Relaxed), *event);
            };
            hub.subscribe(&NUMBERS).queue(Queue::bounded(1024)).spawn(handler).expect("subscribed")
        })
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let (publisher, stop) = (hub.publisher(&NUMBERS).expect("a publisher"), over.clone());
    let load = std::thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            publisher.blocking_publish(number).expect("published");
            number += 1;
        }
        number
    });
    let (begun, mut came, mut settled) = (Instant::now(), 0u64, 0);
    while begun.elapsed() < time {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        while came < due {
            let guest =
                hub.subscribe(&NUMBERS).spawn(|_: Delivery<'_, u64>| ()).expect("subscribed");
            drop(guest);
            came += 1;
        }
        if settled == 0 && begun.elapsed() > time / 5 {
            settled = resident_bytes();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    over.store(true, Ordering::Relaxed);
    let published = load.join().expect("no panic");
    let grown = resident_bytes() as f64 / settled as f64;
    println!(
        "{published} events, {came} guests in {time:?} ({:.0}/s), memory grew to {grown:.2}",
        came as f64 / time.as_secs_f64()
    );
    for (next, subscription) in next.iter().zip(&kept) {
        eventually("all to be handled", || next.load(Ordering::Relaxed) == published);
        assert_eq!(subscription.stats().errors, 0);
    }
    if soaks() {
        assert!(came as f64 >= 0.95 * f64::from(rate) * time.as_secs_f64(), "{came}");
        assert!(grown < 1.1, "memory grew to {grown:.2}");
    }
    assert_eq!(hub.blocking_shutdown(LONG).leftovers, 0);
}
