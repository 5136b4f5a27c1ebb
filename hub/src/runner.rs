//! [`Runner`]: one subscriber at work. It takes an event, filters it, has it handled, and decides
//! what to do if that failed; wherever it runs, this is what runs.
//!
//! **Invariant:** an event leaves the inbox when it was handled, filtered or made a dead letter,
//! and not before; whatever a handler, a filter, a factory or a `Drop` does, the runner goes on or
//! ends as its budget says, and nobody else notices.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::current::{Current, within};
use crate::dead_letter::Letter;
use crate::event::AnyEvent;
use crate::filter::Filters;
use crate::handler::{Delivery, Handler, Remedy, Severity};
use crate::heart::Heart;
use crate::inbox::Inbox;
use crate::life::Orders;
use crate::notice::HubNotice;
use crate::restart::{Record, Verdict};
use crate::stats::count;
use crate::subscriber::{Phase, Subscriber};
use crate::work::{
    Failure, Guarded, Once, Sampler, discard, failed, filter_failed, guard, letter, panicked, span,
    wanted,
};

/// With at most this many readers of a log, each spins so often before it looks again: who follows a
/// publisher step by step slows both of them down.
const FEW: usize = 4;
const NAP: u32 = 64;

/// What became of an event.
enum Step {
    /// It was handled or filtered.
    Done,
    /// There is none.
    Empty,
    Failed(Box<Failure>),
    /// The handler is done for: a new one is to be made, or none.
    Over(Option<End>),
}

/// How a runner ended.
enum End {
    Told,
    Spent { reason: String },
}

pub(crate) struct Runner<T: 'static, F> {
    pub(crate) heart: Arc<Heart>,
    pub(crate) me: Arc<Subscriber>,
    pub(crate) inbox: Inbox,
    pub(crate) filters: Filters<T>,
    pub(crate) record: Record,
    pub(crate) factory: Guarded<F>,
    /// Handled, not yet committed; never empty.
    #[expect(clippy::box_collection, reason = "most have none, and there may be very many")]
    pub(crate) held: Option<Box<Vec<AnyEvent>>>,
    pub(crate) sampler: Sampler,
}

impl<T, H, F> Runner<T, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    /// Runs until told to end or until the budget is spent. What is rare is boxed, and all that is
    /// not is in here: every subscriber has the size of this future all its life.
    pub(crate) async fn run(&mut self) {
        loop {
            let mut handler = match self.make() {
                Ok(handler) => handler,
                Err(failure) => match Box::pin(self.not_made(failure)).await {
                    Some(end) => return self.finish(end),
                    None => continue,
                },
            };
            let end = loop {
                let orders = self.orders();
                if orders.stop() {
                    break Some(End::Told);
                }
                let empty = {
                    let step = match H::IMMEDIATE {
                        true => self.burst(handler.get(), orders),
                        false if self.held.is_none() && self.inbox.current().is_none() => {
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
                    self.rest(orders).await;
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

    fn make(&mut self) -> Result<Guarded<H>, Box<Failure>> {
        let (at, factory) = (at(&self.heart, &self.me), AssertUnwindSafe(self.factory.get()));
        match within(at, || catch_unwind(factory)) {
            Ok(handler) => Ok(Guarded(Some(handler))),
            Err(panic) => {
                let failure = panicked(&self.me, panic);
                let reason = format!("its factory {}", failure.reason);
                Err(Box::new(Failure { reason, ..failure }))
            }
        }
    }

    /// There is no handler, and no event is to blame.
    async fn not_made(&mut self, failure: Box<Failure>) -> Option<End> {
        count(&self.me.counts.troubles().errors);
        let verdict = self.record.not_made(Instant::now(), rand::random());
        self.act(verdict, failure.reason).await
    }

    /// A handler that may wait: one event after the other, until there is none or others are to run.
    /// What it collected is committed when it is enough, or when no more is there.
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
            let step = self.step(handler, collects > 0).await;
            self.inbox.handles(false);
            let commits = self.held.as_ref().is_some_and(|held| {
                matches!(step, Step::Empty)
                    || (matches!(step, Step::Done) && held.len() >= collects)
            });
            if commits && let Err(end) = Box::pin(self.commit(handler)).await {
                return Step::Over(end);
            }
            let over = self.me.life.orders() != orders || self.inbox.stretch_ended();
            if over || !matches!(step, Step::Done) {
                return step;
            }
        }
    }

    /// What it is told to do. What is for it alone is taken on the way.
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

    fn at(&self) -> Current {
        at(&self.heart, &self.me)
    }

    /// A handler that never waits: one event after the other, to the end of the stretch.
    fn burst(&mut self, handler: &mut H, orders: Orders) -> Step {
        let at = self.at();
        let (mut stretched, mut told) = (false, (0, 0));
        let mut once = Once {
            me: &self.me,
            filters: &mut self.filters,
            record: &mut self.record,
            sampler: &mut self.sampler,
            depth: 0,
            filtering: false,
        };
        let inbox = &mut self.inbox;
        let worked = within(at, || {
            catch_unwind(AssertUnwindSafe(|| {
                if let Some(stretch) = inbox.stretch() {
                    stretched = true;
                    let worked = once.stretch(handler, &stretch, orders, &mut told);
                    return worked.map_or_else(Step::Failed, |()| Step::Done);
                }
                if inbox.current().is_none() {
                    return Step::Empty;
                }
                let lagged = inbox.lagged(); // known once the next event is in hand
                inbox.handles(true);
                let Some(event) = inbox.current() else { return Step::Empty };
                let bytes = event.bytes.into();
                match once.handle(handler, event, lagged) {
                    Ok(true) => inbox.told_lagged(),
                    Ok(false) => {}
                    Err(failure) => return Step::Failed(failure),
                }
                inbox.advance(once.me, bytes);
                Step::Done
            }))
        });
        let step = worked.unwrap_or_else(|panic| {
            let failure = panicked(once.me, panic);
            Step::Failed(Box::new(if once.filtering { filter_failed(failure) } else { failure }))
        });
        inbox.handles(false);
        if stretched {
            inbox.passed(told.0, told.1, matches!(step, Step::Failed(_)));
        }
        step
    }

    /// A handler that may wait: one event.
    async fn step(&mut self, handler: &mut H, hold: bool) -> Step {
        let at = self.at();
        if self.inbox.current().is_none() {
            return Step::Empty;
        }
        let lagged = self.inbox.lagged();
        self.inbox.handles(true);
        let Some(event) = self.inbox.current() else { return Step::Empty };
        let bytes = event.bytes.into();
        let at = Current { depth: event.depth, ..at };
        let id = event.id();
        let attempt = self.record.attempt(id);
        match within(at, || wanted(&self.me, &mut self.filters, event, attempt)) {
            Ok(None) => {
                count(&self.me.counts.filtered);
                self.done_with(id, bytes);
                return Step::Done;
            }
            Ok(Some(payload)) => {
                let delivery = Delivery { event, payload, attempt, lagged };
                let sampled = self.sampler.begin();
                let span = span(&self.me, event);
                let work = || handler.handle(delivery);
                let result = guard(&self.me, at, span, work).await;
                self.sampler.end(sampled, &self.me);
                if let Err(failure) = result {
                    return Step::Failed(Box::new(failure));
                }
            }
            Err(failure) => return Step::Failed(Box::new(failure)),
        }
        if hold {
            // It counts when it is committed.
            let held = self.held.get_or_insert_default();
            held.extend(self.inbox.current().cloned());
            self.me.uncommitted.store(held.len() as u32, Ordering::Release);
            self.record.done_with(id);
        } else {
            count(&self.me.counts.processed);
            self.record.handled(id);
        }
        self.inbox.told_lagged();
        self.inbox.advance(&self.me, bytes);
        Step::Done
    }

    fn done_with(&mut self, event: usize, bytes: u64) {
        self.record.done_with(event);
        self.inbox.advance(&self.me, bytes);
    }

    /// The event in hand failed.
    async fn fail(&mut self, failure: Box<Failure>) -> Result<(), Option<End>> {
        let Some(event) = self.inbox.current().cloned() else { return Ok(()) };
        let attempt = self.record.attempt(event.id());
        failed(&self.heart, &self.me, &event, &failure, attempt);
        let now = Instant::now();
        let verdict = self.record.failed(event.id(), failure.remedy, now, rand::random());
        // The one that spent the budget is nobody else's to try.
        if matches!(verdict, Verdict::Letter | Verdict::End | Verdict::Anew { letter: true, .. }) {
            letter(&self.heart, &self.me, &event, attempt, &failure);
            self.done_with(event.id(), event.bytes.into());
        }
        drop(event);
        match verdict {
            Verdict::Letter => Ok(()),
            Verdict::Again(pause) => {
                count(&self.me.counts.troubles().retries);
                self.sleep(pause).await;
                Ok(())
            }
            verdict => Err(self.act(verdict, failure.reason).await),
        }
    }

    /// A handler that collects is asked to commit, again and again until it does or dies.
    async fn commit(&mut self, handler: &mut H) -> Result<(), Option<End>> {
        let at = self.at();
        let mut tries = 0u32;
        loop {
            let result = guard(&self.me, at, None, || handler.commit()).await;
            let Err(failure) = result else {
                let many = self.held.take().map_or(0, |held| held.len() as u64);
                self.me.counts.processed.fetch_add(many, Ordering::Relaxed);
                self.me.uncommitted.store(0, Ordering::Release);
                self.record.committed();
                return Ok(());
            };
            tries += 1;
            if let Some(event) = self.held.as_ref().and_then(|held| held.first()).cloned() {
                failed(&self.heart, &self.me, &event, &failure, tries);
            }
            let again = failure.remedy != Remedy::Fatal && !self.me.life.orders().stop();
            if !again {
                let verdict = self.record.not_made(Instant::now(), rand::random());
                return Err(self.act(verdict, failure.reason).await);
            }
            count(&self.me.counts.troubles().retries);
            let wait = self.record.pause(tries, rand::random());
            self.sleep(wait).await;
        }
    }

    /// Waits before a new handler is made, or says that the budget is spent.
    async fn act(&mut self, verdict: Verdict, reason: String) -> Option<End> {
        let Verdict::Anew { pause, .. } = verdict else {
            return Some(End::Spent { reason });
        };
        count(&self.me.counts.troubles().restarts);
        let notice = HubNotice::Restarting {
            subscriber: self.me.name().to_string(),
            reason,
            pause_ms: pause.as_millis() as u64,
        };
        self.heart.say(notice);
        self.sleep(pause).await;
        None
    }

    /// Pauses, unless it is told to stop. Being told to drain does not shorten it.
    async fn sleep(&mut self, time: Duration) {
        self.me.enter_if(Phase::Running, Phase::Pausing);
        self.heart.timer.sleep(time).await;
        self.me.enter_if(Phase::Pausing, Phase::Running);
    }

    /// Waits for the next event: by looking again for a moment if only few do, then asleep.
    /// Not an `async fn`: every subscriber has the size of this all its life.
    fn rest(&mut self, orders: Orders) -> impl Future<Output = ()> {
        if self.me.lagging.load(Ordering::Relaxed) {
            self.me.lagging.store(false, Ordering::Relaxed);
        }
        let few = self.inbox.crowd() <= FEW;
        let mut looked = false;
        poll_fn(move |cx| {
            if !std::mem::replace(&mut looked, true) {
                // Not too soon, and others first, so that what comes comes in numbers.
                if few {
                    (0..NAP).for_each(|_| std::hint::spin_loop());
                    if self.inbox.peek() {
                        return Poll::Ready(());
                    }
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Orders come before their wake-up, and the waker was registered before this poll.
            if self.me.life.orders() != orders || !self.inbox.sleep() {
                return Poll::Ready(());
            }
            self.heart.caught_up();
            Poll::Pending
        })
    }

    /// Leaves the hub: what is left becomes dead letters if it failed or was drained too late.
    fn finish(&mut self, end: End) {
        self.leave(match end {
            End::Spent { reason } => Some(reason),
            End::Told => None,
        });
    }
}

impl<T: 'static, F> Runner<T, F> {
    /// What was handled and not committed is to be handled again.
    fn hold_nothing(&mut self) {
        if let Some(held) = self.held.take() {
            self.inbox.again(&self.me, *held);
        }
        self.me.uncommitted.store(0, Ordering::Release);
    }

    fn leave(&mut self, spent: Option<String>) {
        self.me.shut(true);
        self.hold_nothing();
        self.me.uncommitted.store(1, Ordering::Release); // until everything is said, it is not idle
        let rest = self.inbox.rest(&self.me);
        let failed = spent.is_some() || self.me.has_failed();
        leave(&self.heart, &self.me, rest, failed, spent);
    }
}

/// Whatever ends a runner, nobody waits for it afterwards, and what it left is not lost.
impl<T: 'static, F> Drop for Runner<T, F> {
    fn drop(&mut self) {
        let leave = AssertUnwindSafe(|| {
            if !self.me.life.is_over() {
                self.leave(None);
            }
        });
        if let Err(panic) = catch_unwind(leave) {
            std::mem::forget(panic);
        }
        self.me.life.end();
        discard((self.filters.take(), self.held.take()));
    }
}

/// The last things: leftovers, notice, routes; and then it is over.
fn leave(
    heart: &Heart,
    me: &Arc<Subscriber>,
    rest: Vec<AnyEvent>,
    failed: bool,
    spent: Option<String>,
) {
    if me.life.is_over() {
        return;
    }
    let rest = heart.hand_on(me, rest);
    let leftovers = rest.len() as u64;
    me.counts.troubles().abandoned.fetch_add(leftovers, Ordering::Relaxed);
    let reason = spent.as_deref().unwrap_or(match failed {
        true => "its queue overflowed",
        false => "it was stopped before it came to it",
    });
    if failed || me.keeps_leftovers() {
        let letter = |event| Letter::new(event, me.name(), 0, Severity::Error, reason);
        heart.keep(rest.iter().map(letter).collect());
    }
    if failed {
        me.enter(Phase::Failed);
        let subscriber = me.name().to_string();
        let notice = HubNotice::Stopped { subscriber, reason: reason.into(), leftovers };
        heart.say(notice);
    } else {
        me.enter(Phase::Stopped);
    }
    if failed {
        heart.count_failed();
    }
    me.uncommitted.store(0, Ordering::Release);
    heart.registry_mut().forget_subscriber(me);
    me.life.end();
    heart.caught_up();
}

/// Who runs, as far as publishing from inside is concerned.
fn at(heart: &Heart, me: &Subscriber) -> Current {
    Current { hub: heart.id(), subscriber: me.id, depth: 0, shared: me.shares_threads() }
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
