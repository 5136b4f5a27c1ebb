//! Proves what the hub promises, one module per promise.
#![allow(missing_docs, clippy::print_stdout)]

mod bad_input; // every wrong input has its error, and nothing is lost
mod failure; // retries, restarts, dead letters, redelivery
mod filters; // who gets what
mod found; // what once failed
mod history; // archives on disk
mod isolation; // nobody can hurt anybody
mod life; // stop, idle, shutdown, nothing left behind
mod many; // a hundred thousand subscribers, and coming and going under load
mod notify; // alerts reach a webhook and a mailbox once per cooldown
mod order; // first come first served, groups, priorities
mod overflow; // bounds and what happens at them
mod property; // random histories, checked against the promise
mod routing; // topics, keys, patterns

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use artel_hub::{Delivery, Handler, HandlerError};

/// Longer than anything takes unless it hangs.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Waits for a condition.
#[track_caller]
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let due = Instant::now() + LONG;
    while !check() {
        assert!(Instant::now() < due, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn soaks() -> bool {
    std::env::var_os("ARTEL_SOAK").is_some()
}

/// A runtime with this many workers.
pub(crate) fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().expect("a runtime")
}

/// What a subscriber saw, for the test to look at.
pub(crate) struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Seen<T> {
        Seen(self.0.clone())
    }
}

impl<T: Clone + Send + 'static> Seen<T> {
    pub(crate) fn new() -> Seen<T> {
        Seen(Arc::new(Mutex::new(Vec::new())))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().expect("not poisoned")
    }

    pub(crate) fn push(&self, value: T) {
        self.lock().push(value);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// A handler that writes down every payload.
    pub(crate) fn handler(&self) -> impl Handler<T> + Clone + use<T>
    where
        T: Sync,
    {
        let seen = self.clone();
        move |event: Delivery<'_, T>| seen.push(event.get().clone())
    }
}

/// Holds handlers back until the test lets them go.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<(bool, usize)>, std::sync::Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.0.lock().expect("not poisoned").0 = true;
        self.0.1.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut state = self.0.0.lock().expect("not poisoned");
        state.1 += 1;
        drop(self.0.1.wait_while(state, |state| !state.0).expect("not poisoned"));
    }

    /// Waits until so many have come.
    #[track_caller]
    pub(crate) fn reached(&self, times: usize) {
        eventually("a handler to come", || self.0.0.lock().expect("not poisoned").1 >= times);
    }
}

/// A handler that never returns.
#[derive(Clone)]
pub(crate) struct Never;

impl<T: Sync + 'static> Handler<T> for Never {
    async fn handle(&mut self, _: Delivery<'_, T>) -> Result<(), HandlerError> {
        std::future::pending().await
    }
}
