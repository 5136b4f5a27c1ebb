//! Clocks that cost little and are some milliseconds behind, and times that need little room.

use std::time::{Duration, SystemTime};

/// A clock that is read at a fifth of the usual price, and goes in steps of some milliseconds:
/// events are stamped by the million.
#[cfg(target_os = "linux")]
fn coarse(clock: rustix::time::ClockId) -> Option<Duration> {
    let now = rustix::time::clock_gettime(clock);
    Some(Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?))
}

/// The time.
pub(crate) fn coarse_now() -> SystemTime {
    #[cfg(target_os = "linux")]
    if let Some(since) = coarse(rustix::time::ClockId::RealtimeCoarse) {
        return SystemTime::UNIX_EPOCH + since;
    }
    SystemTime::now()
}

/// Time that passes.
pub(crate) fn coarse_instant() -> Duration {
    #[cfg(target_os = "linux")]
    if let Some(since) = coarse(rustix::time::ClockId::MonotonicCoarse) {
        return since;
    }
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed()
}

/// A time in milliseconds, at least one.
pub(crate) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
