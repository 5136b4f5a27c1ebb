//! Waits for a condition, never for a fixed time.

use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails. It is long on purpose.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Calls `ask` until it returns `Some`; panics with `what` after [`DEADLINE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Calls `ask` until it returns true; panics with `what` after [`DEADLINE`].
#[track_caller]
pub fn eventually(what: &str, mut ask: impl FnMut() -> bool) {
    wait_for(what, || ask().then_some(()));
}
