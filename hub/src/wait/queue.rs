//! [`EventQueue`]: the queue of a subscriber that may lose events, or that is a member of a group.
//!
//! **Invariant:** the waiting events never exceed the bounds; the event being handled does not
//! count. Dropped events are returned to the publisher and reported to the subscriber. An event is
//! never dropped for a less urgent one.
//!
//! A publisher that waits for room gets a [`Room`] before it publishes to anybody, so that no other
//! publisher takes that room.
//!
//! Subscribers that lose nothing share a [log](crate::wait::log) instead, which is far cheaper.

use std::collections::VecDeque;

use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::wait::lane::{LANES, Turn};
use crate::wait::overflow::{Bounds, Overflow};
use crate::wait::signal::Signal;

/// How many events a reader takes before it lets others run.
const STRETCH: u32 = 32;

#[derive(Debug)]
struct Waiting<V> {
    value: V,
    bytes: u64,
    /// How many events were lost since the one before it.
    lagged: u64,
}

/// The events of one priority.
#[derive(Debug)]
struct LaneQueue<V> {
    events: VecDeque<Waiting<V>>,
    bytes: u64,
}

#[derive(Debug)]
struct Contents<V> {
    lanes: [LaneQueue<V>; LANES],
    /// Room promised to publishers that have not used it yet.
    rooms: usize,
    rooms_bytes: u64,
    /// Events lost after the last waiting one, and before the first.
    lagged: u64,
    lagged_first: u64,
    /// The event being handled. It does not wait any more.
    hand: Option<V>,
    /// How many events were taken so far.
    taken: u64,
    /// The runner that may take events. A replaced runner may not.
    runner: u32,
    asleep: bool,
    closed: bool,
    /// The waiting events were taken. The one in the runner's hand does not count any more.
    robbed: bool,
    /// Lost events that the runner knows about and the handler does not yet.
    untold: u64,
    writers: Vec<Arc<Signal>>,
}

impl<V> Contents<V> {
    /// How many events wait in the first `lanes` lanes, and their weight.
    fn waiting(&self, lanes: usize) -> (usize, u64) {
        let lanes = &self.lanes[..lanes];
        (
            lanes.iter().map(|line| line.events.len()).sum(),
            lanes.iter().map(|line| line.bytes).sum(),
        )
    }

    /// Takes the first event of a lane.
    fn take(&mut self, lane: usize) -> Option<Waiting<V>> {
        let line = &mut self.lanes[lane];
        let first = line.events.pop_front()?;
        line.bytes -= first.bytes;
        Some(first)
    }
}

/// A bounded queue with one reader.
#[derive(Debug)]
pub(crate) struct EventQueue<V> {
    /// The subscriber, for finding cycles.
    pub(crate) owner: u64,
    pub(crate) bounds: Bounds,
    pub(crate) signal: Signal,
    /// The runner, and how often it entered or left user code: odd while it is inside.
    inside: AtomicU64,
    state: Mutex<Contents<V>>,
    same: fn(&V, &V) -> bool,
}

/// The result of a push.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<V> {
    /// The event waits for the subscriber.
    Queued,
    /// The event waits. These were dropped to make room.
    Instead(Vec<V>),
    /// There was no room for the event.
    Dropped(V),
    /// There was no room, so the subscriber must be detached.
    Detach(V),
    /// There was no room, and none was reserved before.
    Full(V),
    /// The subscriber is leaving or has left.
    Closed(V),
}

/// Room in a queue, reserved for one event of this weight. Dropping it releases the room.
#[derive(Debug)]
pub(crate) struct Room<V> {
    queue: Arc<EventQueue<V>>,
    bytes: u64,
    used: bool,
}

impl<V> Room<V> {
    /// Reserves room in this queue. `None` if it is full. A closed queue has room: the push then
    /// reports that it is closed.
    pub(crate) fn take(queue: &Arc<EventQueue<V>>, bytes: u64) -> Option<Room<V>> {
        let mut state = queue.state.lock();
        if !state.closed && !queue.fits(&state, bytes) {
            return None;
        }
        state.rooms += 1;
        state.rooms_bytes += bytes;
        Some(Room { queue: queue.clone(), bytes, used: false })
    }

    pub(crate) fn is_in(&self, queue: &Arc<EventQueue<V>>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// Puts the event into the reserved room.
    pub(crate) fn push(mut self, lane: usize, value: V) -> Pushed<V> {
        self.used = true;
        let mut state = self.queue.state.lock();
        self.give_back(&mut state);
        if state.closed {
            return Pushed::Closed(value);
        }
        self.queue.put(state, lane, value, self.bytes);
        Pushed::Queued
    }

    fn give_back(&self, state: &mut Contents<V>) {
        state.rooms -= 1;
        state.rooms_bytes -= self.bytes;
    }
}

impl<V> Drop for Room<V> {
    fn drop(&mut self) {
        if !self.used {
            let mut state = self.queue.state.lock();
            self.give_back(&mut state);
            let writers = std::mem::take(&mut state.writers);
            drop(state);
            writers.iter().for_each(|writer| writer.wake());
        }
    }
}

impl<V> EventQueue<V> {
    /// `same` decides which waiting event a newer one replaces under [`Overflow::KeepLatest`].
    pub(crate) fn new(owner: u64, bounds: Bounds, same: fn(&V, &V) -> bool) -> EventQueue<V> {
        EventQueue {
            owner,
            bounds,
            signal: Signal::new(),
            inside: AtomicU64::new(0),
            state: Mutex::new(Contents {
                lanes: std::array::from_fn(|_| LaneQueue { events: VecDeque::new(), bytes: 0 }),
                rooms: 0,
                rooms_bytes: 0,
                lagged: 0,
                lagged_first: 0,
                hand: None,
                taken: 0,
                runner: 0,
                asleep: false,
                closed: false,
                robbed: false,
                untold: 0,
                writers: Vec::new(),
            }),
            same,
        }
    }

    /// Events that wait or are in hand.
    pub(crate) fn behind(&self) -> u64 {
        let state = self.state.lock();
        state.waiting(LANES).0 as u64 + u64::from(state.hand.is_some() && !state.robbed)
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.lock();
        state.closed || self.fits(&state, bytes)
    }

    fn fits(&self, state: &Contents<V>, bytes: u64) -> bool {
        let (count, weight) = state.waiting(LANES);
        self.is_room(count + state.rooms, weight + state.rooms_bytes, bytes)
    }

    /// Whether one more event fits beside `count` events of this weight. One event always fits.
    fn is_room(&self, count: usize, weight: u64, bytes: u64) -> bool {
        count == 0
            || (count < self.bounds.events && weight.saturating_add(bytes) <= self.bounds.bytes)
    }

    /// Has the signal woken when there is room. `false` if there is room now.
    pub(crate) fn wait(&self, bytes: u64, signal: &Arc<Signal>) -> bool {
        let mut state = self.state.lock();
        if state.closed || self.fits(&state, bytes) {
            return false;
        }
        crate::wait::signal::remember(&mut state.writers, signal);
        true
    }

    /// Appends an event, or applies the overflow policy if the queue is full. Never waits.
    pub(crate) fn push(&self, lane: usize, value: V, bytes: u64) -> Pushed<V> {
        let mut state = self.state.lock();
        if state.closed {
            return Pushed::Closed(value);
        }
        let mut instead = Vec::new();
        let fits = self.fits(&state, bytes);
        match self.bounds.overflow {
            Overflow::DropOldest | Overflow::KeepLatest => {
                // More urgent events are never dropped.
                let (count, weight) = state.waiting(lane);
                if !self.is_room(count, weight, bytes) {
                    state.lagged += 1;
                    return Pushed::Dropped(value);
                }
                if self.bounds.overflow == Overflow::KeepLatest {
                    instead.extend(self.take_same(&mut state, lane, &value));
                }
                self.make_room(&mut state, bytes, &mut instead);
            }
            Overflow::Block if !fits => return Pushed::Full(value),
            Overflow::Detach if !fits => return Pushed::Detach(value),
            Overflow::BlockFor(_) | Overflow::DropNewest if !fits => {
                state.lagged += 1;
                return Pushed::Dropped(value);
            }
            _ => {}
        }
        self.put(state, lane, value, bytes);
        match instead.is_empty() {
            true => Pushed::Queued,
            false => Pushed::Instead(instead),
        }
    }

    fn put(&self, mut state: MutexGuard<'_, Contents<V>>, lane: usize, value: V, bytes: u64) {
        let lagged = std::mem::take(&mut state.lagged);
        state.lanes[lane].events.push_back(Waiting { value, bytes, lagged });
        state.lanes[lane].bytes += bytes;
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.signal.wake();
        }
    }

    /// Takes the waiting event that this one replaces.
    fn take_same(&self, state: &mut Contents<V>, lane: usize, value: &V) -> Option<V> {
        let line = &mut state.lanes[lane];
        let place = line.events.iter().position(|old| (self.same)(&old.value, value))?;
        let old = line.events.remove(place)?;
        line.bytes -= old.bytes;
        state.lagged += old.lagged + 1;
        Some(old.value)
    }

    /// Drops the oldest of the least urgent events until one more fits.
    fn make_room(&self, state: &mut Contents<V>, bytes: u64, instead: &mut Vec<V>) {
        while !self.fits(state, bytes) {
            let Some(old) = (0..LANES).rev().find_map(|lane| state.take(lane)) else { return };
            state.lagged_first += old.lagged + 1;
            instead.push(old.value);
        }
    }

    /// Accepts no more events. Waiting events can still be read.
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

    /// Takes all waiting events. The event in the reader's hand stays with it.
    pub(crate) fn take_waiting(&self) -> Vec<V> {
        let mut state = self.state.lock();
        state.robbed = true;
        let mut stolen = Vec::new();
        for line in &mut state.lanes {
            line.bytes = 0;
            stolen.extend(line.events.drain(..).map(|waiting| waiting.value));
        }
        stolen
    }

    /// Lets another runner take events. Returns the event in the hand of the old one.
    pub(crate) fn replace(&self, runner: u32) -> Option<V> {
        let mut state = self.state.lock();
        state.runner = runner;
        state.hand.take()
    }

    /// The current runner continues under another number.
    pub(crate) fn goes_on_as(&self, runner: u32) {
        self.state.lock().runner = runner;
    }

    /// Where its runner is: how often it entered or left user code, how many events it took, and
    /// whether it has one in hand.
    pub(crate) fn shown(&self) -> (u32, u64, bool) {
        let state = self.state.lock();
        (self.inside.load(Ordering::Acquire) as u32, state.taken, state.hand.is_some())
    }
}

impl<V: Clone> EventQueue<V> {
    /// Stores the number of lost events that the handler does not know yet, for the next runner.
    fn untold(&self, runner: u32, events: u64) {
        let mut state = self.state.lock();
        if state.runner == runner {
            state.untold = events;
        }
    }

    /// Finishes the event in the hand of this runner.
    fn done(&self, runner: u32) -> Option<V> {
        let mut state = self.state.lock();
        if state.runner == runner { state.hand.take() } else { None }
    }

    /// Takes the next event. It does not wait any more, so publishers have room.
    fn next(&self, turn: &mut Turn, runner: u32) -> Option<Waiting<V>> {
        let mut state = self.state.lock();
        if state.runner != runner {
            return None;
        }
        let waiting = std::array::from_fn(|lane| !state.lanes[lane].events.is_empty());
        let lane = turn.choose(waiting);
        let mut next = lane.and_then(|lane| state.take(lane));
        state.hand = next.as_ref().map(|one| one.value.clone());
        state.taken += 1;
        let (Some(lane), Some(one)) = (lane, &mut next) else { return None };
        turn.took(lane);
        one.lagged += std::mem::take(&mut state.lagged_first);
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        writers.iter().for_each(|writer| writer.wake());
        next
    }
}

/// The reading side of a queue.
#[derive(Debug)]
pub(crate) struct QueueReader<V> {
    queue: Arc<EventQueue<V>>,
    hand: Option<Waiting<V>>,
    turn: Turn,
    taken: u32,
    /// Lost events that the handler does not know yet.
    lagged: u64,
    /// The number of this runner, and how often it entered or left user code.
    runner: AtomicU32,
    inside: AtomicU32,
}

impl<V: Clone> QueueReader<V> {
    /// A reader for this runner. The first runner is 0.
    pub(crate) fn new(queue: Arc<EventQueue<V>>, runner: u32) -> QueueReader<V> {
        let lagged = queue.state.lock().untold;
        let (runner, inside) = (AtomicU32::new(runner), AtomicU32::new(0));
        QueueReader { queue, hand: None, turn: Turn::new(), taken: 0, lagged, runner, inside }
    }

    fn runner(&self) -> u32 {
        self.runner.load(Ordering::Relaxed)
    }

    /// The next event. Returns the same one until [`QueueReader::advance`].
    pub(crate) fn current(&mut self) -> Option<&V> {
        if self.hand.is_none() {
            let runner = self.runner();
            self.hand = self.queue.next(&mut self.turn, runner);
        }
        self.in_hand()
    }

    pub(crate) fn in_hand(&self) -> Option<&V> {
        self.hand.as_ref().map(|one| &one.value)
    }

    /// How many events were lost before the event in hand and are not reported to the handler yet.
    pub(crate) fn lagged(&mut self) -> u64 {
        let more = self.hand.as_mut().map_or(0, |one| std::mem::take(&mut one.lagged));
        if more > 0 {
            self.lagged += more;
            self.queue.untold(self.runner(), self.lagged);
        }
        self.lagged
    }

    pub(crate) fn told_lagged(&mut self) {
        if self.lagged > 0 {
            self.lagged = 0;
            self.queue.untold(self.runner(), 0);
        }
    }

    /// Finishes the event in hand.
    pub(crate) fn advance(&mut self) {
        let done = (self.hand.take(), self.queue.done(self.runner()));
        self.taken = (self.taken + 1) % STRETCH;
        drop(done);
    }

    /// Records that the runner enters or has left user code. A replaced runner has no effect.
    pub(crate) fn is_inside(&self, is: bool) {
        let before = self.inside.load(Ordering::Relaxed);
        if (before % 2 == 1) != is {
            let (runner, shown) = (u64::from(self.runner()), before.wrapping_add(1));
            self.inside.store(shown, Ordering::Relaxed);
            let step = |old: u64| (old >> 32 <= runner).then_some(runner << 32 | u64::from(shown));
            let _ = self.queue.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        }
    }

    /// The same runner continues under another number.
    pub(crate) fn goes_on_as(&self, runner: u32) {
        self.runner.store(runner, Ordering::Relaxed);
    }

    /// Whether it is time to let others run.
    pub(crate) fn stretch_ended(&self) -> bool {
        self.taken == 0
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.current().is_none()
    }

    /// Goes to sleep unless there is something to read or the queue is closed. The caller has
    /// registered its waker with the queue's signal.
    pub(crate) fn sleep(&mut self) -> bool {
        let mut state = self.queue.state.lock();
        if state.waiting(LANES).0 > 0 || self.hand.is_some() || state.closed {
            return false;
        }
        state.asleep = true;
        true
    }

    /// Takes all unread events.
    pub(crate) fn take_unread(&mut self) -> Vec<V> {
        let mut rest = Vec::new();
        self.current();
        while let Some(one) = self.hand.take() {
            rest.push(one.value);
            self.current();
        }
        rest
    }
}
