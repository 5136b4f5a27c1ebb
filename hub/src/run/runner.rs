//! [`Runner`]: the loop of one subscriber, in every context. It takes an event, filters it, has it
//! handled, and decides what to do after a failure.
//!
//! **Invariant:** an event leaves the inbox only when it was handled, filtered or made a dead
//! letter. If a handler, a filter, a factory or a `Drop` misbehaves, the runner continues or ends
//! as its budget says, and no other subscriber is affected. A runner that does not return in time
//! is replaced. When it returns later, it has no effect any more.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use crate::end::leftovers::end_subscriber;
use crate::end::life::Orders;
use crate::hub_core::HubCore;
use crate::publish::current::{Current, within};
use crate::run::bounds::{Bounds, Guarded};
use crate::run::context::pool::leave_this_thread;
use crate::run::filter::Filters;
use crate::run::handler::{Delivery, Handler};
use crate::run::handling::{
    Failure, Handling, Sampler, Tally, discard, filter_failed, panicked, span, wanted,
};
use crate::run::restart::AttemptRecord;
use crate::run::runner_maker::RunnerMaker;
use crate::run::subscriber::{Phase, Subscriber};
use crate::wait::inbox::Inbox;

/// With at most `FEW` readers of a log, each spins `NAP` times before it checks again. A reader
/// that follows a publisher event by event slows down both.
const FEW: usize = 4;
const NAP: u32 = 64;

/// The result of one step.
enum Step {
    /// The event was handled or filtered.
    Done,
    /// There is no event.
    Empty,
    Failed(Box<Failure>),
    /// The handler cannot continue. `None`: create a new one. `Some`: the runner ends.
    Over(Option<End>),
}

/// How a runner ended.
pub(crate) enum End {
    Told,
    /// Another runner continues in its place.
    Replaced,
    Spent(Box<Failure>),
}

pub(crate) struct Runner<T: 'static, F> {
    pub(crate) core: Arc<HubCore>,
    pub(crate) me: Arc<Subscriber>,
    pub(crate) inbox: Inbox,
    /// Copied in the runner's context, because copying them is user code.
    pub(crate) filters: Filters<T>,
    pub(crate) has_filters: bool,
    pub(crate) record: AttemptRecord,
    pub(crate) maker: Arc<RunnerMaker<T, F>>,
    pub(crate) sampler: Sampler,
    /// Events handled but not yet committed.
    pub(crate) held: u32,
    /// The pause before it begins.
    pub(crate) pause_ms: u32,
    pub(crate) replaced: bool,
}

impl<T, H, F> Runner<T, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    /// Runs until it is ordered to end or the budget is spent. Rare steps are boxed, frequent ones
    /// are inlined here: every subscriber keeps a future of this size for all its life.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` would have room for two runners")]
    pub(crate) fn run(mut self) -> impl Future<Output = ()> + Send {
        async move {
            if self.pause_ms > 0 {
                let pause = Duration::from_millis(self.pause_ms.into());
                Box::pin(self.sleep(pause)).await;
            }
            loop {
                let mut handler = Guarded(None);
                match self.make(&mut handler) {
                    Ok(true) => {}
                    Ok(false) => return self.finish(End::Told),
                    Err(failure) => match Box::pin(self.not_made(failure)).await {
                        Some(end) => return self.finish(end),
                        None => continue,
                    },
                }
                let end = loop {
                    let orders = self.orders();
                    if self.inbox.is_replaced(&self.me) {
                        break Some(End::Replaced);
                    }
                    if orders.stop() {
                        break Some(End::Told);
                    }
                    let empty = {
                        let step = match H::IMMEDIATE {
                            true => self.burst(handler.get(), orders),
                            false if self.held == 0 && self.inbox.current().is_none() => {
                                Step::Empty
                            }
                            false => Box::pin(self.stint(handler.get(), orders)).await,
                        };
                        match step {
                            Step::Done => false,
                            Step::Empty => true,
                            Step::Over(end) => break end,
                            Step::Failed(failure) => match Box::pin(self.fail(failure)).await {
                                Ok(()) => false,
                                Err(end) => break end,
                            },
                        }
                    };
                    if empty && self.is_drained(orders) {
                        break Some(End::Told);
                    }
                    if empty {
                        self.wait_for_event(orders).await;
                    }
                    if self.inbox.stretch_ended() {
                        pause().await;
                    }
                };
                within(self.at(), || drop(handler));
                self.hold_nothing();
                if let Some(end) = end {
                    return self.finish(end);
                }
            }
        }
    }

    /// Creates a new handler. `false` if there is none any more because the subscriber has ended.
    fn make(&mut self, handler: &mut Guarded<H>) -> Result<bool, Box<Failure>> {
        let (maker, filters, has_filters) = (&self.maker, &mut self.filters, &mut self.has_filters);
        let make = AssertUnwindSafe(|| {
            if !*has_filters {
                *filters = maker.filters();
                *has_filters = true;
            }
            maker.make()
        });
        match within(at(&self.core, &self.me), || catch_unwind(make)) {
            Ok(made) => {
                handler.0 = made;
                Ok(handler.0.is_some())
            }
            Err(panic) => {
                let failure = panicked(&self.me, panic);
                let reason = format!("its factory {}", failure.reason);
                Err(Box::new(Failure { reason, ..failure }))
            }
        }
    }

    /// For handlers that may await: handles events until there are no more or others should run.
    /// Commits the collected events when there are enough, or when no more events wait.
    async fn stint(&mut self, handler: &mut H, orders: Orders) -> Step {
        let asked = within(self.at(), || catch_unwind(AssertUnwindSafe(|| handler.collects())));
        let collects = match asked {
            Ok(collects) => collects,
            Err(panic) => {
                let failure = Box::new(panicked(&self.me, panic));
                return Step::Over(Box::pin(self.not_made(failure)).await);
            }
        };
        loop {
            let step = self.step(handler, collects > 0, orders).await;
            let enough = self.held as usize >= collects;
            let commits = self.held > 0
                && (matches!(step, Step::Empty) || (matches!(step, Step::Done) && enough));
            if commits && let Err(end) = Box::pin(self.commit(handler)).await {
                return Step::Over(end);
            }
            // Events for this subscriber only are taken one by one.
            let over = self.me.life.orders() != orders || orders.direct();
            let over = over || self.inbox.stretch_ended();
            if over || !matches!(step, Step::Done) {
                return step;
            }
        }
    }

    /// The current orders. Also takes the next event for this subscriber only.
    fn orders(&mut self) -> Orders {
        let orders = self.me.life.orders();
        if orders.direct() {
            self.inbox.take_direct(&self.me);
        }
        orders
    }

    fn is_drained(&mut self, orders: Orders) -> bool {
        orders.drain() && self.inbox.is_empty() && self.me.life.orders() == orders
    }

    pub(crate) fn at(&self) -> Current {
        at(&self.core, &self.me)
    }

    /// For handlers that never await: handles events to the end of the stretch.
    fn burst(&mut self, handler: &mut H, orders: Orders) -> Step {
        let at = self.at();
        let mut stretched = false;
        let mut tally = Tally::new(self.inbox.is_successor());
        let mut handling = Handling {
            me: &self.me,
            filters: &mut self.filters,
            record: &mut self.record,
            sampler: &mut self.sampler,
            depth: 0,
            filtering: false,
        };
        let inbox = &mut self.inbox;
        if inbox.current().is_none() {
            return Step::Empty;
        }
        inbox.is_inside(true);
        let worked = within(at, || {
            catch_unwind(AssertUnwindSafe(|| {
                if let Some(stretch) = inbox.stretch() {
                    stretched = true;
                    tally.bytes = stretch.bytes;
                    handling.stretch(handler, &stretch, orders, &mut tally)?;
                    return Ok(None);
                }
                let lagged = inbox.lagged();
                inbox.show();
                let event = inbox.in_hand().filter(|_| handling.me.life.orders() == orders);
                event.map(|event| handling.handle(handler, event, lagged)).transpose()
            }))
        });
        inbox.is_inside(false);
        if inbox.is_replaced(&self.me) {
            if inbox.lost_last() {
                tally.without_last();
            }
            tally.shared = true;
            tally.tell(&self.me);
            discard(worked);
            return Step::Over(Some(End::Replaced));
        }
        let worked = worked.unwrap_or_else(|panic| {
            let failure = panicked(handling.me, panic);
            Err(Box::new(if handling.filtering { filter_failed(failure) } else { failure }))
        });
        if stretched {
            tally.tell(&self.me);
            inbox.passed(tally.passed, tally.bytes, worked.is_err());
        }
        match worked {
            Ok(None) => Step::Done,
            Ok(Some(handled)) => {
                let counts = &self.me.counts;
                inbox.count(if handled { &counts.processed } else { &counts.filtered });
                if handled {
                    inbox.told_lagged();
                }
                let bytes = inbox.in_hand().map_or(0, |event| event.bytes.into());
                inbox.advance(&self.me, bytes);
                Step::Done
            }
            Err(failure) => Step::Failed(failure),
        }
    }

    /// For handlers that may await: handles one event.
    async fn step(&mut self, handler: &mut H, hold: bool, orders: Orders) -> Step {
        let at = self.at();
        if self.inbox.current().is_none() {
            return Step::Empty;
        }
        let lagged = self.inbox.lagged();
        self.inbox.show();
        if self.me.life.orders() != orders {
            return Step::Done;
        }
        let Some(event) = self.inbox.in_hand() else { return Step::Empty };
        let bytes = event.bytes.into();
        let at = Current { depth: event.depth, ..at };
        let id = event.id();
        let attempt = self.record.attempt(id);
        self.inbox.is_inside(true);
        let wanted = within(at, || wanted(&self.me, &mut self.filters, event, attempt));
        let result = match wanted {
            Ok(None) => Ok(false),
            Ok(Some(payload)) => {
                let delivery = Delivery { event, payload, attempt, lagged };
                let sampled = self.sampler.begin();
                let span = span(&self.me, event);
                let (core, me, inbox) = (&*self.core, &*self.me, &self.inbox);
                let bounds = Bounds { core, me, inbox, at, span };
                let result = bounds.guard(|| handler.handle(delivery)).await;
                self.sampler.end(sampled, &self.me);
                result.map(|()| true)
            }
            Err(failure) => Err(failure),
        };
        self.inbox.is_inside(false);
        if self.inbox.is_replaced(&self.me) {
            return Step::Over(Some(End::Replaced));
        }
        match result {
            Err(failure) => return Step::Failed(Box::new(failure)),
            Ok(false) => {
                self.inbox.count(&self.me.counts.filtered);
                self.record.done_with(id);
                self.inbox.advance(&self.me, bytes);
                return Step::Done;
            }
            Ok(true) => self.inbox.told_lagged(),
        }
        if hold {
            // It is counted when it is committed. Until then it may be delivered again.
            self.held = self.inbox.hold(&self.me, bytes) as u32;
        } else {
            self.inbox.count(&self.me.counts.processed);
            self.record.handled(id);
            self.inbox.advance(&self.me, bytes);
        }
        Step::Done
    }

    /// Pauses, unless it is ordered to stop. An order to drain does not shorten the pause.
    pub(crate) async fn sleep(&mut self, time: Duration) {
        self.me.enter_if(Phase::Running, Phase::Pausing);
        self.core.timer.sleep(time).await;
        self.me.enter_if(Phase::Pausing, Phase::Running);
    }

    /// Waits for the next event. With few readers it checks again for a moment before it sleeps.
    /// Not an `async fn`: every subscriber keeps a future of this size for all its life.
    fn wait_for_event(&mut self, orders: Orders) -> impl Future<Output = ()> {
        if self.me.lagging.load(Ordering::Relaxed) {
            self.me.lagging.store(false, Ordering::Relaxed);
        }
        let few = self.inbox.crowd() <= FEW;
        let mut looked = false;
        poll_fn(move |cx| {
            if !std::mem::replace(&mut looked, true) {
                // Not too soon, and after others have run, so that events arrive in batches.
                if few {
                    (0..NAP).for_each(|_| std::hint::spin_loop());
                    if self.inbox.peek() {
                        return Poll::Ready(());
                    }
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Orders are given before their wake-up, and the waker was registered before this poll.
            if self.me.life.orders() != orders || !self.inbox.sleep() {
                return Poll::Ready(());
            }
            self.core.caught_up();
            Poll::Pending
        })
    }

    /// Leaves the hub. Remaining events become dead letters if the subscriber failed or its time to
    /// drain has passed.
    fn finish(&mut self, end: End) {
        match end {
            End::Spent(failure) => self.end(Some(failure.reason)),
            End::Told => self.end(None),
            End::Replaced => {
                self.replaced = true;
                leave_this_thread();
            }
        }
    }
}

impl<T: 'static, F> Runner<T, F> {
    /// Lets uncommitted events be handled again.
    fn hold_nothing(&mut self) {
        self.held = 0;
        self.inbox.again(&self.me);
    }

    fn end(&mut self, spent: Option<String>) {
        self.me.shut();
        self.hold_nothing();
        let me = self.me.clone();
        let leaving = me.leaves();
        let unread = self.inbox.take_unread(&me);
        end_subscriber(&self.core, &me, unread, spent, leaving);
    }
}

/// However a runner ends, nobody waits for it afterwards, and its events are not lost.
impl<T: 'static, F> Drop for Runner<T, F> {
    fn drop(&mut self) {
        if !self.replaced && !self.inbox.is_replaced(&self.me) {
            let end = AssertUnwindSafe(|| {
                if !self.me.life.is_over() {
                    self.end(None);
                }
            });
            if let Err(panic) = catch_unwind(end) {
                std::mem::forget(panic);
            }
            self.me.life.end();
            self.maker.clear();
        } else {
            self.maker.has_returned();
            if self.me.life.is_over() {
                self.maker.clear();
            }
        }
        discard(std::mem::replace(&mut self.filters, Filters::new()));
    }
}

/// The subscriber as the current handler, for publishes from inside it.
fn at(core: &HubCore, me: &Subscriber) -> Current {
    Current { hub: core.id(), subscriber: me.id, depth: 0, shared: me.shares_threads() }
}

/// Lets others run.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
