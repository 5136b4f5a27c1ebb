//! [`Timer`]: the hub's own clock hand, for programs that have no runtime.
//!
//! **Invariant:** a sleeper is woken once its time has come or the timer has ended, whichever is
//! first; a sleep that is dropped leaves nothing behind.
//!
//! One thread, `artel-hub`, on which nothing else runs. It starts with the first that needs it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct State {
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    ended: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The same as in the state, for those who only look.
    ended: AtomicBool,
}

/// Wakes sleepers. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer {
    /// Starts the thread unless it runs.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        if state.thread.is_none() && !state.ended {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("artel-hub".into());
            state.thread = Some(thread.spawn(move || run(&shared))?);
        }
        Ok(())
    }

    /// Ends the thread, wakes every sleeper and waits for it, unless it is the one that calls.
    pub(crate) fn end(&self) {
        let thread = {
            let mut state = self.shared.lock();
            state.ended = true;
            self.shared.ended.store(true, Ordering::Release);
            state.thread.take()
        };
        self.shared.changed.notify_all();
        match thread {
            Some(thread) if thread.thread().id() != std::thread::current().id() => {
                let _ = thread.join();
            }
            _ => {}
        }
        let sleepers = std::mem::take(&mut self.shared.lock().sleepers);
        sleepers.into_values().for_each(Waker::wake);
    }

    pub(crate) fn until(&self, due: Instant) -> Sleep {
        Sleep { timer: self.clone(), due, entry: None, waker: None }
    }

    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        self.until(Timer::due(time))
    }

    /// When this time will have passed.
    pub(crate) fn due(time: Duration) -> Instant {
        // Further ahead than anybody waits, and still a time that can be said.
        Instant::now() + time.min(Duration::from_secs(86_400 * 365))
    }
}

fn run(shared: &Shared) {
    loop {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut state = shared.lock();
        if state.ended {
            return;
        }
        while let Some(first) = state.sleepers.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        if due.is_empty() {
            let first = state.sleepers.first_key_value().map(|(key, _)| key.0);
            let waited = match first {
                Some(first) => {
                    let left = first.saturating_duration_since(now);
                    shared
                        .changed
                        .wait_timeout(state, left)
                        .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
                }
                None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            drop(waited);
        } else {
            drop(state);
            due.into_iter().for_each(Waker::wake);
        }
    }
}

/// Ready when its time has come, or when the timer ended.
#[derive(Debug)]
pub(crate) struct Sleep {
    timer: Timer,
    due: Instant,
    entry: Option<u64>,
    /// Who is woken.
    waker: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        if self.timer.shared.ended.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending; // it is written down already
        }
        self.waker = Some(cx.waker().clone());
        let shared = self.timer.shared.clone();
        let mut state = shared.lock();
        if state.ended {
            return Poll::Ready(());
        }
        let number = self.entry.unwrap_or_else(|| {
            state.next += 1;
            state.next
        });
        self.entry = Some(number);
        let key = (self.due, number);
        let old = state.sleepers.insert(key, cx.waker().clone());
        let first = state.sleepers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if first && old.is_none() {
            shared.changed.notify_all();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.entry {
            let old = self.timer.shared.lock().sleepers.remove(&(self.due, number));
            drop(old);
        }
    }
}
