//! [`LetterWriter`]: keeps dead letters in memory, or passes them to a store.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Letter, LetterError, LetterFilter, LetterStore};

/// Default for `EventHubBuilder::letters_max`.
pub(crate) const LETTERS_MAX: usize = 4096;
/// The pause after the store refused dead letters.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Waiting {
    letters: VecDeque<Letter>,
    next: u64,
    ended: bool,
    redelivers: bool,
    /// Dead letters taken by the writer thread and not yet in the store.
    writing: usize,
    /// The writer thread has ended.
    over: bool,
    /// The caller stopped waiting for the store: the dead letters being written are counted as
    /// lost.
    given_up: bool,
    failure: Option<String>,
    /// The failure was reported.
    told: bool,
}

/// Where dead letters go.
pub(crate) struct LetterWriter {
    most: usize,
    state: Mutex<Waiting>,
    changed: Condvar,
    store: Option<Mutex<Box<dyn LetterStore>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    lost: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LetterWriter {
    pub(crate) fn new(
        most: usize,
        store: Option<Box<dyn LetterStore>>,
    ) -> std::io::Result<Arc<LetterWriter>> {
        let letter_writer = Arc::new(LetterWriter {
            most,
            state: Mutex::new(Waiting::default()),
            changed: Condvar::new(),
            store: store.map(Mutex::new),
            writer: Mutex::new(None),
            lost: AtomicU64::new(0),
        });
        if letter_writer.store.is_some() {
            let clerk = letter_writer.clone();
            let thread = std::thread::Builder::new().name("artel-hub-letters".into());
            *lock(&letter_writer.writer) = Some(thread.spawn(move || clerk.write())?);
        }
        Ok(letter_writer)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes dead letters. If there is no room, it drops the oldest (in memory) or the new ones
    /// (with a store), and counts them.
    pub(crate) fn keep(&self, letters: Vec<Letter>) -> Result<(), (u64, String)> {
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        for mut letter in letters {
            if self.store.is_some() {
                if state.letters.len() + state.writing >= self.most || state.ended {
                    gone.push(letter);
                    continue;
                }
            } else {
                state.next += 1;
                letter.id = state.next;
                if state.letters.len() >= self.most {
                    gone.extend(state.letters.pop_front());
                }
            }
            state.letters.push_back(letter);
        }
        let reason = state.failure.clone();
        drop(state);
        self.changed.notify_all();
        if gone.is_empty() {
            return Ok(());
        }
        let many = gone.len() as u64;
        drop(gone); // payloads are user code: drop them without the lock
        self.lost.fetch_add(many, Ordering::Relaxed);
        Err((many, reason.unwrap_or_else(|| format!("more than {} are waiting", self.most))))
    }

    pub(crate) fn list(&self, filter: &LetterFilter) -> Result<Vec<Letter>, LetterError> {
        let mut letters = match &self.store {
            None => lock(&self.state).letters.iter().cloned().collect(),
            Some(store) => self.written(store)?.read()?,
        };
        letters.retain(|letter| filter.fits(letter));
        letters.iter_mut().for_each(Letter::encode);
        Ok(letters)
    }

    pub(crate) fn count(&self) -> Result<usize, LetterError> {
        match &self.store {
            None => Ok(lock(&self.state).letters.len()),
            Some(store) => self.written(store)?.count(),
        }
    }

    /// The store, after all dead letters are written to it.
    fn written<'a>(
        &self,
        store: &'a Mutex<Box<dyn LetterStore>>,
    ) -> Result<MutexGuard<'a, Box<dyn LetterStore>>, LetterError> {
        if self.flush(Duration::from_secs(5)) {
            return Ok(lock(store));
        }
        let state = lock(&self.state);
        let waiting = state.letters.len() + state.writing;
        let why = state.failure.clone().unwrap_or_else(|| "the disk is slow".into());
        let reason = format!("{waiting} still wait to be written: {why}");
        Err(LetterError::new("not read", reason))
    }

    pub(crate) fn remove(&self, filter: &LetterFilter) -> Result<usize, LetterError> {
        match &self.store {
            None => {
                let mut state = lock(&self.state);
                let all = std::mem::take(&mut state.letters);
                let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                    all.into_iter().partition(|letter| filter.fits(letter));
                state.letters = kept;
                drop(state);
                Ok(gone.len())
            }
            Some(store) => {
                let ids: Vec<u64> = self.list(filter)?.iter().map(|letter| letter.id).collect();
                lock(store).remove(&ids)?;
                Ok(ids.len())
            }
        }
    }

    /// Waits until all dead letters are in the store. `false` after `time`.
    pub(crate) fn flush(&self, time: Duration) -> bool {
        let all = |state: &Waiting| state.letters.is_empty() && state.writing == 0;
        self.store.is_none() || self.wait(time, all)
    }

    /// Writes the remaining dead letters, at most for `time`, and ends. Dead letters that the store
    /// did not take are lost. So are those that a hanging store was given, unless it returns later.
    pub(crate) fn end(&self, time: Duration) {
        self.flush(time);
        let left = {
            let mut state = lock(&self.state);
            state.ended = true;
            let writing = if state.given_up { 0 } else { state.writing };
            state.given_up |= writing > 0;
            let left = match self.store.is_some() {
                true => std::mem::take(&mut state.letters),
                false => VecDeque::new(),
            };
            self.lost.fetch_add((left.len() + writing) as u64, Ordering::Relaxed);
            left
        };
        drop(left); // payloads are user code: drop them without the lock
        self.changed.notify_all();
        let clerk = lock(&self.writer).take();
        if let Some(clerk) = clerk.filter(|_| self.wait(PAUSE, |state| state.over)) {
            let _ = clerk.join();
        }
    }

    /// Waits for a condition, at most for `time`.
    fn wait(&self, time: Duration, is_so: impl Fn(&Waiting) -> bool) -> bool {
        let (due, mut state) = (Instant::now() + time, lock(&self.state));
        while !is_so(&state) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// How many dead letters wait for a store that refuses them, and why. Returned once per
    /// failure.
    pub(crate) fn trouble(&self) -> Option<(u64, String)> {
        let mut state = lock(&self.state);
        let reason = state.failure.clone().filter(|_| !state.told)?;
        state.told = true;
        Some(((state.letters.len() + state.writing) as u64, reason))
    }

    /// Ends without waiting. The writer thread writes the remaining dead letters and ends.
    pub(crate) fn close(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }

    /// Whether a redelivery may begin: there is at most one at a time.
    pub(crate) fn begin_redelivery(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).redelivers, true)
    }

    pub(crate) fn end_redelivery(&self) {
        lock(&self.state).redelivers = false;
    }

    /// The writer thread: writes one batch after the other.
    fn write(&self) {
        while let Some(mut batch) = self.next_batch() {
            batch.iter_mut().for_each(Letter::encode);
            let written = self.write_batch(&mut batch);
            let mut state = lock(&self.state);
            match (written, std::mem::take(&mut state.given_up)) {
                (true, true) => drop(self.lost.fetch_sub(batch.len() as u64, Ordering::Relaxed)),
                (false, false) => drop(self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed)),
                _ => {}
            }
            (state.writing, state.failure, state.told) = (0, None, false);
            drop(state);
            self.changed.notify_all();
        }
        lock(&self.state).over = true;
        self.changed.notify_all();
    }

    /// Waits for dead letters. `None` at the end.
    fn next_batch(&self) -> Option<Vec<Letter>> {
        let mut state = lock(&self.state);
        while state.letters.is_empty() {
            if state.ended {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = state.letters.len();
        Some(state.letters.drain(..).collect())
    }

    /// Retries until the store takes the batch, or the writer is ended.
    fn write_batch(&self, batch: &mut [Letter]) -> bool {
        let Some(store) = &self.store else { return false };
        while let Err(error) = append(store, batch) {
            tracing::error!(target: "artel_hub", "{error}");
            let mut state = lock(&self.state);
            state.failure = Some(error.to_string());
            if state.ended {
                return false;
            }
            let waited = self.changed.wait_timeout(state, PAUSE);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        true
    }
}

/// Treats a panic of the store as a failure.
fn append(store: &Mutex<Box<dyn LetterStore>>, batch: &mut [Letter]) -> Result<(), LetterError> {
    let append = AssertUnwindSafe(|| lock(store).append(batch));
    let failed = |_| LetterError::new("not written", "the store panicked");
    catch_unwind(append).unwrap_or_else(|panic| Err(failed(panic)))
}

impl std::fmt::Debug for LetterWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterWriter").field("most", &self.most).finish_non_exhaustive()
    }
}
