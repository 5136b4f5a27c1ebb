//! How long an attempt to connect may take.
//!
//! **Invariant:** a dead route costs little at first, and a slow one is reached in the end.

use std::time::Duration;

/// How long a first attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long later attempts may take. The first ones are short, because a dead route may hang. The
/// others are longer, in case that was too short.
const RECONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The pause before the attempt after this many that failed in a row, with this random number: up to half of it sooner, so
/// that those who lost the same server do not all come at once.
pub(super) fn back_off(failures: u32, random: u32) -> Duration {
    let step = (BACKOFF_MIN * 2u32.saturating_pow(failures.clamp(1, 8) - 1)).min(BACKOFF_MAX);
    step - step.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// How long the next attempt may take. `failures` is how many failed in a row, plus one for this
/// attempt.
pub(super) fn connect_timeout(first: bool, failures: u32) -> Duration {
    match failures {
        _ if first => CONNECT_TIMEOUT,
        0..=2 => RECONNECT_TIMEOUT.0,
        _ => RECONNECT_TIMEOUT.1,
    }
}
