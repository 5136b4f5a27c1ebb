//! [`Timer`]: the timer of a hub. It needs no async runtime.
//!
//! **Invariant:** a sleeper is woken when its time has come or the timer has ended. A dropped sleep
//! leaves nothing behind. The periodic check of the subscribers runs once a second, or more often
//! if a handler has a shorter time-out. A check that is inside a user's handler delays no sleeper,
//! and nothing waits for its end.
//!
//! There are two threads. `artel-hub` only runs wakers. `artel-hub-care` runs the periodic check,
//! which may call a handler that listens to notices. They start with the first subscriber that
//! needs them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the periodic check runs.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// The minimum time between two checks.
const LOOK_MIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Times {
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    ended: bool,
    look_every: Duration,
    /// The periodic check is running.
    looking: bool,
    waking_thread: Option<JoinHandle<()>>,
    looking_thread: Option<JoinHandle<()>>,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            sleepers: BTreeMap::new(),
            next: 0,
            ended: false,
            look_every: LOOK,
            looking: false,
            waking_thread: None,
            looking_thread: None,
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    times: Mutex<Times>,
    /// There is a new first sleeper.
    sleepers_changed: Condvar,
    /// The periodic check must run more often.
    look_changed: Condvar,
    /// A copy of the value in `times` that is read without the lock.
    ended: AtomicBool,
}

/// Wakes sleepers and runs the periodic check. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer {
    /// Starts the threads unless they run. `look` is called about once a second, or more often,
    /// until the timer ends.
    pub(crate) fn start(&self, look: impl FnMut() + Send + 'static) -> std::io::Result<()> {
        let mut times = self.shared.lock();
        if times.ended {
            return Ok(());
        }
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        if times.waking_thread.is_none() {
            let shared = self.shared.clone();
            times.waking_thread = Some(thread("artel-hub").spawn(move || wake_sleepers(&shared))?);
        }
        if times.looking_thread.is_none() {
            let shared = self.shared.clone();
            let looking = thread("artel-hub-care").spawn(move || look_around(&shared, look))?;
            times.looking_thread = Some(looking);
        }
        Ok(())
    }

    /// Lets the periodic check run often enough to notice that this time has passed.
    pub(crate) fn watch(&self, time: Duration) {
        let mut times = self.shared.lock();
        let every = (time / 4).max(LOOK_MIN);
        if every < times.look_every {
            times.look_every = every;
            drop(times);
            self.shared.look_changed.notify_all();
        }
    }

    /// Ends the threads and wakes every sleeper. Waits for the threads, except for the calling
    /// thread and for one inside a periodic check.
    pub(crate) fn end(&self) {
        let (waking, looking) = {
            let mut times = self.shared.lock();
            times.ended = true;
            self.shared.ended.store(true, Ordering::Release);
            let looking = times.looking_thread.take();
            (times.waking_thread.take(), looking.filter(|_| !times.looking))
        };
        self.shared.sleepers_changed.notify_all();
        self.shared.look_changed.notify_all();
        for thread in looking.into_iter().chain(waking) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
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

    /// The moment at which this time will have passed.
    pub(crate) fn due(time: Duration) -> Instant {
        // Later than anybody waits, but without overflow.
        Instant::now() + time.min(Duration::from_secs(86_400 * 365))
    }
}

fn wake_sleepers(shared: &Shared) {
    loop {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut times = shared.lock();
        if times.ended {
            return;
        }
        while let Some(first) = times.sleepers.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        if due.is_empty() {
            let first = times.sleepers.first_key_value().map(|(key, _)| key.0);
            let changed = &shared.sleepers_changed;
            let waited = match first {
                Some(first) => changed
                    .wait_timeout(times, first.saturating_duration_since(now))
                    .map_or_else(|poisoned| poisoned.into_inner().0, |(times, _)| times),
                None => changed.wait(times).unwrap_or_else(PoisonError::into_inner),
            };
            drop(waited);
        } else {
            drop(times);
            due.into_iter().for_each(Waker::wake);
        }
    }
}

fn look_around(shared: &Shared, mut look: impl FnMut()) {
    let mut times = shared.lock();
    while !times.ended {
        let every = times.look_every;
        let waited = shared.look_changed.wait_timeout(times, every);
        let (waited, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        times = waited;
        if timeout.timed_out() && !times.ended {
            times.looking = true;
            drop(times);
            look();
            times = shared.lock();
            times.looking = false;
        }
    }
}

/// Ready when its time has come or the timer has ended.
#[derive(Debug)]
pub(crate) struct Sleep {
    timer: Timer,
    due: Instant,
    entry: Option<u64>,
    /// The registered waker.
    waker: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due || self.timer.shared.ended.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending; // it is already registered
        }
        self.waker = Some(cx.waker().clone());
        let shared = self.timer.shared.clone();
        let mut times = shared.lock();
        if times.ended {
            return Poll::Ready(());
        }
        let number = self.entry.unwrap_or_else(|| {
            times.next += 1;
            times.next
        });
        self.entry = Some(number);
        let key = (self.due, number);
        let old = times.sleepers.insert(key, cx.waker().clone());
        let first = times.sleepers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(times);
        if first && old.is_none() {
            shared.sleepers_changed.notify_all();
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
