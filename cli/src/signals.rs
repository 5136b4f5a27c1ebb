//! The first SIGINT, SIGTERM or SIGHUP asks for a graceful stop, the second ends the process at once.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{FAILURE, Failure};

/// The signals, from now on ours.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let catch = |kind| signal(kind).map_err(|error| Failure::new(FAILURE, error.to_string()));
        Ok(Signals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal; the exit code that stands for it.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hang_up.recv() => 129,
        }
    }

    /// Waits for `work`, unless a signal comes first; then its exit code.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, u8> {
        tokio::select! {
            done = work => Ok(done),
            code = self.next() => Err(code),
        }
    }
}
