//! What both sides are loaded with, and how it is measured: the same messages, the same clock, the
//! same probes for the raw loops and for Artel. A difference in here would be a difference in the
//! ratios.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// What anything here may fail with.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Messages per round, in and out. About half a second of work: long enough for a rate, short
/// enough for many rounds on a shared machine.
pub(crate) const MESSAGES: usize = 200_000;
/// Messages that wait while the memory is read.
pub(crate) const WAITING: usize = 100_000;
/// Bytes of one payload.
pub(crate) const BYTES: usize = 100;
/// Payloads before they repeat: more than are ever in one batch.
const DIFFERENT: usize = 5_000;
/// Loops of the raw side, and handlers of Artel's.
pub(crate) const LOOPS: usize = 4;
/// Time between two messages while latency is measured: 200 a second.
pub(crate) const PACE: Duration = Duration::from_millis(5);
/// Messages whose latency counts, about five seconds of them.
pub(crate) const SAMPLES: usize = 1_000;
/// Messages before those, while connections and caches warm up.
pub(crate) const WARM_UP: usize = 50;

/// Payloads that have nothing in common. Equal ones would flatter whoever runs a script over them:
/// Lua keeps one copy of equal strings.
pub(crate) fn payloads() -> impl Iterator<Item = &'static [u8]> + Clone + Send {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
        let letters = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b'a' + (state % 26) as u8
        });
        letters.take(DIFFERENT * BYTES).collect()
    });
    pool.chunks_exact(BYTES).cycle()
}

/// The clock of the latency payloads: monotonic, and shared by sender and receiver because both are
/// in this process.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    /// A payload that carries this moment.
    pub(crate) fn stamp(self) -> Vec<u8> {
        let mut payload = vec![b'x'; BYTES];
        payload[..8].copy_from_slice(&self.now().to_le_bytes());
        payload
    }

    /// How long ago a payload was stamped.
    pub(crate) fn since(self, payload: &[u8]) -> Result<Duration> {
        let stamp = payload.first_chunk().ok_or("a payload without a stamp")?;
        Ok(Duration::from_nanos(self.now().saturating_sub(u64::from_le_bytes(*stamp))))
    }

    fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// The median and the 99th percentile, in milliseconds, of all but the first few.
pub(crate) fn percentiles(latencies: &[Duration]) -> (f64, f64) {
    let mut ms: Vec<f64> =
        latencies.iter().skip(WARM_UP).map(|latency| latency.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    let at = |share: f64| ms.get((ms.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    (at(0.5), at(0.99))
}

/// The CPU time this process has used so far.
pub(crate) fn own_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(used.num_microseconds() as u64))
}

/// Reads the server's own figures, over one connection that stays open: opening one would show up
/// in what it reads.
pub(crate) struct Gauge(redis::Connection);

impl Gauge {
    pub(crate) fn new(server: &artel_rig::Server) -> Gauge {
        Gauge(server.connect())
    }

    /// Empties the server before it answers, so that freeing is not charged to the next step.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.0)?)
    }

    /// What the server says it is.
    pub(crate) fn server(&mut self) -> Result<String> {
        let info = self.info("server")?;
        if let Ok(version) = field(&info, "valkey_version") {
            return Ok(format!("Valkey {version}"));
        }
        Ok(format!("Redis {}", field(&info, "redis_version")?))
    }

    /// Bytes the server has allocated.
    pub(crate) fn memory(&mut self) -> Result<f64> {
        Ok(field(&self.info("memory")?, "used_memory")?.parse()?)
    }

    /// The CPU time the server has used so far.
    pub(crate) fn cpu(&mut self) -> Result<Duration> {
        let info = self.info("cpu")?;
        let user: f64 = field(&info, "used_cpu_user")?.parse()?;
        let system: f64 = field(&info, "used_cpu_sys")?.parse()?;
        Ok(Duration::from_secs_f64(user + system))
    }

    fn info(&mut self, section: &str) -> Result<String> {
        Ok(redis::cmd("INFO").arg(section).query(&mut self.0)?)
    }
}

fn field<'a>(info: &'a str, name: &str) -> Result<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .ok_or_else(|| format!("the server does not tell its {name}").into())
}
