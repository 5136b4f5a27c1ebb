//! Actors: kameo with its pubsub, and ractor with its output port.

use std::sync::Arc;

use kameo::actor::{ActorRef, Spawn};
use kameo::error::Infallible;
use kameo::mailbox;
use kameo::message::{Context, Message};
use kameo_actors::DeliveryStrategy;
use kameo_actors::pubsub::PubSub;
use ractor::{ActorProcessingErr, OutputPort};
use tokio::runtime::Runtime;

use crate::case::{BOUND, Case, Event, Running, Sink, Started, Tally, Total, runtime};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case { memory: true, share: kameo_share, ..Case::new("kameo pubsub", Kameo::start) },
        Case {
            memory: true,
            share: ractor_share,
            bounded: false,
            ..Case::new("ractor output port v2 (unbounded)", Ractor::start)
        },
    ]
}

/// 0.5 to 1.5 us per delivery.
fn kameo_share(subscribers: usize) -> f64 {
    if subscribers > 2048 { 1.0 } else { 0.3 }
}

/// 0.2 to 0.4 us per delivery.
fn ractor_share(subscribers: usize) -> f64 {
    if subscribers > 2048 { 1.0 } else { 0.5 }
}

/// One subscriber of kameo.
struct KameoSubscriber {
    sink: Sink,
}

impl kameo::Actor for KameoSubscriber {
    type Args = Sink;
    type Error = Infallible;

    async fn on_start(sink: Sink, _: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(KameoSubscriber { sink })
    }
}

impl Message<Arc<Event>> for KameoSubscriber {
    type Reply = ();

    async fn handle(&mut self, event: Arc<Event>, _: &mut Context<Self, ()>) {
        self.sink.take(&event);
    }
}

/// `PubSub` as an object in the hands of the publisher, which its documentation offers beside
/// `PubSub` as an actor: the actor costs another hop (1055, 864, 1119 against 851, 784, 638 ns with
/// 1, 4, 64 subscribers). `Guaranteed` is the one strategy that waits for room.
struct Kameo {
    pubsub: Option<PubSub<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
    runtime: Runtime,
}

impl Kameo {
    fn start(subscribers: usize, _events: usize) -> Started {
        let (runtime, total) = (runtime(), Total::new());
        let mut pubsub = PubSub::new(DeliveryStrategy::Guaranteed);
        let inside = runtime.enter();
        for _ in 0..subscribers {
            let mailbox = mailbox::bounded(BOUND);
            pubsub.subscribe(KameoSubscriber::spawn_with_mailbox(Sink::new(&total), mailbox));
        }
        drop(inside);
        let pubsub = Some(pubsub);
        Started::Shared(Box::new(Kameo { pubsub, subscribers, total, runtime }))
    }
}

impl Running<Arc<Event>> for Kameo {
    fn publish(&mut self, event: Arc<Event>) {
        if let Some(pubsub) = &mut self.pubsub {
            self.runtime.block_on(pubsub.publish(event));
        }
    }

    fn finish(&mut self) -> Tally {
        // An actor ends when it has drained and nobody can reach it any more.
        self.pubsub = None;
        self.total.wait(self.subscribers)
    }
}

/// One subscriber of ractor; `None` is the last it gets.
struct RactorSubscriber;

impl ractor::Actor for RactorSubscriber {
    type Msg = Option<Arc<Event>>;
    type State = Sink;
    type Arguments = Sink;

    async fn pre_start(
        &self,
        _: ractor::ActorRef<Self::Msg>,
        sink: Sink,
    ) -> Result<Sink, ActorProcessingErr> {
        Ok(sink)
    }

    async fn handle(
        &self,
        myself: ractor::ActorRef<Self::Msg>,
        message: Self::Msg,
        sink: &mut Sink,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Some(event) => sink.take(&event),
            None => myself.stop(None),
        }
        Ok(())
    }
}

/// Its mailboxes have no bound, nor has its output port. Version 1 of the port loses events beyond
/// ten; version 2 (a feature) does not, and since it hands over 32 at a time it is also cheaper
/// than a `cast` per actor (456, 295, 227 against 1117, 372, 411 ns with 1, 4, 64 subscribers).
struct Ractor {
    port: OutputPort<Option<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
    _runtime: Runtime,
}

impl Ractor {
    fn start(subscribers: usize, _events: usize) -> Started {
        let (runtime, total) = (runtime(), Total::new());
        let port = runtime.block_on(async {
            let port = OutputPort::default();
            for _ in 0..subscribers {
                let sink = Sink::new(&total);
                let spawned = ractor::Actor::spawn(None, RactorSubscriber, sink).await;
                port.subscribe(spawned.expect("an actor").0, Some);
            }
            port
        });
        Started::Shared(Box::new(Ractor { port, subscribers, total, _runtime: runtime }))
    }
}

impl Running<Arc<Event>> for Ractor {
    fn publish(&mut self, event: Arc<Event>) {
        self.port.send(Some(event));
    }

    fn finish(&mut self) -> Tally {
        self.port.send(None);
        self.total.wait(self.subscribers)
    }
}
