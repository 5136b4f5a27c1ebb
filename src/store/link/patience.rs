//! How long an attempt to connect may take.
//!
//! **Invariant:** a dead route costs little at first, and a slow one is reached in the end.

use std::time::Duration;

/// How long a first attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long later attempts may take. The first ones are short, because a dead route may hang. The
/// others are longer, in case that was too short.
const RECONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));

/// How long the next attempt may take. `failures` is how many failed in a row, plus one for this
/// attempt.
pub(super) fn connect_timeout(first: bool, failures: u32) -> Duration {
    match failures {
        _ if first => CONNECT_TIMEOUT,
        0..=2 => RECONNECT_TIMEOUT.0,
        _ => RECONNECT_TIMEOUT.1,
    }
}
