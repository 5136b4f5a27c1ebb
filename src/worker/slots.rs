//! The slots in which handlers run.
//!
//! **Invariant:** every job that enters comes out exactly once: finished, taken back unstarted, or
//! reported lost when the slots are stopped.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Context, DynHandle};
use crate::cause::Cause;
use crate::id::MessageId;
use crate::membership::Session;
use crate::notice::{Board, Notice};
use crate::outcome::{Outcome, Report};
use crate::panic::{drop_quietly, panic_text};
use crate::queue::{Claim, Message};

/// So many results are told together while there is more to do.
const TELL_EVERY: usize = 128;
/// A result that took this long is told at once: telling costs nothing beside it.
const TELL_SLOW: Duration = Duration::from_micros(200);
/// So many tiny messages are handled before others get their turn on the thread.
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

/// What waits for a slot and what came out of one, under one lock: a slot that hands in a result
/// takes its next job in the same breath.
#[derive(Default)]
struct Desk {
    /// The oldest first, each with the time at which it was put there.
    jobs: VecDeque<(Instant, Job)>,
    finished: Vec<Finished>,
    /// Slots that found no job and wait for one.
    idle: usize,
    /// Since when each slot is busy with its job.
    busy: Vec<Option<Instant>>,
    running: usize,
}

impl Desk {
    /// Gives a slot its next job, if there is one; it was busy until now or not.
    fn next(&mut self, slot: usize, now: Instant) -> Option<Job> {
        let job = self.jobs.pop_front().map(|(_, job)| job);
        let before = std::mem::replace(&mut self.busy[slot], job.as_ref().map(|_| now));
        self.running = self.running + usize::from(job.is_some()) - usize::from(before.is_some());
        job
    }
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    some_job: Notify,
    some_finished: Notify,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed number of handlers at work.
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
        shared.desk().busy = vec![None; count];
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

    /// Puts jobs on the desk. Their number is bounded by what the worker asks Redis for.
    pub(super) fn start(&mut self, jobs: impl IntoIterator<Item = Job>) {
        let mut desk = self.shared.desk();
        let (before, now) = (desk.jobs.len(), Instant::now());
        desk.jobs.extend(jobs.into_iter().map(|job| (now, job)));
        let added = desk.jobs.len() - before;
        let wake = added.min(desk.idle);
        desk.idle -= wake;
        drop(desk);
        self.inside += added;
        for _ in 0..wake {
            self.shared.some_job.notify_one();
        }
    }

    /// Jobs that are on the desk or being handled.
    pub(super) fn inside(&self) -> usize {
        self.inside
    }

    /// Handlers that run.
    pub(super) fn running(&self) -> usize {
        self.shared.desk().running
    }

    /// Slots that have been busy with one job for longer than this.
    pub(super) fn stuck(&self, now: Instant, longer_than: Duration) -> usize {
        let desk = self.shared.desk();
        let busy = desk.busy.iter().flatten();
        busy.filter(|since| now.saturating_duration_since(**since) > longer_than).count()
    }

    /// How long the oldest job has waited for a slot.
    pub(super) fn waited(&self, now: Instant) -> Option<Duration> {
        let desk = self.shared.desk();
        desk.jobs.front().map(|(since, _)| now.saturating_duration_since(*since))
    }

    /// Waits until something is finished.
    pub(super) async fn some_finished(&self) {
        self.shared.some_finished.notified().await;
    }

    pub(super) fn finished(&mut self) -> Vec<Finished> {
        let finished = std::mem::take(&mut self.shared.desk().finished);
        self.inside -= finished.len();
        finished
    }

    /// Takes back what no slot has started.
    pub(super) fn take_back(&mut self) -> Vec<Job> {
        let jobs: Vec<Job> = self.shared.desk().jobs.drain(..).map(|(_, job)| job).collect();
        self.inside -= jobs.len();
        jobs
    }

    /// Stops every handler where it is. What ran is reported as lost. A handler that blocks its
    /// thread cannot be stopped: it is waited for a moment, then left alone.
    /// What came out meanwhile is handed over.
    pub(super) async fn stop(mut self) -> Vec<Finished> {
        self.tasks.abort_all();
        // What a panic of user code carries may panic when it is dropped.
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

    /// Puts a result on the desk and takes the next job, if there is one.
    fn hand_in(&self, result: Option<Finished>, now: Instant) -> Option<Job> {
        let mut desk = self.shared.desk();
        let took = result.as_ref().map_or(Duration::ZERO, |finished| finished.report.took);
        desk.finished.extend(result);
        let job = desk.next(self.number, now);
        let count = desk.finished.len();
        drop(desk);
        if count > 0 && (job.is_none() || count >= TELL_EVERY || took >= TELL_SLOW) {
            self.shared.some_finished.notify_one();
        }
        job
    }

    async fn next_job(&self) -> (Job, Instant) {
        loop {
            // Registered before the desk is looked at, so that no wake-up falls between the two.
            let mut woken = std::pin::pin!(self.shared.some_job.notified());
            woken.as_mut().enable();
            {
                let mut desk = self.shared.desk();
                let now = Instant::now();
                if let Some(job) = desk.next(self.number, now) {
                    return (job, now);
                }
                desk.idle += 1;
            }
            woken.await;
        }
    }

    /// Handles one message, and says when it was done; `None` when the session is over.
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
        let outcome = self.handle(message, start).await;
        lost.id = None;
        let ended = Instant::now();
        let report = Report { kind, took: ended.duration_since(start) };
        Some((Finished { claim, outcome, report }, ended))
    }

    async fn handle(&self, message: Message, start: Instant) -> Outcome {
        let context = Context {
            id: message.id.clone(),
            term: message.id.term(),
            attempt: message.attempt,
            deadline: start + self.timeout,
        };
        // The call itself may panic, too, before there is a future.
        let called = AssertUnwindSafe(|| self.handler.handle(message, context));
        let mut handling = match std::panic::catch_unwind(called) {
            Ok(handling) => handling,
            Err(panic) => return panicked(panic),
        };
        let mut running = AssertUnwindSafe(&mut handling).catch_unwind();
        // Most handlers of tiny messages are done at once and never need the timer.
        let outcome = match futures_util::poll!(&mut running) {
            std::task::Poll::Ready(outcome) => Ok(outcome),
            std::task::Poll::Pending => tokio::time::timeout(self.timeout, running).await,
        };
        // What the handler leaves behind may panic, too, when it is dropped.
        let dropped = std::panic::catch_unwind(AssertUnwindSafe(move || drop(handling)));
        match (outcome, dropped) {
            (Ok(Ok(outcome)), Ok(())) => outcome,
            (Ok(Ok(outcome)), Err(panic)) => {
                drop_quietly(outcome);
                panicked(panic)
            }
            (Ok(Err(panic)), dropped) => {
                drop_quietly(dropped);
                panicked(panic)
            }
            (Err(_), dropped) => {
                drop_quietly(dropped);
                let reason = format!("the handler ran longer than {:?}", self.timeout);
                Outcome::failed_by(Cause::Timeout, reason)
            }
        }
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Outcome {
    Outcome::failed(format!("the handler panicked: {}", panic_text(panic)))
}

/// Reports a message whose handler was stopped, when it is dropped armed.
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
