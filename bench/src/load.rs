//! What both sides are loaded with, and how it is measured: the same messages, the same clock, the
//! same probes for the raw loops and for Artel. A difference in here would be a difference in the
//! ratios.

use std::time::Duration;

pub use artel_measure::{BYTES, Clock, Gauge, Result, SLOTS as LOOPS, own_cpu, payloads};

/// Messages per round, in and out. About a tenth of a second of work: long enough for a rate, short
/// enough for many rounds on a shared machine.
pub const MESSAGES: usize = 400_000;
/// Messages in one call, large and small.
pub const BATCHES: [usize; 2] = [1000, 100];
/// One message of this many fails, where messages fail.
pub const FAILS: usize = 20;
/// Messages that wait while the memory is read.
pub const WAITING: usize = 100_000;
/// Time between two messages while latency is measured: 200 a second.
pub const PACE: Duration = Duration::from_millis(5);
/// Messages whose latency counts, about five seconds of them.
pub const SAMPLES: usize = 1_000;
/// Messages before those, while connections and caches warm up.
pub const WARM_UP: usize = 50;

/// The median and the 99th percentile, in milliseconds, of all but the first few.
pub fn percentiles(latencies: &[Duration]) -> (f64, f64) {
    let mut ms: Vec<f64> =
        latencies.iter().skip(WARM_UP).map(|latency| latency.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    let at = |share: f64| ms.get((ms.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    (at(0.5), at(0.99))
}
