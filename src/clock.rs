//! The one clock on which this process bounds its trust.
//!
//! **Invariant:** time on this clock never stands still and never goes back. It goes on while the
//! machine is suspended, so a process that slept past its lease knows this when it wakes. It is never
//! compared with another process's clock or with Redis time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time on the boot clock of this machine, in microseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The current time.
    pub(crate) fn now() -> Moment {
        #[cfg(target_os = "linux")]
        let clock = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        Moment(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000)
    }

    pub(crate) const fn from_micros(micros: u64) -> Moment {
        Moment(micros)
    }

    pub(crate) const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is before.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration.as_micros() as u64))
    }
}
