//! [`Timings`]: how long something took, as a few numbers.
//!
//! **Invariant:** noting a time never waits and never allocates. A percentile is at most an eighth too
//! high, and never too low.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Eight steps for every power of two of microseconds. The last one holds everything from 19 hours on.
const STEPS: usize = 8;
const BUCKETS: usize = 36 * STEPS;

/// Counts by duration.
pub(crate) struct Timings {
    counts: [AtomicU64; BUCKETS],
}

impl Default for Timings {
    fn default() -> Timings {
        Timings { counts: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl fmt::Debug for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timings").field("p50", &self.percentile(50)).finish_non_exhaustive()
    }
}

impl Timings {
    pub(crate) fn note(&self, took: Duration) {
        self.counts[bucket(took.as_micros() as u64)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time that `percent` of a hundred did not exceed; `None` if nothing was noted.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let counts: Vec<u64> = self.counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let index = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_micros(upper_bound(index)))
    }
}

/// Below eight every number has its own step. Above, the power of two and the three bits behind it
/// decide.
fn bucket(micros: u64) -> usize {
    if micros < STEPS as u64 {
        return micros as usize;
    }
    let power = micros.ilog2() as usize;
    let step = (micros >> (power - 3)) as usize % STEPS;
    ((power - 2) * STEPS + step).min(BUCKETS - 1)
}

/// The highest number of a bucket.
fn upper_bound(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let (power, step) = (index / STEPS + 2, (index % STEPS) as u64);
    ((STEPS as u64 + step + 1) << (power - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_its_bucket() {
        for micros in (0..10_000).chain([1 << 20, (1 << 30) + 7, 1 << 37]) {
            let bound = upper_bound(bucket(micros));
            assert!(micros <= bound && bound <= micros + micros / 8, "{micros}: {bound}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_never_too_low() {
        let timings = Timings::default();
        assert_eq!(timings.percentile(50), None);
        for ms in 1..=100 {
            timings.note(Duration::from_millis(ms));
        }
        for percent in [1, 50, 99, 100] {
            let ms = timings.percentile(percent).expect("noted").as_secs_f64() * 1000.0;
            let exact = percent as f64;
            assert!(ms >= exact && ms <= exact * 1.13, "{percent}: {ms}");
        }
    }
}
