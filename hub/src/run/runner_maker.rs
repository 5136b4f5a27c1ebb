//! [`RunnerMaker`]: what a new runner is made of, when the one there was does not come back.
//!
//! **Invariant:** a handler that hangs takes nothing with it but its event: its factory, a copy of
//! its filters and the budget of its restarts are here, and not in the runner.

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

/// Makes runners, and remembers what they have in common.
pub(crate) struct RunnerMaker<T: 'static, F> {
    parts: Mutex<Parts<T, F>>,
    /// Runners that were replaced and have not come back.
    out: AtomicU32,
    context: Runs,
    /// Unless it is the hub's own.
    runtime: Option<Box<tokio::runtime::Handle>>,
}

struct Parts<T: 'static, F> {
    /// The user's, until its subscriber is over.
    factory: Option<F>,
    filters: Filters<T>,
    budget: Budget,
}

/// What a new runner is told.
pub(crate) struct RunnerStart {
    pub(crate) source: Source,
    /// Its number among the runners of its subscriber.
    pub(crate) runner: u32,
    /// What it waits for before it begins.
    pub(crate) pause: Option<Duration>,
}

/// A [`RunnerMaker`] of any type.
pub(crate) trait StartRunner: Send + Sync {
    /// Starts a runner.
    fn start(
        self: Arc<Self>,
        core: &Arc<HubCore>,
        me: &Arc<Subscriber>,
        begin: RunnerStart,
    ) -> std::io::Result<()>;

    /// A runner was replaced. The pause before the next one begins; none if there is to be none:
    /// too many were made anew, or hang.
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

    /// Asks for a decision that depends on how often its handler was made anew.
    pub(crate) fn decide<R>(&self, decide: impl FnOnce(&mut Budget) -> R) -> R {
        decide(&mut self.lock().budget)
    }

    /// No runner is made any more: what is the user's goes.
    pub(crate) fn clear(&self)
    where
        T: 'static,
    {
        // Held by a factory that hangs, it is left where it is.
        let parts = self.parts.try_lock().ok();
        let gone = parts.map(|mut parts| {
            (parts.factory.take(), std::mem::replace(&mut parts.filters, Filters::new()))
        });
        discard(gone);
    }

    /// A new handler. `None` if there are no more.
    pub(crate) fn make<H>(&self) -> Option<H>
    where
        F: FnMut() -> H,
    {
        self.lock().factory.as_mut().map(|factory| factory())
    }

    /// The filters as they were before any event.
    pub(crate) fn filters(&self) -> Filters<T>
    where
        T: 'static,
    {
        self.lock().filters.copy()
    }

    /// A runner that was replaced has come back.
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
                    pool.replace_thread()?; // the one that hangs ends when it comes back
                }
                pool.spawn(task);
            }
            _ => {
                // The system's threads have short names.
                let name = format!("hub:{}", me.name().chars().take(11).collect::<String>());
                drop(std::thread::Builder::new().name(name).spawn(move || block_on(task))?);
            }
        }
        Ok(())
    }

    fn replaced(&self) -> Option<Duration> {
        // It may have come back already, and be counted first.
        let out = self.out.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.decide(|budget| budget.replaced(out, Instant::now(), rand::random()))
    }
}
