//! The first SIGINT or SIGTERM asks for a graceful stop, the second ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{FAILURE, Failure};

/// Both signals, from now on ours.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let catch = |kind| signal(kind).map_err(|error| Failure::new(FAILURE, error.to_string()));
        Ok(Signals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
        })
    }

    /// Waits for a signal; the exit code that stands for it.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}
