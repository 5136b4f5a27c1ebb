//! The slots in which handlers run.
//!
//! **Invariant:** every job that enters comes out exactly once: finished, taken back unstarted, or
//! reported lost when the slots are stopped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::DynHandle;
use super::call::handle;
use crate::id::MessageId;
use crate::membership::Session;
use crate::message::Message;
use crate::notice::{Board, Notice};
use crate::outcome::{Outcome, Report};
use crate::panic::drop_quietly;
use crate::queue::Claim;

/// How many results are reported together while there is more to do.
const TELL_EVERY: usize = 128;
/// A result that took this long is reported at once: compared with that, the report costs nothing.
const TELL_SLOW: Duration = Duration::from_micros(200);
/// How many tiny messages are handled before other tasks get their turn on the thread.
const YIELD_EVERY: u32 = 64;

/// A claimed message that waits for a slot.
pub(super) struct Job {
    pub(super) claim: Claim,
    pub(super) message: Message,
}

/// A handler's result.
pub(super) struct Finished {
    pub(super) claim: Claim,
    pub(super) outcome: Outcome,
    pub(super) report: Report,
}

/// The jobs that wait for a slot and the results, under one mutex: a slot that hands in a result takes
/// its next job in the same step.
#[derive(Default)]
struct Jobs {
    /// The oldest first, each with the time at which it was added.
    waiting: VecDeque<(Instant, Job)>,
    finished: Vec<Finished>,
    /// Slots that found no job and wait for one.
    idle: usize,
    /// Since when each slot has been busy with its job.
    busy: Vec<Option<Instant>>,
    running: usize,
}

impl Jobs {
    /// Gives a slot its next job, if there is one, and counts the slots that run.
    fn next(&mut self, slot: usize, now: Instant) -> Option<Job> {
        let job = self.waiting.pop_front().map(|(_, job)| job);
        let before = std::mem::replace(&mut self.busy[slot], job.as_ref().map(|_| now));
        self.running = self.running + usize::from(job.is_some()) - usize::from(before.is_some());
        job
    }
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    some_job: Notify,
    some_finished: Notify,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed number of slots, each with a handler.
pub(super) struct Slots {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// Jobs that went in and have not come out.
    inside: usize,
}

impl Slots {
    pub(super) fn new(
        count: usize,
        handler: &Arc<dyn DynHandle>,
        timeout: Duration,
        session: &Arc<Session>,
        board: &Board,
    ) -> Slots {
        let shared = Arc::new(Shared::default());
        shared.jobs().busy = vec![None; count];
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let slot = Slot {
                number,
                shared: shared.clone(),
                handler: handler.clone(),
                timeout,
                session: session.clone(),
                board: board.clone(),
            };
            tasks.spawn(slot.run());
        }
        Slots { shared, tasks, inside: 0 }
    }

    /// Puts jobs into the list. Their number is bounded by what the worker asks Redis for.
    pub(super) fn start(&mut self, new: impl IntoIterator<Item = Job>) {
        let mut jobs = self.shared.jobs();
        let (before, now) = (jobs.waiting.len(), Instant::now());
        jobs.waiting.extend(new.into_iter().map(|job| (now, job)));
        let added = jobs.waiting.len() - before;
        let wake = added.min(jobs.idle);
        jobs.idle -= wake;
        drop(jobs);
        self.inside += added;
        for _ in 0..wake {
            self.shared.some_job.notify_one();
        }
    }

    /// Jobs that wait, are being handled, or have a result that was not collected yet.
    pub(super) fn inside(&self) -> usize {
        self.inside
    }

    /// Handlers that run.
    pub(super) fn running(&self) -> usize {
        self.shared.jobs().running
    }

    /// Slots that have been busy with one job for longer than this.
    pub(super) fn stuck(&self, now: Instant, longer_than: Duration) -> usize {
        let jobs = self.shared.jobs();
        let busy = jobs.busy.iter().flatten();
        busy.filter(|since| now.saturating_duration_since(**since) > longer_than).count()
    }

    /// How long the oldest job has waited for a slot.
    pub(super) fn waited(&self, now: Instant) -> Option<Duration> {
        let jobs = self.shared.jobs();
        jobs.waiting.front().map(|(since, _)| now.saturating_duration_since(*since))
    }

    /// Waits until something is finished.
    pub(super) async fn some_finished(&self) {
        self.shared.some_finished.notified().await;
    }

    pub(super) fn finished(&mut self) -> Vec<Finished> {
        let finished = std::mem::take(&mut self.shared.jobs().finished);
        self.inside -= finished.len();
        finished
    }

    /// Takes back the jobs that no slot has started.
    pub(super) fn take_back(&mut self) -> Vec<Job> {
        let jobs: Vec<Job> = self.shared.jobs().waiting.drain(..).map(|(_, job)| job).collect();
        self.inside -= jobs.len();
        jobs
    }

    /// Stops every handler where it is. Messages whose handler ran are reported as lost. A handler that
    /// blocks its thread cannot be stopped: this waits for it for a moment, then leaves it alone.
    /// Returns the results that were finished meanwhile.
    pub(super) async fn stop(mut self) -> Vec<Finished> {
        self.tasks.abort_all();
        // The value of a panic in user code may panic when it is dropped.
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                drop_quietly(ended);
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
        self.finished()
    }
}

struct Slot {
    number: usize,
    shared: Arc<Shared>,
    handler: Arc<dyn DynHandle>,
    timeout: Duration,
    session: Arc<Session>,
    board: Board,
}

impl Slot {
    async fn run(self) {
        let (mut result, mut now) = (None, Instant::now());
        let mut handled: u32 = 0;
        loop {
            let job = match self.hand_in(result.take(), now) {
                Some(job) => job,
                None => {
                    let (job, began) = self.next_job().await;
                    now = began;
                    job
                }
            };
            let Some((finished, ended)) = self.work(job, now).await else { return };
            (result, now) = (Some(finished), ended);
            handled = handled.wrapping_add(1);
            if handled.is_multiple_of(YIELD_EVERY) {
                tokio::task::yield_now().await;
                now = Instant::now();
            }
        }
    }

    /// Puts a result into the list and takes the next job, if there is one.
    fn hand_in(&self, result: Option<Finished>, now: Instant) -> Option<Job> {
        let mut jobs = self.shared.jobs();
        let took = result.as_ref().map_or(Duration::ZERO, |finished| finished.report.took);
        jobs.finished.extend(result);
        let job = jobs.next(self.number, now);
        let count = jobs.finished.len();
        drop(jobs);
        if count > 0 && (job.is_none() || count >= TELL_EVERY || took >= TELL_SLOW) {
            self.shared.some_finished.notify_one();
        }
        job
    }

    async fn next_job(&self) -> (Job, Instant) {
        loop {
            // Registered before the list is read, so that no wake-up is lost between the two.
            let mut woken = std::pin::pin!(self.shared.some_job.notified());
            woken.as_mut().enable();
            {
                let mut jobs = self.shared.jobs();
                let now = Instant::now();
                if let Some(job) = jobs.next(self.number, now) {
                    return (job, now);
                }
                jobs.idle += 1;
            }
            woken.await;
        }
    }

    /// Handles one message. Also returns when it was done. `None` if the session is over.
    async fn work(
        &self,
        Job { claim, message }: Job,
        mut start: Instant,
    ) -> Option<(Finished, Instant)> {
        let mut lost = Lost { id: Some(claim.id.clone()), board: &self.board };
        if !self.session.trust.holds() {
            if !self.session.trust.wait().await {
                return None;
            }
            start = Instant::now();
        }
        let kind = message.kind().map(Box::from);
        let outcome = handle(&*self.handler, message, start, self.timeout).await;
        lost.id = None;
        let ended = Instant::now();
        let report = Report { kind, took: ended.duration_since(start) };
        Some((Finished { claim, outcome, report }, ended))
    }
}

/// Reports a message as lost if it is dropped with an id: its handler was stopped.
struct Lost<'a> {
    id: Option<MessageId>,
    board: &'a Board,
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.board.publish(Notice::ClaimLost { id });
        }
    }
}
