//! [`Runner`]: generates and pushes while a lease lasts.
//!
//! **Invariant:** a number is sent with the same bytes until it is answered. The number is used up
//! only by an answer that says so; whatever else happens, the term ends and a new one starts at 1.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{DynGenerate, Tick};
use crate::Error;
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
/// A generator that has had no worker for this long says so.
const LONELY: Duration = Duration::from_secs(1);
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

impl Runner {
    /// Leads: generates every interval until the term ends or `stop` is cancelled.
    pub(crate) async fn lead(&mut self, lease: &Lease, stop: &CancellationToken) -> Ending {
        let interval = self.outlet.config.interval;
        let mut due = Instant::now() + lease.first_tick(interval);
        let began = Instant::now();
        let (mut seq, mut generated, mut lonely) = (1, lease.generated, false);
        let mut full = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return over(lease),
                () = tokio::time::sleep_until(due) => {}
            }
            let alone = began.elapsed() > LONELY && lease.session.standing().borrow().members == 1;
            if alone && !lonely {
                lonely = true;
                self.outlet.board.publish(Notice::NoWorker);
            }
            let batch_max = self.outlet.config.batch_max;
            let (ticks, next) = ticks_due(Instant::now(), due, interval, batch_max);
            due = next;
            let room = self.outlet.config.messages_max.map(|max| max.saturating_sub(generated));
            let making = self.make(lease, seq, ticks, room);
            let batch = tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return over(lease),
                batch = making => batch,
            };
            lease.session.note_progress();
            let mut rest = &batch[..];
            let mut next = self.outlet.portion(lease, seq, &mut rest);
            while let Some((call, count)) = next {
                seq += count;
                generated += count;
                // While Redis works on this push, the next one is put together.
                let push = self.outlet.push(lease, &call, stop, &mut full);
                let prepare = async { self.outlet.portion(lease, seq, &mut rest) };
                let (pushed, prepared) = futures_util::join!(push, prepare);
                if let Some(ending) = pushed {
                    return ending;
                }
                next = prepared;
            }
        }
    }

    /// Calls the user's code once per tick that is due.
    async fn make(
        &mut self,
        lease: &Lease,
        mut seq: u64,
        ticks: usize,
        room: Option<u64>,
    ) -> Vec<NewMessage> {
        let mut batch: Vec<NewMessage> = Vec::new();
        for _ in 0..ticks {
            if room.is_some_and(|room| batch.len() as u64 >= room) {
                break;
            }
            let tick = Tick { term: lease.term, seq };
            let made = AssertUnwindSafe(self.generate.generate(tick)).catch_unwind().await;
            let reason = match made {
                Ok(Ok(messages)) => match self.oversized(&messages) {
                    None => {
                        seq += messages.len() as u64;
                        batch.extend(messages);
                        continue;
                    }
                    Some(error) => error.to_string(),
                },
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("the generator panicked: {}", panic_text(panic)),
            };
            self.outlet.board.publish(Notice::GenerateFailed { reason });
        }
        if let Some(room) = room {
            batch.truncate(room as usize);
        }
        batch
    }

    fn oversized(&self, messages: &[NewMessage]) -> Option<Error> {
        let max = self.outlet.config.payload_bytes_max;
        messages.iter().find_map(|message| message.check(max).err())
    }
}

impl Outlet {
    /// Takes the front of a batch and puts its push together; `None` when nothing is left.
    fn portion(&self, lease: &Lease, seq: u64, rest: &mut &[NewMessage]) -> Option<(Call, u64)> {
        if rest.is_empty() {
            return None;
        }
        let most = self.config.batch_max.min(lease.session.backlog_max);
        let (front, back) = rest.split_at(portion(rest, most));
        *rest = back;
        let call = push_call(&self.store, lease, seq, front);
        Some((call, front.len() as u64))
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
                Ok(Pushed::Full) => {
                    session.refresh(sent);
                    Some(format!("{} messages wait already", session.backlog_max))
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

/// How many messages of the front of a batch go into one push.
fn portion(batch: &[NewMessage], batch_max: usize) -> usize {
    let mut bytes = 0;
    let fits = batch.iter().take(batch_max).take_while(|message| {
        bytes += message.payload().len();
        bytes <= PUSH_BYTES_MAX
    });
    fits.count().max(1)
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

    #[test]
    fn a_push_is_bounded_by_count_and_by_bytes() {
        let small = vec![NewMessage::from("x"); 1200];
        assert_eq!(portion(&small, 500), 500);
        let large = vec![NewMessage::from(vec![0; 400_000]); 5];
        assert_eq!(portion(&large, 500), 2);
        let huge = vec![NewMessage::from(vec![0; 2_000_000])];
        assert_eq!(portion(&huge, 500), 1);
    }
}
