//! [`Log`]: events written once and read in place by many subscribers, each with its own cursor.
//!
//! **Invariant:** a reader sees every event from where it joined to where it left, once, in the
//! order of its lane. The writer is never further ahead of a reader than the reader's bound. Events
//! that all readers have read are freed when the log is written or tidied.
//!
//! Writers share one lock. Readers take it only at the end of a segment and before they sleep.
//! Sleepers are registered under the same lock as events, so no wake-up is lost between the two.
//! Segments are not chained: a reader keeps only the segment it reads.

use std::collections::VecDeque;

use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, SEGMENT, fence};
use crate::wait::cursor::Cursor;
use crate::wait::lane::LANES;
use crate::wait::segment::{Remainder, Segment};
use crate::wait::signal::Signal;

#[derive(Debug)]
struct LogLane<V> {
    segments: VecDeque<Arc<Segment<V>>>,
    head: u64,
    /// The bytes in the last segment.
    bytes: u64,
}

impl<V> LogLane<V> {
    fn segment(&self, at: u64) -> Option<&Arc<Segment<V>>> {
        self.segments.get(self.segments.partition_point(|segment| segment.end() <= at))
    }
}

/// The data under the lock.
#[derive(Debug)]
pub(crate) struct Tail<V> {
    lanes: [LogLane<V>; LANES],
    /// Events and bytes over all lanes, since the beginning.
    pushed: u64,
    bytes: u64,
    /// How far `pushed` and `bytes` may grow before the cursors are checked again.
    limit: u64,
    bytes_limit: u64,
    /// A segment with more bytes or events is closed, so that read events are freed soon. A quarter
    /// of the smallest bound of any reader.
    segment_bytes: u64,
    segment_events: u64,
    cursors: Vec<Arc<Cursor<V>>>,
    /// Grows whenever sleepers are woken. A cursor is asleep if it slept in the current epoch.
    epoch: u64,
    sleepers: Vec<Arc<Cursor<V>>>,
    asleep: usize,
    /// Publishers that wait for room.
    writers: Vec<Arc<Signal>>,
    closed: bool,
}

/// Aligned, so that readers of a quiet lane are not slowed down by a busy one.
#[derive(Debug)]
#[repr(align(128))]
struct Head(AtomicU64);

/// The shared log of one selection of keys.
#[derive(Debug)]
pub(crate) struct Log<V> {
    tail: Mutex<Tail<V>>,
    heads: [Head; LANES],
    crowd: AtomicUsize,
}

/// A cursor that replaced another.
#[derive(Debug)]
pub(crate) struct ReplacedCursor<V> {
    pub(crate) next: Arc<Cursor<V>>,
    /// The event in the hand of the old cursor's reader, which does not return.
    pub(crate) in_hand: Option<V>,
    /// To be woken without a lock: they wait for another cursor now.
    pub(crate) writers: Vec<Arc<Signal>>,
}

/// Why nothing can be written now.
#[derive(Debug)]
pub(crate) enum Full<V> {
    /// The log is closed for ever.
    Closed,
    /// This reader is too far behind.
    By(Arc<Cursor<V>>),
}

impl<V> Log<V> {
    pub(crate) fn new() -> Log<V> {
        let lane = || LogLane { segments: VecDeque::new(), head: 0, bytes: 0 };
        Log {
            tail: Mutex::new(Tail {
                lanes: [lane(), lane(), lane()],
                pushed: 0,
                bytes: 0,
                limit: u64::MAX,
                bytes_limit: u64::MAX,
                segment_bytes: u64::MAX,
                segment_events: SEGMENT as u64,
                cursors: Vec::new(),
                epoch: 1,
                sleepers: Vec::new(),
                asleep: 0,
                writers: Vec::new(),
                closed: false,
            }),
            heads: std::array::from_fn(|_| Head(AtomicU64::new(0))),
            crowd: AtomicUsize::new(0),
        }
    }

    /// Locks the log for writing, until the writer is finished.
    pub(crate) fn lock(&self) -> Writer<'_, V> {
        Writer { tail: self.tail.lock(), log: self, spent: Vec::new(), wrote: false }
    }

    pub(crate) fn head(&self, lane: usize) -> u64 {
        self.heads[lane].0.load(Ordering::Acquire)
    }

    /// The number of events ever written, over all lanes.
    pub(crate) fn pushed(&self) -> u64 {
        (0..LANES).map(|lane| self.head(lane)).sum()
    }

    pub(crate) fn readers(&self) -> usize {
        self.tail.lock().cursors.len()
    }

    /// The number of readers without the lock. May be slightly outdated.
    pub(crate) fn crowd(&self) -> usize {
        self.crowd.load(Ordering::Relaxed)
    }

    /// Adds a cursor. It sees everything that is written from now on.
    pub(crate) fn join(&self, cursor: &Arc<Cursor<V>>) {
        let mut tail = self.tail.lock();
        let heads = std::array::from_fn(|lane| tail.lanes[lane].head);
        cursor.start(heads, tail.bytes, tail.cursors.len());
        tail.limit = tail.limit.min(tail.pushed.saturating_add(cursor.bound));
        tail.bytes_limit = tail.bytes_limit.min(tail.bytes.saturating_add(cursor.bytes_bound));
        tail.segment_bytes = tail.segment_bytes.min(cursor.bytes_bound / 4);
        tail.segment_events = tail.segment_events.min((cursor.bound / 4).max(1));
        tail.cursors.push(cursor.clone());
        self.crowd.store(tail.cursors.len(), Ordering::Relaxed);
    }

    /// Replaces the cursor of a reader that was ordered to stop and has not returned. The new
    /// cursor continues after the event that the reader has in hand.
    pub(crate) fn replace(
        &self,
        old: &Arc<Cursor<V>>,
        weigh: impl Fn(&V) -> u64,
    ) -> ReplacedCursor<V>
    where
        V: Clone,
    {
        let mut tail = self.tail.lock();
        let place = old.place();
        let stays = tail.cursors.get(place).is_some_and(|there| Arc::ptr_eq(there, old));
        let in_hand = old.in_hand().and_then(|(lane, at)| match stays {
            true => tail.lanes[lane].segment(at)?.get(at).cloned(),
            false => old.kept(lane, at),
        });
        let next = old.successor();
        if stays {
            // The old cursor does not show the bytes of every event. It has read everything except
            // these.
            let unread = |(lane, line): (usize, &LogLane<V>)| -> u64 {
                let at = next.done(lane)..line.head;
                at.filter_map(|at| line.segment(at)?.get(at)).map(&weigh).sum()
            };
            let unread: u64 = tail.lanes.iter().enumerate().map(unread).sum();
            next.starts_with(tail.bytes - unread);
            next.moved(place);
            tail.cursors[place] = next.clone();
            if old.slept_in() == tail.epoch {
                tail.asleep -= 1;
            }
        } else {
            next.inherit(old);
        }
        old.lost();
        let writers = std::mem::take(&mut tail.writers);
        ReplacedCursor { next, in_hand, writers }
    }

    /// Removes a cursor, so that it does not hold up publishers any more. Its unread events are
    /// kept for it if it drains. A second call has no effect.
    pub(crate) fn remove(&self, cursor: &Arc<Cursor<V>>, drain: bool) {
        let mut tail = self.tail.lock();
        let place = cursor.place();
        if !tail.cursors.get(place).is_some_and(|there| Arc::ptr_eq(there, cursor)) {
            return;
        }
        tail.cursors.swap_remove(place);
        self.crowd.store(tail.cursors.len(), Ordering::Relaxed);
        if let Some(moved) = tail.cursors.get(place) {
            moved.moved(place);
        }
        if cursor.slept_in() == tail.epoch {
            tail.asleep -= 1;
        }
        let remainder = drain.then(|| {
            let segments = std::array::from_fn(|lane| {
                let done = cursor.done(lane);
                let keep = |segment: &&Arc<Segment<V>>| segment.end() > done;
                tail.lanes[lane].segments.iter().filter(keep).cloned().collect()
            });
            Remainder { segments, end: std::array::from_fn(|lane| tail.lanes[lane].head) }
        });
        cursor.left(remainder);
        let mut spent = Vec::new();
        if tail.cursors.is_empty() {
            (tail.limit, tail.bytes_limit) = (u64::MAX, u64::MAX);
            (tail.segment_bytes, tail.segment_events) = (u64::MAX, SEGMENT as u64);
            spent = tail.forget();
        }
        if tail.sleepers.len() > 2 * tail.cursors.len() + SEGMENT {
            let epoch = tail.epoch; // cursors that left while asleep are still in the list
            tail.sleepers.retain(|one| one.slept_in() == epoch && !one.is_gone());
        }
        let writers = std::mem::take(&mut tail.writers);
        drop(tail);
        drop(spent);
        wake_writers(writers);
        cursor.signal.wake();
    }

    /// The segment of a lane that contains this position. `None` if the cursor has left.
    pub(crate) fn segment(
        &self,
        cursor: &Cursor<V>,
        lane: usize,
        at: u64,
    ) -> Option<Arc<Segment<V>>> {
        let tail = self.tail.lock();
        if cursor.is_gone() {
            return None;
        }
        tail.lanes[lane].segment(at).cloned()
    }

    /// Registers the cursor as asleep, unless there is something to read. The caller has registered
    /// its waker and keeps no segment.
    pub(crate) fn sleep(&self, cursor: &Arc<Cursor<V>>, at: [u64; LANES]) -> bool {
        let mut tail = self.tail.lock();
        let caught_up = (0..LANES).all(|lane| tail.lanes[lane].head == at[lane]);
        if !caught_up || cursor.is_gone() {
            return false;
        }
        if cursor.slept_in() != tail.epoch {
            cursor.sleeps_in(tail.epoch);
            tail.asleep += 1;
            tail.sleepers.push(cursor.clone());
        }
        true
    }

    /// Frees the events that all readers have read. The last reader does not do this itself: it
    /// would free, on another core, memory that a publisher allocates again a moment later.
    pub(crate) fn tidy(&self) {
        let mut tail = self.tail.lock();
        let spent = if tail.all_asleep() { tail.forget() } else { Vec::new() };
        drop(tail);
        drop(spent);
    }

    /// Wakes the publishers, because a reader they wait for has made room.
    pub(crate) fn made_room(&self, cursor: &Cursor<V>) {
        let writers = {
            let mut tail = self.tail.lock();
            cursor.wanted(false);
            std::mem::take(&mut tail.writers)
        };
        wake_writers(writers);
    }

    /// Wakes the publishers that wait for this reader if it has any room. It may have made too
    /// little room for the usual wake-up, and may never make more. Called periodically.
    pub(crate) fn offer_room(&self, cursor: &Cursor<V>) {
        let (done, _) = cursor.progress();
        let is_full = self.pushed().saturating_sub(done) >= cursor.bound;
        if !is_full && cursor.wanted.load(Ordering::Acquire) {
            self.made_room(cursor);
        }
    }

    /// Closes the log: publishers are refused, including those that wait.
    pub(crate) fn close(&self) {
        let mut tail = self.tail.lock();
        tail.closed = true;
        let writers = std::mem::take(&mut tail.writers);
        drop(tail);
        wake_writers(writers);
    }
}

impl<V> Tail<V> {
    fn all_asleep(&self) -> bool {
        self.asleep == self.cursors.len()
    }

    /// Removes all segments, because every reader has read them. The caller drops them without the
    /// lock.
    fn forget(&mut self) -> Vec<Arc<Segment<V>>> {
        self.lanes.iter_mut().flat_map(|lane| lane.segments.drain(..)).collect()
    }

    fn wake(&mut self) -> Vec<Arc<Cursor<V>>> {
        self.epoch += 1;
        self.asleep = 0;
        std::mem::take(&mut self.sleepers)
    }

    /// Checks every cursor: updates the limits, and returns a cursor that is in the way.
    fn look(&mut self, bytes: u64) -> Option<Arc<Cursor<V>>> {
        (self.limit, self.bytes_limit) = (u64::MAX, u64::MAX);
        let mut last = None;
        for cursor in &self.cursors {
            let (done, bytes_done) = cursor.progress();
            let limit = done.saturating_add(cursor.bound);
            let bytes_limit = bytes_done.saturating_add(cursor.bytes_bound);
            // One event always fits into an empty queue, whatever its weight. The limit is not
            // changed.
            let heavy = bytes_limit < self.bytes.saturating_add(bytes) && done != self.pushed;
            if limit <= self.pushed || heavy {
                last = Some(cursor.clone());
            }
            self.limit = self.limit.min(limit);
            self.bytes_limit = self.bytes_limit.min(bytes_limit);
        }
        last
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.pushed < self.limit && self.bytes.saturating_add(bytes) <= self.bytes_limit
    }
}

/// The locked log. Readers see nothing before [`Writer::finish`].
#[derive(Debug)]
pub(crate) struct Writer<'a, V> {
    tail: MutexGuard<'a, Tail<V>>,
    log: &'a Log<V>,
    spent: Vec<Arc<Segment<V>>>,
    wrote: bool,
}

impl<V> Writer<'_, V> {
    pub(crate) fn readers(&self) -> usize {
        self.tail.cursors.len()
    }

    /// Whether every reader has room for an event of this weight.
    pub(crate) fn room(&mut self, bytes: u64) -> Result<(), Full<V>> {
        if self.tail.closed {
            return Err(Full::Closed);
        }
        if self.tail.has_room(bytes) {
            return Ok(());
        }
        match self.tail.look(bytes) {
            None => Ok(()),
            Some(cursor) => Err(Full::By(cursor)),
        }
    }

    /// Has the signal woken when this reader makes room. `false` if there is room now.
    pub(crate) fn wait(&mut self, cursor: &Cursor<V>, bytes: u64, signal: &Arc<Signal>) -> bool {
        let mut marked = std::ptr::from_ref(cursor);
        cursor.wanted(true);
        // Until the cursor in the way is marked as wanted.
        loop {
            // Pairs with the fence in Reader::settle: one of the two sees the other.
            fence(Ordering::SeqCst);
            match self.tail.look(bytes) {
                None => return false,
                Some(other) if std::ptr::eq(&*other, marked) => break,
                Some(other) => {
                    other.wanted(true);
                    marked = &*other;
                }
            }
        }
        crate::wait::signal::remember(&mut self.tail.writers, signal);
        true
    }

    /// Writes one event. The caller has checked for room.
    pub(crate) fn push(&mut self, lane: usize, value: V, bytes: u64) {
        let tail = &mut *self.tail;
        if tail.cursors.is_empty() {
            return;
        }
        let head = tail.lanes[lane].head;
        if tail.lanes[lane].bytes > tail.segment_bytes
            && let Some(last) = tail.lanes[lane].segments.back()
        {
            last.end.store(head, Ordering::Release); // before the head that readers see
        }
        if tail.lanes[lane].segments.back().is_none_or(|segment| !segment.holds(head)) {
            tail.lanes[lane].bytes = 0;
            let done = tail.cursors.iter().map(|cursor| cursor.done(lane)).min().unwrap_or(head);
            let segments = &mut tail.lanes[lane].segments;
            while segments.front().is_some_and(|old| old.end() <= done) {
                self.spent.extend(segments.pop_front());
            }
            segments.push_back(Segment::new(head, tail.segment_events));
        }
        if let Some(segment) = tail.lanes[lane].segments.back() {
            segment.slots[(head - segment.base) as usize].set(value);
        }
        tail.lanes[lane].head += 1;
        tail.lanes[lane].bytes += bytes;
        tail.pushed += 1;
        tail.bytes += bytes;
        self.wrote = true;
    }

    /// Makes the events visible to readers and unlocks. The caller must call [`Wakes::wake`]
    /// afterwards.
    pub(crate) fn finish(mut self) -> Wakes<V> {
        let mut sleepers = Vec::new();
        if self.wrote {
            for lane in 0..LANES {
                let head = self.tail.lanes[lane].head;
                if self.log.heads[lane].0.load(Ordering::Relaxed) != head {
                    self.log.heads[lane].0.store(head, Ordering::Release);
                }
            }
            if !self.tail.sleepers.is_empty() {
                sleepers = self.tail.wake();
            }
        }
        Wakes { sleepers, _spent: self.spent }
    }
}

/// Readers to wake and segments to drop, now that no lock is held.
#[derive(Debug)]
#[must_use]
pub(crate) struct Wakes<V> {
    sleepers: Vec<Arc<Cursor<V>>>,
    _spent: Vec<Arc<Segment<V>>>,
}

impl<V> Wakes<V> {
    pub(crate) fn wake(self) {
        for cursor in &self.sleepers {
            cursor.signal.wake();
        }
    }
}

pub(crate) fn wake_writers(writers: Vec<Arc<Signal>>) {
    writers.iter().for_each(|writer| writer.wake());
}
