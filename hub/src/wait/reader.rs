//! [`Reader`]: the part of a subscriber that reads a log.
//!
//! **Invariant:** it returns every event from where it joined to where it left, once, in the order
//! of each lane. It shows its position before every event (see [`Cursor`]).

use crate::sync::{Arc, Ordering, STRETCH, Slot, fence};
use crate::wait::cursor::Cursor;
use crate::wait::lane::{HIGH, LANES, LOW, NORMAL, Turn};
use crate::wait::log::Log;
use crate::wait::segment::{Remainder, Segment};

/// What the reader knows about one lane. Its position in the lane is in the cursor.
#[derive(Debug)]
struct Place<V> {
    segment: Option<Arc<Segment<V>>>,
    /// The lane is known to be written up to here.
    head: u64,
}

#[derive(Debug)]
pub(crate) struct Reader<V> {
    log: Arc<Log<V>>,
    cursor: Arc<Cursor<V>>,
    places: [Place<V>; LANES],
    turn: Turn,
    /// The lane of the event in hand.
    lane: Option<u8>,
    /// How many events to read before the heads of all lanes are checked again.
    stretch: u32,
    /// Only events of normal priority are known to wait.
    plain: bool,
    remainder: Option<Arc<Remainder<V>>>,
    gone: bool,
}

impl<V> Reader<V> {
    pub(crate) fn new(log: Arc<Log<V>>, cursor: Arc<Cursor<V>>) -> Reader<V> {
        log.join(&cursor);
        Reader::from_cursor(log, cursor)
    }

    /// Continues at the position of the cursor.
    pub(crate) fn from_cursor(log: Arc<Log<V>>, cursor: Arc<Cursor<V>>) -> Reader<V> {
        let places = std::array::from_fn(|lane| Place { segment: None, head: cursor.done(lane) });
        Reader {
            log,
            cursor,
            places,
            turn: Turn::new(),
            lane: None,
            stretch: 0,
            plain: true,
            remainder: None,
            gone: false,
        }
    }

    /// The position in a lane. Only this reader moves it.
    #[inline]
    fn at(&self, lane: usize) -> u64 {
        self.cursor.done[lane].load(Ordering::Relaxed)
    }

    /// Whether this lane is known to have unread events.
    #[inline]
    fn knows_more(&self, lane: usize) -> bool {
        self.at(lane) != self.places[lane].head
    }

    /// The next event, or `None` if there is none now. Returns the same one until
    /// [`Reader::advance`].
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&V> {
        let lane = match self.lane {
            Some(lane) => lane.into(),
            None => self.choose()?,
        };
        let at = self.at(lane);
        if !self.places[lane].segment.as_ref().is_some_and(|segment| segment.holds(at)) {
            self.fetch(lane, at);
            self.places[lane].segment.as_ref()?; // None: it left the log, and nothing was kept
        }
        self.lane = Some(lane as u8);
        self.places[lane].segment.as_ref()?.get(at)
    }

    /// Finishes the event in hand.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) {
        let Some(lane) = self.lane.take().map(usize::from) else { return };
        self.cursor.done[lane].store(self.at(lane) + 1, Ordering::Release);
        self.cursor.hand.store(0, Ordering::Release); // after its position
        let before = self.cursor.bytes.load(Ordering::Relaxed);
        self.cursor.bytes.store(before + bytes, Ordering::Release);
        if !self.plain {
            self.turn.took(lane);
        }
        self.stretch = self.stretch.saturating_sub(1);
        if self.cursor.wanted.load(Ordering::Relaxed) {
            self.settle();
        }
    }

    /// The next events, if they are of normal priority and lie side by side.
    pub(crate) fn stretch(&mut self) -> Option<Stretch<'_, V>> {
        self.current()?;
        if self.lane != Some(NORMAL as u8) || !self.plain {
            return None;
        }
        let (cursor, start, place) = (&*self.cursor, self.at(NORMAL), &self.places[NORMAL]);
        let most = place.head.min(start + u64::from(self.stretch.max(1)));
        let slots = place.segment.as_ref()?.slots(start, most);
        let urgent = (!self.gone).then_some((&*self.log, self.at(HIGH)));
        let bytes = cursor.bytes.load(Ordering::Relaxed);
        cursor.hand.store(NORMAL as u8 + 1, Ordering::Release);
        Some(Stretch { slots, start, bytes, urgent, cursor })
    }

    /// Finishes the first events of the stretch, which were already shown. `bytes` is the new
    /// total. If `in_hand`, the next event stays in hand, to be tried again.
    pub(crate) fn passed(&mut self, events: u64, bytes: u64, in_hand: bool) {
        self.cursor.bytes.store(bytes, Ordering::Release);
        self.stretch = self.stretch.saturating_sub(events as u32);
        self.lane = in_hand.then_some(NORMAL as u8);
        if !in_hand {
            self.cursor.hand.store(0, Ordering::Release); // after its position
        }
        if self.cursor.wanted.load(Ordering::Relaxed) {
            self.settle();
        }
    }

    pub(crate) fn in_hand(&self) -> Option<&V> {
        let lane = usize::from(self.lane?);
        self.places[lane].segment.as_ref()?.get(self.at(lane))
    }

    /// Shows which event is in hand. The caller must check its orders after this.
    pub(crate) fn show(&self) {
        if let Some(lane) = self.lane {
            self.cursor.hand.store(lane + 1, Ordering::Release);
        }
    }

    /// Whether the reader was replaced at the last event of a stretch.
    pub(crate) fn lost_last(&self) -> bool {
        self.cursor.end.load(Ordering::Acquire) == self.at(NORMAL)
    }

    /// The part of the reader that publishers see.
    pub(crate) fn cursor(&self) -> &Arc<Cursor<V>> {
        &self.cursor
    }

    /// Whether it is time to let others run.
    pub(crate) fn stretch_ended(&self) -> bool {
        self.stretch == 0
    }

    /// Whether everything that was written is read.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.lane.is_none() && {
            self.refresh();
            (0..LANES).all(|lane| !self.knows_more(lane))
        }
    }

    /// Whether there is something to read, without any lock.
    pub(crate) fn peek(&self) -> bool {
        let new = |lane| self.log.head(lane) != self.at(lane);
        self.lane.is_some() || self.gone || (0..LANES).any(new)
    }

    /// How many readers this log has.
    pub(crate) fn crowd(&self) -> usize {
        self.log.crowd()
    }

    /// Goes to sleep unless there is something to read or the reader left the log. The caller has
    /// registered its waker with the cursor's signal.
    pub(crate) fn sleep(&mut self) -> bool {
        if self.lane.is_some() || self.gone {
            return false;
        }
        self.settle();
        for place in &mut self.places {
            place.segment = None;
        }
        self.log.sleep(&self.cursor, std::array::from_fn(|lane| self.at(lane)))
    }

    /// Takes the unread events after the reader left the log: the event in hand and everything
    /// after it. Events that others took from a hanging subscriber are not included.
    pub(crate) fn take_unread(&mut self) -> Vec<V>
    where
        V: Clone,
    {
        let mut rest = Vec::new();
        self.refresh();
        let Some(kept) = self.cursor.remainder.lock().take() else { return rest };
        self.lane = None; // chosen again, if it is still there
        for lane in 0..LANES {
            self.places[lane].head = kept.end[lane].max(self.at(lane));
        }
        self.remainder = Some(kept);
        while let Some(value) = self.current().cloned() {
            rest.push(value);
            self.advance(0);
        }
        rest
    }

    #[inline]
    fn choose(&mut self) -> Option<usize> {
        let urgent = self.log.head(HIGH) != self.at(HIGH) && !self.gone;
        if self.stretch > 0 && !urgent && self.plain && self.knows_more(NORMAL) {
            return Some(NORMAL);
        }
        self.choose_any(urgent)
    }

    #[cold]
    fn choose_any(&mut self, urgent: bool) -> Option<usize> {
        let waiting = |reader: &Reader<V>| std::array::from_fn(|lane| reader.knows_more(lane));
        if self.stretch == 0 || urgent || waiting(self) == [false; LANES] {
            self.refresh();
            self.stretch = STRETCH as u32;
        }
        let waiting: [bool; LANES] = waiting(self);
        self.plain = !waiting[HIGH] && !waiting[LOW];
        self.turn.choose(waiting)
    }

    /// Updates how far the reader may read. Loads the heads first: events written after it left are
    /// not for this reader, and if it sees such a head, it also sees that it left.
    fn refresh(&mut self) {
        if self.gone {
            return;
        }
        self.settle();
        let heads: [u64; LANES] = std::array::from_fn(|lane| self.log.head(lane));
        if self.cursor.is_gone() {
            self.gone = true;
            self.remainder = self.cursor.remainder.lock().clone();
        }
        let end = self.remainder.as_ref().map(|remainder| remainder.end);
        for (lane, head) in heads.into_iter().enumerate() {
            self.places[lane].head = match (self.gone, end) {
                (false, _) => head,
                (true, Some(end)) => end[lane],
                (true, None) => self.at(lane),
            };
        }
    }

    #[cold]
    fn fetch(&mut self, lane: usize, at: u64) {
        if !self.gone {
            self.places[lane].segment = self.log.segment(&self.cursor, lane, at);
            if self.places[lane].segment.is_some() {
                return;
            }
            self.refresh();
        }
        let kept = self.remainder.as_ref();
        self.places[lane].segment = kept.and_then(|kept| kept.segment(lane, at)).cloned();
    }

    /// Wakes the publishers that wait for this reader, once a quarter of its bound is free.
    fn settle(&mut self) {
        fence(Ordering::SeqCst);
        if !self.cursor.wanted.load(Ordering::Relaxed) {
            return;
        }
        let (done, _) = self.cursor.progress();
        let behind = self.log.pushed().saturating_sub(done);
        if behind == 0 || behind <= self.cursor.bound - self.cursor.bound.div_ceil(4) {
            self.log.made_room(&self.cursor);
        }
    }
}

/// Some events of the normal lane, side by side.
pub(crate) struct Stretch<'a, V> {
    pub(crate) slots: &'a [Slot<V>],
    start: u64,
    /// The bytes that are done when the stretch begins.
    pub(crate) bytes: u64,
    /// The log and the reader's position in the urgent lane, unless the reader left the log.
    urgent: Option<(&'a Log<V>, u64)>,
    cursor: &'a Cursor<V>,
}

impl<V> Stretch<'_, V> {
    /// Shows that `events` events are done; the next one is in hand. The caller must check its
    /// orders after this.
    #[inline]
    pub(crate) fn show(&self, events: u64) {
        self.cursor.done[NORMAL].store(self.start + events, Ordering::Release);
    }

    /// Shows that `events` events are done, and `bytes` in total. `true` if a publisher waits for
    /// that, or an urgent event has arrived.
    #[inline]
    pub(crate) fn passed(&self, events: u64, bytes: u64) -> bool {
        self.show(events);
        self.cursor.bytes.store(bytes, Ordering::Release);
        let urgent = self.urgent.is_some_and(|(log, read)| log.head(HIGH) != read);
        urgent || self.cursor.wanted.load(Ordering::Relaxed)
    }
}

impl<V> Drop for Reader<V> {
    fn drop(&mut self) {
        self.log.remove(&self.cursor, false);
        let kept = self.cursor.remainder.lock().take();
        drop(kept);
    }
}
