//! What is measured: a case, the events it carries, and the tally its subscribers leave behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Of every queue that has a bound.
pub(crate) const BOUND: usize = 1024;
/// The most a receiver takes at once, where it can take several.
pub(crate) const BATCH: usize = 256;
/// Nothing takes this long unless events were lost or a subscriber hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// 64 bytes, as large as one cache line.
pub(crate) struct Event {
    pub(crate) seq: u64,
    #[allow(dead_code, reason = "carried, not looked at")]
    pub(crate) body: [u8; 56],
}

impl Event {
    #[inline]
    pub(crate) fn new(seq: u64) -> Event {
        Event { seq, body: [7; 56] }
    }
}

/// Subscribers that wait, and the way to reach them.
///
/// `E` is what a publisher has to hand over: `Arc<Event>`, or [`Event`] where the peer itself puts
/// it behind an `Arc`. Either way the event is allocated once, inside what is measured.
pub(crate) trait Running<E>: Send {
    /// Publishes, and waits where the case keeps to a bound.
    fn publish(&mut self, event: E);

    /// Says that nothing follows, and waits until every subscriber has drained. What remains to be
    /// taken down is taken down by `drop`, after the clock has stopped.
    fn finish(&mut self) -> Tally;
}

/// How a case wants its events.
pub(crate) enum Started {
    Shared(Box<dyn Running<Arc<Event>>>),
    Owned(Box<dyn Running<Event>>),
}

/// Does a subscriber run apart from the publisher?
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// A queue lies between the two.
    Queued,
    /// The publisher runs the handlers itself. Not a fair rival: one handler that hangs stops the
    /// publisher and everybody else. Shown, but no goal is held against it.
    Inline,
}

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Does a publisher wait for whoever is [`BOUND`] events behind?
    pub(crate) bounded: bool,
    /// `start(subscribers, events)`.
    pub(crate) start: fn(usize, usize) -> Started,
    /// Not run with more subscribers than this.
    pub(crate) most: usize,
    /// How many events, measured by what others get with this many subscribers. 1.0 unless a run
    /// would take much longer, or be over much sooner, than the others.
    pub(crate) share: fn(usize) -> f64,
    /// Is its idle memory of interest?
    pub(crate) memory: bool,
}

impl Case {
    /// A queue between publisher and subscriber, any number of subscribers, as many events as the
    /// others.
    pub(crate) const fn new(name: &'static str, start: fn(usize, usize) -> Started) -> Case {
        Case {
            name,
            kind: Kind::Queued,
            bounded: true,
            start,
            most: usize::MAX,
            share: |_| 1.0,
            memory: false,
        }
    }

    /// So many that a run takes between 0.2 and 1 s with a good peer.
    pub(crate) fn events(&self, subscribers: usize) -> usize {
        let usual = match subscribers {
            0..=2 => 2_000_000,
            3..=16 => 3_200_000 / subscribers,
            17..=256 => 4_000_000 / subscribers,
            257..=2048 => 6_000_000 / subscribers,
            // Above the bound, so that it counts.
            _ => (12_000_000 / subscribers).max(1500),
        };
        ((usual as f64 * (self.share)(subscribers)) as usize).max(1)
    }
}

/// What subscribers received together: how many, and the sum of their numbers, so that an event
/// that came twice cannot stand in for one that never came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

impl Tally {
    pub(crate) fn expected(subscribers: usize, events: usize) -> Tally {
        let (subscribers, events) = (subscribers as u64, events as u64);
        Tally { count: subscribers * events, sum: subscribers * (events * (events - 1) / 2) }
    }

    #[inline]
    fn take(&mut self, event: &Event) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(event.seq);
    }

    fn add(&mut self, other: Tally) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Where the sinks of one run report when they are dropped.
#[derive(Default)]
pub(crate) struct Total {
    ended: Mutex<(usize, Tally)>,
    news: Condvar,
}

impl Total {
    pub(crate) fn new() -> Arc<Total> {
        Arc::default()
    }

    fn ended(&self) -> MutexGuard<'_, (usize, Tally)> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, tally: Tally) {
        let mut ended = self.ended();
        ended.0 += 1;
        ended.1.add(tally);
        drop(ended);
        self.news.notify_one();
    }

    /// Waits until so many sinks are gone. Dropping is what every peer does to a subscriber that
    /// has ended, whatever its own way of joining one.
    pub(crate) fn wait(&self, sinks: usize) -> Tally {
        let waiting = self.news.wait_timeout_while(self.ended(), PATIENCE, |now| now.0 < sinks);
        let (ended, late) = waiting.unwrap_or_else(PoisonError::into_inner);
        assert!(!late.timed_out(), "only {} of {sinks} subscribers ended", ended.0);
        ended.1
    }
}

/// One subscriber: looks at each event, and reports when it is dropped.
pub(crate) struct Sink {
    tally: Tally,
    total: Arc<Total>,
}

impl Sink {
    pub(crate) fn new(total: &Arc<Total>) -> Sink {
        Sink { tally: Tally::default(), total: total.clone() }
    }

    #[inline]
    pub(crate) fn take(&mut self, event: &Event) {
        self.tally.take(event);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.total.report(self.tally);
    }
}

/// The same for handlers that are called through a shared reference. It does not report: whoever
/// started it looks.
#[derive(Default)]
pub(crate) struct SharedSink {
    count: AtomicU64,
    sum: AtomicU64,
}

impl SharedSink {
    pub(crate) fn some(subscribers: usize) -> Vec<Arc<SharedSink>> {
        (0..subscribers).map(|_| Arc::default()).collect()
    }

    /// What all have received so far.
    pub(crate) fn tally(sinks: &[Arc<SharedSink>]) -> Tally {
        let mut all = Tally::default();
        for sink in sinks {
            let count = sink.count.load(Ordering::Acquire);
            all.add(Tally { count, sum: sink.sum.load(Ordering::Relaxed) });
        }
        all
    }

    /// Looks every millisecond until each has received so many.
    pub(crate) fn wait(sinks: &[Arc<SharedSink>], each: u64) -> Tally {
        let until = Instant::now() + PATIENCE;
        for sink in sinks {
            while sink.count.load(Ordering::Acquire) < each {
                assert!(Instant::now() < until, "a subscriber never got its {each} events");
                thread::sleep(Duration::from_millis(1));
            }
        }
        SharedSink::tally(sinks)
    }

    /// May be called by several threads at once.
    #[inline]
    pub(crate) fn take(&self, event: &Event) {
        self.sum.fetch_add(event.seq, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Only where the caller promises one call after the other: costs what [`Sink::take`] costs.
    #[inline]
    pub(crate) fn take_alone(&self, event: &Event) {
        let (count, sum) = (self.count.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed));
        self.sum.store(sum.wrapping_add(event.seq), Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
    }
}

/// Two workers for everybody who needs a runtime.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_cache_line() {
        assert_eq!(size_of::<Event>(), 64);
    }

    #[test]
    fn a_double_is_no_stand_in_for_a_lost_one() {
        let total = Total::new();
        let mut sink = Sink::new(&total);
        for seq in [0, 1, 1] {
            sink.take(&Event::new(seq));
        }
        drop(sink);
        let tally = total.wait(1);
        assert_eq!(tally.count, Tally::expected(1, 3).count);
        assert_ne!(tally, Tally::expected(1, 3));
    }
}
