//! [`Caretaker`]: looks after the subscribers once a second, and more often if handlers of theirs
//! have less time than that.
//!
//! **Invariant:** it ends when it is told to, unless it is inside somebody's handler; then it ends
//! when that one returns, and nobody waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks around.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// It does not look more often than this.
const SHORTEST: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct State {
    ended: bool,
    /// How often it looks.
    every: Duration,
    /// It is not waiting for its next look.
    looking: bool,
    thread: Option<JoinHandle<()>>,
}

impl Default for State {
    fn default() -> State {
        State { ended: false, every: LOOK, looking: false, thread: None }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread, `artel-hub-care`. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caretaker {
    shared: Arc<Shared>,
}

impl Caretaker {
    /// From here on it looks often enough to see that this time has passed.
    pub(crate) fn watch(&self, time: Duration) {
        let mut state = self.shared.lock();
        let every = (time / 4).max(SHORTEST);
        if every < state.every {
            state.every = every;
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Starts the thread unless it runs; `look` is called about once a second, or more often, until
    /// the end.
    pub(crate) fn start(&self, look: impl FnMut() + Send + 'static) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        if state.thread.is_none() && !state.ended {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("artel-hub-care".into());
            state.thread = Some(thread.spawn(move || run(&shared, look))?);
        }
        Ok(())
    }

    pub(crate) fn end(&self) {
        let (thread, looking) = {
            let mut state = self.shared.lock();
            state.ended = true;
            (state.thread.take(), state.looking)
        };
        self.shared.changed.notify_all();
        if let Some(thread) = thread.filter(|_| !looking) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, mut look: impl FnMut()) {
    let mut state = shared.lock();
    while !state.ended {
        let every = state.every;
        let (waited, timeout) =
            shared.changed.wait_timeout(state, every).unwrap_or_else(PoisonError::into_inner);
        state = waited;
        if timeout.timed_out() && !state.ended {
            state.looking = true;
            drop(state);
            look();
            state = shared.lock();
            state.looking = false;
        }
    }
}
