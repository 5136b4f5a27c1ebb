//! [`Queue`] and [`Overflow`]: how far a subscriber may fall behind, and what happens then.

use std::time::Duration;

/// How many events may wait for a subscriber by default.
const EVENTS: usize = 1024;

/// What happens to an event when a subscriber's queue is full.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Overflow, Queue, Topic};
/// const PRICE: Topic<u32> = Topic::new("price");
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let _display = hub
///     .subscribe(&PRICE)
///     .queue(Queue::bounded(8).on_full(Overflow::KeepLatest))
///     .spawn(move |price: Delivery<'_, u32>| send.send(*price))?;
/// hub.publish_batch(&PRICE, [10, 11, 12]).await?; // before the subscriber runs
/// hub.idle().await;
/// assert_eq!(received.try_iter().collect::<Vec<_>>(), [12]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The publisher waits, so no event is lost. The default.
    #[default]
    Block,
    /// The publisher waits for this long. Then the event is dropped for this subscriber.
    /// `try_publish` does not wait, so it drops at once.
    BlockFor(Duration),
    /// The event is dropped for this subscriber.
    DropNewest,
    /// The event that has waited longest is dropped for this subscriber.
    DropOldest,
    /// Only the newest event of each key and priority waits. A newer event replaces it, even if the
    /// queue is not full.
    KeepLatest,
    /// The subscriber is stopped, and a critical notice is published. Its waiting events go to the
    /// other members of its group as far as they have room, or else to the dead letters. The event
    /// that did not fit is dropped and counted.
    Detach,
}

/// The bounds of a subscriber's queue.
///
/// ```
/// use artel_hub::{Overflow, Queue};
///
/// let queue = Queue::bounded(256).bytes(1024 * 1024).on_full(Overflow::DropOldest);
/// assert_ne!(queue, Queue::default()); // 1024 events, any number of bytes, publishers wait
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub(crate) events: usize,
    pub(crate) bytes: u64,
    pub(crate) overflow: Overflow,
}

pub(crate) type Bounds = Queue;

impl Queue {
    /// At most this many events wait, not counting the one being handled. Under [`Overflow::Block`]
    /// outside a group, that one counts, too. 0 is refused when subscribing. A waiting publisher is
    /// woken when a quarter of the queue is free, or after a second if there is any room.
    pub fn bounded(events: usize) -> Queue {
        Queue { events, bytes: u64::MAX, overflow: Overflow::Block }
    }

    /// At most this many bytes wait, by the [weight](crate::Topic::weighed) of their topics. One
    /// event always fits.
    pub fn bytes(mut self, bytes: u64) -> Queue {
        self.bytes = bytes;
        self
    }

    /// What happens when the queue is full.
    pub fn on_full(mut self, overflow: Overflow) -> Queue {
        self.overflow = overflow;
        self
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::bounded(EVENTS)
    }
}
