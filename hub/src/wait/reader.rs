//! [`Reader`]: the part of a subscriber that reads a log.
//!
//! **Invariant:** it gives every event from where it joined to where it left, once, each lane in
//! order; it shows its place before every event (see [`Cursor`]).

use crate::sync::{Arc, Ordering, STRETCH, Slot, fence};
use crate::wait::cursor::Cursor;
use crate::wait::lane::{HIGH, LANES, LOW, NORMAL, Turn};
use crate::wait::log::Log;
use crate::wait::segment::{Remainder, Segment};

/// What is known of one lane. Where it is read is in the cursor.
#[derive(Debug)]
struct Place<V> {
    segment: Option<Arc<Segment<V>>>,
    /// Known to be written up to here.
    head: u64,
}

/// The part of a subscriber that reads.
#[derive(Debug)]
pub(crate) struct Reader<V> {
    log: Arc<Log<V>>,
    cursor: Arc<Cursor<V>>,
    places: [Place<V>; LANES],
    turn: Turn,
    /// The lane of the event in hand.
    lane: Option<u8>,
    /// Events until the others are looked at again.
    stretch: u32,
    /// Nothing but normal events is known to wait.
    plain: bool,
    remainder: Option<Arc<Remainder<V>>>,
    gone: bool,
}

impl<V> Reader<V> {
    pub(crate) fn new(log: Arc<Log<V>>, cursor: Arc<Cursor<V>>) -> Reader<V> {
        log.join(&cursor);
        Reader::from_cursor(log, cursor)
    }

    /// Reads on from where the cursor stands.
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

    /// Where a lane is read: nobody else moves it.
    #[inline]
    fn at(&self, lane: usize) -> u64 {
        self.cursor.done[lane].load(Ordering::Relaxed)
    }

    /// More than was read is known to be written.
    #[inline]
    fn knows_more(&self, lane: usize) -> bool {
        self.at(lane) != self.places[lane].head
    }

    /// The next event, or `None` if there is none now. The same one until [`Reader::advance`].
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&V> {
        let lane = match self.lane {
            Some(lane) => lane.into(),
            None => self.choose()?,
        };
        let at = self.at(lane);
        if !self.places[lane].segment.as_ref().is_some_and(|segment| segment.holds(at)) {
            self.fetch(lane, at);
            self.places[lane].segment.as_ref()?; // else the log was left, and nothing was kept
        }
        self.lane = Some(lane as u8);
        self.places[lane].segment.as_ref()?.get(at)
    }

    /// The subscriber is done with the event in hand.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) {
        let Some(lane) = self.lane.take().map(usize::from) else { return };
        self.cursor.done[lane].store(self.at(lane) + 1, Ordering::Release);
        self.cursor.hand.store(0, Ordering::Release); // after its place
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

    /// The next events, if they are all of the usual kind and lie side by side.
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

    /// The first so many of the stretch are done with, as was shown, which makes so many bytes in
    /// all. The event after them is in hand if it is to be tried again.
    pub(crate) fn passed(&mut self, events: u64, bytes: u64, in_hand: bool) {
        self.cursor.bytes.store(bytes, Ordering::Release);
        self.stretch = self.stretch.saturating_sub(events as u32);
        self.lane = in_hand.then_some(NORMAL as u8);
        if !in_hand {
            self.cursor.hand.store(0, Ordering::Release); // after its place
        }
        if self.cursor.wanted.load(Ordering::Relaxed) {
            self.settle();
        }
    }

    /// The event in hand.
    pub(crate) fn in_hand(&self) -> Option<&V> {
        let lane = usize::from(self.lane?);
        self.places[lane].segment.as_ref()?.get(self.at(lane))
    }

    /// Shows which event is in hand, until it is done with. Orders are to be looked at after this.
    pub(crate) fn show(&self) {
        if let Some(lane) = self.lane {
            self.cursor.hand.store(lane + 1, Ordering::Release);
        }
    }

    /// Whether the last event of a stretch is the one it was replaced at.
    pub(crate) fn lost_last(&self) -> bool {
        self.cursor.end.load(Ordering::Acquire) == self.at(NORMAL)
    }

    /// The part that publishers see.
    pub(crate) fn cursor(&self) -> &Arc<Cursor<V>> {
        &self.cursor
    }

    /// Whether it is time to let others run.
    pub(crate) fn stretch_ended(&self) -> bool {
        self.stretch == 0
    }

    /// Everything that was written is read.
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

    /// How many read this log.
    pub(crate) fn crowd(&self) -> usize {
        self.log.crowd()
    }

    /// Goes to sleep unless there is something to read or the log is left. The caller has
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

    /// What is not read yet, after the log was left: the event in hand and all behind it, without
    /// what others took while the subscriber did not come back.
    pub(crate) fn take_unread(&mut self) -> Vec<V>
    where
        V: Clone,
    {
        let mut rest = Vec::new();
        self.refresh();
        let Some(kept) = self.cursor.remainder.lock().take() else { return rest };
        self.lane = None; // chosen anew, if it is still there
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

    /// How far may be read now? The heads first: what is written after the log was left is not
    /// ours, and whoever sees its head sees that we left.
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

    /// Publishers that wait for this reader are woken once a quarter of its bound is free.
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

/// Some events of the usual lane, side by side.
pub(crate) struct Stretch<'a, V> {
    pub(crate) slots: &'a [Slot<V>],
    start: u64,
    /// Done with when it begins.
    pub(crate) bytes: u64,
    /// Where the urgent lane was read up to, unless the log was left.
    urgent: Option<(&'a Log<V>, u64)>,
    cursor: &'a Cursor<V>,
}

impl<V> Stretch<'_, V> {
    /// So many are done with: the next one is in hand. Orders are to be looked at after this.
    #[inline]
    pub(crate) fn show(&self, events: u64) {
        self.cursor.done[NORMAL].store(self.start + events, Ordering::Release);
    }

    /// So many are done with, which makes so many bytes in all. `true` if somebody waits for that,
    /// or something urgent came.
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
