//! Our own rows: the hub, with a filter, statistics and supervision on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use artel_hub::{
    Delivery, EventHub, Handler, HandlerError, Overflow, Publisher, Queue, Subscribe,
    SubscribeError, Subscription, Topic,
};
use tokio::runtime::Runtime;

use crate::case::{BOUND, Case, Event, Running, Sink, Started, Total, runtime};

const EVENTS: Topic<Event> = Topic::new("orders/created/eu");

/// What the hub offers, a row each.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { memory: true, ..Case::new("artel-hub (closures)", closures) },
        Case { memory: true, ..Case::new("artel-hub (async handlers)", futures) },
    ]
}

struct Looker(Sink);

impl Handler<Event> for Looker {
    async fn handle(&mut self, event: Delivery<'_, Event>) -> Result<(), HandlerError> {
        self.0.take(&event);
        Ok(())
    }
}

struct Hub {
    hub: EventHub,
    publisher: Publisher<Event>,
    total: Arc<Total>,
    subscriptions: Vec<Subscription>,
    _runtime: Runtime,
}

fn closures(subscribers: usize, _events: usize) -> Started {
    start(subscribers, |subscribe, total| {
        subscribe.spawn_with(move || {
            let mut sink = Sink::new(&total);
            move |event: Delivery<'_, Event>| sink.take(&event)
        })
    })
}

fn futures(subscribers: usize, _events: usize) -> Started {
    start(subscribers, |subscribe, total| subscribe.spawn_with(move || Looker(Sink::new(&total))))
}

fn start(
    subscribers: usize,
    spawn: fn(Subscribe<Event>, Arc<Total>) -> Result<Subscription, SubscribeError>,
) -> Started {
    let runtime = runtime();
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let total = Total::new();
    let subscribe = |_| {
        let subscribe = hub.subscribe(&EVENTS).filter(|event: &Event| event.seq != u64::MAX);
        spawn(subscribe, total.clone()).expect("a subscriber")
    };
    let subscriptions = (0..subscribers).map(subscribe).collect();
    let publisher = hub.publisher(&EVENTS).expect("a publisher");
    Started::Owned(Box::new(Hub { hub, publisher, total, subscriptions, _runtime: runtime }))
}

impl Running<Event> for Hub {
    fn publish(&mut self, event: Event) {
        self.publisher.blocking_publish(event).expect("published");
    }

    fn finish(&mut self) -> crate::case::Tally {
        let report = self.hub.blocking_shutdown(Duration::from_secs(60));
        assert_eq!(report.leftovers, 0);
        self.total.wait(self.subscriptions.len())
    }
}

/// Never done with its first event.
struct Stuck;

impl Handler<Event> for Stuck {
    async fn handle(&mut self, _: Delivery<'_, Event>) -> Result<(), HandlerError> {
        std::future::pending().await
    }
}

/// The p99 of a publish with and without one subscriber that is stuck and drops what it cannot
/// take. Is it where it was, within the spread of the runs without?
pub(crate) fn stuck(rounds: usize) -> bool {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        without.push(p99(false));
        with.push(p99(true));
    }
    println!("## One stuck subscriber among {HEALTHY}: p99 of a publish, ns\n");
    for (name, series) in [("without it", &mut without), ("with it", &mut with)] {
        series.sort_by(f64::total_cmp);
        let (low, high) = (series[0], series[series.len() - 1]);
        println!("- {name}: {:.0} ({low:.0}–{high:.0})", series[series.len() / 2]);
    }
    let fine = with[with.len() / 2] <= without[without.len() - 1];
    println!(
        "- goal, its median within the spread without it: {}\n",
        if fine { "pass" } else { "FAIL" }
    );
    fine
}

const HEALTHY: usize = 8;
const PUBLISHES: usize = 100_000;

fn p99(stuck: bool) -> f64 {
    let runtime = runtime();
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let mut kept: Vec<Subscription> = (0..HEALTHY)
        .map(|_| hub.subscribe(&EVENTS).spawn(|_: Delivery<'_, Event>| ()).expect("a subscriber"))
        .collect();
    if stuck {
        let queue = Queue::bounded(BOUND).on_full(Overflow::DropNewest);
        kept.push(hub.subscribe(&EVENTS).queue(queue).spawn_with(|| Stuck).expect("a subscriber"));
    }
    let publisher = hub.publisher(&EVENTS).expect("a publisher");
    let mut times: Vec<u64> = (0..PUBLISHES as u64)
        .map(|seq| {
            let begun = Instant::now();
            publisher.blocking_publish(Event::new(seq)).expect("published");
            let time = begun.elapsed().as_nanos() as u64;
            // At an even pace, far from the limit: queues stay short and nobody waits for room.
            while begun.elapsed() < Duration::from_micros(5) {
                std::hint::spin_loop();
            }
            time
        })
        .collect();
    drop(kept);
    hub.blocking_shutdown(Duration::ZERO);
    times.sort_unstable();
    times[times.len() * 99 / 100] as f64
}
