//! [`Travelling`]: calls with many bytes that are on their way.
//!
//! **Invariant:** as long as one is, the silence of a connection is no sign of its end.

use std::time::Duration;
use tokio::time::Instant;

use super::Shared;

/// A call with many bytes is under way until this is dropped.
pub(super) struct Travelling<'a>(&'a Shared);

impl<'a> Travelling<'a> {
    pub(super) fn begin(shared: &'a Shared, timeout: Duration) -> Travelling<'a> {
        let mut state = shared.state();
        state.travelling += 1;
        state.busy_until = state.busy_until.max(Instant::now() + timeout);
        Travelling(shared)
    }
}

impl Drop for Travelling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.travelling -= 1;
        if state.travelling == 0 {
            state.busy_until = Instant::now();
        }
    }
}
