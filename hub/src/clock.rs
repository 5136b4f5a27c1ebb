//! Cheap clocks that lag by some milliseconds, and durations that need little memory.

use std::time::{Duration, SystemTime};

/// Reads a coarse clock. It moves in steps of some milliseconds and costs a fifth of an exact one.
/// This matters because every event is stamped.
#[cfg(target_os = "linux")]
fn coarse(clock: rustix::time::ClockId) -> Option<Duration> {
    let now = rustix::time::clock_gettime(clock);
    Some(Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?))
}

/// The current time of day.
pub(crate) fn coarse_now() -> SystemTime {
    #[cfg(target_os = "linux")]
    if let Some(since) = coarse(rustix::time::ClockId::RealtimeCoarse) {
        return SystemTime::UNIX_EPOCH + since;
    }
    SystemTime::now()
}

/// A monotonic time: only differences have a meaning.
pub(crate) fn coarse_instant() -> Duration {
    #[cfg(target_os = "linux")]
    if let Some(since) = coarse(rustix::time::ClockId::MonotonicCoarse) {
        return since;
    }
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed()
}

/// A duration in milliseconds, at least 1.
pub(crate) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
