//! [`Meter`]: what one process counts and measures, for as long as it lives.
//!
//! **Invariant:** counting never waits for anybody who reads, and what is kept is bounded: a sender cannot make up kinds
//! without end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Kinds that are counted apart. All others are counted together.
const KINDS_MAX: usize = 64;
/// The name under which all other kinds are counted.
const OTHERS: &str = "(others)";

/// The upper bounds of the buckets, in microseconds. What is longer is in the last one.
pub(crate) const BOUNDS_US: [u64; 15] = [
    100,
    500,
    1_000,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
    3_600_000_000,
];

/// Counts by duration.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BOUNDS_US.partition_point(|bound| *bound < micros);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many were in each bucket, and the sum in seconds.
    pub(crate) fn read(&self) -> ([u64; BOUNDS_US.len() + 1], f64) {
        let counts = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        (counts, self.sum_us.load(Ordering::Relaxed) as f64 / 1e6)
    }
}

/// How runs of a message end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Done,
    Failed,
    Retried,
    Snoozed,
}

impl End {
    pub(crate) const ALL: [End; 4] = [End::Done, End::Failed, End::Retried, End::Snoozed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Done => "done",
            End::Failed => "failed",
            End::Retried => "retried",
            End::Snoozed => "snoozed",
        }
    }
}

/// The messages of one kind.
#[derive(Debug, Default)]
pub(crate) struct KindMeter {
    ends: [AtomicU64; 4],
    /// How long its handler ran.
    pub(crate) handler: Histogram,
    /// From when it was made to its first run.
    pub(crate) wait: Histogram,
}

impl KindMeter {
    pub(crate) fn end(&self, how: End, took: Duration, wait: Option<Duration>) {
        self.ends[how as usize].fetch_add(1, Ordering::Relaxed);
        self.handler.add(took);
        if let Some(wait) = wait {
            self.wait.add(wait);
        }
    }

    pub(crate) fn ended(&self, how: End) -> u64 {
        self.ends[how as usize].load(Ordering::Relaxed)
    }
}

/// What this process counts.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    kinds: RwLock<BTreeMap<String, Arc<KindMeter>>>,
    notices: Mutex<BTreeMap<&'static str, u64>>,
    alerts: Mutex<BTreeMap<(String, &'static str), u64>>,
    pub(crate) generated: AtomicU64,
    /// For how long nobody led before this process did.
    pub(crate) failover: Histogram,
    pub(crate) redis: Histogram,
}

impl Meter {
    /// The counts of this kind.
    pub(crate) fn kind(&self, name: &str) -> Arc<KindMeter> {
        let known = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = known.get(name) {
            return kind.clone();
        }
        let full = known.len() >= KINDS_MAX;
        drop(known);
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(if full { OTHERS } else { name }.to_owned()).or_default().clone()
    }

    /// All kinds that were counted.
    pub(crate) fn kinds(&self) -> Vec<(String, Arc<KindMeter>)> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        kinds.iter().map(|(name, kind)| (name.clone(), kind.clone())).collect()
    }

    /// Counts a notice.
    pub(crate) fn notice(&self, name: &'static str) {
        *self.notices.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }

    /// Counts an alert that was sent to a sink, or was not.
    pub(crate) fn alert(&self, sink: &str, result: &'static str) {
        let mut alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        *alerts.entry((sink.to_owned(), result)).or_default() += 1;
    }

    /// How many alerts there were, by sink and by result.
    pub(crate) fn alerts(&self) -> BTreeMap<(String, &'static str), u64> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many notices of each name there were.
    pub(crate) fn notices(&self) -> BTreeMap<&'static str, u64> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_is_not_too_small() {
        let histogram = Histogram::default();
        for micros in [0, 100, 101, 3_600_000_000, 3_600_000_001] {
            histogram.add(Duration::from_micros(micros));
        }
        let (counts, sum) = histogram.read();
        assert_eq!((counts[0], counts[1], counts[14], counts[15]), (2, 1, 1, 1));
        assert!((sum - 7_200.000_202).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn made_up_kinds_are_counted_together() {
        let meter = Meter::default();
        for number in 0..1000 {
            meter.kind(&format!("kind {number}")).end(End::Done, Duration::ZERO, None);
        }
        let kinds = meter.kinds();
        assert_eq!(kinds.len(), KINDS_MAX + 1);
        let all: u64 = kinds.iter().map(|(_, kind)| kind.ended(End::Done)).sum();
        assert_eq!(all, 1000);
    }
}
