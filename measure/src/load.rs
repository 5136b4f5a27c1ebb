//! What everything here is loaded with, and how it is measured.
//!
//! **Invariant:** payloads have nothing in common, and all times come from one clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// Bytes of one payload.
pub const BYTES: usize = 100;
/// Payloads before they repeat: more than are ever in one batch.
const DIFFERENT: usize = 5_000;

/// Payloads that have nothing in common. Equal ones would flatter whoever runs a script over them:
/// Lua keeps one copy of equal strings.
pub fn payloads() -> impl Iterator<Item = &'static [u8]> + Clone + Send {
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

/// The clock of payloads that carry the time: monotonic, and shared by sender and receiver because both are
/// in this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins at zero.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// A payload that carries this moment.
    pub fn stamp(self) -> Vec<u8> {
        self.stamp_of(Instant::now())
    }

    /// A payload that carries the moment at which it was due.
    pub fn stamp_of(self, due: Instant) -> Vec<u8> {
        let mut payload = vec![b'x'; BYTES];
        let since = due.saturating_duration_since(self.0).as_nanos() as u64;
        payload[..8].copy_from_slice(&since.to_le_bytes());
        payload
    }

    /// How long ago a payload was stamped.
    pub fn since(self, payload: &[u8]) -> Result<Duration> {
        let stamp = payload.first_chunk().ok_or("a payload without a stamp")?;
        let now = self.0.elapsed().as_nanos() as u64;
        Ok(Duration::from_nanos(now.saturating_sub(u64::from_le_bytes(*stamp))))
    }
}

/// The CPU time this process has used so far.
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reads the server's own figures, over one connection that stays open: opening one would show up
/// in what it reads.
pub struct Gauge(redis::Connection);

impl std::fmt::Debug for Gauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gauge").finish_non_exhaustive()
    }
}

impl Gauge {
    /// Connects.
    pub fn open(url: &str) -> Result<Gauge> {
        Ok(Gauge(redis::Client::open(url)?.get_connection()?))
    }

    /// Empties the server before it answers, so that freeing is not charged to the next step.
    pub fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.0)?)
    }

    /// How many keys there are.
    pub fn keys(&mut self) -> Result<u64> {
        Ok(redis::cmd("DBSIZE").query(&mut self.0)?)
    }

    /// What the server says it is.
    pub fn server(&mut self) -> Result<String> {
        let info = self.info("server")?;
        if let Ok(version) = field(&info, "valkey_version") {
            return Ok(format!("Valkey {version}"));
        }
        Ok(format!("Redis {}", field(&info, "redis_version")?))
    }

    /// How it writes its data to disk.
    pub fn append_only(&mut self) -> Result<String> {
        let on: std::collections::HashMap<String, String> =
            redis::cmd("CONFIG").arg("GET").arg("append*").query(&mut self.0)?;
        match on.get("appendonly").map(String::as_str) {
            Some("yes") => Ok(on.get("appendfsync").cloned().unwrap_or_default()),
            _ => Ok("off".to_owned()),
        }
    }

    /// Bytes the server has allocated.
    pub fn memory(&mut self) -> Result<f64> {
        Ok(field(&self.info("memory")?, "used_memory")?.parse()?)
    }

    /// The CPU time the server has used so far.
    pub fn cpu(&mut self) -> Result<Duration> {
        let info = self.info("cpu")?;
        let user: f64 = field(&info, "used_cpu_user")?.parse()?;
        let system: f64 = field(&info, "used_cpu_sys")?.parse()?;
        Ok(Duration::from_secs_f64(user + system))
    }

    /// The commands the server has run so far, those inside scripts not counted.
    pub fn commands(&mut self) -> Result<u64> {
        Ok(field(&self.info("stats")?, "total_commands_processed")?.parse()?)
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
