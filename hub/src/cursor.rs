//! [`Cursor`] and [`Reader`]: one subscriber's place in a log.
//!
//! **Invariant:** the cursor moves past an event only when the subscriber is done with it, so what
//! a reader held when it died is still before its cursor; nobody but its reader moves it.

use crate::lane::{HIGH, LANES, LOW, NORMAL, Turn};
use crate::log::{Log, Remainder, Segment};
use crate::signal::Signal;
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, STRETCH, Slot, fence,
};

/// The part of a reader that publishers see.
#[derive(Debug)]
pub(crate) struct Cursor<V> {
    /// Whose it is, for finding cycles.
    pub(crate) owner: u64,
    pub(crate) bound: u64,
    pub(crate) bytes_bound: u64,
    pub(crate) signal: Signal,
    done: [AtomicU64; LANES],
    bytes: AtomicU64,
    /// A publisher waits for this one.
    wanted: AtomicBool,
    gone: AtomicBool,
    /// How many it will have read in all, once it has left.
    end: AtomicU64,
    /// The lane of the event that is being handled, plus 1; 0 if none is.
    hand: AtomicU8,
    /// Where it stands in the log's list, and when it slept: both under the log's lock.
    place: AtomicU32,
    slept_in: AtomicU64,
    /// What it had not read when it left: its reader reads it here, or others take it.
    remainder: Mutex<Option<Arc<Remainder<V>>>>,
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

    /// Takes what its reader has not come to, from a reader that does not come back. The event in
    /// its hand is not among them; a few that it handled quickly before that may be.
    pub(crate) fn steal(&self) -> Vec<V>
    where
        V: Clone,
    {
        let Some(remainder) = self.remainder.lock().take() else { return Vec::new() };
        let mut stolen = Vec::new();
        for lane in 0..LANES {
            let in_hand = u64::from(usize::from(self.hand.load(Ordering::Acquire)) == lane + 1);
            for at in self.done(lane) + in_hand..remainder.end[lane] {
                let segments = &remainder.segments[lane];
                let event = segments.iter().find(|one| one.holds(at)).and_then(|one| one.get(at));
                stolen.extend(event.cloned());
            }
        }
        self.end.store(0, Ordering::Release);
        stolen
    }

    pub(crate) fn left(&self, remainder: Option<Remainder<V>>) {
        let end = remainder.as_ref().map_or(0, |remainder| remainder.end.iter().sum());
        self.end.store(end, Ordering::Release);
        *self.remainder.lock() = remainder.map(Arc::new);
        self.gone.store(true, Ordering::Release);
    }
}

/// Where one lane is read.
#[derive(Debug)]
struct Place<V> {
    segment: Option<Arc<Segment<V>>>,
    at: u64,
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
        let heads = log.join(&cursor);
        let places = heads.map(|at| Place { segment: None, at, head: at });
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

    /// The next event, or `None` if there is none now. The same one until [`Reader::advance`].
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&V> {
        let lane = match self.lane {
            Some(lane) => lane.into(),
            None => self.choose()?,
        };
        let at = self.places[lane].at;
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
        self.places[lane].at += 1;
        self.cursor.done[lane].store(self.places[lane].at, Ordering::Release);
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
        let place = &self.places[NORMAL];
        let most = place.head.min(place.at + u64::from(self.stretch.max(1)));
        let slots = place.segment.as_ref()?.slots(place.at, most);
        let (cursor, start) = (&*self.cursor, place.at);
        let urgent = (!self.gone).then_some((&*self.log, self.places[HIGH].at));
        let bytes = cursor.bytes.load(Ordering::Relaxed);
        cursor.hand.store(NORMAL as u8 + 1, Ordering::Release);
        Some(Stretch { slots, start, bytes, urgent, cursor })
    }

    /// The first so many of the stretch are done with, which makes so many bytes in all; the event after
    /// them is in hand if it is to be tried again.
    pub(crate) fn passed(&mut self, events: u64, bytes: u64, in_hand: bool) {
        self.places[NORMAL].at += events;
        self.cursor.done[NORMAL].store(self.places[NORMAL].at, Ordering::Release);
        self.cursor.bytes.store(bytes, Ordering::Release);
        self.stretch = self.stretch.saturating_sub(events as u32);
        self.lane = in_hand.then_some(NORMAL as u8);
        self.handles(false);
        if self.cursor.wanted.load(Ordering::Relaxed) {
            self.settle();
        }
    }

    /// The event in hand is being handled, or no longer.
    pub(crate) fn handles(&self, is: bool) {
        let hand = self.lane.filter(|_| is).map_or(0, |lane| lane + 1);
        self.cursor.hand.store(hand, Ordering::Release);
    }

    /// Whether it is time to let others run.
    pub(crate) fn stretch_ended(&self) -> bool {
        self.stretch == 0
    }

    /// Everything that was written is read.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.lane.is_none() && {
            self.refresh();
            self.places.iter().all(|place| place.at == place.head)
        }
    }

    /// Whether there is something to read, without any lock.
    pub(crate) fn peek(&self) -> bool {
        let new = |(lane, place): (usize, &Place<V>)| self.log.head(lane) != place.at;
        self.lane.is_some() || self.gone || self.places.iter().enumerate().any(new)
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
        self.log.sleep(&self.cursor, std::array::from_fn(|lane| self.places[lane].at))
    }

    /// What is not read yet, after the log was left: the event in hand and all behind it. Nothing, if
    /// others took it while the subscriber did not come back.
    pub(crate) fn rest(&mut self) -> Vec<V>
    where
        V: Clone,
    {
        let mut rest = Vec::new();
        self.refresh();
        if self.cursor.remainder.lock().take().is_none() {
            return rest;
        }
        while let Some(value) = self.current().cloned() {
            rest.push(value);
            self.advance(0);
        }
        rest
    }

    #[inline]
    fn choose(&mut self) -> Option<usize> {
        let urgent = self.log.head(HIGH) != self.places[HIGH].at && !self.gone;
        let (usual, high) = (&self.places[NORMAL], urgent || !self.plain);
        if self.stretch > 0 && !high && usual.at != usual.head {
            return Some(NORMAL);
        }
        self.choose_any(urgent)
    }

    #[cold]
    fn choose_any(&mut self, urgent: bool) -> Option<usize> {
        let waiting = |reader: &Reader<V>| {
            std::array::from_fn(|lane| reader.places[lane].at != reader.places[lane].head)
        };
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
        for (lane, place) in self.places.iter_mut().enumerate() {
            place.head = match (self.gone, end) {
                (false, _) => heads[lane],
                (true, Some(end)) => end[lane],
                (true, None) => place.at,
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
        let kept = self.remainder.as_ref().map(|remainder| &remainder.segments[lane]);
        self.places[lane].segment =
            kept.and_then(|kept| kept.iter().find(|segment| segment.holds(at)).cloned());
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
    /// So many are done with, which makes so many bytes in all. `true` if somebody waits for that, or something urgent came.
    #[inline]
    pub(crate) fn passed(&self, events: u64, bytes: u64) -> bool {
        self.cursor.done[NORMAL].store(self.start + events, Ordering::Release);
        self.cursor.bytes.store(bytes, Ordering::Release);
        let urgent = self.urgent.is_some_and(|(log, read)| log.head(HIGH) != read);
        urgent || self.cursor.wanted.load(Ordering::Relaxed)
    }
}

impl<V> Drop for Reader<V> {
    fn drop(&mut self) {
        self.log.leave(&self.cursor, false);
        let kept = self.cursor.remainder.lock().take();
        drop(kept);
    }
}
