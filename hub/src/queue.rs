//! [`Queue`]: the own queue of a subscriber that may lose events, or that shares them in a group.
//!
//! **Invariant:** never more than its bounds wait in it, beside the event being handled, and what
//! it had to drop is handed back to the publisher and told to the subscriber.
//!
//! Subscribers that lose nothing share a [log](crate::log) instead, which is far cheaper.

use std::collections::VecDeque;

use crate::lane::{LANES, Turn};
use crate::overflow::{Bounds, Overflow};
use crate::signal::Signal;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering};

/// How many events a reader takes at a time, at most.
const HANDFUL: usize = 32;

#[derive(Debug)]
struct Waiting<V> {
    value: V,
    bytes: u64,
    /// How many were lost since the one before it.
    lagged: u64,
}

#[derive(Debug)]
struct State<V> {
    lanes: [VecDeque<Waiting<V>>; LANES],
    count: usize,
    bytes: u64,
    /// Lost after the last that waits, and before the first.
    lagged: u64,
    lagged_first: u64,
    asleep: bool,
    closed: bool,
    writers: Vec<Arc<Signal>>,
}

/// A bounded queue with one reader.
#[derive(Debug)]
pub(crate) struct Queue<V> {
    /// Whose it is, for finding cycles.
    pub(crate) owner: u64,
    pub(crate) bounds: Bounds,
    pub(crate) signal: Signal,
    state: Mutex<State<V>>,
    in_hand: AtomicUsize,
    same: fn(&V, &V) -> bool,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<V> {
    /// It waits for the subscriber.
    Queued,
    /// These had to go; `queued` tells whether it waits now, else it is one of them.
    Instead { dropped: Vec<V>, queued: bool },
    /// There was no room for it.
    Dropped(V),
    /// There was no room, so the subscriber is to be detached.
    Detach(V),
    /// The subscriber is leaving or has left.
    Closed(V),
}

impl<V> Queue<V> {
    /// `same` tells which waiting event a newer one replaces under [`Overflow::KeepLatest`].
    pub(crate) fn new(owner: u64, bounds: Bounds, same: fn(&V, &V) -> bool) -> Queue<V> {
        Queue {
            owner,
            bounds,
            signal: Signal::new(),
            state: Mutex::new(State {
                lanes: std::array::from_fn(|_| VecDeque::new()),
                count: 0,
                bytes: 0,
                lagged: 0,
                lagged_first: 0,
                asleep: false,
                closed: false,
                writers: Vec::new(),
            }),
            in_hand: AtomicUsize::new(0),
            same,
        }
    }

    /// Waiting or in hand.
    pub(crate) fn behind(&self) -> u64 {
        let state = self.state.lock();
        (state.count + self.in_hand.load(Ordering::Acquire)) as u64
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.lock();
        state.closed || self.fits(&state, bytes)
    }

    fn fits(&self, state: &State<V>, bytes: u64) -> bool {
        // What is being handled does not wait any more.
        let held = state.count + self.in_hand.load(Ordering::Acquire).saturating_sub(1);
        // One event always fits, however large.
        held == 0
            || (held < self.bounds.events && state.bytes.saturating_add(bytes) <= self.bounds.bytes)
    }

    /// Has the signal woken when there is room, unless there is.
    pub(crate) fn wait(&self, bytes: u64, signal: &Arc<Signal>) -> bool {
        let mut state = self.state.lock();
        if state.closed || self.fits(&state, bytes) {
            return false;
        }
        crate::signal::remember(&mut state.writers, signal);
        true
    }

    /// Puts an event at the end, or does what the policy says when there is no room. Never waits.
    pub(crate) fn push(&self, lane: usize, value: V, bytes: u64) -> Pushed<V> {
        let mut state = self.state.lock();
        if state.closed {
            return Pushed::Closed(value);
        }
        let mut instead = Vec::new();
        match self.bounds.overflow {
            Overflow::KeepLatest => {
                let line = &mut state.lanes[lane];
                let place = line.iter().position(|old| (self.same)(&old.value, &value));
                if let Some(old) = place.and_then(|place| line.remove(place)) {
                    state.count -= 1;
                    state.bytes -= old.bytes;
                    state.lagged += old.lagged + 1;
                    instead.push(old.value);
                }
                self.make_room(&mut state, bytes, &mut instead);
            }
            Overflow::DropOldest => self.make_room(&mut state, bytes, &mut instead),
            Overflow::Detach if !self.fits(&state, bytes) => return Pushed::Detach(value),
            Overflow::BlockFor(_) | Overflow::DropNewest if !self.fits(&state, bytes) => {
                state.lagged += 1;
                return Pushed::Dropped(value);
            }
            _ => {}
        }
        // Under Block the publisher has waited for room: another may have taken it meanwhile, and
        // one more is better than one lost.
        if self.bounds.overflow != Overflow::Block && !self.fits(&state, bytes) {
            state.lagged += 1; // all of the bytes are in the subscriber's hand
            drop(state);
            instead.push(value);
            return Pushed::Instead { dropped: instead, queued: false };
        }
        let lagged = std::mem::take(&mut state.lagged);
        state.lanes[lane].push_back(Waiting { value, bytes, lagged });
        state.count += 1;
        state.bytes += bytes;
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.signal.wake();
        }
        match instead.is_empty() {
            true => Pushed::Queued,
            false => Pushed::Instead { dropped: instead, queued: true },
        }
    }

    /// Drops the oldest of the least urgent until one more fits.
    fn make_room(&self, state: &mut State<V>, bytes: u64, instead: &mut Vec<V>) {
        while !self.fits(state, bytes) {
            let Some(old) = state.lanes.iter_mut().rev().find_map(VecDeque::pop_front) else {
                return;
            };
            state.count -= 1;
            state.bytes -= old.bytes;
            state.lagged_first += old.lagged + 1;
            instead.push(old.value);
        }
    }

    /// Nothing is put in any more; what is in may still be read.
    pub(crate) fn close(&self) {
        let writers = {
            let mut state = self.state.lock();
            state.closed = true;
            state.asleep = false;
            std::mem::take(&mut state.writers)
        };
        writers.iter().for_each(|writer| writer.wake());
        self.signal.wake();
    }

    /// Takes what its reader has not taken, from a reader that does not come back.
    pub(crate) fn steal(&self) -> Vec<V> {
        let mut state = self.state.lock();
        state.count = 0;
        let lanes = state.lanes.iter_mut().flat_map(|lane| lane.drain(..));
        lanes.map(|waiting| waiting.value).collect()
    }

    fn take(&self, hand: &mut VecDeque<Waiting<V>>, turn: &mut Turn) {
        let most = match self.bounds.overflow {
            Overflow::KeepLatest => 1, // the newest is not yet known
            _ => (self.bounds.events / 4).clamp(1, HANDFUL),
        };
        let mut state = self.state.lock();
        while hand.len() < most {
            let waiting = std::array::from_fn(|lane| !state.lanes[lane].is_empty());
            let Some(lane) = turn.choose(waiting) else { break };
            turn.took(lane);
            if let Some(mut one) = state.lanes[lane].pop_front() {
                state.count -= 1;
                one.lagged += std::mem::take(&mut state.lagged_first);
                hand.push_back(one);
            }
        }
        self.in_hand.store(hand.len(), Ordering::Release);
        // The one that is handled next does not wait any more: that is room.
        let writers = match hand.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut state.writers),
        };
        drop(state);
        writers.iter().for_each(|writer| writer.wake());
    }
}

/// The one that reads.
#[derive(Debug)]
pub(crate) struct QueueReader<V> {
    queue: Arc<Queue<V>>,
    hand: VecDeque<Waiting<V>>,
    turn: Turn,
}

impl<V> QueueReader<V> {
    pub(crate) fn new(queue: Arc<Queue<V>>) -> QueueReader<V> {
        QueueReader { queue, hand: VecDeque::new(), turn: Turn::new() }
    }

    /// The next event, the same one until [`QueueReader::advance`].
    pub(crate) fn current(&mut self) -> Option<&V> {
        if self.hand.is_empty() {
            self.queue.take(&mut self.hand, &mut self.turn);
        }
        self.hand.front().map(|one| &one.value)
    }

    /// How many were lost before the event in hand. Told once.
    pub(crate) fn lagged(&mut self) -> u64 {
        self.hand.front_mut().map_or(0, |one| std::mem::take(&mut one.lagged))
    }

    pub(crate) fn advance(&mut self) {
        let Some(done) = self.hand.pop_front() else { return };
        let writers = {
            let mut state = self.queue.state.lock();
            state.bytes -= done.bytes;
            self.queue.in_hand.store(self.hand.len(), Ordering::Release);
            std::mem::take(&mut state.writers)
        };
        writers.iter().for_each(|writer| writer.wake());
    }

    pub(crate) fn stretch_ended(&self) -> bool {
        self.hand.is_empty()
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.current().is_none()
    }

    /// Goes to sleep unless there is something to read or the queue is closed. The caller has
    /// registered its waker with the queue's signal.
    pub(crate) fn sleep(&mut self) -> bool {
        let mut state = self.queue.state.lock();
        if state.count > 0 || !self.hand.is_empty() || state.closed {
            return false;
        }
        state.asleep = true;
        true
    }

    /// What is not read yet.
    pub(crate) fn rest(&mut self) -> Vec<V> {
        let mut rest = Vec::new();
        while self.current().is_some() {
            rest.extend(self.hand.drain(..).map(|one| one.value));
            self.queue.in_hand.store(0, Ordering::Release);
        }
        rest
    }
}

impl<V> Drop for QueueReader<V> {
    fn drop(&mut self) {
        self.queue.close();
    }
}
