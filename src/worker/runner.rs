//! [`Worker`]: fetches messages, hands them to slots and settles them, with one exchange with Redis in
//! flight at a time.
//!
//! **Invariant:** every claim this worker holds is queued, running, or has an outcome on its way. A
//! message that waits for a slot for longer than planned is given back if another worker is idle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::exchange::{Exchange, Said};
use super::kinds::Routing;
use super::plan::{AHEAD, Load, OVERDUE, ask, mean_with};
use super::slots::Slots;
use super::unreadable;
use super::waits::{WAIT_RETRY, pending_or, seek_idle, wait_for_token};
use crate::config::Config;
use crate::membership::{End, Orders, Session};
use crate::notice::{Board, Notice};
use crate::outcome::{Report, Settlement};
use crate::queue::{
    ALONE_FROM, Claims, Fetch, Fetched, NewBlock, RETURNED_MAX, Turns, Unread, give_back, named,
};
use crate::store::{Store, StoreError};

/// The longest time a result waits to be collected. A slot that is busy with a slow message has not yet
/// reported the quick one before it.
const COLLECT_EVERY: Duration = Duration::from_millis(25);
/// How long to sleep if there is nothing to wait for.
const REST: Duration = Duration::from_secs(3600);
/// The most blocks that are settled in one round trip. The others follow in the next.
pub(super) const SETTLES_MAX: usize = 500;
/// The most packs that one fetch may bring.
const PACKS_MAX: usize = 8;
/// How soon to look again whether a handler may be started.
const STILL: Duration = Duration::from_millis(100);
/// How often to look for an idle worker while a message is overdue.
const SEEK_EVERY: Duration = Duration::from_millis(500);

/// What a worker must do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Fetch and handle.
    Work,
    /// Finish the messages that were started and give back the rest: this process leads.
    Rest,
    /// The same, and then end.
    Drain,
    /// End now: messages that still run are lost to others.
    Halt,
}

/// The worker of one session.
pub(crate) struct Worker {
    pub(super) store: Store,
    pub(super) session: Arc<Session>,
    pub(super) config: Config,
    pub(super) board: Board,
    mode: watch::Receiver<Mode>,
    /// What operators ask of this member.
    orders: watch::Receiver<Orders>,
    slots: Slots,
    pub(super) blocks: BTreeMap<u64, Settlement>,
    next: u64,
    /// Which lane each block starts with. Workers begin at different turns. Otherwise workers that live
    /// only for a short time would all serve the same lanes.
    turns: Turns,
    turn: u64,
    /// The next number was used up, so that no late copy of a fetch can open a block.
    burnt: bool,
    /// A fetch may bring messages.
    hungry: bool,
    /// A message that waits until nothing runs beside it.
    alone: Option<Claims>,
    alone_runs: bool,
    /// Messages that arrived when this worker no longer wanted any.
    unwanted: Vec<Claims>,
    mean: Option<Duration>,
    /// How many returned messages waited when Redis was last asked.
    returned: usize,
    /// How many messages the last pack had; 0 if the last messages did not come as one.
    pack_len: usize,
    /// Overdue messages go back with the next exchange: another worker is idle.
    release: bool,
    /// The earliest time to look for an idle worker again.
    seek_at: Instant,
    /// Nothing is fetched before this time: messages that could not be read here are for others.
    fetch_at: Instant,
    /// How many messages at once this link can carry. It grows with every success.
    readable: usize,
}

/// One round trip under way, and its answers.
type Exchanging = BoxFuture<'static, Option<Vec<Said>>>;

impl Worker {
    pub(crate) fn new(
        store: Store,
        session: Arc<Session>,
        config: Config,
        routing: &Routing,
        board: Board,
        mode: watch::Receiver<Mode>,
    ) -> Worker {
        let slots = Slots::new(config.concurrency, routing, &session);
        let turns = Turns::new(config.lane_weights);
        let orders = session.orders.follow();
        Worker {
            store,
            session,
            orders,
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
            returned: 0,
            pack_len: 0,
            release: false,
            seek_at: Instant::now(),
            fetch_at: Instant::now(),
            readable: usize::MAX,
        }
    }

    /// Works until it is drained or halted, or until the session is over.
    pub(crate) async fn run(mut self) {
        let over = self.session.over.clone();
        let mut exchange: Option<Exchanging> = None;
        let mut idle: Option<BoxFuture<'static, ()>> = None;
        let mut seek: Option<BoxFuture<'static, bool>> = None;
        loop {
            self.collect();
            let mode = self.follow_mode();
            if mode == Mode::Halt {
                break;
            }
            if mode == Mode::Work {
                self.burnt = false;
            } else if idle.take().is_some() {
                // A wait that is still pending would take the next token: end it with its connection.
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
            if seek.is_none()
                && mode == Mode::Work
                && self.is_overdue()
                && Instant::now() >= self.seek_at
            {
                self.seek_at = Instant::now() + SEEK_EVERY;
                seek = Some(seek_idle(self.store.clone(), self.session.clone()));
            }
            let look_again = match exchange {
                Some(_) => COLLECT_EVERY,
                None => self.next_look(),
            };
            tokio::select! {
                biased;
                () = over.cancelled() => break,
                answers = pending_or(exchange.as_mut()) => {
                    exchange = None;
                    let Some(answers) = answers else { break };
                    answers.into_iter().for_each(|said| self.apply(said));
                    self.note_blocks(false);
                }
                () = self.slots.some_finished() => {}
                () = pending_or(idle.as_mut()) => {
                    idle = None;
                    self.hungry = true;
                }
                found = pending_or(seek.as_mut()) => {
                    seek = None;
                    self.release = found;
                }
                _ = self.mode.changed() => {}
                // Perhaps a lane was resumed.
                _ = self.orders.changed() => self.hungry = true,
                () = tokio::time::sleep(look_again) => {}
            }
        }
        self.end().await;
    }

    /// What it must do now. A member that is drained rests.
    fn mode(&self) -> Mode {
        match *self.mode.borrow() {
            Mode::Work if self.orders.borrow().is_drained => Mode::Rest,
            mode => mode,
        }
    }

    /// The same, and later changes are noticed.
    fn follow_mode(&mut self) -> Mode {
        self.mode.borrow_and_update();
        let drained = self.orders.borrow_and_update().is_drained;
        if drained {
            self.session.tally.works.store(false, Ordering::Relaxed);
        } else if *self.mode.borrow() == Mode::Work {
            self.session.tally.works.store(true, Ordering::Relaxed);
        }
        self.mode()
    }

    /// The session is over, or nothing is left to do. Outcomes that were not recorded are lost to
    /// others.
    async fn end(mut self) {
        self.collect();
        let tally = &self.session.tally;
        tally.in_flight.store(0, Ordering::Relaxed);
        tally.claimed.store(0, Ordering::Relaxed);
        tally.idle.store(false, Ordering::Relaxed);
        for claim in self.slots.stop().await {
            let block = self.blocks.get(&claim.block);
            if let Some(id) = block.map(|settlement| settlement.block.id(&claim)) {
                self.board.publish(Notice::ClaimLost { id });
            }
        }
        for id in self.blocks.into_values().flat_map(Settlement::unrecorded) {
            self.board.publish(Notice::ClaimLost { id });
        }
    }

    /// How long until there may be something to do without a notification. While handlers run, results
    /// are collected soon.
    fn next_look(&self) -> Duration {
        let look_again = if self.slots.inside() > 0 { COLLECT_EVERY } else { REST };
        let look_again = match self.fetch_at.saturating_duration_since(Instant::now()) {
            Duration::ZERO => look_again,
            pause => look_again.min(pause),
        };
        self.next_due().map_or(look_again, |due| due.min(look_again))
    }

    /// Uses up the claims of finished handlers.
    fn collect(&mut self) {
        for finished in self.slots.finished(Instant::now()).into_iter().flatten() {
            self.mean = Some(mean_with(self.mean, finished.report.took));
            self.session.tally.timings.note(finished.report.took);
            self.settle(finished.claim, finished.outcome, finished.report);
        }
        if self.slots.inside() == 0 {
            self.alone_runs = false;
            if let Some(claims) = self.alone.take() {
                self.alone_runs = true;
                self.slots.start(claims);
            }
        }
        let unwanted: usize = self.unwanted.iter().map(Claims::len).sum();
        let claimed = self.slots.inside() + unwanted + self.alone.as_ref().map_or(0, Claims::len);
        let works = self.mode() == Mode::Work;
        let idle = works && !self.hungry && claimed < self.config.concurrency;
        let tally = &self.session.tally;
        tally.in_flight.store(self.slots.running() as u64, Ordering::Relaxed);
        tally.claimed.store(claimed as u64, Ordering::Relaxed);
        tally.idle.store(idle, Ordering::Relaxed);
    }

    /// Has a message waited for a slot for longer than planned?
    fn is_overdue(&self) -> bool {
        self.slots.waited(Instant::now()).is_some_and(|waited| waited > OVERDUE)
    }

    fn next_due(&self) -> Option<Duration> {
        let now = Instant::now();
        self.blocks.values().filter_map(|block| block.due_in(now)).min()
    }

    /// All calls that are to be sent to Redis now, in one round trip.
    fn next_exchange(&mut self, mode: Mode) -> Option<Exchanging> {
        let mut exchange = Exchange::new(&self.store, &self.session);
        let now = Instant::now();
        if !self.session.trust.may_start() {
            self.fetch_at = self.fetch_at.max(now + STILL);
        }
        let want = self.wanted(mode, now);
        let fetches = want > 0 || (mode != Mode::Work && !self.burnt);
        self.settle_with(&mut exchange, now, fetches);
        let release = std::mem::take(&mut self.release) && self.is_overdue();
        if mode != Mode::Work || release {
            for (n, mut positions) in self.unstarted(mode) {
                let Some(settlement) = self.blocks.get(&n) else { continue };
                positions.sort_unstable();
                let stamp = &settlement.block.stamp;
                let call = give_back(&self.store, &self.session, n, stamp, &positions);
                exchange.give_back(n, positions.len(), call);
            }
        }
        if fetches {
            let fetch = Fetch {
                n: self.next,
                lanes: self.turns.order(self.turn + self.next),
                paused: self.orders.borrow().lanes_paused.clone(),
                max: want.min(self.readable),
                bytes_max: self.config.block_bytes_max,
                blocks: self.blocks_wanted(want),
                held: self.blocks.len(),
                known: named(self.blocks.keys().copied()),
            };
            let bytes = self.config.block_bytes_max.max(self.config.payload_bytes_max);
            exchange.fetch(&fetch, bytes);
        }
        self.note_blocks(fetches);
        exchange.begin()
    }

    /// How many blocks a fetch of this many messages may open.
    fn blocks_wanted(&self, want: usize) -> usize {
        let free = self.config.concurrency.saturating_sub(self.slots.inside());
        // Returned messages come alone, so no more than there are slots for. Packs come whole.
        let blocks = match self.returned {
            0 => want.checked_div(self.pack_len).unwrap_or(1).min(PACKS_MAX),
            returned => returned.min(free).min(RETURNED_MAX),
        };
        blocks.min(self.readable).max(1)
    }

    /// How many messages to ask for.
    fn wanted(&self, mode: Mode, now: Instant) -> usize {
        let hungry = self.hungry && now >= self.fetch_at;
        let paused = self.orders.borrow().all_paused;
        if mode != Mode::Work || paused || !hungry || self.alone.is_some() || self.alone_runs {
            return 0;
        }
        // What waits for others of its kind takes no slot. Of those only so many are held.
        let aside = self.slots.aside();
        let aside = if aside < self.config.batch_max { aside } else { 0 };
        ask(Load {
            slots: self.config.concurrency,
            stuck: self.slots.stuck(now, AHEAD),
            inside: self.slots.inside() - aside,
            mean: self.mean,
            batch_max: self.config.batch_max,
        })
    }

    fn note_blocks(&self, fetching: bool) {
        self.session.blocks.note(self.blocks.len(), self.next - 1, fetching);
    }

    /// The positions of messages that no handler has started, by block. While we work, a message that
    /// must run alone stays.
    fn unstarted(&mut self, mode: Mode) -> BTreeMap<u64, Vec<u32>> {
        let mut unstarted = self.slots.take_back();
        if mode != Mode::Work {
            unstarted.extend(self.alone.take().into_iter().chain(self.unwanted.drain(..)));
        }
        let mut positions: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for claims in unstarted {
            positions.entry(claims.block()).or_default().extend(claims.positions());
        }
        positions
    }

    /// Applies one answer of an exchange.
    fn apply(&mut self, said: Said) {
        match said {
            Said::Settled(n, answer) => self.apply_settled(n, answer),
            Said::GivenBack { n, messages, answer } => {
                match answer {
                    Ok(()) => {
                        self.board.publish(Notice::GaveBack { messages: messages as u64 });
                    }
                    Err(error) => {
                        tracing::error!(%error, "giving messages back failed");
                        self.data_loss("the messages left in a block");
                    }
                }
                if let Some(block) = self.blocks.get_mut(&n) {
                    block.give_back(messages);
                }
            }
            Said::Fetched(answer) => self.apply_fetched(answer),
            Said::Unread(answer) => self.apply_unread(answer),
        }
        self.blocks.retain(|_, block| !block.is_over());
    }

    fn apply_fetched(&mut self, answer: Result<Fetched, StoreError>) {
        match answer {
            Ok(Fetched::Blocks { blocks, returned }) => {
                self.returned = returned;
                self.pack_len = blocks.last().map_or(0, |new| match new.block.pack() {
                    Some(_) => new.block.len(),
                    None => 0,
                });
                self.readable = self.readable.saturating_mul(2);
                blocks.into_iter().for_each(|block| self.hold(block));
            }
            Ok(Fetched::Empty) => (self.hungry, self.returned) = (false, 0),
            Ok(Fetched::Burnt) => {
                self.next += 1;
                self.burnt = true;
            }
            Ok(Fetched::Closed) => self.next += 1,
            Ok(Fetched::DataLoss) => self.data_loss("block numbers"),
            Err(error) => {
                tracing::error!(%error, "the answer to a fetch is invalid");
                self.fetch_at = Instant::now() + WAIT_RETRY;
            }
        }
    }

    /// The messages that this worker could not read are with others, which may have a better link.
    fn apply_unread(&mut self, answer: Result<Unread, StoreError>) {
        let unread = match answer {
            Ok(unread) => unread,
            Err(error) => return tracing::error!(%error, "giving unread messages back failed"),
        };
        self.next = unread.last + 1;
        // Many messages at once were too much. Fetched one by one, they show which one is too large.
        self.readable = 1;
        // An answer without messages belongs to a repeat: the first copy may have given some back.
        if unread.alone || unread.given_back == 0 {
            self.fetch_at = Instant::now() + self.session.trust.lease();
        }
        for (id, failed) in unread.messages {
            self.session.tally.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
            self.board.publish(Notice::Unread { id, failed });
        }
        if unread.given_back > 0 {
            self.board.publish(Notice::GaveBack { messages: unread.given_back });
        }
    }

    /// Holds a block from now on, and hands its messages to the slots.
    fn hold(&mut self, new: NewBlock) {
        let NewBlock { block, claims, unreadable: odd } = new;
        self.next = block.n + 1;
        self.blocks.insert(block.n, Settlement::new(block));
        for claim in odd {
            self.settle(claim, unreadable(), Report::default());
        }
        if self.mode() != Mode::Work {
            self.unwanted.push(claims);
        } else if claims.deaths_max() >= ALONE_FROM {
            self.alone = Some(claims);
        } else {
            self.slots.start(claims);
        }
    }

    pub(super) fn data_loss(&self, what: &'static str) {
        self.board.publish(Notice::DataLossSeen { what });
        self.session.end(End::DataLoss);
    }
}
