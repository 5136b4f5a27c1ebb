//! [`Runner`]: one subscriber at work. It takes an event, filters it, has it handled, and decides
//! what to do if that failed; wherever it runs, this is what runs.
//!
//! **Invariant:** an event leaves the inbox when it was handled, filtered or made a dead letter,
//! and not before; whatever a handler, a filter, a factory or a `Drop` does, the runner goes on or
//! ends as its budget says, and nobody else notices.

use std::future::poll_fn;
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
use crate::sync::Slot;
use crate::work::{
    Failure, Guarded, Once, Sampler, failed, filter_failed, guard, letter, panicked, span, wanted,
};

/// How many quick events are handled between two looks at who waits for them.
const SHOWN: u64 = 16;
/// With at most this many readers of a log, each looks again before it sleeps.
const CROWD: usize = 4;
/// How often.
const SPINS: u32 = 3;
const YIELDS: u32 = 1;

/// What became of an event.
enum Step {
    /// It was handled or filtered.
    Done,
    /// There is none.
    Empty,
    Failed(Box<Failure>),
}

/// How a runner ended.
enum End {
    Told,
    Spent { reason: String },
}

pub(crate) struct Runner<T, F> {
    pub(crate) heart: Arc<Heart>,
    pub(crate) me: Arc<Subscriber>,
    pub(crate) inbox: Inbox,
    pub(crate) filters: Filters<T>,
    pub(crate) record: Record,
    pub(crate) factory: F,
    /// The thread it runs on serves others as well.
    pub(crate) shared: bool,
    /// Handled, not yet committed.
    pub(crate) held: Vec<AnyEvent>,
    pub(crate) sampler: Sampler,
}

impl<T, H, F> Runner<T, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    /// Runs until told to end or until the budget is spent. What is rare is boxed: every
    /// subscriber has the size of the largest of these futures all its life.
    pub(crate) async fn run(&mut self) {
        loop {
            let (at, factory) = (self.at(), AssertUnwindSafe(&mut self.factory));
            let handler = match within(at, || catch_unwind(factory)) {
                Ok(handler) => handler,
                Err(panic) => {
                    let failure = panicked(&self.me, panic);
                    count(&self.me.counts.troubles().errors);
                    let verdict = self.record.not_made(Instant::now(), rand::random());
                    let reason = format!("its factory {}", failure.reason);
                    match Box::pin(self.act(verdict, reason)).await {
                        Some(end) => return self.finish(end),
                        None => continue,
                    }
                }
            };
            let mut handler = Guarded(Some(handler));
            let end = match H::IMMEDIATE {
                true => self.serve_now(&mut handler).await,
                false => Box::pin(self.serve(&mut handler)).await,
            };
            within(at, || drop(handler));
            self.hold_nothing();
            if let Some(end) = end {
                return self.finish(end);
            }
        }
    }

    /// The life of a handler that never waits. `None`: a new one is to be made.
    async fn serve_now(&mut self, handler: &mut Guarded<H>) -> Option<End> {
        loop {
            let orders = self.orders();
            if orders.stop() {
                return Some(End::Told);
            }
            match self.burst(handler.get(), orders) {
                Step::Done => {}
                Step::Failed(failure) => {
                    if let Err(end) = Box::pin(self.fail(failure)).await {
                        return end;
                    }
                }
                Step::Empty if self.is_drained(orders) => return Some(End::Told),
                Step::Empty => self.rest(orders).await,
            }
            if self.inbox.stretch_ended() {
                pause().await;
            }
        }
    }

    /// The life of a handler that may wait.
    async fn serve(&mut self, handler: &mut Guarded<H>) -> Option<End> {
        let at = self.at();
        let asked = within(at, || catch_unwind(AssertUnwindSafe(|| handler.get().collects())));
        let collects = match asked {
            Ok(collects) => collects,
            Err(panic) => {
                let failure = panicked(&self.me, panic);
                count(&self.me.counts.troubles().errors);
                let verdict = self.record.not_made(Instant::now(), rand::random());
                return Box::pin(self.act(verdict, failure.reason)).await;
            }
        };
        loop {
            let orders = self.orders();
            if orders.stop() {
                return Some(End::Told);
            }
            let step = self.step(handler.get(), collects > 0).await;
            self.inbox.handles(false);
            let commits = !self.held.is_empty()
                && (matches!(step, Step::Empty) || self.held.len() >= collects);
            let over = match step {
                Step::Failed(failure) => Box::pin(self.fail(failure)).await,
                _ if commits => Box::pin(self.commit(handler)).await,
                Step::Done => Ok(()),
                Step::Empty if self.is_drained(orders) => Err(Some(End::Told)),
                Step::Empty => {
                    self.rest(orders).await;
                    Ok(())
                }
            };
            if let Err(end) = over {
                return end;
            }
            if self.inbox.stretch_ended() {
                pause().await;
            }
        }
    }

    /// What it is told to do. What is for it alone is taken on the way.
    fn orders(&mut self) -> Orders {
        let orders = self.me.life.orders();
        if orders.direct() {
            self.inbox.take_direct();
        }
        orders
    }

    fn is_drained(&mut self, orders: Orders) -> bool {
        orders.drain() && self.inbox.is_empty() && self.me.life.orders() == orders
    }

    fn at(&self) -> Current {
        let (hub, subscriber) = (self.heart.id(), self.me.id);
        Current { hub, subscriber, depth: 0, shared: self.shared }
    }

    /// A handler that never waits: one event after the other, to the end of the stretch.
    fn burst(&mut self, handler: &mut H, orders: Orders) -> Step {
        let at = self.at();
        let (mut stretched, mut passed, mut bytes) = (false, 0, 0);
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
                    for event in stretch.slots.iter().map_while(Slot::get) {
                        if let Err(failure) = once.handle(handler, event, 0) {
                            return Step::Failed(failure);
                        }
                        passed += 1;
                        bytes += u64::from(event.bytes);
                        if once.me.life.orders() != orders {
                            break;
                        }
                        let show = passed % SHOWN == 0 || !once.sampler.is_quick();
                        if show && stretch.passed(passed, bytes) {
                            break;
                        }
                    }
                    return Step::Done;
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
                inbox.advance(bytes);
                Step::Done
            }))
        });
        let step = worked.unwrap_or_else(|panic| {
            let failure = panicked(once.me, panic);
            Step::Failed(Box::new(if once.filtering { filter_failed(failure) } else { failure }))
        });
        inbox.handles(false);
        if stretched {
            inbox.passed(passed, bytes, matches!(step, Step::Failed(_)));
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
            self.held.extend(self.inbox.current().cloned());
            self.me.uncommitted.store(self.held.len() as u64, Ordering::Release);
            self.record.done_with(id);
        } else {
            count(&self.me.counts.processed);
            self.record.handled(id);
        }
        self.inbox.told_lagged();
        self.inbox.advance(bytes);
        Step::Done
    }

    fn done_with(&mut self, event: usize, bytes: u64) {
        self.record.done_with(event);
        self.inbox.advance(bytes);
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
    async fn commit(&mut self, handler: &mut Guarded<H>) -> Result<(), Option<End>> {
        let at = self.at();
        let mut tries = 0u32;
        loop {
            let handler = handler.get();
            let result = guard(&self.me, at, None, || handler.commit()).await;
            let Err(failure) = result else {
                let many = self.held.len() as u64;
                self.me.counts.processed.fetch_add(many, Ordering::Relaxed);
                self.held.clear();
                self.me.uncommitted.store(0, Ordering::Release);
                self.record.committed();
                return Ok(());
            };
            tries += 1;
            if let Some(event) = self.held.first().cloned() {
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
            subscriber: self.me.name.to_string(),
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
    async fn rest(&mut self, orders: Orders) {
        if self.me.lagging.load(Ordering::Relaxed) {
            self.me.lagging.store(false, Ordering::Relaxed);
        }
        if self.inbox.crowd() <= CROWD {
            // Ever longer between two looks, so that what comes comes in numbers.
            for round in 0..SPINS + YIELDS {
                match round < SPINS {
                    true => (0..1u32 << round).for_each(|_| std::hint::spin_loop()),
                    false => pause().await,
                }
                if self.inbox.peek() || self.me.life.orders() != orders {
                    return;
                }
            }
        }
        let (me, inbox, heart) = (&self.me, &mut self.inbox, &self.heart);
        poll_fn(|_| {
            // Orders come before their wake-up, and the waker was registered before this poll.
            if me.life.orders() != orders || !inbox.sleep() {
                return Poll::Ready(());
            }
            heart.caught_up();
            Poll::Pending
        })
        .await;
    }

    /// Leaves the hub: what is left becomes dead letters if it failed or was drained too late.
    fn finish(&mut self, end: End) {
        self.leave(match end {
            End::Spent { reason } => Some(reason),
            End::Told => None,
        });
    }
}

impl<T, F> Runner<T, F> {
    /// What was handled and not committed is to be handled again.
    fn hold_nothing(&mut self) {
        self.inbox.again(std::mem::take(&mut self.held));
        self.me.uncommitted.store(0, Ordering::Release);
    }

    fn leave(&mut self, spent: Option<String>) {
        self.me.shut(true);
        self.hold_nothing();
        self.me.uncommitted.store(1, Ordering::Release); // until everything is said, it is not idle
        let rest = self.inbox.rest();
        let failed = spent.is_some() || self.me.has_failed();
        leave(&self.heart, &self.me, rest, failed, spent);
    }
}

/// Whatever ends a runner, nobody waits for it afterwards, and what it left is not lost.
impl<T, F> Drop for Runner<T, F> {
    fn drop(&mut self) {
        if !self.me.life.is_over() {
            self.leave(None);
        }
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
        let letter = |event| Letter::new(event, &me.name, 0, Severity::Error, reason);
        heart.keep(rest.iter().map(letter).collect());
    }
    if failed {
        me.enter(Phase::Failed);
        let subscriber = me.name.to_string();
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
