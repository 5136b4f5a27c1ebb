//! [`Signal`]: one waker that somebody waits behind.
//!
//! **Invariant:** whoever registers and then finds nothing to do is woken by everything that
//! happens after it looked: the look and the change are ordered by the lock of what is looked at,
//! and a change is made before its [`Signal::wake`].

use std::task::Waker;

use crate::sync::{Arc, Mutex};

/// Where one reader, publisher or joiner leaves its waker.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    pub(crate) fn new() -> Signal {
        Signal { waker: Mutex::new(None) }
    }

    /// To be called before looking whether there is anything to do.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut place = self.waker.lock();
        if place.as_ref().is_none_or(|old| !old.will_wake(waker)) {
            let old = place.replace(waker.clone());
            drop(place);
            drop(old); // a waker's drop may run the last of a task
        }
    }

    /// To be called after the change, without any lock held.
    pub(crate) fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Writes a signal down once. Those of publishers that gave up are forgotten on the way.
pub(crate) fn remember(signals: &mut Vec<Arc<Signal>>, signal: &Arc<Signal>) {
    if signals.len() >= 16 {
        signals.retain(|one| Arc::strong_count(one) > 1);
    }
    if !signals.iter().any(|one| Arc::ptr_eq(one, signal)) {
        signals.push(signal.clone());
    }
}
