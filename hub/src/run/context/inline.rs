//! Inline subscribers: the publisher calls the handler itself.
//!
//! **Invariant:** a handler is never called from two threads at once, nor from within itself. If an
//! inline handler publishes, inline handlers receive that event only after the running one has
//! returned, in the order of the publishes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::end::leftovers::STOPPED;
use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::publish::current::{Current, current, within};
use crate::run::filter::Filters;
use crate::run::handler::{Delivery, Handler};
use crate::run::handling::{Failure, Sampler, discard, judge, letter, panicked, span, wanted};
use crate::run::restart::{AttemptRecord, Budget, Verdict};
use crate::run::subscriber::{Intake, Subscriber};
use crate::stats::count;

/// How many events may wait on one thread for the running inline handler.
const DEFERRED_MAX: usize = 1024;

/// Calls to make: the subscriber and its event.
type Calls = VecDeque<(Arc<Subscriber>, AnyEvent)>;

thread_local! {
    /// Events for inline handlers that wait while one runs on this thread.
    static DEFERRED: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Handles one event. `false` if the restart budget is spent.
pub(crate) trait Work: Send {
    fn work(&mut self, me: &Arc<Subscriber>, event: &AnyEvent) -> bool;
}

struct Cell {
    worker: Option<Box<dyn Work>>,
    /// The subscriber on whose behalf it runs now.
    runs_for: Option<u64>,
    closed: bool,
}

pub(crate) struct Inline {
    core: Weak<HubCore>,
    cell: Mutex<Cell>,
    freed: Condvar,
}

impl Inline {
    pub(crate) fn new(core: Weak<HubCore>, worker: Box<dyn Work>) -> Inline {
        let cell = Cell { worker: Some(worker), runs_for: None, closed: false };
        Inline { core, cell: Mutex::new(cell), freed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Cell> {
        self.cell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn busy(&self) -> u64 {
        u64::from(self.lock().runs_for.is_some())
    }

    /// Ends it: it is not called again. Its handler is dropped here, or by the thread that runs it.
    pub(crate) fn close(&self) {
        let worker = {
            let mut cell = self.lock();
            cell.closed = true;
            cell.worker.take()
        };
        discard(worker);
    }
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// It was made, or will be made when the running handler has returned.
    Yes,
    /// It could not be made. The loss is counted.
    Lost,
    /// The subscriber has left.
    Gone,
}

/// Calls the handler, or defers the call until the inline handler running on this thread has
/// returned.
pub(crate) fn call(core: &HubCore, subscriber: &Arc<Subscriber>, event: &AnyEvent) -> Called {
    let deferred = DEFERRED.with_borrow_mut(|deferred| match deferred {
        Some(line) if line.len() < DEFERRED_MAX => {
            line.push_back((subscriber.clone(), event.clone()));
            Some(true)
        }
        Some(_) => Some(false),
        None => {
            *deferred = Some(VecDeque::new());
            None
        }
    });
    if let Some(deferred) = deferred {
        if !deferred {
            core.lost(subscriber, vec![event.clone()]);
            return Called::Lost;
        }
        return Called::Yes;
    }
    let _turn = Turn;
    let called = call_now(core, subscriber, event);
    while let Some((subscriber, event)) = next_deferred() {
        let Intake::Inline(inline) = &subscriber.intake else { continue };
        // It may belong to another hub.
        let Some(core) = inline.core.upgrade() else { continue };
        if call_now(&core, &subscriber, &event) == Called::Gone {
            // Its delivery was confirmed, but the subscriber has left since.
            subscriber.keep_leftovers();
            core.leave_behind(&subscriber, vec![event], STOPPED);
        }
    }
    called
}

fn next_deferred() -> Option<(Arc<Subscriber>, AnyEvent)> {
    DEFERRED.with_borrow_mut(|deferred| deferred.as_mut().and_then(VecDeque::pop_front))
}

/// While it exists, inline calls on this thread are deferred.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        let left = DEFERRED.with_borrow_mut(Option::take);
        drop(left);
    }
}

fn call_now(core: &HubCore, subscriber: &Arc<Subscriber>, event: &AnyEvent) -> Called {
    let Intake::Inline(inline) = &subscriber.intake else { return Called::Gone };
    let outer = current(core.id());
    let mut cell = inline.lock();
    let mut worker = loop {
        if let Some(worker) = cell.worker.take() {
            break worker;
        }
        let Some(other) = cell.runs_for.filter(|_| !cell.closed) else { return Called::Gone };
        // Another thread runs it. Inline handlers do not block, so the wait is short, unless that
        // thread waits for us.
        let _waits = match outer {
            Some(at) => match core.waits.begin(at.subscriber, &[other]) {
                Some(waits) => Some(waits),
                None => {
                    drop(cell);
                    core.lost(subscriber, vec![event.clone()]);
                    return Called::Lost;
                }
            },
            None => None,
        };
        cell = inline.freed.wait(cell).unwrap_or_else(PoisonError::into_inner);
    };
    let behalf = outer.map_or(subscriber.id, |at| at.subscriber);
    cell.runs_for = Some(behalf);
    drop(cell);
    // Every publisher waits for it, so it must not wait for anybody.
    let at = Current { hub: core.id(), subscriber: behalf, depth: event.depth, shared: true };
    let alive = within(at, || worker.work(subscriber, event));
    let mut cell = inline.lock();
    cell.runs_for = None;
    let over = cell.closed || !alive;
    let worker = if over { Some(worker) } else { cell.worker.replace(worker) };
    drop(cell);
    inline.freed.notify_all();
    if over {
        discard(worker);
        if !alive {
            core.end(subscriber);
        }
        core.over(subscriber);
    }
    core.caught_up();
    Called::Yes
}

/// The handler of an inline subscriber, with its filters and its budget.
pub(crate) struct Worker<T, H, F> {
    pub(crate) core: Weak<HubCore>,
    pub(crate) filters: Filters<T>,
    pub(crate) record: AttemptRecord,
    pub(crate) budget: Budget,
    pub(crate) factory: F,
    pub(crate) handler: Option<H>,
    pub(crate) sampler: Sampler,
}

impl<T, H, F> Work for Worker<T, H, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send,
{
    fn work(&mut self, me: &Arc<Subscriber>, event: &AnyEvent) -> bool {
        let Some(core) = self.core.upgrade() else { return true };
        loop {
            let Err(failure) = self.attempt(me, event) else { return true };
            if me.life.orders().stop() {
                letter(&core, me, event, self.record.attempt(event.id()), &failure);
                return true; // no retry after an order to stop
            }
            let (id, remedy, budget) = (event.id(), failure.remedy, &mut self.budget);
            let (verdict, _) = judge(&core, me, event, &failure, &mut self.record, |record| {
                record.failed(id, remedy, budget, Instant::now(), rand::random())
            });
            // A publisher must not be kept waiting, so there is no pause before a retry.
            match verdict {
                Verdict::Again(_) => count(&me.counts.troubles().retries),
                Verdict::Letter => return true,
                Verdict::Anew { letter, .. } => {
                    discard(self.handler.take());
                    count(&me.counts.troubles().restarts);
                    if letter {
                        return true;
                    }
                }
                Verdict::End => {
                    core.leave_failed(me, Vec::new(), &failure.reason);
                    return false;
                }
            }
        }
    }
}

impl<T, H, F> Worker<T, H, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send,
{
    fn attempt(&mut self, me: &Subscriber, event: &AnyEvent) -> Result<(), Failure> {
        if self.handler.is_none() {
            let made = catch_unwind(AssertUnwindSafe(&mut self.factory));
            self.handler = Some(made.map_err(|panic| panicked(me, panic))?);
        }
        let Some(handler) = &mut self.handler else { return Ok(()) };
        let attempt = self.record.attempt(event.id());
        let Some(payload) = wanted(me, &mut self.filters, event, attempt)? else {
            count(&me.counts.filtered);
            self.record.done_with(event.id());
            return Ok(());
        };
        let delivery = Delivery { event, payload, attempt, lagged: 0 };
        let span = span(me, event);
        let _entered = span.as_ref().map(|span| span.enter());
        let sampled = self.sampler.begin();
        let done = catch_unwind(AssertUnwindSafe(|| handler.immediate(delivery)));
        self.sampler.end(sampled, me);
        done.map_err(|panic| panicked(me, panic))??;
        count(&me.counts.processed);
        self.record.handled(event.id());
        Ok(())
    }
}
