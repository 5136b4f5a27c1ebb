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
use crate::sync::{Arc, Mutex};

/// Events a reader takes before it lets others run.
const STRETCH: u32 = 32;

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
    /// One is being handled; it does not wait any more.
    in_hand: bool,
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
    same: fn(&V, &V) -> bool,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<V> {
    /// It waits for the subscriber.
    Queued,
    /// It waits, and these had to go for it.
    Instead(Vec<V>),
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
                in_hand: false,
                asleep: false,
                closed: false,
                writers: Vec::new(),
            }),
            same,
        }
    }

    /// Waiting or in hand.
    pub(crate) fn behind(&self) -> u64 {
        let state = self.state.lock();
        state.count as u64 + u64::from(state.in_hand)
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.lock();
        state.closed || self.fits(&state, bytes)
    }

    fn fits(&self, state: &State<V>, bytes: u64) -> bool {
        // One event always fits, however large.
        state.count == 0
            || (state.count < self.bounds.events
                && state.bytes.saturating_add(bytes) <= self.bounds.bytes)
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
            false => Pushed::Instead(instead),
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

    /// The next one, which then waits no more: that is room. The one before is done with.
    fn next(&self, turn: &mut Turn) -> Option<Waiting<V>> {
        let mut state = self.state.lock();
        let waiting = std::array::from_fn(|lane| !state.lanes[lane].is_empty());
        let lane = turn.choose(waiting);
        let mut next = lane.and_then(|lane| state.lanes[lane].pop_front());
        state.in_hand = next.is_some();
        let (Some(lane), Some(one)) = (lane, &mut next) else { return None };
        turn.took(lane);
        state.count -= 1;
        state.bytes -= one.bytes;
        one.lagged += std::mem::take(&mut state.lagged_first);
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        writers.iter().for_each(|writer| writer.wake());
        next
    }
}

/// The one that reads.
#[derive(Debug)]
pub(crate) struct QueueReader<V> {
    queue: Arc<Queue<V>>,
    hand: Option<Waiting<V>>,
    turn: Turn,
    taken: u32,
    /// Lost, and not yet told.
    lagged: u64,
}

impl<V> QueueReader<V> {
    pub(crate) fn new(queue: Arc<Queue<V>>) -> QueueReader<V> {
        QueueReader { queue, hand: None, turn: Turn::new(), taken: 0, lagged: 0 }
    }

    /// The next event, the same one until [`QueueReader::advance`].
    pub(crate) fn current(&mut self) -> Option<&V> {
        if self.hand.is_none() {
            self.hand = self.queue.next(&mut self.turn);
        }
        self.hand.as_ref().map(|one| &one.value)
    }

    /// How many were lost before the event in hand, and not yet told.
    pub(crate) fn lagged(&mut self) -> u64 {
        self.lagged += self.hand.as_mut().map_or(0, |one| std::mem::take(&mut one.lagged));
        self.lagged
    }

    pub(crate) fn told_lagged(&mut self) {
        self.lagged = 0;
    }

    pub(crate) fn advance(&mut self) {
        let next = self.queue.next(&mut self.turn);
        let done = std::mem::replace(&mut self.hand, next);
        self.taken = (self.taken + 1) % STRETCH;
        drop(done);
    }

    /// Whether it is time to let others run.
    pub(crate) fn stretch_ended(&self) -> bool {
        self.hand.is_none() || self.taken == 0
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.current().is_none()
    }

    /// Goes to sleep unless there is something to read or the queue is closed. The caller has
    /// registered its waker with the queue's signal.
    pub(crate) fn sleep(&mut self) -> bool {
        let mut state = self.queue.state.lock();
        if state.count > 0 || self.hand.is_some() || state.closed {
            return false;
        }
        state.asleep = true;
        true
    }

    /// What is not read yet.
    pub(crate) fn rest(&mut self) -> Vec<V> {
        let mut rest = Vec::new();
        self.current();
        while let Some(one) = self.hand.take() {
            rest.push(one.value);
            self.current();
        }
        rest
    }
}

impl<V> Drop for QueueReader<V> {
    fn drop(&mut self) {
        self.queue.close();
    }
}
