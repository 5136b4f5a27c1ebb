//! [`Pusher`]: adds the generator's messages.
//!
//! **Invariant:** a push adds all of its numbered messages or none, once, however often it is repeated,
//! and only while its term leads. A number is sent with the same bytes until it is answered. It is used
//! up only by an answer that says so. In all other cases the term ends, and a new one starts at 1. A
//! state is pushed with all messages of its tick or not at all.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::config::Config;
use crate::election::Lease;
use crate::feed::Step;
use crate::id::MessageId;
use crate::lane::Lane;
use crate::membership::{AskError, End, Patience};
use crate::message::NewMessage;
use crate::notice::{Board, Notice};
use crate::store::{Call, PROTOCOL, Reply, Script, Store, StoreError};
use crate::trace;

use super::pack::Numbered;

static PUSH: Script = Script::new("push", include_str!("push.lua")).lasting(&["ok", "already"]);

/// Pause before a refused push is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// A push carries at most this many bytes of payload.
const PUSH_BYTES_MAX: usize = 1 << 20;

/// The messages and states to push, in order.
#[derive(Default)]
pub(crate) struct Unpushed {
    messages: Vec<NewMessage>,
    /// The ticks that keep a state.
    stated: Vec<Stated>,
}

/// A tick that keeps a state. Its messages and its state go into one push.
struct Stated {
    messages: Range<usize>,
    state: Arc<[u8]>,
}

impl Unpushed {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Has the messages carry the context of the span that pushes them, unless they carry one already.
    pub(crate) fn carry(&mut self, span: &Span) {
        if let Some(traceparent) = trace::context_of(span) {
            self.messages.iter_mut().for_each(|message| message.carry(&traceparent));
        }
    }

    /// Adds the messages of a tick, up to `room` messages in all. Messages that keep a state are added
    /// all or not at all. Returns false if there is no room for them.
    pub(crate) fn add(
        &mut self,
        messages: Vec<NewMessage>,
        state: Option<Arc<[u8]>>,
        room: usize,
    ) -> bool {
        let begin = self.messages.len();
        if state.is_some() && begin + messages.len() > room {
            return false;
        }
        self.messages.extend(messages);
        self.messages.truncate(room);
        if let Some(state) = state {
            self.stated.push(Stated { messages: begin..self.messages.len(), state });
        }
        true
    }
}

/// What one push carries.
#[derive(Debug, Eq, PartialEq)]
struct Slice {
    messages: Range<usize>,
    /// The index of its state: the last of the states it carries.
    state: Option<usize>,
}

/// The next push: as many messages as fit, but at least one. A tick that keeps a state stays whole.
/// `None` if nothing is left.
fn next_slice(all: &Unpushed, from: usize, stated: usize, messages_max: usize) -> Option<Slice> {
    let (mut end, mut next, mut bytes) = (from, stated, 0);
    let size = |range: Range<usize>| -> usize {
        all.messages[range].iter().map(|message| message.payload().len()).sum()
    };
    loop {
        let whole = all.stated.get(next).filter(|stated| stated.messages.start == end);
        let more = match whole {
            Some(stated) => stated.messages.clone(),
            None if end < all.messages.len() => end..end + 1,
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
    (end > from || state.is_some()).then_some(Slice { messages: from..end, state })
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// The process stops. The lease is still ours and can be resigned.
    Stopped,
    /// Another term leads.
    Deposed,
    /// Redis lost numbers of this term. The lease may be ours still, and is of no use to anybody.
    Forgotten,
    /// The session is over.
    Over,
}

/// How the term of a lease that is over has ended.
pub(crate) fn ending_of(lease: &Lease) -> Ending {
    if lease.session.over.is_cancelled() { Ending::Over } else { Ending::Deposed }
}

/// What Redis answered to a push.
#[derive(Debug)]
enum Pushed {
    /// The messages are in the queue, from this call or from an earlier copy of it.
    Accepted,
    /// A bound is reached; the text says which. Nothing was added and no number was used.
    Full(String),
    /// Nothing more is accepted under this term.
    Ended(Ended),
}

/// Why nothing more is accepted under a term.
#[derive(Debug)]
enum Ended {
    /// Another term leads.
    Fenced,
    /// Redis lost data.
    Gap,
    /// The fleet runs with this other protocol.
    Protocol(String),
}

impl Pushed {
    fn read(reply: Reply) -> Result<Pushed, StoreError> {
        match reply.tag() {
            "ok" | "already" => Ok(Pushed::Accepted),
            "full" => Ok(Pushed::Full(full(&reply, Lane::Generated)?)),
            "fenced" => Ok(Pushed::Ended(Ended::Fenced)),
            "gap" => Ok(Pushed::Ended(Ended::Gap)),
            "protocol" => Ok(Pushed::Ended(Ended::Protocol(reply.text(0)?))),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Says which bound is reached.
pub(super) fn full(reply: &Reply, lane: Lane) -> Result<String, StoreError> {
    let (which, max) = (reply.text(0)?, reply.text(1)?);
    Ok(match which.as_str() {
        "errors" => format!("{max} failed messages are stored already"),
        "scheduled" => format!("{max} messages wait for a time already"),
        _ => format!("{max} messages wait in lane {lane} already"),
    })
}

/// The numbers that were used under one term.
#[derive(Debug, Default)]
pub(crate) struct TermNumbers {
    pub(crate) messages: u64,
    states: u64,
}

/// How much of everything was already cut into pushes.
struct Cut<'a> {
    all: &'a Unpushed,
    messages: usize,
    states: usize,
}

/// The messages of one push: the number of the first one, and which they are.
struct Made {
    first: u64,
    messages: Range<usize>,
}

/// Adds the generator's messages.
pub(crate) struct Pusher {
    store: Store,
    config: Config,
    board: Board,
    /// The last push found no room, and that was reported.
    is_full: AtomicBool,
}

impl Pusher {
    pub(crate) fn new(store: Store, config: Config, board: Board) -> Pusher {
        Pusher { store, config, board, is_full: AtomicBool::new(false) }
    }

    /// A new term begins: it is not known yet whether there is room.
    pub(crate) fn begin_term(&self) {
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// Pushes everything. Returns how the term ended, if it did. Messages that find no room when `stop`
    /// is cancelled are dropped before Redis has accepted them: their tick is skipped.
    pub(crate) async fn push_all(
        &self,
        lease: &Lease,
        numbers: &mut TermNumbers,
        all: &Unpushed,
        stop: &CancellationToken,
    ) -> Option<Ending> {
        let mut cut = Cut { all, messages: 0, states: 0 };
        let mut next = self.next_call(lease, numbers, &mut cut);
        while let Some((made, call)) = next {
            // While Redis works on this push, the next one is prepared.
            let prepare = async { self.next_call(lease, numbers, &mut cut) };
            let (ending, prepared) = futures_util::join!(self.push(lease, call, stop), prepare);
            if ending.is_some() {
                return ending;
            }
            self.tell(lease, &made, all);
            next = prepared;
        }
        None
    }

    /// Tells which messages Redis has accepted.
    fn tell(&self, lease: &Lease, made: &Made, all: &Unpushed) {
        self.board.meter.generated.fetch_add(made.messages.len() as u64, Ordering::Relaxed);
        let Some(feed) = &self.board.feed else { return };
        let first = MessageId::generated(lease.term, made.first);
        for (count, message) in (0..).zip(&all.messages[made.messages.clone()]) {
            let id = first.following(count);
            let about = (None, Some(message.payload()));
            feed.tell(Step::Generated, (id, 0), message.kind(), Duration::ZERO, about);
        }
    }

    /// Cuts off the next push and numbers it. `None` if nothing is left.
    fn next_call(
        &self,
        lease: &Lease,
        numbers: &mut TermNumbers,
        cut: &mut Cut<'_>,
    ) -> Option<(Made, Call<Pushed>)> {
        let most = self.config.batch_max.min(lease.session.backlog_max);
        let slice = next_slice(cut.all, cut.messages, cut.states, most)?;
        let first = numbers.messages + 1;
        numbers.messages += slice.messages.len() as u64;
        cut.messages = slice.messages.end;
        let state = slice.state.map(|index| {
            cut.states = index + 1;
            numbers.states += 1;
            (numbers.states, &cut.all.stated[index].state[..])
        });
        let made = Made { first, messages: slice.messages };
        let call = self.call(lease, first, &cut.all.messages[made.messages.clone()], state);
        Some((made, call))
    }

    /// The call that adds `messages`, numbered from `first` on, and keeps the generator's state, if
    /// there is one. `state` is its number within the term, and its bytes.
    fn call(
        &self,
        lease: &Lease,
        first: u64,
        messages: &[NewMessage],
        state: Option<(u64, &[u8])>,
    ) -> Call<Pushed> {
        let keys = &self.store.keys;
        let stage = keys.stage(lease.session.id.as_str());
        let call = PUSH
            .call(&[
                keys.members(),
                keys.lease(),
                keys.last(),
                keys.lane(Lane::Generated.name()),
                keys.counts(),
                keys.wake(),
                keys.config(),
                keys.errors(),
                keys.state(),
                stage.clone(),
                format!("{}{}-{first}", keys.chunks(), lease.term),
            ])
            .arg(lease.session.id.as_str())
            .arg(lease.term.get())
            .arg(first)
            .arg(lease.session.trust.lease_ms())
            .arg(PROTOCOL)
            .arg(state.map_or(String::new(), |(number, _)| number.to_string()))
            .arg(state.map_or(&[][..], |(_, state)| state));
        let (lane, ms) = (Lane::Generated, lease.redis_ms());
        let batch = Numbered { messages, lane, name: &lease.term.to_string(), first, ms };
        let call = batch.add_to(call, Some(stage));
        call.refreshing(&["ok", "already", "full", "fenced", "gap"]).reading(Pushed::read)
    }

    /// Sends one numbered push until it is in the queue. Returns how the term ended, if it ended before
    /// that.
    async fn push(
        &self,
        lease: &Lease,
        call: Call<Pushed>,
        stop: &CancellationToken,
    ) -> Option<Ending> {
        let session = &lease.session;
        loop {
            let pushing = session.ask(&self.store.work, Patience::ONCE_TRUSTED, call.clone());
            let is_full = self.is_full.load(Ordering::Relaxed);
            let answer = tokio::select! {
                answer = pushing => answer,
                () = stop.cancelled(), if is_full => return Some(Ending::Stopped),
                () = lease.over.cancelled() => return Some(ending_of(lease)),
            };
            let refused = match answer {
                Ok(Pushed::Accepted) => {
                    self.accepted(lease);
                    return None;
                }
                Ok(Pushed::Full(reason)) => Some(reason),
                Ok(Pushed::Ended(why)) => return Some(self.ended(lease, why)),
                // The generator works, and waits for replicas.
                Err(AskError::Failed(StoreError::Unreplicated { .. })) => {
                    session.tenures.lease.note_progress();
                    None
                }
                Err(AskError::Gone) => {
                    self.board.publish(Notice::Fenced { term: lease.term });
                    return Some(Ending::Over);
                }
                Err(AskError::Over) => return Some(Ending::Over),
                Err(AskError::Failed(error)) if error.is_oom() => {
                    Some("Redis is out of memory".to_owned())
                }
                Err(AskError::Failed(error)) if error.is_denied() => {
                    Some(format!("Redis denies access: {error}"))
                }
                Err(AskError::Failed(error)) => {
                    tracing::debug!(%error, "push refused");
                    None
                }
            };
            if let Some(reason) = refused {
                session.tenures.lease.note_progress(); // the generator works; Redis has no room
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    self.board.publish(Notice::Full { reason });
                }
            }
            let is_full = self.is_full.load(Ordering::Relaxed);
            tokio::select! {
                () = stop.cancelled(), if is_full => return Some(Ending::Stopped),
                () = lease.over.cancelled() => return Some(ending_of(lease)),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Notes that a push is in the queue.
    fn accepted(&self, lease: &Lease) {
        lease.session.tenures.lease.note_progress();
        if self.is_full.swap(false, Ordering::Relaxed) {
            self.board.publish(Notice::Flowing);
        }
    }

    /// Reports why the term ended.
    fn ended(&self, lease: &Lease, why: Ended) -> Ending {
        match why {
            Ended::Fenced => {
                self.board.publish(Notice::Fenced { term: lease.term });
                Ending::Deposed
            }
            Ended::Gap => {
                self.board.publish(Notice::DataLossSeen { what: "numbers of this term" });
                Ending::Forgotten
            }
            Ended::Protocol(theirs) => {
                let reason = self.store.other_protocol(&theirs).to_string();
                self.board.publish(Notice::Refused { reason });
                lease.session.end(End::Refused);
                Ending::Over
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tick = (Vec<NewMessage>, Option<Arc<[u8]>>);

    fn tick(count: usize, payload: &[u8]) -> Tick {
        (vec![NewMessage::from(payload.to_vec()); count], None)
    }

    fn stated(count: usize) -> Tick {
        (tick(count, b"x").0, Some(Arc::from(*b"s")))
    }

    fn unpushed(ticks: Vec<Tick>) -> Unpushed {
        let mut all = Unpushed::default();
        for (messages, state) in ticks {
            assert!(all.add(messages, state, usize::MAX));
        }
        all
    }

    /// All pushes: how many messages each has, and which state.
    fn pushes(all: &Unpushed, messages_max: usize) -> Vec<(usize, Option<usize>)> {
        let (mut from, mut stated, mut pushes) = (0, 0, Vec::new());
        while let Some(Slice { messages, state }) = next_slice(all, from, stated, messages_max) {
            from = messages.end;
            stated = state.map_or(stated, |index| index + 1);
            pushes.push((messages.len(), state));
        }
        pushes
    }

    #[test]
    fn a_push_is_bounded_by_count_and_by_bytes() {
        let small = unpushed(vec![tick(1200, b"x")]);
        assert_eq!(pushes(&small, 500), [(500, None), (500, None), (200, None)]);
        let large = unpushed(vec![tick(5, &[0; 400_000])]);
        assert_eq!(pushes(&large, 500), [(2, None), (2, None), (1, None)]);
        let huge = unpushed(vec![tick(1, &[0; 2_000_000])]);
        assert_eq!(pushes(&huge, 500), [(1, None)]);
        assert_eq!(pushes(&unpushed(vec![tick(0, b"")]), 500), []);
    }

    #[test]
    fn a_tick_with_a_state_is_one_push() {
        // Larger than a push, and still whole. The messages before it go first.
        let ticks = unpushed(vec![tick(1, b"a"), stated(1200), tick(600, b"b")]);
        assert_eq!(pushes(&ticks, 500), [(1, None), (1200, Some(0)), (500, None), (100, None)]);
        // Several small ones share a push, which keeps the last state.
        let several = unpushed(vec![stated(2), stated(3), stated(0)]);
        assert_eq!(pushes(&several, 500), [(5, Some(2))]);
        // A state without messages is a push, too.
        assert_eq!(pushes(&unpushed(vec![stated(0)]), 500), [(0, Some(0))]);
    }

    #[test]
    fn messages_of_a_tick_with_a_state_that_have_no_room_are_not_added() {
        let mut all = Unpushed::default();
        let (messages, state) = stated(3);
        assert!(!all.add(messages.clone(), state, 2));
        assert_eq!((all.messages.len(), all.stated.len()), (0, 0));
        assert!(all.add(messages, None, 2));
        assert_eq!(all.len(), 2);
    }
}
