//! [`Signal`]: a place for one waker.
//!
//! **Invariant:** a task that registers and then finds nothing to do is woken by every later
//! change. The check and the change are ordered by the lock of the checked data, and a change is
//! made before its [`Signal::wake`].

use std::task::Waker;

use crate::sync::{Arc, Mutex};

/// The waker of one reader or publisher.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    pub(crate) fn new() -> Signal {
        Signal { waker: Mutex::new(None) }
    }

    /// Must be called before the task checks whether there is anything to do.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut place = self.waker.lock();
        if place.as_ref().is_none_or(|old| !old.will_wake(waker)) {
            let old = place.replace(waker.clone());
            drop(place);
            drop(old); // dropping a waker may run the end of a task
        }
    }

    /// Must be called after the change, without holding a lock.
    pub(crate) fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Adds a signal to the list unless it is there. Removes signals of publishers that gave up.
pub(crate) fn remember(signals: &mut Vec<Arc<Signal>>, signal: &Arc<Signal>) {
    if signals.len() >= 16 {
        signals.retain(|one| Arc::strong_count(one) > 1);
    }
    if !signals.iter().any(|one| Arc::ptr_eq(one, signal)) {
        signals.push(signal.clone());
    }
}
