//! The first SIGINT, SIGTERM or SIGHUP asks for a graceful stop. The second ends the process at
//! once.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{FAILURE, Failure};

/// The signals that this process catches.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if our parent set SIGHUP to be ignored (`nohup`).
    hang_up: Option<Signal>,
    /// The exit code of the last signal, and when it came.
    last: Option<(u8, Instant)>,
}

/// The same signal again within this time counts as one: `timeout` sends its signal to the process
/// and to its group.
const SAME: Duration = Duration::from_millis(50);

impl Signals {
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let catch = |kind| signal(kind).map_err(|error| Failure::new(FAILURE, error.to_string()));
        Ok(Signals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: match ignored(SignalKind::hangup()) {
                true => None,
                false => Some(catch(SignalKind::hangup())?),
            },
            last: None,
        })
    }

    /// Waits for a signal; returns its exit code.
    pub(crate) async fn next(&mut self) -> u8 {
        loop {
            let code = tokio::select! {
                _ = self.interrupt.recv() => 130,
                _ = self.terminate.recv() => 143,
                _ = hung_up(&mut self.hang_up) => 129,
            };
            let now = Instant::now();
            let again = self.last.is_some_and(|(last, at)| last == code && now - at < SAME);
            if !again {
                self.last = Some((code, now));
                return code;
            }
        }
    }

    /// Waits for `work`. If a signal comes first, returns the exit code of the signal.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, u8> {
        tokio::select! {
            done = work => Ok(done),
            code = self.next() => Err(code),
        }
    }
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Was this signal ignored when we were started?
fn ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

/// Runs blocking work on another thread, so that signals are received meanwhile.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::new(FAILURE, error.to_string())))
}
