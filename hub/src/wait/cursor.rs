//! [`Cursor`]: one subscriber's position in a log, as others see it.
//!
//! **Invariant:** the cursor moves past an event only when the subscriber is done with it. So it
//! still points at the event that a reader held when it died. Only the reader moves its cursor.
//!
//! # Taking events from a reader that does not return
//!
//! A handler may hang. Then others take the events that wait behind it, but never the event that
//! the reader is handling. The protocol has two sides:
//!
//! * The reader shows its position before every event, then checks its orders, and only then
//!   handles the event. Afterwards it first advances the lane and then clears the hand.
//! * The other side first orders the reader to stop. Then it reads the reader's position, the hand
//!   first.
//!
//! So at least one of the two sees the other. The event in the reader's hand stays with the reader.
//!
//! The reader stores and checks without a fence, because it does so for every event. Its store may
//! therefore become visible late, by less than a microsecond. A thread that takes events waits for
//! [`SETTLED`] between the order and the check, unless it only drops and counts the events.

use std::time::Duration;

use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::wait::lane::LANES;
use crate::wait::segment::Remainder;
use crate::wait::signal::Signal;

/// How long it may take until a reader's store is visible to others, with a large margin.
pub(crate) const SETTLED: Duration = Duration::from_millis(1);

/// The part of a reader that publishers see.
#[derive(Debug)]
pub(crate) struct Cursor<V> {
    /// The subscriber, for finding cycles.
    pub(crate) owner: u64,
    pub(crate) bound: u64,
    pub(crate) bytes_bound: u64,
    pub(crate) signal: Signal,
    pub(crate) done: [AtomicU64; LANES],
    pub(crate) bytes: AtomicU64,
    /// A publisher waits for this reader.
    pub(crate) wanted: AtomicBool,
    gone: AtomicBool,
    /// After it left: how many events it will have read in total. After its reader was replaced:
    /// the position after the event that this reader had in hand.
    pub(crate) end: AtomicU64,
    /// The lane of the event in hand, plus 1. 0 if there is none.
    pub(crate) hand: AtomicU8,
    /// Odd while the reader is inside user code. Counts up and wraps around.
    inside: AtomicU8,
    /// Its index in the log's list, and the epoch in which it slept. Both under the log's lock.
    place: AtomicU32,
    slept_in: AtomicU64,
    /// The events it had not read when it left. Its reader reads them here, or others take them.
    pub(crate) remainder: Mutex<Option<Arc<Remainder<V>>>>,
}

impl<V> Cursor<V> {
    pub(crate) fn new(owner: u64, bound: u64, bytes_bound: u64) -> Arc<Cursor<V>> {
        Arc::new(Cursor {
            owner,
            bound,
            bytes_bound,
            signal: Signal::new(),
            done: std::array::from_fn(|_| AtomicU64::new(0)),
            bytes: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            end: AtomicU64::new(0),
            hand: AtomicU8::new(0),
            inside: AtomicU8::new(0),
            place: AtomicU32::new(0),
            slept_in: AtomicU64::new(0),
            remainder: Mutex::new(None),
        })
    }

    pub(crate) fn start(&self, heads: [u64; LANES], bytes: u64, place: usize) {
        for (lane, head) in heads.into_iter().enumerate() {
            self.done[lane].store(head, Ordering::Relaxed);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        self.moved(place);
    }

    pub(crate) fn done(&self, lane: usize) -> u64 {
        self.done[lane].load(Ordering::Acquire)
    }

    /// Events and bytes it is done with, over all lanes.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let bytes = self.bytes.load(Ordering::Acquire);
        ((0..LANES).map(|lane| self.done(lane)).sum(), bytes)
    }

    pub(crate) fn wanted(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    pub(crate) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn moved(&self, place: usize) {
        self.place.store(place as u32, Ordering::Relaxed);
    }

    pub(crate) fn slept_in(&self) -> u64 {
        self.slept_in.load(Ordering::Relaxed)
    }

    pub(crate) fn sleeps_in(&self, epoch: u64) {
        self.slept_in.store(epoch, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// How many events it still has to read after it left.
    pub(crate) fn remaining(&self) -> u64 {
        self.end.load(Ordering::Acquire).saturating_sub(self.progress().0)
    }

    /// Takes the events that the reader has not reached. The reader was ordered to stop and has not
    /// returned. The event in its hand stays with it.
    pub(crate) fn take_waiting(&self) -> Vec<V>
    where
        V: Clone,
    {
        let mut kept = self.remainder.lock();
        let Some(remainder) = kept.take() else { return Vec::new() };
        let begun = self.begun();
        let from = std::array::from_fn(|lane| begun[lane].min(remainder.end[lane]));
        let stolen = (0..LANES)
            .flat_map(|lane| (from[lane]..remainder.end[lane]).map(move |at| (lane, at)))
            .filter_map(|(lane, at)| remainder.get(lane, at).cloned())
            .collect();
        *kept = Some(Arc::new(remainder.before(from, |lane| self.done(lane))));
        drop(kept);
        drop(remainder); // payloads are user code: drop them without the lock
        self.end.store(0, Ordering::Release);
        stolen
    }

    /// For each lane, the position after the event in hand. Reads the hand first.
    fn begun(&self) -> [u64; LANES] {
        let hand = usize::from(self.hand.load(Ordering::Acquire));
        std::array::from_fn(|lane| self.done(lane) + u64::from(hand == lane + 1))
    }

    /// Where its reader is: how often it entered or left user code, the position of the event in
    /// hand, and whether it has one.
    pub(crate) fn shown(&self) -> (u32, u64, bool) {
        let hand = self.in_hand();
        let inside = u32::from(self.inside.load(Ordering::Acquire));
        (inside, hand.map_or(0, |(_, at)| at), hand.is_some())
    }

    /// The lane and the position of the event in hand.
    pub(crate) fn in_hand(&self) -> Option<(usize, u64)> {
        let lane = usize::from(self.hand.load(Ordering::Acquire)).checked_sub(1)?;
        Some((lane, self.done(lane)))
    }

    /// Records that the reader enters or has left user code.
    #[inline]
    pub(crate) fn is_inside(&self, is: bool) {
        let before = self.inside.load(Ordering::Relaxed);
        if (before % 2 == 1) != is {
            self.inside.store(before.wrapping_add(1), Ordering::Release);
        }
    }

    /// Records that its reader was replaced.
    pub(crate) fn lost(&self) {
        self.end.store(self.in_hand().map_or(0, |(_, at)| at + 1), Ordering::Release);
    }

    /// A cursor that continues after the event in hand.
    pub(crate) fn successor(&self) -> Arc<Cursor<V>> {
        let next = Cursor::new(self.owner, self.bound, self.bytes_bound);
        for (lane, at) in self.begun().into_iter().enumerate() {
            next.done[lane].store(at, Ordering::Relaxed);
        }
        next
    }

    /// Sets the bytes that are done before its reader begins.
    pub(crate) fn starts_with(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// An event that was kept for it when it left.
    pub(crate) fn kept(&self, lane: usize, at: u64) -> Option<V>
    where
        V: Clone,
    {
        self.remainder.lock().as_ref()?.get(lane, at).cloned()
    }

    /// Takes over the remaining events of a cursor that has left the log.
    pub(crate) fn inherit(&self, old: &Cursor<V>) {
        let remainder = old.remainder.lock().take();
        self.end.store(old.end.swap(0, Ordering::AcqRel), Ordering::Release);
        *self.remainder.lock() = remainder;
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn left(&self, remainder: Option<Remainder<V>>) {
        let end = remainder.as_ref().map_or(0, |remainder| remainder.end.iter().sum());
        self.end.store(end, Ordering::Release);
        *self.remainder.lock() = remainder.map(Arc::new);
        self.gone.store(true, Ordering::Release);
    }
}
