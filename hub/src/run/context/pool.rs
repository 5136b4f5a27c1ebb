//! [`Pool`]: the hub's own threads, for subscribers that share them.
//!
//! **Invariant:** a job is in the line at most once and runs on at most one thread. If it is woken
//! while it runs, it runs once more. The line is never longer than the number of subscribers.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const AGAIN: u8 = 3;

/// How long to wait for threads that should be idle.
const PATIENCE: Duration = Duration::from_secs(1);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Jobs {
    jobs: VecDeque<Arc<Job>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Jobs>,
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
    threads: Mutex<Vec<JoinHandle<()>>>,
    joined: AtomicBool,
}

impl Pool {
    pub(crate) fn start(threads: usize) -> std::io::Result<Arc<Pool>> {
        let pool = Pool {
            shared: Arc::new(Shared::default()),
            threads: Mutex::new(Vec::new()),
            joined: AtomicBool::new(false),
        };
        for _ in 0..threads {
            pool.replace_thread()?;
        }
        Ok(Arc::new(pool))
    }

    /// Adds a thread in place of one that hangs. The hanging one [leaves](leave_this_thread) if it
    /// returns.
    pub(crate) fn replace_thread(&self) -> std::io::Result<()> {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        let (shared, number) = (self.shared.clone(), threads.len());
        let thread = std::thread::Builder::new().name(format!("artel-hub-{number}"));
        threads.push(thread.spawn(move || run(&shared))?);
        Ok(())
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
    /// Ends the threads after their current jobs.
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

impl Pool {
    /// Ends the threads and waits for them, at most for this long: one may be inside a handler that
    /// does not return.
    pub(crate) fn join(&self, time: Duration) {
        self.end();
        let (due, me) = (Instant::now() + time, std::thread::current().id());
        let works = |thread: &JoinHandle<()>| thread.thread().id() != me && !thread.is_finished();
        while lock(&self.threads).iter().any(works) && Instant::now() < due {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.joined.store(true, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.joined.load(Ordering::Acquire) {
            self.join(PATIENCE);
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

thread_local! {
    /// Another thread has replaced this one.
    static LEAVES: Cell<bool> = const { Cell::new(false) };
}

/// Called when the runner on this thread was replaced. If this is a thread of the pool, it was
/// replaced, too.
pub(crate) fn leave_this_thread() {
    LEAVES.set(true);
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
        if LEAVES.get() {
            return;
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}
