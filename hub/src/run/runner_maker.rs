//! [`RunnerMaker`]: creates runners, also to replace one that hangs.
//!
//! **Invariant:** a handler that hangs takes only its event with it. The factory, a copy of the
//! filters and the restart budget are stored here, not in the runner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::millis;
use crate::hub_core::HubCore;
use crate::run::context::thread::block_on;
use crate::run::filter::Filters;
use crate::run::handler::Handler;
use crate::run::handling::{Sampler, discard};
use crate::run::restart::{AttemptRecord, Budget};
use crate::run::runner::Runner;
use crate::run::runner_task::run_to_end;
use crate::run::subscriber::{Runs, Subscriber};
use crate::sync::{AtomicU32, Ordering};
use crate::wait::inbox::{Inbox, Source};

/// Creates runners and stores what they share.
pub(crate) struct RunnerMaker<T: 'static, F> {
    parts: Mutex<Parts<T, F>>,
    /// How many replaced runners have not returned.
    out: AtomicU32,
    context: Runs,
    /// `None` for the hub's own runtime.
    runtime: Option<Box<tokio::runtime::Handle>>,
}

struct Parts<T: 'static, F> {
    /// From the user. Dropped when the subscriber has ended.
    factory: Option<F>,
    filters: Filters<T>,
    budget: Budget,
}

/// How a new runner begins.
pub(crate) struct RunnerStart {
    pub(crate) source: Source,
    /// Its number among the runners of its subscriber.
    pub(crate) runner: u32,
    /// The pause before it begins.
    pub(crate) pause: Option<Duration>,
}

/// A [`RunnerMaker`] with its types erased.
pub(crate) trait StartRunner: Send + Sync {
    /// Starts a runner.
    fn start(
        self: Arc<Self>,
        core: &Arc<HubCore>,
        me: &Arc<Subscriber>,
        begin: RunnerStart,
    ) -> std::io::Result<()>;

    /// Records that a runner was replaced. Returns the pause before the next one. `None` if there
    /// may be no next one: too many handlers were created recently, or too many hang.
    fn replaced(&self) -> Option<Duration>;
}

impl<T, F> RunnerMaker<T, F> {
    pub(crate) fn new(
        factory: F,
        filters: Filters<T>,
        budget: Budget,
        context: Runs,
        runtime: Option<tokio::runtime::Handle>,
    ) -> RunnerMaker<T, F> {
        let parts = Mutex::new(Parts { factory: Some(factory), filters, budget });
        let runtime = runtime.map(Box::new);
        RunnerMaker { parts, out: AtomicU32::new(0), context, runtime }
    }

    fn lock(&self) -> MutexGuard<'_, Parts<T, F>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a decision that depends on the restart budget.
    pub(crate) fn decide<R>(&self, decide: impl FnOnce(&mut Budget) -> R) -> R {
        decide(&mut self.lock().budget)
    }

    /// Drops the factory and the filters. No runner is created any more.
    pub(crate) fn clear(&self)
    where
        T: 'static,
    {
        // If a hanging factory holds the lock, they are not dropped.
        let parts = self.parts.try_lock().ok();
        let gone = parts.map(|mut parts| {
            (parts.factory.take(), std::mem::replace(&mut parts.filters, Filters::new()))
        });
        discard(gone);
    }

    /// Creates a new handler. `None` if the subscriber has ended.
    pub(crate) fn make<H>(&self) -> Option<H>
    where
        F: FnMut() -> H,
    {
        self.lock().factory.as_mut().map(|factory| factory())
    }

    /// A copy of the filters as they were before the first event.
    pub(crate) fn filters(&self) -> Filters<T>
    where
        T: 'static,
    {
        self.lock().filters.copy()
    }

    /// Records that a replaced runner has returned.
    pub(crate) fn has_returned(&self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T, H, F> StartRunner for RunnerMaker<T, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    fn start(
        self: Arc<Self>,
        core: &Arc<HubCore>,
        me: &Arc<Subscriber>,
        begin: RunnerStart,
    ) -> std::io::Result<()> {
        let task = run_to_end(Runner {
            core: core.clone(),
            me: me.clone(),
            inbox: Inbox::new(begin.source, begin.runner),
            filters: Filters::new(),
            has_filters: false,
            record: AttemptRecord::default(),
            maker: self.clone(),
            sampler: Sampler::default(),
            held: 0,
            pause_ms: begin.pause.map_or(0, millis),
            replaced: false,
        });
        let runtime = self.runtime.as_deref().or(core.settings.runtime.as_ref());
        match (self.context, runtime) {
            (Runs::Task, Some(runtime)) => drop(runtime.spawn(task)),
            (Runs::Pool, _) => {
                let pool = core.pool()?;
                if begin.runner > 0 {
                    pool.replace_thread()?; // the hanging thread ends when it returns
                }
                pool.spawn(task);
            }
            _ => {
                // Thread names are short on some systems.
                let name = format!("hub:{}", me.name().chars().take(11).collect::<String>());
                drop(std::thread::Builder::new().name(name).spawn(move || block_on(task))?);
            }
        }
        Ok(())
    }

    fn replaced(&self) -> Option<Duration> {
        // The runner may have returned and been subtracted already.
        let out = self.out.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.decide(|budget| budget.replaced(out, Instant::now(), rand::random()))
    }
}
