//! What slots share: the claims that wait for them, what they have in hand, and what they hand in.
//!
//! **Invariant:** every claim is in one place: it waits, is set aside for others of its kind, is in a slot's hand, or was handed
//! in. A place in a kind with a limit ends with its handler, however that ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::policy::Limit;
use crate::outcome::{Outcome, Report};
use crate::queue::{Claim, Claims};

/// A handler's result.
pub(super) struct Finished {
    pub(super) claim: Claim,
    pub(super) outcome: Outcome,
    pub(super) report: Report,
}

/// What waits for a slot.
#[derive(Default)]
pub(super) struct Queued {
    /// The oldest first, each with the time at which it was added.
    pub(super) waiting: VecDeque<(Instant, Claims)>,
    /// How many claims that is.
    pub(super) count: usize,
    /// Slots that found nothing and wait.
    pub(super) idle: usize,
    /// What waits for others of its kind, by the number of the kind.
    pub(super) kinds: Vec<Bounded>,
    /// How many claims that is.
    pub(super) aside: usize,
}

/// A kind of which a limited number may run at the same time.
#[derive(Default)]
pub(super) struct Bounded {
    pub(super) running: usize,
    /// The oldest first, one claim each.
    pub(super) aside: VecDeque<(Instant, Claims)>,
}

/// The permission to handle one more of a kind. It ends with the handler, however that ends.
pub(super) struct Permit {
    pub(super) shared: Arc<Shared>,
    pub(super) kind: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queued = locked(&self.shared.queued);
        let kind = &mut queued.kinds[self.kind];
        kind.running -= 1;
        let Some(next) = kind.aside.pop_front() else { return };
        queued.aside -= 1;
        drop(queued);
        self.shared.put([next], true);
    }
}

/// What slots hand in.
#[derive(Default)]
pub(super) struct Results {
    pub(super) finished: Vec<Vec<Finished>>,
    /// Claims whose handler was stopped.
    pub(super) lost: Vec<Claim>,
}

/// What one slot has in hand: the worker can reach it while a handler blocks the slot's thread.
#[derive(Default)]
pub(super) struct Held {
    /// Claims that it has not started.
    pub(super) claims: Option<(Instant, Claims)>,
    /// Results that it has not handed in.
    pub(super) finished: Vec<Finished>,
}

/// The state of one slot. Each slot has cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct SlotState {
    pub(super) held: Mutex<Held>,
    /// Since when it is busy with one message, in nanoseconds on the clock of [`Shared`]; 0 if it is not.
    pub(super) busy: AtomicU64,
}

pub(super) struct Shared {
    pub(super) queued: Mutex<Queued>,
    pub(super) some_work: Notify,
    pub(super) results: Mutex<Results>,
    pub(super) some_finished: Notify,
    /// A handler blocks its thread, and slots may be set aside on that thread.
    pub(super) some_blocked: Notify,
    pub(super) states: Box<[SlotState]>,
    pub(super) began: Instant,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Puts claims into the queue, behind the others or before them, and wakes idle slots.
    pub(super) fn put(
        &self,
        claims: impl IntoIterator<Item = (Instant, Claims)>,
        first: bool,
    ) -> usize {
        let mut queued = locked(&self.queued);
        let mut added = 0;
        for claims in claims.into_iter().filter(|(_, claims)| !claims.is_empty()) {
            added += claims.1.len();
            match first {
                true => queued.waiting.push_front(claims),
                false => queued.waiting.push_back(claims),
            }
        }
        queued.count += added;
        let wake = added.min(queued.idle);
        queued.idle -= wake;
        drop(queued);
        for _ in 0..wake {
            self.some_work.notify_one();
        }
        added
    }

    /// The permission to handle one more of this kind, if there is one.
    pub(super) fn permit(self: &Arc<Self>, limit: Limit) -> Option<Permit> {
        let mut queued = locked(&self.queued);
        let kind = &mut queued.kinds[limit.kind];
        (kind.running < limit.most).then(|| {
            kind.running += 1;
            Permit { shared: self.clone(), kind: limit.kind }
        })
    }

    /// Sets a claim aside until fewer of its kind run.
    pub(super) fn set_aside(&self, limit: Limit, claims: (Instant, Claims)) {
        let mut queued = locked(&self.queued);
        let kind = &mut queued.kinds[limit.kind];
        // One of them may have ended meanwhile.
        if kind.running < limit.most {
            drop(queued);
            self.put([claims], true);
            return;
        }
        kind.aside.push_back(claims);
        queued.aside += 1;
    }

    pub(super) fn hand_in(&self, finished: Vec<Finished>) {
        if !finished.is_empty() {
            locked(&self.results).finished.push(finished);
            self.some_finished.notify_one();
        }
    }

    pub(super) fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.began).as_nanos() as u64 + 1
    }

    /// For how long each busy slot has been busy with its message.
    pub(super) fn busy(&self, now: Instant) -> impl Iterator<Item = (&SlotState, Duration)> {
        let now = self.nanos(now);
        let since = |state: &SlotState| state.busy.load(Ordering::Relaxed);
        let busy = self.states.iter().map(move |state| (state, since(state)));
        let busy = busy.filter(|(_, since)| *since > 0);
        busy.map(move |(state, since)| (state, Duration::from_nanos(now.saturating_sub(since))))
    }
}
