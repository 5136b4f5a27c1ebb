//! [`Publisher`] and [`Receipt`]: how events get into the hub.
//!
//! **Invariant:** a publish is all or nothing. If it has to wait, it waits before anybody sees the
//! event. Then it delivers to everybody without waiting. If it is refused, it returns the payload.
//!
//! # Order
//!
//! Events that one publisher publishes one after the other, under one key and with one priority,
//! reach every subscriber in that order. Between publishers, keys and priorities there is no order.
//! One exception: all subscribers with the same keys that never lose events see the same order.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::error::{PublishError, Refusal};
use crate::event::{AnyEvent, Meta};
use crate::hub_core::{Handle, HubCore};
use crate::publish::attempt::{Attempt, Patience, attempt};
use crate::publish::current::current;
use crate::run::context::thread::block_on;
use crate::topic::{Channel, Topic};
use crate::wait::lane::Priority;
use crate::wait::signal::Signal;

/// How often a blocking publisher retries before it sleeps.
const LOOKS: usize = 4;

/// The result of a publish.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Overflow, Queue, Topic};
/// const PRICES: Topic<u32> = Topic::new("prices");
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let queue = Queue::bounded(2).on_full(Overflow::DropNewest);
/// let _slow = hub.subscribe(&PRICES).queue(queue).spawn(|_: Delivery<'_, u32>| ())?;
/// let receipt = hub.publish_batch(&PRICES, [1, 2, 3]).await?; // before the subscriber runs
/// assert_eq!((receipt.events, receipt.sequence), (3, 3));
/// assert_eq!((receipt.matched, receipt.queued, receipt.dropped), (3, 2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The sequence number of the event under its key. For a batch, that of the last event.
    pub sequence: u64,
    /// How many events were published.
    pub events: u64,
    /// How many deliveries were due: one per event for each subscriber and each group of the key.
    pub matched: u64,
    /// How many deliveries were made: put into a queue, or handled inline.
    pub queued: u64,
    /// How many deliveries were dropped because queues were full. Older events that were dropped to
    /// make room count, too.
    pub dropped: u64,
}

/// Publishes under one key. Made by [`EventHub::publisher`](crate::EventHub::publisher). Each clone
/// is an independent publisher for the same key.
///
/// ```
/// use artel_hub::{EventHub, Priority, Topic};
/// const JOBS: Topic<u32> = Topic::new("jobs");
///
/// let hub = EventHub::new();
/// let jobs = hub.publisher(&JOBS)?; // looks up the key once
/// let urgent = jobs.clone().with_priority(Priority::High);
/// urgent.blocking_publish(1)?;
/// let receipt = jobs.blocking_publish_batch(2..=100)?;
/// assert_eq!((receipt.events, receipt.sequence), (99, 100));
/// assert_eq!((jobs.key(), jobs.subscriber_count()), ("jobs", 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher<T> {
    handle: Arc<Handle>,
    channel: Arc<Channel>,
    weigh: Option<fn(&T) -> usize>,
    priority: Priority,
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Publisher<T> {
        let (handle, channel) = (self.handle.clone(), self.channel.clone());
        Publisher { handle, channel, weigh: self.weigh, priority: self.priority }
    }
}

impl<T> std::fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("key", &self.channel.key()).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Publisher<T> {
    pub(crate) fn new(handle: Arc<Handle>, topic: &Topic<T>) -> Result<Publisher<T>, Refusal> {
        let channel = handle.core.channel(topic)?;
        Ok(Publisher { handle, channel, weigh: topic.weigh, priority: Priority::Normal })
    }

    /// The same publisher with another priority.
    pub fn with_priority(mut self, priority: Priority) -> Publisher<T> {
        self.priority = priority;
        self
    }

    /// The key it publishes under.
    pub fn key(&self) -> &str {
        self.channel.key()
    }

    /// How many subscribers the key has now.
    pub fn subscriber_count(&self) -> usize {
        self.core().routes(&self.channel).subscribers()
    }

    /// Publishes. Waits while a subscriber that may not lose events is full.
    ///
    /// # Cancel safety
    ///
    /// Safe: if the future is dropped before it is ready, the event is not published.
    pub async fn publish(&self, payload: T) -> Result<Receipt, PublishError<T>> {
        let mut event = [Some(self.event(payload)?)];
        match attempt(self.core(), &self.channel, &mut event, Patience::Some) {
            Attempt::Done(receipt) => Ok(receipt),
            Attempt::Refused(reason) => Err(refused(event, reason)),
            Attempt::Wait { .. } => match self.wait(&mut event).await {
                Ok(receipt) => Ok(receipt),
                Err(reason) => Err(refused(event, reason)),
            },
        }
    }

    /// Publishes without waiting. If it would have to wait, it is refused as [`Refusal::Full`].
    pub fn try_publish(&self, payload: T) -> Result<Receipt, PublishError<T>> {
        let mut event = [Some(self.event(payload)?)];
        match attempt(self.core(), &self.channel, &mut event, Patience::None) {
            Attempt::Done(receipt) => Ok(receipt),
            Attempt::Refused(reason) => Err(refused(event, reason)),
            Attempt::Wait { .. } => Err(refused(event, Refusal::Full)),
        }
    }

    /// Publishes. Blocks the thread while a subscriber that may not lose events is full. Not for
    /// async code: use [`Publisher::publish`] there.
    pub fn blocking_publish(&self, payload: T) -> Result<Receipt, PublishError<T>> {
        let mut event = [Some(self.event(payload)?)];
        match self.blocking(&mut event) {
            Ok(receipt) => Ok(receipt),
            Err(reason) => Err(refused(event, reason)),
        }
    }

    /// Publishes many events in order. This is much cheaper than one by one. If it is refused in
    /// the middle, it returns the payloads that were not published.
    ///
    /// # Cancel safety
    ///
    /// Not safe: if the future is dropped before it is ready, the first events may be published and
    /// the others are lost.
    pub async fn publish_batch(
        &self,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Receipt, PublishError<Vec<T>>> {
        let mut events = self.events(payloads)?;
        let (mut receipt, mut next) = (Receipt::default(), 0);
        while next < events.len() {
            let rest = &mut events[next..];
            let made = match attempt(self.core(), &self.channel, rest, Patience::Some) {
                Attempt::Done(made) => Ok(made),
                Attempt::Refused(reason) => Err(reason),
                Attempt::Wait { .. } => self.wait(rest).await,
            };
            match made {
                Ok(made) => next += receipt.add(made),
                Err(reason) => return Err(all_refused(events, reason)),
            }
        }
        Ok(receipt)
    }

    /// [`Publisher::publish_batch`] for threads that may block.
    pub fn blocking_publish_batch(
        &self,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Receipt, PublishError<Vec<T>>> {
        let mut events = self.events(payloads)?;
        match self.blocking(&mut events) {
            Ok(receipt) => Ok(receipt),
            Err(reason) => Err(all_refused(events, reason)),
        }
    }

    fn core(&self) -> &HubCore {
        &self.handle.core
    }

    #[inline]
    fn blocking(&self, events: &mut [Option<AnyEvent>]) -> Result<Receipt, Refusal> {
        let (mut receipt, mut next, mut looks) = (Receipt::default(), 0, 0);
        while next < events.len() {
            let rest = &mut events[next..];
            match attempt(self.core(), &self.channel, rest, Patience::Some) {
                Attempt::Done(made) => next += receipt.add(made),
                Attempt::Refused(reason) => return Err(reason),
                Attempt::Wait { .. } if current(self.core().id()).is_some_and(|at| at.shared) => {
                    return Err(Refusal::WouldBlock);
                }
                Attempt::Wait { .. } if looks < LOOKS => {
                    looks += 1;
                    std::thread::yield_now();
                }
                Attempt::Wait { .. } => {
                    next += receipt.add(block_on(self.wait(rest))?);
                    looks = 0;
                }
            }
        }
        Ok(receipt)
    }

    /// Waits for room, then publishes as many events as fit.
    async fn wait(&self, events: &mut [Option<AnyEvent>]) -> Result<Receipt, Refusal> {
        let core = self.core();
        let (signal, since) = (Arc::new(Signal::new()), Instant::now());
        let (mut edge, mut sleep, mut told) = (None, None, None);
        let patience = Patience::Wait { signal: &signal, since };
        poll_fn(|cx| {
            signal.register(cx.waker());
            match attempt(core, &self.channel, events, patience) {
                Attempt::Done(receipt) => Poll::Ready(Ok(receipt)),
                Attempt::Refused(reason) => Poll::Ready(Err(reason)),
                Attempt::Wait { whom, until } => {
                    (edge, told) = (None, None);
                    told = whom.first().map(|whom| core.waits.publishes(*whom, since));
                    if let Some(at) = current(core.id()) {
                        edge = core.waits.begin(at.subscriber, &whom);
                        if edge.is_none() {
                            return Poll::Ready(Err(Refusal::WouldDeadlock));
                        }
                    }
                    sleep = until.map(|due| Box::pin(core.timer.until(due)));
                    if sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready()) {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    #[inline]
    fn event(&self, payload: T) -> Result<AnyEvent, PublishError<T>> {
        let core = self.core();
        if core.is_closed() {
            return Err(PublishError::new(payload, Refusal::Closed));
        }
        let bytes = match self.weigh {
            None => size_of::<T>() as u64,
            Some(weigh) => match catch_unwind(AssertUnwindSafe(|| weigh(&payload))) {
                Ok(bytes) => bytes as u64,
                Err(_) => return Err(PublishError::new(payload, Refusal::WeighFailed)),
            },
        };
        let most = core.settings.payload_bytes_max;
        if bytes > most {
            return Err(PublishError::new(payload, Refusal::TooLarge { bytes, most }));
        }
        let depth = current(core.id()).map_or(0, |at| at.depth.saturating_add(1));
        if depth > core.settings.depth_max {
            return Err(PublishError::new(payload, Refusal::TooDeep { depth }));
        }
        let mut meta = Meta::new(self.channel.clone(), core.now(), bytes, self.priority);
        meta.sequence = self.channel.next_sequence();
        meta.depth = depth;
        if tracing::enabled!(target: "artel_hub", tracing::Level::DEBUG) {
            let span = tracing::debug_span!(
                target: "artel_hub",
                "publish",
                key = self.channel.key(),
                sequence = meta.sequence
            );
            meta.span = Some(Box::new(span));
        }
        Ok(AnyEvent::new(meta, payload))
    }

    fn events(
        &self,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Option<AnyEvent>>, PublishError<Vec<T>>> {
        let mut payloads = payloads.into_iter();
        let mut events = Vec::with_capacity(payloads.size_hint().0);
        while let Some(payload) = payloads.next() {
            match self.event(payload) {
                Ok(event) => events.push(Some(event)),
                Err(error) => {
                    let reason = error.reason().clone();
                    let mut back: Vec<T> = payloads_of(events);
                    back.push(error.into_payload());
                    back.extend(payloads);
                    return Err(PublishError::new(back, reason));
                }
            }
        }
        Ok(events)
    }
}

impl Receipt {
    fn add(&mut self, other: Receipt) -> usize {
        self.sequence = other.sequence;
        self.events += other.events;
        self.matched += other.matched;
        self.queued += other.queued;
        self.dropped += other.dropped;
        other.events as usize
    }
}

fn refused<T: Send + Sync + 'static>(
    event: [Option<AnyEvent>; 1],
    why: Refusal,
) -> PublishError<T> {
    let [event] = event;
    let payload = event.and_then(AnyEvent::into_payload);
    PublishError::new(payload.expect("nobody has seen an event that was refused"), why)
}

fn all_refused<T: Send + Sync + 'static>(
    events: Vec<Option<AnyEvent>>,
    reason: Refusal,
) -> PublishError<Vec<T>> {
    PublishError::new(payloads_of(events), reason)
}

/// The payloads of the events that were not published.
fn payloads_of<T: Send + Sync + 'static>(events: Vec<Option<AnyEvent>>) -> Vec<T> {
    events.into_iter().flatten().filter_map(AnyEvent::into_payload).collect()
}
