//! The slots in which handlers run.
//!
//! **Invariant:** every claim that enters comes out exactly once: finished, taken back unstarted, or reported lost when the
//! slots are stopped. What a slot has in hand and not started is never stuck behind a slow handler: a slot puts it back
//! before it waits, and the worker puts it back if a handler blocks its thread. Nor are results that it has not handed in.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};

use super::call::handle;
use super::kinds::{Policies, Routing};
use super::plan::{GROUP, group};
use super::policy::{Limit, Policy};
use super::slot_queue::{
    Bounded, Finished, Held, Permit, Queued, Results, Shared, SlotState, locked,
};
use super::{Handle, unreadable};
use crate::cause::Cause;
use crate::membership::Session;
use crate::message::Message;
use crate::outcome::{Outcome, Report};
use crate::panic::drop_quietly;
use crate::queue::{Claim, Claims};
use crate::trace;

/// A result that took this long is handed in at once: compared with that, handing it in costs nothing.
const HAND_IN: Duration = Duration::from_micros(200);
/// A slot that is busy with one message for this long does not soon come to what it has in hand.
const BLOCKED: Duration = Duration::from_millis(5);
/// While a slot works on its group, it asks again after this time whether the session is trusted.
const TRUST_AGAIN: Duration = Duration::from_millis(1);

/// A message that was handed out.
struct Next {
    claim: Claim,
    message: Result<Message, Bytes>,
    /// What the clock of Redis showed, and when, if it can expire.
    redis: Option<(u64, Instant)>,
    /// Its bound, since when it waits, and room for it, if its kind has a limit. In a box: few have one, and this is moved
    /// often.
    bounded: Option<Box<(Limit, Instant, Claims)>>,
    /// From when it was made to now, if this is its first run.
    wait: Option<Duration>,
}

/// A fixed number of slots, each with a handler.
pub(super) struct Slots {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// Claims that went in and have not come out.
    inside: usize,
}

impl Slots {
    pub(super) fn new(count: usize, routing: &Routing, session: &Arc<Session>) -> Slots {
        let kinds = (0..routing.policies.count).map(|_| Bounded::default()).collect();
        let shared = Arc::new(Shared {
            queued: Mutex::new(Queued { kinds, ..Queued::default() }),
            some_work: Notify::new(),
            results: Mutex::default(),
            some_finished: Notify::new(),
            some_blocked: Notify::new(),
            states: (0..count).map(|_| SlotState::default()).collect(),
            began: Instant::now(),
        });
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let slot = Slot {
                number,
                shared: shared.clone(),
                policies: routing.policies.clone(),
                session: session.clone(),
                mean: None,
                running: None,
            };
            tasks.spawn(routing.handler.clone().run(slot));
        }
        Slots { shared, tasks, inside: 0 }
    }

    /// Has these claims handled. Their number is bounded by what the worker asks Redis for.
    pub(super) fn start(&mut self, claims: Claims) {
        self.inside += self.shared.put([(Instant::now(), claims)], false);
    }

    /// Claims that wait, are being handled, or have a result that was not collected yet.
    pub(super) fn inside(&self) -> usize {
        self.inside
    }

    /// Claims that wait for others of their kind: no slot can start them now.
    pub(super) fn aside(&self) -> usize {
        locked(&self.shared.queued).aside
    }

    /// Handlers that run.
    pub(super) fn running(&self) -> usize {
        self.shared.busy(self.shared.began).count()
    }

    /// Slots that have been busy with one message for longer than this.
    pub(super) fn stuck(&self, now: Instant, longer_than: Duration) -> usize {
        self.shared.busy(now).filter(|(_, busy)| *busy > longer_than).count()
    }

    /// How long the oldest claim has waited for a slot.
    pub(super) fn waited(&self, now: Instant) -> Option<Duration> {
        let queued = locked(&self.shared.queued);
        let fronts = queued.kinds.iter().filter_map(|kind| kind.aside.front());
        let oldest =
            queued.waiting.front().into_iter().chain(fronts).map(|(since, _)| *since).min();
        oldest.map(|since| now.saturating_duration_since(since))
    }

    /// Waits until something is finished.
    pub(super) async fn some_finished(&self) {
        self.shared.some_finished.notified().await;
    }

    /// What slots have handed in. What is in the hand of a slot whose handler blocks goes to the others.
    pub(super) fn finished(&mut self, now: Instant) -> Vec<Vec<Finished>> {
        for (state, busy) in self.shared.busy(now) {
            if busy > BLOCKED {
                let Held { claims, finished } = std::mem::take(&mut *locked(&state.held));
                self.shared.put(claims, true);
                self.shared.hand_in(finished);
                self.shared.some_blocked.notify_waiters();
            }
        }
        let finished = std::mem::take(&mut locked(&self.shared.results).finished);
        self.inside -= finished.iter().map(Vec::len).sum::<usize>();
        finished
    }

    /// Takes back the claims that no slot has started.
    pub(super) fn take_back(&mut self) -> Vec<Claims> {
        let mut queued = locked(&self.shared.queued);
        queued.count = 0;
        let mut back: Vec<Claims> = queued.waiting.drain(..).map(|(_, claims)| claims).collect();
        queued.aside = 0;
        back.extend(
            queued.kinds.iter_mut().flat_map(|kind| kind.aside.drain(..)).map(|(_, claims)| claims),
        );
        drop(queued);
        let states = self.shared.states.iter();
        back.extend(states.filter_map(|state| Some(locked(&state.held).claims.take()?.1)));
        self.inside -= back.iter().map(Claims::len).sum::<usize>();
        back
    }

    /// Stops every handler where it is. A handler that blocks its thread cannot be stopped: this waits for it for a moment,
    /// then leaves it alone. Returns the claims that come to nothing: their handler was stopped, or its result is not
    /// recorded.
    pub(super) async fn stop(mut self) -> Vec<Claim> {
        self.tasks.abort_all();
        // The value of a panic in user code may panic when it is dropped.
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                drop_quietly(ended);
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
        let Results { finished, lost } = std::mem::take(&mut *locked(&self.shared.results));
        let states = self.shared.states.iter();
        let held = states.map(|state| std::mem::take(&mut locked(&state.held).finished));
        let finished = finished.into_iter().chain(held).flatten().map(|finished| finished.claim);
        lost.into_iter().chain(finished).collect()
    }
}

/// One slot. It takes about [`GROUP`] of work at a time, and hands in the results together.
pub(crate) struct Slot {
    number: usize,
    shared: Arc<Shared>,
    policies: Arc<Policies>,
    session: Arc<Session>,
    /// How long a message took, on the average of the last group.
    mean: Option<Duration>,
    /// The claim whose handler runs.
    running: Option<Claim>,
}

impl Slot {
    pub(super) async fn run<H: Handle>(mut self, handler: Arc<H>) {
        loop {
            self.next_group().await;
            if self.work(&*handler).await.is_none() {
                return;
            }
            self.hand_in();
            self.let_others_run().await;
        }
    }

    fn state(&self) -> &SlotState {
        &self.shared.states[self.number]
    }

    /// Takes the next group from the queue. If nothing waits, the slot counts as idle.
    fn take_group(&self) -> bool {
        let mut queued = locked(&self.shared.queued);
        let count = group(self.mean, queued.count);
        let Some((since, claims)) = queued.waiting.front_mut() else {
            queued.idle += 1;
            return false;
        };
        let taken = (*since, claims.split_first(count));
        if claims.is_empty() {
            queued.waiting.pop_front();
        }
        queued.count -= taken.1.len();
        // While the queue is locked, so that nobody who takes back all claims misses these.
        locked(&self.state().held).claims = Some(taken);
        true
    }

    /// Takes the next group, as soon as there is one.
    async fn next_group(&self) {
        loop {
            // Registered before the queue is looked at, so that no wake-up is lost between the two.
            let mut woken = std::pin::pin!(self.shared.some_work.notified());
            woken.as_mut().enable();
            if self.take_group() {
                return;
            }
            woken.await;
        }
    }

    /// Lets the worker have what was handed in, before the next handler may block the thread: a task that was woken here runs
    /// here next, and no other thread can take it. This slot is set aside until its thread has nothing else to do. If a
    /// handler blocks the thread meanwhile, the worker wakes it from elsewhere.
    async fn let_others_run(&self) {
        tokio::select! {
            () = tokio::task::yield_now() => {}
            () = self.shared.some_blocked.notified() => {}
        }
    }

    /// Handles what is in hand. `None` if the session is over.
    async fn work<H: Handle>(&mut self, handler: &H) -> Option<()> {
        let began = Instant::now();
        let (mut now, mut trusted, mut count, mut result) = (began, None, 0u32, None);
        let policies = self.policies.clone();
        while let Some(next) = self.exchange(result.take(), now) {
            let Next { claim, message, redis, bounded, wait } = next;
            self.running = Some(claim);
            if trusted.is_none_or(|at| now.duration_since(at) > TRUST_AGAIN) {
                if !self.session.trust.may_start() {
                    self.put_back();
                    if !self.session.trust.wait_to_start().await {
                        return None;
                    }
                    now = Instant::now();
                }
                trusted = Some(now);
            }
            let (mut payload, mut span, mut forgets) = (None, None, false);
            let (kind, outcome) = match message {
                Ok(message) => {
                    // It ends behind the handler, also if that panics or is stopped.
                    let _permit;
                    let message = match bounded {
                        None => message,
                        Some(bounded) => match self.permit(*bounded, message) {
                            Some((message, permit)) => {
                                _permit = permit;
                                message
                            }
                            None => continue,
                        },
                    };
                    if self.session.board.feed.as_ref().is_some_and(|feed| feed.payloads) {
                        payload = Some(message.payload.clone());
                    }
                    let policy = policies.of(message.kind());
                    forgets = policy.forget_failed;
                    let kind = message.kind().map(Box::from);
                    span = trace::process(&message);
                    let handling = self.handle(handler, message, policy, now, redis);
                    let entered = span.as_deref().cloned().unwrap_or_else(Span::none);
                    (kind, handling.instrument(entered).await)
                }
                Err(_) => (None, unreadable()),
            };
            let ended = Instant::now();
            let took = ended.duration_since(now);
            let report = Report { kind, took, wait, payload, forgets, span };
            result = self.running.take().map(|claim| Finished { claim, outcome, report });
            (now, count) = (ended, count + 1);
            // It takes longer than planned: others may have the rest.
            if took >= HAND_IN || now.duration_since(began) > GROUP * 2 {
                locked(&self.state().held).finished.extend(result.take());
                self.put_back();
            }
        }
        self.state().busy.store(0, Ordering::Relaxed);
        if count > 0 {
            self.mean = Some(now.duration_since(began) / count);
        }
        Some(())
    }

    /// Keeps a result, and hands out the next message. The slot is busy with it from now on. With a message that can expire
    /// comes what the clock of Redis shows.
    fn exchange(&self, result: Option<Finished>, now: Instant) -> Option<Next> {
        let mut held = locked(&self.state().held);
        held.finished.extend(result);
        let (since, claims) = held.claims.as_mut()?;
        let (claim, message) = claims.hand_out()?;
        let (mut redis, mut bounded, mut wait) = (None, None, None);
        if let Ok(message) = &message {
            let waited = || claims.now_ms(now).saturating_sub(message.generated_ms);
            wait = (message.attempt() == 1).then(waited).map(Duration::from_millis);
            redis = message.expires_ms().map(|_| (claims.now_ms(now), now));
            let limit = self.policies.of(message.kind()).limit;
            bounded = limit.map(|limit| Box::new((limit, *since, claims.of_block())));
        }
        self.state().busy.store(self.shared.nanos(now), Ordering::Relaxed);
        Some(Next { claim, message, redis, bounded, wait })
    }

    /// The permission to handle a message of a kind with a limit. If too many of them run, it is set aside.
    fn permit(
        &mut self,
        (limit, since, claims): (Limit, Instant, Claims),
        message: Message,
    ) -> Option<(Message, Permit)> {
        let claim = self.running.take()?;
        match self.shared.permit(limit) {
            Some(permit) => {
                self.running = Some(claim);
                Some((message, permit))
            }
            None => {
                self.shared.set_aside(limit, (since, claims.with(claim, message)));
                None
            }
        }
    }

    /// Handles one message, and decides what follows.
    async fn handle<H: Handle>(
        &self,
        handler: &H,
        message: Message,
        policy: &Policy,
        now: Instant,
        redis: Option<(u64, Instant)>,
    ) -> Outcome {
        let (tries, own) = (message.tries, message.retries_max());
        let redis_ms =
            redis.map(|(ms, at)| ms + now.saturating_duration_since(at).as_millis() as u64);
        let expired = message.expires_ms().zip(redis_ms).filter(|(expires, ms)| ms > expires);
        let outcome = match expired {
            Some((expires, ms)) => {
                let late = Duration::from_millis(ms - expires);
                Outcome::failed_by(Cause::Expired, format!("it expired {late:?} before its turn"))
            }
            None => handle(handler, message, policy, now, || self.put_back()).await,
        };
        match outcome.how() {
            None => outcome,
            Some(_) => policy.decide(outcome, tries, own, rand::random()),
        }
    }

    /// Hands in what is done, and puts the rest back into the queue.
    fn put_back(&self) {
        let Held { claims, finished } = std::mem::take(&mut *locked(&self.state().held));
        self.shared.hand_in(finished);
        self.shared.put(claims, true);
    }

    fn hand_in(&self) {
        let finished = std::mem::take(&mut locked(&self.state().held).finished);
        self.shared.hand_in(finished);
    }
}

/// A slot that is stopped hands in everything it has.
impl Drop for Slot {
    fn drop(&mut self) {
        self.state().busy.store(0, Ordering::Relaxed);
        self.hand_in();
        locked(&self.shared.results).lost.extend(self.running.take());
    }
}
