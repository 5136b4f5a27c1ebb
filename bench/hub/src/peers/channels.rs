//! Channels: tokio's two, async-broadcast, and crossbeam with a thread per subscriber.

use std::sync::Arc;
use std::thread;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{broadcast, mpsc};

use crate::case::{BATCH, BOUND, Case, Event, Running, Sink, Started, Tally, Total, runtime};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case { memory: true, share: dear, ..Case::new("tokio mpsc", TokioMpsc::start) },
        Case {
            memory: true,
            share: cheap,
            bounded: false,
            ..Case::new("tokio broadcast (ring >= all events)", TokioBroadcast::start)
        },
        Case { memory: true, ..Case::new("async-broadcast", AsyncBroadcast::start) },
        // A thousand threads would measure the scheduler of the machine.
        Case { most: 64, share: cheap, ..Case::new("crossbeam (thread each)", Crossbeam::start) },
    ]
}

/// Woken for nearly every event, a task is several times dearer than a broadcast.
fn dear(subscribers: usize) -> f64 {
    if subscribers > 2048 { 1.0 } else { 0.5 }
}

/// 20 to 50 ns per delivery with many subscribers: over too soon otherwise.
fn cheap(subscribers: usize) -> f64 {
    if subscribers >= 64 { 2.0 } else { 1.0 }
}

/// A bounded queue and a task per subscriber.
struct TokioMpsc {
    queues: Vec<mpsc::Sender<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
    _runtime: Runtime,
}

impl TokioMpsc {
    fn start(subscribers: usize, _events: usize) -> Started {
        let (runtime, total) = (runtime(), Total::new());
        let subscribe = |_| {
            let (queue, mut events) = mpsc::channel::<Arc<Event>>(BOUND);
            let mut sink = Sink::new(&total);
            runtime.spawn(async move {
                // Grows with what arrives: an idle subscriber pays nothing for it.
                let mut batch = Vec::new();
                while events.recv_many(&mut batch, BATCH).await > 0 {
                    batch.drain(..).for_each(|event| sink.take(&event));
                }
            });
            queue
        };
        let queues = (0..subscribers).map(subscribe).collect();
        Started::Shared(Box::new(TokioMpsc { queues, subscribers, total, _runtime: runtime }))
    }
}

impl Running<Arc<Event>> for TokioMpsc {
    fn publish(&mut self, event: Arc<Event>) {
        for queue in &self.queues {
            // `blocking_send` prepares to park before it looks for room; asking first is cheaper.
            if let Err(TrySendError::Full(event)) = queue.try_send(event.clone()) {
                let _ = queue.blocking_send(event);
            }
        }
    }

    fn finish(&mut self) -> Tally {
        self.queues.clear();
        self.total.wait(self.subscribers)
    }
}

/// One ring for all. It overwrites what a slow subscriber has not read; so it gets as many slots
/// as there are events, which is more memory than any bounded peer has.
struct TokioBroadcast {
    ring: Option<broadcast::Sender<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
    _runtime: Runtime,
}

impl TokioBroadcast {
    fn start(subscribers: usize, events: usize) -> Started {
        let (runtime, total) = (runtime(), Total::new());
        let ring = broadcast::Sender::<Arc<Event>>::new(events.max(BOUND));
        for _ in 0..subscribers {
            let mut events = ring.subscribe();
            let mut sink = Sink::new(&total);
            runtime.spawn(async move {
                // Also ends with `Lagged`, and then the tally is short.
                while let Ok(event) = events.recv().await {
                    sink.take(&event);
                    drain(&mut events, &mut sink).await;
                }
            });
        }
        let ring = Some(ring);
        Started::Shared(Box::new(TokioBroadcast { ring, subscribers, total, _runtime: runtime }))
    }
}

/// Takes what is there, without a future for each: 19 instead of 30 ns with 64 subscribers or more.
/// (The same makes no difference to async-broadcast.)
async fn drain(events: &mut broadcast::Receiver<Arc<Event>>, sink: &mut Sink) {
    for _ in 0..BATCH {
        match events.try_recv() {
            Ok(event) => sink.take(&event),
            Err(_) => return,
        }
    }
    // `try_recv` does not count as work; without this the others on the worker would starve.
    tokio::task::yield_now().await;
}

impl Running<Arc<Event>> for TokioBroadcast {
    fn publish(&mut self, event: Arc<Event>) {
        if let Some(ring) = &self.ring {
            let _ = ring.send(event);
        }
    }

    fn finish(&mut self) -> Tally {
        self.ring = None;
        self.total.wait(self.subscribers)
    }
}

/// One queue for all, and the publisher waits for the slowest.
struct AsyncBroadcast {
    queue: Option<async_broadcast::Sender<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
    _runtime: Runtime,
}

impl AsyncBroadcast {
    fn start(subscribers: usize, _events: usize) -> Started {
        let (runtime, total) = (runtime(), Total::new());
        let (queue, first) = async_broadcast::broadcast::<Arc<Event>>(BOUND);
        for _ in 0..subscribers {
            let mut events = first.clone();
            let mut sink = Sink::new(&total);
            runtime.spawn(async move {
                while let Ok(event) = events.recv_direct().await {
                    sink.take(&event);
                }
            });
        }
        let queue = Some(queue);
        Started::Shared(Box::new(AsyncBroadcast { queue, subscribers, total, _runtime: runtime }))
    }
}

impl Running<Arc<Event>> for AsyncBroadcast {
    fn publish(&mut self, event: Arc<Event>) {
        if let Some(queue) = &self.queue {
            let _ = queue.broadcast_blocking(event);
        }
    }

    fn finish(&mut self) -> Tally {
        self.queue = None;
        self.total.wait(self.subscribers)
    }
}

/// A bounded queue and a thread per subscriber.
struct Crossbeam {
    queues: Vec<crossbeam_channel::Sender<Arc<Event>>>,
    subscribers: usize,
    total: Arc<Total>,
}

impl Crossbeam {
    fn start(subscribers: usize, _events: usize) -> Started {
        let total = Total::new();
        let subscribe = |_| {
            let (queue, events) = crossbeam_channel::bounded::<Arc<Event>>(BOUND);
            let mut sink = Sink::new(&total);
            thread::spawn(move || events.iter().for_each(|event| sink.take(&event)));
            queue
        };
        let queues = (0..subscribers).map(subscribe).collect();
        Started::Shared(Box::new(Crossbeam { queues, subscribers, total }))
    }
}

impl Running<Arc<Event>> for Crossbeam {
    fn publish(&mut self, event: Arc<Event>) {
        for queue in &self.queues {
            let _ = queue.send(event.clone());
        }
    }

    fn finish(&mut self) -> Tally {
        self.queues.clear();
        self.total.wait(self.subscribers)
    }
}
