//! The slots in which handlers run.
//!
//! **Invariant:** every job that enters comes out exactly once: finished, taken back unstarted, or
//! reported lost when the slots are stopped.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Context, DynHandle};
use crate::membership::Session;
use crate::notice::{Board, Notice};
use crate::outcome::{Cause, Outcome};
use crate::queue::{Claim, Message, MessageId};

/// A claimed message that waits for a slot.
pub(super) struct Job {
    pub(super) claim: Claim,
    pub(super) message: Message,
}

/// A handler's result.
pub(super) struct Finished {
    pub(super) claim: Claim,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

#[derive(Default)]
struct Done {
    list: Mutex<Vec<Finished>>,
    some: Notify,
}

/// A fixed number of handlers at work.
pub(super) struct Slots {
    jobs: async_channel::Sender<Job>,
    unstarted: async_channel::Receiver<Job>,
    done: Arc<Done>,
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
        // Unbounded as a channel; bounded by what the worker asks Redis for.
        let (jobs, unstarted) = async_channel::unbounded();
        let done = Arc::new(Done::default());
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let slot = Slot {
                jobs: unstarted.clone(),
                handler: handler.clone(),
                timeout,
                session: session.clone(),
                board: board.clone(),
                done: done.clone(),
            };
            tasks.spawn(slot.run());
        }
        Slots { jobs, unstarted, done, tasks, inside: 0 }
    }

    pub(super) fn start(&mut self, job: Job) {
        self.inside += 1;
        let _ = self.jobs.try_send(job);
    }

    pub(super) fn queued(&self) -> usize {
        self.unstarted.len()
    }

    pub(super) fn running(&self) -> usize {
        self.inside.saturating_sub(self.queued())
    }

    /// Waits until something is finished.
    pub(super) async fn some_finished(&self) {
        self.done.some.notified().await;
    }

    pub(super) fn finished(&mut self) -> Vec<Finished> {
        let list = std::mem::take(&mut *self.done.list.lock().expect("never poisoned"));
        self.inside -= list.len();
        list
    }

    /// Takes back what no slot has started.
    pub(super) fn take_back(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        while let Ok(job) = self.unstarted.try_recv() {
            jobs.push(job);
        }
        self.inside -= jobs.len();
        jobs
    }

    /// Stops every handler where it is. What ran is reported as lost. A handler that blocks its
    /// thread cannot be stopped: it is waited for a moment, then left alone.
    pub(super) async fn stop(mut self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.tasks.shutdown()).await;
    }
}

struct Slot {
    jobs: async_channel::Receiver<Job>,
    handler: Arc<dyn DynHandle>,
    timeout: Duration,
    session: Arc<Session>,
    board: Board,
    done: Arc<Done>,
}

impl Slot {
    async fn run(self) {
        while let Ok(Job { claim, message }) = self.jobs.recv().await {
            let mut lost = Lost { id: Some(claim.id.clone()), board: &self.board };
            if !self.session.trusted() && !self.session.until_trusted().await {
                return;
            }
            let start = Instant::now();
            let outcome = self.handle(message, start).await;
            lost.id = None;
            let took = start.elapsed();
            let mut list = self.done.list.lock().expect("never poisoned");
            list.push(Finished { claim, outcome, took });
            let first = list.len() == 1;
            drop(list);
            if first {
                self.done.some.notify_one();
            }
        }
    }

    async fn handle(&self, message: Message, start: Instant) -> Outcome {
        let context = Context {
            id: message.id.clone(),
            term: message.id.term(),
            attempt: message.attempt,
            deadline: start + self.timeout,
        };
        // The call itself may panic, too, before there is a future.
        let handling = AssertUnwindSafe(async { self.handler.handle(message, context).await });
        match tokio::time::timeout(self.timeout, handling.catch_unwind()).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned());
                Outcome::failed(format!("the handler panicked: {}", text.unwrap_or_default()))
            }
            Err(_) => Outcome::failed_by(
                Cause::Timeout,
                format!("the handler ran longer than {:?}", self.timeout),
            ),
        }
    }
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
