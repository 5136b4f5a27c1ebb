//! [`Runner`]: generates and pushes while a lease lasts.
//!
//! **Invariant:** a number is sent with the same bytes until it is answered. The number is used up
//! only by an answer that says so; whatever else happens, the term ends and a new one starts at 1.
//! A state is pushed with all messages of its tick or not at all.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Batch, DynGenerate, Tick};
use crate::config::Config;
use crate::election::Lease;
use crate::membership::End;
use crate::notice::{Board, Notice};
use crate::panic::panic_text;
use crate::queue::{NewMessage, Pushed, push_call, pushed};
use crate::store::{Call, Store};

/// Pause before an unanswered or refused push is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// A push carries at most this many bytes of payload.
const PUSH_BYTES_MAX: usize = 1 << 20;
/// Ticks missed for longer than this are skipped, not made up for.
const CATCH_UP: Duration = Duration::from_secs(1);

/// The generator's user code and where its messages go.
pub(crate) struct Runner {
    pub(crate) generate: Box<dyn DynGenerate>,
    pub(crate) outlet: Outlet,
}

/// Where messages go.
pub(crate) struct Outlet {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) board: Board,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// Told to stop: the lease is still ours and can be resigned.
    Stopped,
    /// Another term leads, or Redis lost the numbers.
    Deposed,
    /// The session is over.
    Over,
}

/// What the ticks that were due have made, in order.
#[derive(Default)]
struct Made {
    messages: Vec<NewMessage>,
    /// The ticks that keep a state.
    stated: Vec<Stated>,
}

/// A tick that keeps a state: its messages and the state are one push's.
struct Stated {
    messages: Range<usize>,
    state: Arc<[u8]>,
}

/// What one push carries.
#[derive(Debug, Eq, PartialEq)]
struct Portion {
    messages: Range<usize>,
    /// Which of the states that were made: the last of those it carries.
    state: Option<usize>,
}

/// What a leader remembers from tick to tick.
struct Progress {
    /// The number of the next message.
    seq: u64,
    /// Ticks and states of this term.
    ticks: u64,
    states: u64,
    /// What the next tick gets.
    state: Arc<[u8]>,
    /// Messages of the fleet.
    generated: u64,
    /// There is no room for all messages of a tick that keeps a state: nothing more is made.
    is_over: bool,
}

impl Runner {
    /// Leads: generates every interval until the term ends or `stop` is cancelled.
    pub(crate) async fn lead(&mut self, lease: &Lease, stop: &CancellationToken) -> Ending {
        let interval = self.outlet.config.interval;
        let mut due = Instant::now() + lease.first_tick(interval);
        let (generated, state) = (lease.generated, lease.state.clone());
        let mut at = Progress { seq: 1, ticks: 0, states: 0, state, generated, is_over: false };
        let mut full = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return over(lease),
                () = tokio::time::sleep_until(due) => {}
            }
            let batch_max = self.outlet.config.batch_max;
            let (ticks, next) = ticks_due(Instant::now(), due, interval, batch_max);
            due = next;
            let making = self.make(lease, &mut at, ticks);
            let made = tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return over(lease),
                made = making => made,
            };
            lease.session.note_progress();
            let (mut from, mut stated) = (0, 0);
            let mut next = self.outlet.portion(lease, &mut at, &made, &mut from, &mut stated);
            while let Some(call) = next {
                // While Redis works on this push, the next one is put together.
                let push = self.outlet.push(lease, &call, stop, &mut full);
                let prepare =
                    async { self.outlet.portion(lease, &mut at, &made, &mut from, &mut stated) };
                let (pushed, prepared) = futures_util::join!(push, prepare);
                if let Some(ending) = pushed {
                    return ending;
                }
                next = prepared;
            }
        }
    }

    /// Calls the user's code once per tick that is due.
    async fn make(&mut self, lease: &Lease, at: &mut Progress, ticks: usize) -> Made {
        let room = self.outlet.config.messages_max.map(|max| max.saturating_sub(at.generated));
        let room = room.map_or(usize::MAX, |room| room as usize);
        let mut made = Made::default();
        for _ in 0..ticks {
            if made.messages.len() >= room || at.is_over {
                break;
            }
            at.ticks += 1;
            let tick = Tick {
                term: lease.term,
                seq: at.seq + made.messages.len() as u64,
                count: at.ticks,
                time_ms: lease.redis_ms(),
                state: at.state.clone(),
            };
            let batch = AssertUnwindSafe(self.generate.generate(tick)).catch_unwind().await;
            let reason = match batch {
                Ok(Ok(batch)) => match self.refuse(lease, &batch) {
                    None => {
                        at.is_over = !made.add(batch, room, &mut at.state);
                        continue;
                    }
                    Some(error) => error,
                },
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("the generator panicked: {}", panic_text(panic)),
            };
            self.outlet.board.publish(Notice::GenerateFailed { reason });
        }
        made
    }

    /// Why this tick cannot be pushed, if it cannot.
    fn refuse(&self, lease: &Lease, batch: &Batch) -> Option<String> {
        let max = self.outlet.config.payload_bytes_max;
        let large = batch.messages.iter().find_map(|message| message.check(max).err());
        if let Some(error) = large {
            return Some(error.to_string());
        }
        let state = batch.state.as_ref()?;
        if state.len() > Batch::STATE_BYTES_MAX {
            let max = Batch::STATE_BYTES_MAX;
            return Some(format!("a state of {} bytes is larger than {max}", state.len()));
        }
        let most = Batch::STATED_MESSAGES_MAX.min(lease.session.backlog_max);
        let bytes: usize = batch.messages.iter().map(|message| message.payload().len()).sum();
        let count = batch.messages.len();
        (count > most || bytes > Batch::STATED_BYTES_MAX).then(|| {
            let max = Batch::STATED_BYTES_MAX;
            format!(
                "{count} messages of {bytes} bytes in one tick with a state are more than {most} \
                 messages or {max} bytes: make fewer in each tick"
            )
        })
    }
}

impl Made {
    /// Adds what a tick made, as much as there is room for, and moves the state on. Messages that keep a state
    /// are added all or not at all: false if there is no room for them.
    fn add(&mut self, batch: Batch, room: usize, state: &mut Arc<[u8]>) -> bool {
        let begin = self.messages.len();
        if batch.state.is_some() && begin + batch.messages.len() > room {
            return false;
        }
        self.messages.extend(batch.messages);
        self.messages.truncate(room);
        if let Some(new) = batch.state {
            *state = new.into();
            let messages = begin..self.messages.len();
            self.stated.push(Stated { messages, state: state.clone() });
        }
        true
    }
}

impl Outlet {
    /// Takes the front of what was made and puts its push together; `None` when nothing is left.
    fn portion(
        &self,
        lease: &Lease,
        at: &mut Progress,
        made: &Made,
        from: &mut usize,
        stated: &mut usize,
    ) -> Option<Call> {
        let most = self.config.batch_max.min(lease.session.backlog_max);
        let Portion { messages, state } = portion(made, *from, *stated, most)?;
        let (seq, count) = (at.seq, messages.len() as u64);
        at.seq += count;
        at.generated += count;
        *from = messages.end;
        let state = state.map(|index| {
            *stated = index + 1;
            at.states += 1;
            (at.states, &made.stated[index].state[..])
        });
        Some(push_call(&self.store, lease, seq, &made.messages[messages], state))
    }

    async fn replicated(&self, timeout: Duration, epoch: u64) -> bool {
        let wanted = self.config.durability.replicas();
        match self.store.replicas(wanted, timeout, epoch).await {
            Ok(replicas) if replicas < wanted => {
                self.board.publish(Notice::Unreplicated { replicas, wanted });
                false
            }
            answer => answer.is_ok(),
        }
    }

    /// Sends one numbered batch until it is answered; `None` when it is in the queue.
    async fn push(
        &self,
        lease: &Lease,
        call: &Call,
        stop: &CancellationToken,
        full: &mut bool,
    ) -> Option<Ending> {
        let session = &lease.session;
        loop {
            if !session.until_trusted().await {
                return Some(Ending::Over);
            }
            if lease.over.is_cancelled() {
                return Some(over(lease));
            }
            let (sent, epoch) = (crate::clock::Moment::now(), self.store.work.epoch());
            let answer = self.store.work.call(call, session.call_timeout()).await;
            let refused = match answer.and_then(pushed) {
                Ok(Pushed::Accepted) => {
                    session.refresh(sent);
                    session.note_progress();
                    if !self.replicated(session.call_timeout(), epoch).await {
                        tokio::time::sleep(RETRY).await;
                        continue; // the same push again: already there, and then on the replicas
                    }
                    if std::mem::take(full) {
                        self.board.publish(Notice::Flowing);
                    }
                    return None;
                }
                Ok(Pushed::Full(reason)) => {
                    session.refresh(sent);
                    Some(reason)
                }
                Ok(Pushed::Fenced) => {
                    self.board.publish(Notice::Fenced { term: lease.term });
                    return Some(Ending::Deposed);
                }
                Ok(Pushed::Gone) => {
                    self.board.publish(Notice::Fenced { term: lease.term });
                    session.end(End::Gone);
                    return Some(Ending::Over);
                }
                Ok(Pushed::Gap) => {
                    self.board.publish(Notice::DataLossSeen { what: "numbers of this term" });
                    return Some(Ending::Deposed);
                }
                Ok(Pushed::Protocol(theirs)) => {
                    let reason = self.store.other_protocol(&theirs).to_string();
                    self.board.publish(Notice::Refused { reason });
                    session.end(End::Refused);
                    return Some(Ending::Over);
                }
                Err(error) if error.is_oom() => Some("Redis is out of memory".to_owned()),
                Err(error) if error.is_denied() => Some(format!("Redis denies access: {error}")),
                Err(error) => {
                    tracing::debug!(%error, "push unanswered");
                    None
                }
            };
            if let Some(reason) = refused {
                session.note_progress(); // it works; it is Redis that has no room
                if !std::mem::replace(full, true) {
                    self.board.publish(Notice::Full { reason });
                }
            }
            tokio::select! {
                // What was not accepted is dropped before it was anybody's: the tick is skipped.
                () = stop.cancelled(), if *full => return Some(Ending::Stopped),
                () = lease.over.cancelled() => return Some(over(lease)),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

fn over(lease: &Lease) -> Ending {
    if lease.session.over.is_cancelled() { Ending::Over } else { Ending::Deposed }
}

/// How many ticks are due, and when the next one is. A tick that is late by more than [`CATCH_UP`]
/// is skipped.
fn ticks_due(now: Instant, due: Instant, interval: Duration, batch_max: usize) -> (usize, Instant) {
    let late = now.saturating_duration_since(due);
    if late > CATCH_UP.max(interval) {
        return (1, now + interval);
    }
    let ticks = 1 + (late.as_nanos() / interval.as_nanos().max(1)) as usize;
    let ticks = ticks.min(batch_max);
    (ticks, due + interval * ticks as u32)
}

/// What goes into the next push: as many messages as fit, at least one, and a tick that keeps a state
/// whole; `None` when nothing is left.
fn portion(made: &Made, from: usize, stated: usize, messages_max: usize) -> Option<Portion> {
    let (mut end, mut next, mut bytes) = (from, stated, 0);
    let size = |range: Range<usize>| -> usize {
        made.messages[range].iter().map(|message| message.payload().len()).sum()
    };
    loop {
        let whole = made.stated.get(next).filter(|stated| stated.messages.start == end);
        let more = match whole {
            Some(stated) => stated.messages.clone(),
            None if end < made.messages.len() => end..end + 1,
            None => break,
        };
        bytes += size(more.clone());
        let fits = more.end - from <= messages_max && bytes <= PUSH_BYTES_MAX;
        if !fits && end > from {
            break;
        }
        end = more.end;
        next += usize::from(whole.is_some());
    }
    let state = (next > stated).then(|| next - 1);
    (end > from || state.is_some()).then_some(Portion { messages: from..end, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn missed_ticks_are_made_up_for_within_a_second() {
        let start = Instant::now();
        assert_eq!(ticks_due(start, start, 500 * MS, 500), (1, start + 500 * MS));
        assert_eq!(ticks_due(start + 7 * MS, start, MS, 500), (8, start + 8 * MS));
        assert_eq!(ticks_due(start + 900 * MS, start, MS, 500), (500, start + 500 * MS));
    }

    #[test]
    fn a_long_outage_is_not_made_up_for() {
        let start = Instant::now();
        let later = start + 10_000 * MS;
        assert_eq!(ticks_due(later, start, 500 * MS, 500), (1, later + 500 * MS));
    }

    fn made(ticks: Vec<Batch>) -> Made {
        let mut made = Made::default();
        for tick in ticks {
            assert!(made.add(tick, usize::MAX, &mut Arc::from([])));
        }
        made
    }

    /// The pushes of what was made: how many messages each, and which state.
    fn pushes(made: &Made, messages_max: usize) -> Vec<(usize, Option<usize>)> {
        let (mut from, mut stated, mut all) = (0, 0, Vec::new());
        while let Some(Portion { messages, state }) = portion(made, from, stated, messages_max) {
            from = messages.end;
            stated = state.map_or(stated, |index| index + 1);
            all.push((messages.len(), state));
        }
        all
    }

    #[test]
    fn a_push_is_bounded_by_count_and_by_bytes() {
        let small = made(vec![Batch::new(vec!["x"; 1200])]);
        assert_eq!(pushes(&small, 500), [(500, None), (500, None), (200, None)]);
        let large = made(vec![Batch::new(vec![vec![0; 400_000]; 5])]);
        assert_eq!(pushes(&large, 500), [(2, None), (2, None), (1, None)]);
        let huge = made(vec![Batch::new([vec![0; 2_000_000]])]);
        assert_eq!(pushes(&huge, 500), [(1, None)]);
        assert_eq!(pushes(&made(vec![Batch::default()]), 500), []);
    }

    #[test]
    fn a_tick_with_a_state_is_one_push() {
        let stated = |count: usize| Batch::new(vec!["x"; count]).with_state("s");
        // Larger than a push, and still whole; what comes before it goes first.
        let ticks = made(vec![Batch::new(["a"]), stated(1200), Batch::new(vec!["b"; 600])]);
        assert_eq!(pushes(&ticks, 500), [(1, None), (1200, Some(0)), (500, None), (100, None)]);
        // Several small ones share a push, which keeps the last state.
        assert_eq!(pushes(&made(vec![stated(2), stated(3), stated(0)]), 500), [(5, Some(2))]);
        // A state without messages is a push, too.
        assert_eq!(pushes(&made(vec![stated(0)]), 500), [(0, Some(0))]);
    }

    #[test]
    fn messages_of_a_tick_with_a_state_that_have_no_room_are_not_added() {
        let (mut made, mut state) = (Made::default(), Arc::from([]));
        assert!(!made.add(Batch::new(["a", "b", "c"]).with_state("all three"), 2, &mut state));
        assert_eq!((made.messages.len(), made.stated.len(), state.len()), (0, 0, 0));
        assert!(made.add(Batch::new(["a", "b", "c"]), 2, &mut state));
        assert_eq!(made.messages.len(), 2);
    }
}
