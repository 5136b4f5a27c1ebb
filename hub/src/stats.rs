//! [`Stats`]: what the hub and its subscribers did.
//!
//! **Invariant:** `processed + letters + skipped by filters` is what a subscriber was done with;
//! what it lost is in `dropped`, what it never came to in `abandoned`. Counting costs a plain
//! store; handler times are taken of one event in 256, of more where handlers are slow.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Buckets of handler times: four to a doubling, from 1 ns to hours.
const BUCKETS: usize = 168;

/// What one subscriber counts. Each field has one writer at a time.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) processed: AtomicU64,
    pub(crate) filtered: AtomicU64,
    /// Boxed: most have none, and there may be very many.
    troubles: OnceLock<Box<Troubles>>,
    times: OnceLock<Box<Times>>,
}

/// What does not happen to most.
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

/// So many more, in a counter with one writer.
#[inline]
pub(crate) fn add(counter: &AtomicU64, many: u64) {
    counter.store(counter.load(Ordering::Relaxed) + many, Ordering::Relaxed);
}

/// One more, in a counter with one writer.
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

    /// `weight` events took about this long each.
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

/// Four buckets to a doubling: within a fifth of the truth.
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

/// Which events are timed: all while handlers are slow, one in 256 while they are quick.
pub(crate) fn sample_every(last: Duration) -> u32 {
    match last {
        last if last >= Duration::from_micros(5) => 1,
        last if last >= Duration::from_micros(1) => 8,
        _ => 256,
    }
}

/// How long the handler took, by samples. Quantiles are exact to a fifth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandlerTimes {
    /// The mean.
    pub mean_ns: u64,
    /// Half took at most this long.
    pub p50_ns: u64,
    /// All but one in a hundred took at most this long.
    pub p99_ns: u64,
}

/// What a subscriber is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It handles events as they come.
    Running,
    /// It waits before it tries again.
    Pausing,
    /// It has not got on with what waits for it for at least a second.
    Stuck,
    /// It handles what is left, then ends.
    Draining,
    /// It ended as it was told to.
    Stopped,
    /// It ended because its budget was spent or its queue overflowed.
    Failed,
}

/// One subscriber, at one moment.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub keys: Vec<String>,
    /// Its group, if it shares the load of one.
    pub group: Option<String>,
    /// Where it runs: `task`, `thread`, `pool` or `inline`.
    pub context: &'static str,
    /// What it is doing.
    pub state: State,
    /// Events handled.
    pub processed: u64,
    /// Events its filters did not let through.
    pub filtered: u64,
    /// Attempts that failed, panics included.
    pub errors: u64,
    /// Attempts that panicked.
    pub panics: u64,
    /// Attempts after a failure that said so; those of new handlers are in `restarts`.
    pub retries: u64,
    /// New handlers after the first.
    pub restarts: u64,
    /// Events that became dead letters because they could not be handled.
    pub letters: u64,
    /// Events lost because the queue was full.
    pub dropped: u64,
    /// Events that were waiting when it ended.
    pub abandoned: u64,
    /// Events that wait for it, the one being handled included.
    pub lag: u64,
    /// How long its handler takes.
    pub times: HandlerTimes,
}

/// One key, at one moment.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TopicStats {
    /// The key.
    pub key: String,
    /// The type of its payloads.
    pub payload: &'static str,
    /// The number of the last that was published; it grows with refused ones, too.
    pub published: u64,
    /// How many deliveries were dropped because queues were full.
    pub dropped: u64,
    /// How many subscribers it has now.
    pub subscribers: usize,
}

/// The whole hub, at one moment.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Every subscriber that is not over, by name.
    pub subscribers: Vec<SubscriberStats>,
    /// Every key somebody has published or means to, in order.
    pub topics: Vec<TopicStats>,
    /// Subscribers that ended before their time: their budget was spent, or their queue overflowed.
    pub failed: u64,
    /// Payloads whose `Drop` panicked, in this process.
    pub drop_panics: u64,
    /// Notices of the hub itself that somebody was too slow to take.
    pub notices_lost: u64,
    /// Dead letters that could not be kept.
    pub letters_lost: u64,
    /// Events that waited for subscribers when these were dropped.
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
