//! [`Runner`]: generates while a lease lasts.
//!
//! **Invariant:** it only decides when a tick is due and what it makes. Everything that was made goes
//! to the [`Pusher`], in order, before the next tick.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{Batch, BoxError, DynGenerate, Tick};
use crate::config::Config;
use crate::election::Lease;
use crate::json_time::at_ms;
use crate::lane::Lane;
use crate::message::NewMessage;
use crate::notice::{Board, Notice};
use crate::panic::panic_text;
use crate::queue::{Ending, Pusher, TermNumbers, Unpushed, ending_of};
use crate::store::Store;
use crate::trace;

/// Ticks that are late by more than this are skipped.
const CATCH_UP: Duration = Duration::from_secs(1);

/// The generator's user code, and where its messages go.
pub(crate) struct Runner {
    generate: Box<dyn DynGenerate>,
    config: Config,
    board: Board,
    pusher: Pusher,
}

/// What a leader remembers from tick to tick.
struct Progress {
    numbers: TermNumbers,
    /// Ticks of this term.
    ticks: u64,
    /// The state that the next tick gets.
    state: Arc<[u8]>,
    /// There is no room for all messages of a tick that keeps a state: nothing more is made.
    is_over: bool,
}

impl Runner {
    pub(crate) fn new(
        generate: Box<dyn DynGenerate>,
        store: &Store,
        config: &Config,
        board: &Board,
    ) -> Runner {
        let pusher = Pusher::new(store.clone(), config.clone(), board.clone());
        Runner { generate, config: config.clone(), board: board.clone(), pusher }
    }

    /// Leads: generates every interval until the term ends or `stop` is cancelled.
    pub(crate) async fn lead(&mut self, lease: &Lease, stop: &CancellationToken) -> Ending {
        self.pusher.begin_term();
        let interval = self.config.interval;
        let mut due = Instant::now() + lease.first_tick(interval);
        let state = lease.state.clone();
        let mut at = Progress { numbers: TermNumbers::default(), ticks: 0, state, is_over: false };
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return ending_of(lease),
                () = tokio::time::sleep_until(due) => {}
            }
            let (ticks, next) = ticks_due(Instant::now(), due, interval, self.config.batch_max);
            due = next;
            let making = self.make(lease, &mut at, ticks);
            let mut made = tokio::select! {
                biased;
                () = stop.cancelled() => return Ending::Stopped,
                () = lease.over.cancelled() => return ending_of(lease),
                made = making => made,
            };
            lease.session.tenures.lease.note_progress();
            let span = match made.len() {
                0 => Span::none(),
                count => trace::send(Lane::Generated.name(), count),
            };
            made.carry(&span);
            let pushed = self.pusher.push_all(lease, &mut at.numbers, &made, stop);
            let pushed = pushed.instrument(span).await;
            if let Some(ending) = pushed {
                return ending;
            }
        }
    }

    /// Calls the user's code once per tick that is due.
    async fn make(&mut self, lease: &Lease, at: &mut Progress, ticks: usize) -> Unpushed {
        let generated = lease.generated + at.numbers.messages;
        let room = self.config.messages_max.map(|max| max.saturating_sub(generated));
        let room = room.map_or(usize::MAX, |room| room as usize);
        let mut made = Unpushed::default();
        for _ in 0..ticks {
            if made.len() >= room || at.is_over {
                break;
            }
            at.ticks += 1;
            let tick = Tick {
                term: lease.term,
                seq: at.numbers.messages + made.len() as u64 + 1,
                count: at.ticks,
                time: at_ms(lease.redis_ms()),
                state: at.state.clone(),
            };
            match self.one_tick(lease, tick).await {
                Ok(Batch { messages, state }) => {
                    let state: Option<Arc<[u8]>> = state.map(Arc::from);
                    if !made.add(messages, state.clone(), room) {
                        at.is_over = true;
                    } else if let Some(state) = state {
                        at.state = state;
                    }
                }
                Err(reason) => self.board.publish(Notice::GenerateFailed { reason }),
            }
        }
        made
    }

    /// Runs one tick. The error says why its messages cannot be pushed.
    async fn one_tick(&mut self, lease: &Lease, tick: Tick) -> Result<Batch, String> {
        let made = AssertUnwindSafe(self.generate.generate(tick)).catch_unwind().await;
        let made: Result<Batch, BoxError> =
            made.map_err(|panic| format!("the generator panicked: {}", panic_text(panic)))?;
        let batch = made.map_err(|error| error.to_string())?;
        match self.refuse(lease, &batch) {
            Some(reason) => Err(reason),
            None => Ok(batch),
        }
    }

    /// Why this tick cannot be pushed, if it cannot be.
    fn refuse(&self, lease: &Lease, batch: &Batch) -> Option<String> {
        let max = self.config.payload_bytes_max;
        let large = batch.messages.iter().find_map(|message| message.check(max).err());
        if let Some(error) = large {
            return Some(error.to_string());
        }
        if batch.messages.iter().any(NewMessage::waits) {
            return Some("a generated message cannot wait for a time: send it instead".to_owned());
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
}
