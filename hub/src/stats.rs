//! [`Stats`]: counters of the hub and its subscribers.
//!
//! **Invariant:** `processed + letters + filtered` is the number of events that a subscriber has
//! finished. Events it lost are in `dropped`. Events it never started are in `abandoned`. Counting
//! costs a plain store. Handler times are sampled: one event in 256, and more often if handlers are
//! slow.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Buckets of handler times, from 1 ns to hours. Each doubling has four buckets.
const BUCKETS: usize = 168;

/// The counters of one subscriber. Each field has one writer at a time.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) processed: AtomicU64,
    pub(crate) filtered: AtomicU64,
    /// Boxed: most subscribers have no trouble, and there may be very many subscribers.
    troubles: OnceLock<Box<Troubles>>,
    times: OnceLock<Box<Times>>,
}

/// Counters that stay at zero for most subscribers.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    pub(crate) errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) restarts: AtomicU64,
    pub(crate) letters: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    /// Written by publishers.
    pub(crate) dropped: AtomicU64,
}

/// Adds `many` to a counter that has one writer.
#[inline]
pub(crate) fn add(counter: &AtomicU64, many: u64) {
    counter.store(counter.load(Ordering::Relaxed) + many, Ordering::Relaxed);
}

/// Adds one to a counter that has one writer.
#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn troubles(&self) -> &Troubles {
        self.troubles.get_or_init(Box::default)
    }

    pub(crate) fn has_troubles(&self) -> Option<&Troubles> {
        self.troubles.get().map(|troubles| &**troubles)
    }

    /// Records that `weight` events took about this long each.
    pub(crate) fn took(&self, time: Duration, weight: u32) {
        let times = self.times.get_or_init(|| Box::new(Times::new()));
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        times.buckets[bucket(nanos)].fetch_add(u64::from(weight), Ordering::Relaxed);
        times.sum.fetch_add(nanos.saturating_mul(u64::from(weight)), Ordering::Relaxed);
        times.count.fetch_add(u64::from(weight), Ordering::Relaxed);
    }

    pub(crate) fn times(&self) -> HandlerTimes {
        self.times.get().map_or_else(HandlerTimes::default, |times| times.read())
    }
}

#[derive(Debug)]
struct Times {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    count: AtomicU64,
}

impl Times {
    fn new() -> Times {
        let zero = || AtomicU64::new(0);
        Times { buckets: std::array::from_fn(|_| zero()), sum: zero(), count: zero() }
    }

    fn read(&self) -> HandlerTimes {
        let count = self.count.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        HandlerTimes {
            mean_ns: sum.checked_div(count).unwrap_or(0),
            p50_ns: self.quantile(count, 50),
            p99_ns: self.quantile(count, 99),
        }
    }

    fn quantile(&self, count: u64, percent: u64) -> u64 {
        let rank = (count * percent).div_ceil(100);
        let mut seen = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Ordering::Relaxed);
            if seen >= rank && seen > 0 {
                return upper(place);
            }
        }
        0
    }
}

/// The bucket of a time. With four buckets per doubling, the error is at most a fifth.
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(4);
    let power = nanos.ilog2();
    let quarter = (nanos >> (power - 2)) & 3;
    (((power - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

fn upper(bucket: usize) -> u64 {
    let (power, quarter) = (bucket as u32 / 4 + 2, bucket as u64 % 4);
    ((5 + quarter) << (power - 2)) - 1
}

/// How many events share one time sample: 1 while handlers are slow, 256 while they are quick.
pub(crate) fn sample_every(last: Duration) -> u32 {
    match last {
        last if last >= Duration::from_micros(5) => 1,
        last if last >= Duration::from_micros(1) => 8,
        _ => 256,
    }
}

/// How long the handler takes per event, estimated from samples. Quantiles are exact to a fifth.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
/// const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let clock = hub.subscribe(&TICKS).inline(|_: Delivery<'_, u64>| ())?;
/// hub.blocking_publish(&TICKS, 1)?; // the first event is always timed
/// let times = clock.stats().times;
/// assert!(times.p50_ns > 0 && times.p50_ns <= times.p99_ns);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandlerTimes {
    /// The mean, in nanoseconds.
    pub mean_ns: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// What a subscriber is doing.
///
/// ```
/// use artel_hub::{Delivery, EventHub, State, Topic};
/// const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let clock = hub.subscribe(&TICKS).inline(|_: Delivery<'_, u64>| ())?;
/// assert_eq!(clock.stats().state, State::Running);
/// hub.blocking_shutdown(std::time::Duration::from_secs(5));
/// assert_eq!(clock.stats().state, State::Stopped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It handles events as they arrive.
    Running,
    /// It pauses before a retry or a restart.
    Pausing,
    /// Events wait for it, and it has made no progress for at least a second.
    Stuck,
    /// It handles the remaining events and then ends.
    Draining,
    /// It ended because it was told to.
    Stopped,
    /// It ended because its restart budget was spent or its queue overflowed.
    Failed,
}

/// A snapshot of one subscriber's counters.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// let billing = hub.subscribe(&ORDERS).name("billing").filter(|total: &u32| *total > 0);
/// let billing = billing.inline(|_: Delivery<'_, u32>| ())?;
/// for total in [0, 5, 8] {
///     hub.blocking_publish(&ORDERS, total)?;
/// }
/// let stats = billing.stats();
/// assert_eq!((stats.processed, stats.filtered, stats.lag), (2, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Its name.
    pub name: String,
    /// The keys and patterns it subscribes to.
    pub keys: Vec<String>,
    /// Its group, if it is a member of one.
    pub group: Option<String>,
    /// Where it runs: `task`, `thread`, `pool` or `inline`.
    pub context: &'static str,
    /// What it is doing.
    pub state: State,
    /// Events it handled.
    pub processed: u64,
    /// Events its filters rejected.
    pub filtered: u64,
    /// Attempts that failed, panics included.
    pub errors: u64,
    /// Attempts that panicked.
    pub panics: u64,
    /// Attempts that were repeated because the handler asked for a retry. Attempts by a new handler
    /// are in `restarts` instead.
    pub retries: u64,
    /// How many new handlers it got after the first one.
    pub restarts: u64,
    /// Events that became dead letters because they could not be handled.
    pub letters: u64,
    /// Events lost because the queue was full.
    pub dropped: u64,
    /// Events that still waited when it ended.
    pub abandoned: u64,
    /// Events that wait for it, including the one being handled.
    pub lag: u64,
    /// How long its handler takes per event.
    pub times: HandlerTimes,
}

/// A snapshot of one key's counters.
///
/// ```
/// use artel_hub::{EventHub, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// hub.blocking_publish(&ORDERS, 7)?;
/// let stats = hub.stats();
/// let orders = stats.topics.iter().find(|topic| topic.key == "orders").expect("published");
/// assert_eq!((orders.published, orders.subscribers, orders.payload), (1, 0, "u32"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TopicStats {
    /// The key.
    pub key: String,
    /// The name of the payload's Rust type.
    pub payload: &'static str,
    /// The sequence number of the last published event. A refused publish uses up a number, too.
    pub published: u64,
    /// How many deliveries were dropped because queues were full.
    pub dropped: u64,
    /// How many subscribers it has now.
    pub subscribers: usize,
}

/// A snapshot of the whole hub, from [`EventHub::stats`](crate::EventHub::stats). Made for
/// monitoring: it can be serialized.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
/// const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let _clock = hub.subscribe(&TICKS).name("clock").inline(|_: Delivery<'_, u64>| ())?;
/// let stats = hub.stats();
/// assert_eq!((stats.subscribers.len(), stats.failed), (1, 0));
/// let json = serde_json::to_value(&stats)?;
/// assert_eq!(json["subscribers"][0]["name"], "clock");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Every subscriber that has not ended, sorted by name.
    pub subscribers: Vec<SubscriberStats>,
    /// Every key that has subscribers or was published under, sorted.
    pub topics: Vec<TopicStats>,
    /// Subscribers that were stopped early: their restart budget was spent, or their queue
    /// overflowed.
    pub failed: u64,
    /// Payloads whose `Drop` panicked, counted for the whole process.
    pub drop_panics: u64,
    /// Notices of the hub that a listener missed because it was too slow.
    pub notices_lost: u64,
    /// Dead letters that were lost.
    pub letters_lost: u64,
    /// Events that were still waiting when their subscription was dropped.
    pub discarded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_fifth() {
        for nanos in [0, 1, 5, 77, 1_000, 123_456, 9_999_999_999, u64::MAX / 2] {
            let top = upper(bucket(nanos));
            let cap = upper(BUCKETS - 1);
            assert!(top >= nanos.min(cap), "{nanos}: {top}");
            assert!(
                nanos < 8 || nanos > cap || top as f64 <= nanos as f64 * 1.25,
                "{nanos}: {top}"
            );
        }
        let counts = Counts::default();
        for micros in 1..=100 {
            counts.took(Duration::from_micros(micros), 1);
        }
        let times = counts.times();
        assert_eq!(times.mean_ns, 50_500);
        assert!((50_000..62_500).contains(&times.p50_ns), "{times:?}");
        assert!((99_000..124_000).contains(&times.p99_ns), "{times:?}");
    }

    #[test]
    fn measuring_does_not_cost_more_than_delivering() {
        assert_eq!(sample_every(Duration::from_nanos(50)), 256);
        assert_eq!(sample_every(Duration::from_micros(2)), 8);
        assert_eq!(sample_every(Duration::from_millis(2)), 1);
    }
}
