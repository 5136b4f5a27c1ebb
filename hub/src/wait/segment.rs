//! [`Segment`]: some events of one lane of a log, side by side. [`Remainder`]: the events kept for
//! a reader that has left.

use crate::sync::{Arc, AtomicU64, Ordering, Slot};
use crate::wait::lane::LANES;

/// A part of one lane.
#[derive(Debug)]
pub(crate) struct Segment<V> {
    pub(crate) base: u64,
    /// The position of the next segment. If its events are heavy, a segment ends before all slots
    /// are used.
    pub(crate) end: AtomicU64,
    pub(crate) slots: Box<[Slot<V>]>,
}

impl<V> Segment<V> {
    pub(crate) fn new(base: u64, events: u64) -> Arc<Segment<V>> {
        let end = AtomicU64::new(base + events);
        Arc::new(Segment { base, end, slots: (0..events).map(|_| Slot::new()).collect() })
    }

    /// The slots from one position up to another, exclusive.
    pub(crate) fn slots(&self, from: u64, to: u64) -> &[Slot<V>] {
        let end = to.min(self.end()).saturating_sub(self.base) as usize;
        let start = from.saturating_sub(self.base) as usize;
        self.slots.get(start..end).unwrap_or(&[])
    }

    #[inline]
    pub(crate) fn holds(&self, at: u64) -> bool {
        at >= self.base && at < self.end()
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, at: u64) -> Option<&V> {
        self.slots.get(at.checked_sub(self.base)? as usize)?.get()
    }
}

/// The events for a reader that has left: its segments, and where each lane ends.
#[derive(Debug)]
pub(crate) struct Remainder<V> {
    pub(crate) segments: [Vec<Arc<Segment<V>>>; LANES],
    pub(crate) end: [u64; LANES],
}

impl<V> Remainder<V> {
    pub(crate) fn segment(&self, lane: usize, at: u64) -> Option<&Arc<Segment<V>>> {
        self.segments[lane].iter().find(|segment| segment.holds(at))
    }

    pub(crate) fn get(&self, lane: usize, at: u64) -> Option<&V> {
        self.segment(lane, at)?.get(at)
    }

    /// The part of it that ends earlier.
    pub(crate) fn before(&self, end: [u64; LANES], done: impl Fn(usize) -> u64) -> Remainder<V> {
        let segments = std::array::from_fn(|lane| {
            let left = |one: &&Arc<Segment<V>>| one.base < end[lane] && one.end() > done(lane);
            self.segments[lane].iter().filter(left).cloned().collect()
        });
        Remainder { segments, end }
    }
}
