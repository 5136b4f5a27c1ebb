//! What was measured.
//!
//! **Invariant:** every figure that was measured more than once is told with its median, its least and its greatest value.

use serde::Serialize;

use crate::failover::Cause;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of this document.
    pub v: u8,
    /// The server.
    pub server: String,
    /// Processors of this machine.
    pub cores: usize,
    /// Rounds.
    pub rounds: usize,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Messages in and out, for each way of writing to disk.
    pub throughput: Vec<Throughput>,
    /// From send to handler start.
    pub latency: Vec<Latency>,
    /// From the end of a generator to the first message of the next one.
    pub failover: Vec<Failover>,
    /// From the death of a worker to the start of its message elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Times>,
    /// From setting an event to the return of `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_up: Option<Times>,
    /// From releasing a lock to the next holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<Times>,
    /// Bytes of a waiting message beside its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Spread>,
}

/// Messages in and out.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Throughput {
    /// How the server writes to disk: `off`, `everysec`, `always` or `no`.
    pub append_only: String,
    /// Messages in one batch.
    pub batch: usize,
    /// Sent by four tasks.
    pub sent: Way,
    /// Handled by a member with four handlers that do nothing.
    pub handled: Way,
}

/// What one way of many messages costs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Way {
    /// Messages a second.
    pub per_s: Spread,
    /// CPU time of the server per message.
    pub server_cpu_us: Spread,
    /// CPU time of this process per message.
    pub own_cpu_us: Spread,
    /// Commands per message.
    pub commands: Spread,
}

/// The figures of several rounds.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// The one in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of these figures.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (count, middle) = (values.len(), values.len() / 2);
        let median = match count % 2 {
            0 if count > 0 => (at(middle - 1) + at(middle)) / 2.0,
            _ => at(middle),
        };
        Spread { median, min: at(0), max: at(count.wrapping_sub(1)) }
    }
}

/// Latency at one rate.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Messages a second.
    pub rate: u32,
    /// Messages that count.
    pub messages: u64,
    /// Half of them took at most this long.
    pub p50_ms: f64,
    /// 99 % of them.
    pub p99_ms: f64,
    /// 99.9 % of them.
    pub p999_ms: f64,
    /// All of them.
    pub max_ms: f64,
    /// The whole distribution.
    pub distribution: Vec<Point>,
}

/// This share of the messages took at most this long.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// Of a hundred.
    pub percent: f64,
    /// The time.
    pub ms: f64,
}

/// Failover by cause.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failover {
    /// How the generator ended.
    pub cause: Cause,
    /// How long it took.
    #[serde(flatten)]
    pub times: Times,
}

/// How long something took, several times.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Times {
    /// How often it was measured.
    pub count: usize,
    /// In milliseconds.
    #[serde(rename = "ms")]
    pub spread: Spread,
}

impl Times {
    /// Of these times in milliseconds.
    pub fn of(ms: Vec<f64>) -> Times {
        Times { count: ms.len(), spread: Spread::of(ms) }
    }
}

impl Report {
    /// Rows for people: what, the median, and the range.
    pub fn rows(&self) -> Vec<[String; 3]> {
        let mut rows = Vec::new();
        let mut row = |name: String, spread: &Spread, unit: &str| {
            let range = format!("{} to {}", short(spread.min), short(spread.max));
            rows.push([name, format!("{} {unit}", short(spread.median)), range]);
        };
        for Throughput { append_only, batch, sent, handled } in &self.throughput {
            for (name, way) in [("in", sent), ("out", handled)] {
                let name = format!("{name}, by {batch}, append-only {append_only}");
                row(name.clone(), &way.per_s, "messages/s");
                row(format!("{name}: CPU of the server"), &way.server_cpu_us, "us/message");
                row(format!("{name}: CPU of this process"), &way.own_cpu_us, "us/message");
                row(format!("{name}: commands"), &way.commands, "/message");
            }
        }
        if let Some(memory) = &self.memory {
            row("memory beside the payload".to_owned(), memory, "bytes/message");
        }
        for failover in &self.failover {
            let cause = format!("{:?}", failover.cause).to_lowercase();
            let name = format!("generator {cause}, until another generates");
            row(name, &failover.times.spread, "ms");
        }
        let mut times = |name: &str, times: &Option<Times>| {
            if let Some(times) = times {
                row(name.to_owned(), &times.spread, "ms");
            }
        };
        times("worker killed, until its message starts elsewhere", &self.recovery);
        times("event set, until a waiter is awake", &self.wake_up);
        times("lock released, until the next holds it", &self.lock);
        for latency in &self.latency {
            let name = format!("send to handler start at {}/s", latency.rate);
            for (which, ms) in [
                ("p50", latency.p50_ms),
                ("p99", latency.p99_ms),
                ("p99.9", latency.p999_ms),
                ("worst", latency.max_ms),
            ] {
                rows.push([format!("{name}, {which}"), format!("{} ms", short(ms)), String::new()]);
            }
        }
        rows
    }
}

/// Three digits that count, and thousands for large numbers.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 10_000_000.0 => format!("{:.0}M", value / 1e6),
        large if large >= 1_000_000.0 => format!("{:.2}M", value / 1e6),
        large if large >= 10_000.0 => format!("{:.0}k", value / 1e3),
        some if some >= 100.0 => format!("{value:.0}"),
        few if few >= 10.0 => format!("{value:.1}"),
        few if few >= 0.1 || few == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_and_its_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of(vec![7.0]).median, 7.0);
        assert!(Spread::of(Vec::new()).median.is_nan());
    }

    #[test]
    fn numbers_are_short() {
        let shown = [1_234_567.0, 45_678.0, 123.4, 12.34, 1.234, 0.0123, 0.0].map(short);
        assert_eq!(shown, ["1.23M", "46k", "123", "12.3", "1.23", "0.0123", "0.00"]);
    }
}
