//! [`Queue`] and [`Overflow`]: how far a subscriber may fall behind, and what happens then.

use std::time::Duration;

/// How many events wait for a subscriber unless it says otherwise.
const EVENTS: usize = 1024;

/// What happens to an event when a subscriber's queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// The publisher waits: nothing is lost. The default.
    #[default]
    Block,
    /// The publisher waits for this long; then the event is dropped for this subscriber. `try_publish`
    /// does not wait, so it drops at once.
    BlockFor(Duration),
    /// The event is dropped for this subscriber.
    DropNewest,
    /// The event that waited longest is dropped for this subscriber.
    DropOldest,
    /// Of each key and priority only the newest event waits; a newer one takes its place.
    KeepLatest,
    /// The subscriber is stopped, and a critical notice is published. What waited for it goes to the
    /// others of its group, as far as they have room, or to the dead letters. The event that did not
    /// fit is dropped and counted.
    Detach,
}

/// The bounds of a subscriber's queue.
///
/// ```
/// use artel_hub::{Overflow, Queue};
///
/// let queue = Queue::bounded(256).bytes(1024 * 1024).on_full(Overflow::DropOldest);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub(crate) events: usize,
    pub(crate) bytes: u64,
    pub(crate) overflow: Overflow,
}

pub(crate) type Bounds = Queue;

impl Queue {
    /// At most this many events wait beside the one being handled (under [`Overflow::Block`], unless
    /// in a group, it counts as well); 0 is refused when subscribing. A publisher that waits is woken
    /// when a quarter is free, or a second later if there is any room.
    pub fn bounded(events: usize) -> Queue {
        Queue { events, bytes: u64::MAX, overflow: Overflow::Block }
    }

    /// At most this many bytes wait, by the [weight](crate::Topic::weighed) of their topics. One
    /// event always fits.
    pub fn bytes(mut self, bytes: u64) -> Queue {
        self.bytes = bytes;
        self
    }

    /// What happens when it is full.
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
