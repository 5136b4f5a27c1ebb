//! Event buses: jaeb in both of its lanes, and qubit-event-bus.

use std::num::NonZeroUsize;
use std::sync::Arc;

use jaeb::{EventBus, EventHandler, HandlerResult, SyncEventHandler};
use qubit_event_bus::facade::DeliverySchedulingConfig;
use qubit_event_bus::local::LocalEventBusConfig;
use qubit_event_bus::model::{
    AdmissionRequirement, Delivery, PublishRequest, SubscribeRequest, Topic,
};
use qubit_event_bus::{
    AsyncEventBus, AsyncEventBusRegistry, DeliveryError, EventBusConfig, EventBusFacadeConfig,
};
use tokio::runtime::Runtime;

use crate::case::{Case, Event, Kind, Running, SharedSink, Started, Tally, runtime};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            share: jaeb_share,
            bounded: false,
            ..Case::new("jaeb (task per delivery, unbounded)", |n, _| Jaeb::start::<true>(n))
        },
        Case {
            kind: Kind::Inline,
            share: inline_share,
            bounded: false,
            ..Case::new("jaeb sync (inline, no queue) *", |n, _| Jaeb::start::<false>(n))
        },
        Case {
            memory: true,
            share: qubit_share,
            bounded: false,
            ..Case::new("qubit-event-bus (bound = all events)", Qubit::start)
        },
    ]
}

/// Far too slow for as many events as the others: 1.4 to 2.5 us per delivery. It has no bound that
/// 1500 events would have to exceed.
fn jaeb_share(subscribers: usize) -> f64 {
    if subscribers > 2048 { 0.05 } else { 0.1 }
}

/// 6 to 10 ns per delivery with many subscribers: over too soon otherwise.
fn inline_share(subscribers: usize) -> f64 {
    if subscribers >= 64 { 4.0 } else { 1.0 }
}

/// Far too slow for as many events as the others: 8 us per delivery with one subscriber, 67 us with
/// 8192, of which each gets five events. Its bound is the number of events anyway.
fn qubit_share(subscribers: usize) -> f64 {
    match subscribers {
        0..64 => 0.03,
        64..1024 => 0.02,
        _ => 0.0034,
    }
}

/// An async listener: the bus spawns a task for each delivery.
struct Async(Arc<SharedSink>);

impl EventHandler<Event> for Async {
    async fn handle(&self, event: &Event, _: &EventBus) -> HandlerResult {
        self.0.take(event);
        Ok(())
    }
}

/// A sync listener: the publisher runs it, one after the other behind the lock of the lane.
struct Inline(Arc<SharedSink>);

impl SyncEventHandler<Event> for Inline {
    fn handle(&self, event: &Event, _: &EventBus) -> HandlerResult {
        self.0.take_alone(event);
        Ok(())
    }
}

struct Jaeb {
    bus: EventBus,
    /// Read here: handlers hold on to the bus and the bus to them, so neither is ever dropped.
    sinks: Vec<Arc<SharedSink>>,
    runtime: Runtime,
}

impl Jaeb {
    fn start<const ASYNC: bool>(subscribers: usize) -> Started {
        let (runtime, sinks) = (runtime(), SharedSink::some(subscribers));
        let bus = runtime.block_on(async {
            let bus = EventBus::builder().build().await.expect("a bus");
            for sink in &sinks {
                let sink = sink.clone();
                let subscribed = match ASYNC {
                    true => bus.subscribe::<Event, _, _>(Async(sink)).await,
                    false => bus.subscribe::<Event, _, _>(Inline(sink)).await,
                };
                // Stays subscribed when this is dropped.
                let _ = subscribed.expect("subscribed");
            }
            bus
        });
        Started::Owned(Box::new(Jaeb { bus, sinks, runtime }))
    }
}

impl Running<Event> for Jaeb {
    fn publish(&mut self, event: Event) {
        self.runtime.block_on(self.bus.publish(event)).expect("published");
    }

    fn finish(&mut self) -> Tally {
        self.runtime.block_on(self.bus.shutdown()).expect("drained");
        SharedSink::tally(&self.sinks)
    }
}

/// A full queue makes it refuse the event for that subscriber and deliver it to the others; to
/// publish it again would deliver twice. So the bound is the number of events.
struct Qubit {
    bus: AsyncEventBus,
    sinks: Vec<Arc<SharedSink>>,
    published: u64,
    runtime: Runtime,
}

const TOPIC: Topic<Event> = Topic::new_static("orders.created");

impl Qubit {
    fn start(subscribers: usize, events: usize) -> Started {
        let (runtime, sinks) = (runtime(), SharedSink::some(subscribers));
        let bus = runtime.block_on(async {
            let bus = Qubit::bus(subscribers, events).await;
            for (number, sink) in sinks.iter().enumerate() {
                let request = SubscribeRequest::new(&format!("subscriber-{number}"), TOPIC);
                let subscription = bus.subscribe(request.expect("a request")).await;
                let (subscription, sink) = (subscription.expect("subscribed"), sink.clone());
                // One task runs all deliveries of a subscription.
                let take = move |delivery: Delivery<Event>| {
                    sink.take_alone(delivery.payload());
                    std::future::ready(Ok::<(), DeliveryError>(()))
                };
                tokio::spawn(async move { subscription.run(take).await });
            }
            bus
        });
        Started::Owned(Box::new(Qubit { bus, sinks, published: 0, runtime }))
    }

    async fn bus(subscribers: usize, events: usize) -> AsyncEventBus {
        let at_least = |limit: usize| NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MIN);
        let local = LocalEventBusConfig::new()
            .queue_capacity(events.max(1))
            .max_total_outstanding((subscribers * events).max(1));
        // Handlers run inside the two workers of the runtime; its own limit must not hold them up.
        let scheduling = DeliverySchedulingConfig::new(
            at_least(subscribers.max(4)),
            at_least(subscribers * 32),
            at_least(32),
            at_least(subscribers),
        );
        let facade = EventBusFacadeConfig::new()
            .with_delivery_scheduling(scheduling.expect("limits that fit together"));
        let config = EventBusConfig::default()
            .with_provider_options(local.provider_options())
            .with_facade_config(facade);
        let registry = AsyncEventBusRegistry::with_local().expect("the local provider");
        registry.create(&config).await.expect("a bus")
    }
}

impl Running<Event> for Qubit {
    fn publish(&mut self, event: Event) {
        let request = PublishRequest::new(TOPIC, event).expect("a request");
        let all = AdmissionRequirement::AtLeastOneAcceptedAndNoRejected;
        let published = self.runtime.block_on(self.bus.publish_checked(request, all));
        let _ = published.expect("accepted for all subscribers");
        self.published += 1;
    }

    fn finish(&mut self) -> Tally {
        // A graceful shutdown gives up what is still in the queues (half of a million, measured).
        SharedSink::wait(&self.sinks, self.published)
    }
}
