//! [`Pool`]: the hub's own threads, for subscribers that share them.
//!
//! **Invariant:** a job is in the line at most once and on one thread at most; woken while it runs,
//! it runs once more. The line is never longer than there are subscribers.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const AGAIN: u8 = 3;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Line {
    jobs: VecDeque<Arc<Job>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    more: Condvar,
}

struct Job {
    work: Mutex<Option<Work>>,
    state: AtomicU8,
    shared: Weak<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fixed number of threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn start(threads: usize) -> std::io::Result<Arc<Pool>> {
        let shared = Arc::new(Shared::default());
        let mut pool = Pool { shared: shared.clone(), threads: Vec::new() };
        for number in 0..threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("artel-hub-{number}"));
            pool.threads.push(thread.spawn(move || run(&shared))?);
        }
        Ok(Arc::new(pool))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let job = Job {
            work: Mutex::new(Some(Box::pin(work))),
            state: AtomicU8::new(IDLE),
            shared: Arc::downgrade(&self.shared),
        };
        Arc::new(job).wake();
    }
}

impl Pool {
    /// The threads end once they are done with what they run.
    pub(crate) fn end(&self) {
        let jobs = {
            let mut line = lock(&self.shared.line);
            line.ended = true;
            std::mem::take(&mut line.jobs)
        };
        self.shared.more.notify_all();
        drop(jobs);
    }
}

/// Ends the threads, and waits for them.
impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            let _ = thread.join();
        }
    }
}

impl Wake for Job {
    fn wake(self: Arc<Job>) {
        let step = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(AGAIN),
            _ => None,
        };
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        match self.shared.upgrade() {
            Some(shared) if before == Ok(IDLE) => shared.push(self),
            _ => {}
        }
    }
}

impl Shared {
    fn push(&self, job: Arc<Job>) {
        let mut line = lock(&self.line);
        if !line.ended {
            line.jobs.push_back(job);
            drop(line);
            self.more.notify_one();
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut line = lock(&self.line);
        loop {
            if let Some(job) = line.jobs.pop_front() {
                return Some(job);
            }
            if line.ended {
                return None;
            }
            line = self.more.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn run(shared: &Shared) {
    while let Some(job) = shared.next() {
        job.state.store(RUNNING, Ordering::Release);
        let waker = Waker::from(job.clone());
        let mut work = lock(&job.work);
        let done = work
            .as_mut()
            .is_some_and(|work| work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        let finished = if done { work.take() } else { None };
        drop(work);
        drop(finished);
        let idle = job.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            job.state.store(QUEUED, Ordering::Release);
            shared.push(job);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish()
    }
}
