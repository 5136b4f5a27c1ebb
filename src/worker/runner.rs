//! [`Worker`]: fetches, hands to slots, settles; one exchange with Redis in flight at a time.
//!
//! **Invariant:** every claim this worker holds is queued, running, or has an outcome on its way.
//! An exchange is repeated byte for byte until it is answered or the session is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::watch;

use super::DynHandle;
use super::plan::{Load, ask, mean_with};
use super::slots::{Job, Slots};
use crate::clock::Moment;
use crate::config::Config;
use crate::membership::{End, Session};
use crate::notice::{Board, Notice};
use crate::outcome::{Cause, Outcome, Settled, Settlement, Signature, settled};
use crate::queue::{Block, Claim, Fetched, Turns, fetch_call, fetched, give_back_call, given_back};
use crate::store::{CALLS, Call, Store, StoreError};

/// An idle worker asks Redis at least this often, token or not: a frozen worker may have eaten it.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// The longest a result waits on the desk: a slot that is busy with a slow message tells of the quick
/// one before it only now.
const COLLECT_EVERY: Duration = Duration::from_millis(25);
/// With nothing in hand there is nothing to look for.
const REST: Duration = Duration::from_secs(3600);
/// Pause before an unanswered exchange is repeated.
const RETRY: Duration = Duration::from_millis(50);
/// A call that Redis refuses this often will never be accepted.
const REFUSALS_MAX: u32 = 60;
/// From this attempt on a message is handled with nothing beside it.
const ALONE_FROM: u32 = 3;

/// What a worker is meant to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Fetch and handle.
    Work,
    /// Finish what was started, hand back the rest: this process leads.
    Rest,
    /// The same, and then end.
    Drain,
    /// End now: what still runs is lost to others.
    Halt,
}

/// The worker of one session.
pub(crate) struct Worker {
    store: Store,
    session: Arc<Session>,
    config: Config,
    board: Board,
    mode: watch::Receiver<Mode>,
    slots: Slots,
    blocks: BTreeMap<u64, Settlement>,
    next: u64,
    /// Which lane each block starts with. Workers begin at different turns, or those that live
    /// shortly would all serve the same lanes.
    turns: Turns,
    turn: u64,
    /// The next number was used up, so that no late copy of a fetch can open a block.
    burnt: bool,
    /// A fetch may bring something.
    hungry: bool,
    /// A message that waits until nothing runs beside it.
    alone: Option<Job>,
    alone_runs: bool,
    /// Messages that arrived when we no longer wanted any.
    unwanted: Vec<Job>,
    mean: Option<Duration>,
}

/// One round trip: settle, give back, fetch.
struct Exchange {
    settles: Vec<u64>,
    gives: Vec<(u64, Vec<Claim>)>,
    fetch: bool,
    answers: BoxFuture<'static, Option<Vec<redis::Value>>>,
}

impl Worker {
    pub(crate) fn new(
        store: Store,
        session: Arc<Session>,
        config: Config,
        handler: &Arc<dyn DynHandle>,
        board: Board,
        mode: watch::Receiver<Mode>,
    ) -> Worker {
        let slots =
            Slots::new(config.concurrency, handler, config.handler_timeout, &session, &board);
        let turns = Turns::new(config.lane_weights);
        Worker {
            store,
            session,
            turns,
            turn: rand::random::<u32>().into(),
            config,
            board,
            mode,
            slots,
            blocks: BTreeMap::new(),
            next: 1,
            burnt: false,
            hungry: true,
            alone: None,
            alone_runs: false,
            unwanted: Vec::new(),
            mean: None,
        }
    }

    /// Works until told to drain and drained, or until the session is over.
    pub(crate) async fn run(mut self) {
        let over = self.session.over.clone();
        let mut exchange: Option<Exchange> = None;
        let mut idle: Option<BoxFuture<'static, ()>> = None;
        loop {
            self.collect();
            let mode = *self.mode.borrow_and_update();
            if mode == Mode::Halt {
                break;
            }
            if mode == Mode::Work {
                self.burnt = false;
            } else if idle.take().is_some() {
                // A wait that is still pending would eat the next token: end it with its connection.
                self.store.wait.reset();
                self.hungry = true;
            }
            if exchange.is_none() {
                exchange = self.next_exchange(mode);
            }
            if exchange.is_none() && mode == Mode::Drain && self.burnt && self.blocks.is_empty() {
                break;
            }
            if exchange.is_none() && idle.is_none() && mode == Mode::Work && !self.hungry {
                idle = Some(wait_for_token(self.store.clone()));
            }
            // While handlers run, results are collected soon even if nobody tells of them.
            let look_again = if self.slots.inside() > 0 { COLLECT_EVERY } else { REST };
            let straggler = self.next_due().unwrap_or(look_again);
            tokio::select! {
                biased;
                () = over.cancelled() => break,
                answers = pending_or(exchange.as_mut().map(|exchange| &mut exchange.answers)) => {
                    match (exchange.take(), answers) {
                        (Some(exchange), Some(answers)) => self.take_in(exchange, answers),
                        _ => break,
                    }
                }
                () = self.slots.some_finished() => {}
                () = pending_or(idle.as_mut()) => {
                    idle = None;
                    self.hungry = true;
                }
                _ = self.mode.changed() => {}
                () = tokio::time::sleep(straggler), if exchange.is_none() => {}
            }
        }
        self.session.in_flight.store(0, Ordering::Relaxed);
        self.collect();
        for finished in self.slots.stop().await {
            self.board.publish(Notice::ClaimLost { id: finished.claim.id });
        }
        for id in self.blocks.into_values().flat_map(Settlement::unrecorded) {
            self.board.publish(Notice::ClaimLost { id });
        }
    }

    /// Uses up the claims of finished handlers.
    fn collect(&mut self) {
        for finished in self.slots.finished() {
            self.mean = Some(mean_with(self.mean, finished.took));
            self.session.timings.note(finished.took);
            self.settle(finished.claim, finished.outcome);
        }
        if self.slots.inside() == 0 {
            self.alone_runs = false;
            if let Some(job) = self.alone.take() {
                self.alone_runs = true;
                self.slots.start([job]);
            }
        }
        self.session.in_flight.store(self.slots.inside() as u64, Ordering::Relaxed);
    }

    fn settle(&mut self, claim: Claim, outcome: Outcome) {
        if let Some(block) = self.blocks.get_mut(&claim.block) {
            block.settle(claim, outcome);
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let now = Instant::now();
        self.blocks.values().filter_map(|block| block.due_in(now)).min()
    }

    /// Everything there is to say to Redis now, in one round trip.
    fn next_exchange(&mut self, mode: Mode) -> Option<Exchange> {
        let (mut calls, mut settles, mut gives) = (Vec::new(), Vec::new(), Vec::new());
        let (label, ledger) = (self.config.label.clone(), self.config.ledger.arg());
        let signature = Signature { label: &label, ledger };
        let now = Instant::now();
        let want = match mode {
            Mode::Work if self.hungry && self.alone.is_none() && !self.alone_runs => ask(Load {
                slots: self.config.concurrency,
                inside: self.slots.inside(),
                mean: self.mean,
                batch_max: self.config.batch_max,
            }),
            _ => 0,
        };
        let fetch = want > 0 || (mode != Mode::Work && !self.burnt);
        for block in self.blocks.values_mut() {
            // Whatever can be said travels with a fetch; alone, only what is due.
            let due = block.due_in(now);
            if due.is_some_and(|due| due.is_zero() || (fetch && block.open() == 0)) {
                calls.push(block.call(&self.store, &self.session, &signature));
                settles.push(block.n);
            }
        }
        if mode != Mode::Work {
            for (n, claims) in self.unstarted() {
                let Some(block) = self.blocks.get(&n) else { continue };
                let mut positions: Vec<u32> = claims.iter().map(|claim| claim.position).collect();
                positions.sort_unstable();
                calls.push(give_back_call(&self.store, &self.session, n, &block.stamp, &positions));
                gives.push((n, claims));
            }
        }
        if fetch {
            let held: Vec<u64> = self.blocks.keys().copied().collect();
            let bytes = self.config.block_bytes_max;
            let lanes = self.turns.order(self.turn + self.next);
            calls.push(fetch_call(
                &self.store,
                &self.session,
                self.next,
                lanes,
                want,
                bytes,
                &held,
            ));
        }
        self.note_blocks(fetch);
        if calls.is_empty() {
            return None;
        }
        let replicas = if settles.is_empty() { 0 } else { self.config.durability.replicas() };
        let (store, session) = (self.store.clone(), self.session.clone());
        let answers = Box::pin(perform(store, session, calls, replicas, self.board.clone()));
        Some(Exchange { settles, gives, fetch, answers })
    }

    fn note_blocks(&self, fetching: bool) {
        let held = self.blocks.keys().copied().collect();
        self.session.note_blocks(held, self.next - 1, fetching);
    }

    /// Claims that no handler has started, by block.
    fn unstarted(&mut self) -> BTreeMap<u64, Vec<Claim>> {
        let mut claims: BTreeMap<u64, Vec<Claim>> = BTreeMap::new();
        for job in self
            .slots
            .take_back()
            .into_iter()
            .chain(self.alone.take())
            .chain(self.unwanted.drain(..))
        {
            claims.entry(job.claim.block).or_default().push(job.claim);
        }
        claims
    }

    fn take_in(&mut self, exchange: Exchange, answers: Vec<redis::Value>) {
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(redis::Value::Nil);
        for n in exchange.settles {
            let answer = settled(next());
            self.take_in_settled(n, answer);
        }
        for (n, claims) in exchange.gives {
            match given_back(next()) {
                Ok(true) => {
                    let messages = claims.len() as u64;
                    self.board.publish(Notice::GaveBack { messages });
                }
                Ok(false) => self.session.end(End::Gone),
                Err(error) => {
                    tracing::error!(%error, "give back");
                    self.data_loss("what is left of a block");
                }
            }
            if let Some(block) = self.blocks.get_mut(&n) {
                block.give_back(claims.len());
            }
        }
        self.blocks.retain(|_, block| !block.is_over());
        if exchange.fetch {
            match fetched(next(), self.next) {
                Ok(Fetched::Block(block)) => self.take_in_block(block),
                Ok(Fetched::Empty) => self.hungry = false,
                Ok(Fetched::Burnt) => {
                    self.next += 1;
                    self.burnt = true;
                }
                Ok(Fetched::Closed) => self.next += 1,
                Ok(Fetched::Gone) => self.session.end(End::Gone),
                Ok(Fetched::DataLoss) => self.data_loss("block numbers"),
                Err(error) => tracing::error!(%error, "fetch"),
            }
        }
        self.note_blocks(false);
    }

    fn take_in_block(&mut self, block: Block) {
        self.next = block.n + 1;
        let working = *self.mode.borrow() == Mode::Work;
        let count = block.messages.len();
        self.blocks.insert(block.n, Settlement::new(block.n, block.stamp, count));
        let mut jobs = Vec::with_capacity(count);
        for (claim, message, readable) in block.messages {
            if !readable {
                let outcome = Outcome::failed_by(Cause::Decode, "not a message of this version");
                self.settle(claim, outcome);
            } else if !working {
                self.unwanted.push(Job { claim, message });
            } else if claim.attempt >= ALONE_FROM {
                self.alone = Some(Job { claim, message });
            } else {
                jobs.push(Job { claim, message });
            }
        }
        self.slots.start(jobs);
    }

    fn take_in_settled(&mut self, n: u64, answer: Result<Settled, StoreError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "settle");
                return self.data_loss("the answer to a settle");
            }
        };
        let Some(block) = self.blocks.get_mut(&n) else { return };
        let recorded = block.answered(&answer);
        match answer {
            Settled::Recorded(lost) => {
                for (claim, outcome) in recorded {
                    if lost.contains(&claim.position) {
                        self.board.publish(Notice::ClaimLost { id: claim.id });
                        continue;
                    }
                    let (id, attempt) = (claim.id.as_str(), u64::from(claim.attempt));
                    tracing::trace!(target: CALLS, id, attempt, "recorded");
                    if let Some(failure) = outcome.failure {
                        self.session.failed.fetch_add(1, Ordering::Relaxed);
                        let reason = failure.reason;
                        self.board.publish(Notice::MessageFailed { id: claim.id, reason });
                    } else {
                        self.session.done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Settled::BadEffect(..) => {}
            Settled::Gone => self.session.end(End::Gone),
            Settled::DataLoss => self.data_loss("what is left of a block"),
        }
    }

    fn data_loss(&self, what: &'static str) {
        self.board.publish(Notice::DataLossSeen { what });
        self.session.end(End::DataLoss);
    }
}

/// Sends all calls together and repeats the unanswered ones until each has its answer; `None` when
/// the session is over.
async fn perform(
    store: Store,
    session: Arc<Session>,
    calls: Vec<Call>,
    replicas: u32,
    board: Board,
) -> Option<Vec<redis::Value>> {
    let mut answers: Vec<Option<redis::Value>> = calls.iter().map(|_| None).collect();
    let (mut refusals, mut epoch) = (0, 0);
    loop {
        if !session.until_trusted().await {
            return None;
        }
        let open: Vec<usize> = (0..calls.len()).filter(|&at| answers[at].is_none()).collect();
        let sent = Moment::now();
        let timeout = session.call_timeout();
        if !open.is_empty() {
            epoch = store.work.epoch();
        }
        let results = join_all(open.iter().map(|&at| store.work.call(&calls[at], timeout))).await;
        let mut heard = false;
        for (at, result) in open.into_iter().zip(results) {
            match result {
                Ok(value) => {
                    heard = true;
                    answers[at] = Some(value);
                }
                Err(error @ StoreError::Server { .. }) => {
                    refusals += 1;
                    tracing::warn!(%error, refusals, "Redis refused");
                }
                Err(error) => tracing::debug!(%error, "unanswered, will be repeated"),
            }
        }
        if heard {
            session.refresh(sent);
        }
        if answers.iter().all(Option::is_some) {
            match store.replicas(replicas, timeout, epoch).await {
                Ok(have) if have < replicas => {
                    board.publish(Notice::Unreplicated { replicas: have, wanted: replicas });
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    // Another connection knows nothing of these writes: make them again on it.
                    tracing::debug!(%error, "replicas unknown, will be repeated");
                    answers.fill(None);
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            return Some(answers.into_iter().flatten().collect());
        }
        if refusals >= REFUSALS_MAX {
            // Nothing of it was recorded, and nothing will be: let others have what we hold.
            board.publish(Notice::DataLossSeen { what: "a call that Redis keeps refusing" });
            session.end(End::DataLoss);
            return None;
        }
        // The longer it refuses, the less it is asked.
        tokio::time::sleep(RETRY * (refusals / 4 + 1).min(10)).await;
    }
}

/// Waits for a wake token, a second at most. Token, time-out or error: a fetch follows.
fn wait_for_token(store: Store) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let call = Call::plain("BLPOP").arg(store.keys.wake()).arg(IDLE_MAX.as_secs_f64());
        if store.wait.call(&call, IDLE_MAX * 2).await.is_err() {
            tokio::time::sleep(RETRY * 2).await;
        }
    })
}

async fn pending_or<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
