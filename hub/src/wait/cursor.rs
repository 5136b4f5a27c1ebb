//! [`Cursor`]: one subscriber's place in a log, as others see it.
//!
//! **Invariant:** the cursor moves past an event only when the subscriber is done with it, so what
//! a reader held when it died is still before its cursor; nobody but its reader moves it.
//!
//! # Taking events from a reader that does not come back
//!
//! A handler may hang. What waits behind it is then taken by somebody else, and no event may be
//! taken that the reader handles. The reader shows where it is before every event, then looks
//! whether it was told to stop, and only then handles the event. It moves a lane on before it lets
//! the event go. The other side does the same in reverse: it tells the reader to stop, then looks
//! where the reader is, at the event in hand first. One of the two sees the other. What the reader
//! had in hand stays its own.
//!
//! The reader shows and looks without a fence, because it does so for every event. A store of its
//! may therefore be seen late, by as long as a processor keeps it to itself: below a microsecond.
//! Whoever takes events waits for [`SETTLED`] between telling the reader and looking, unless it only
//! drops and counts them.

use std::time::Duration;

use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::wait::lane::LANES;
use crate::wait::segment::Remainder;
use crate::wait::signal::Signal;

/// How long a reader's store may take to be seen by others, and much more.
pub(crate) const SETTLED: Duration = Duration::from_millis(1);

/// The part of a reader that publishers see.
#[derive(Debug)]
pub(crate) struct Cursor<V> {
    /// Whose it is, for finding cycles.
    pub(crate) owner: u64,
    pub(crate) bound: u64,
    pub(crate) bytes_bound: u64,
    pub(crate) signal: Signal,
    pub(crate) done: [AtomicU64; LANES],
    pub(crate) bytes: AtomicU64,
    /// A publisher waits for this one.
    pub(crate) wanted: AtomicBool,
    gone: AtomicBool,
    /// How many it will have read in all, once it has left. Once its reader was replaced, the place
    /// behind the event that one had in hand.
    pub(crate) end: AtomicU64,
    /// The lane of the event in hand, plus 1; 0 if there is none.
    pub(crate) hand: AtomicU8,
    /// Odd while its reader is inside the user's code. Counts up, and around.
    inside: AtomicU8,
    /// Where it stands in the log's list, and when it slept: both under the log's lock.
    place: AtomicU32,
    slept_in: AtomicU64,
    /// What it had not read when it left: its reader reads it here, or others take it.
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

    /// What it has still to read, after it left.
    pub(crate) fn remaining(&self) -> u64 {
        self.end.load(Ordering::Acquire).saturating_sub(self.progress().0)
    }

    /// Takes what its reader has not come to, from a reader that was told to stop and does not
    /// come back. What it has in hand stays its own.
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
        drop(remainder); // the user's payloads, without the lock
        self.end.store(0, Ordering::Release);
        stolen
    }

    /// Where each lane goes on behind what its reader has in hand. The hand is looked at first.
    fn begun(&self) -> [u64; LANES] {
        let hand = usize::from(self.hand.load(Ordering::Acquire));
        std::array::from_fn(|lane| self.done(lane) + u64::from(hand == lane + 1))
    }

    /// Where its reader is: how often it entered or left the user's code, at which place, and
    /// whether it has an event in hand.
    pub(crate) fn shown(&self) -> (u32, u64, bool) {
        let hand = self.in_hand();
        let inside = u32::from(self.inside.load(Ordering::Acquire));
        (inside, hand.map_or(0, |(_, at)| at), hand.is_some())
    }

    /// The lane and the place of the event in hand.
    pub(crate) fn in_hand(&self) -> Option<(usize, u64)> {
        let lane = usize::from(self.hand.load(Ordering::Acquire)).checked_sub(1)?;
        Some((lane, self.done(lane)))
    }

    /// The reader enters the user's code, or has left it.
    #[inline]
    pub(crate) fn is_inside(&self, is: bool) {
        let before = self.inside.load(Ordering::Relaxed);
        if (before % 2 == 1) != is {
            self.inside.store(before.wrapping_add(1), Ordering::Release);
        }
    }

    /// Its reader was replaced.
    pub(crate) fn lost(&self) {
        self.end.store(self.in_hand().map_or(0, |(_, at)| at + 1), Ordering::Release);
    }

    /// A cursor that goes on behind the event in hand.
    pub(crate) fn successor(&self) -> Arc<Cursor<V>> {
        let next = Cursor::new(self.owner, self.bound, self.bytes_bound);
        for (lane, at) in self.begun().into_iter().enumerate() {
            next.done[lane].store(at, Ordering::Relaxed);
        }
        next
    }

    /// So many bytes are done with before its reader begins.
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

    /// It takes the place of one that had left the log: what is left is for this one.
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
