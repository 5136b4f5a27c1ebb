//! [`Settlement`]: the outcomes of one block on their way to Redis.
//!
//! **Invariant:** an outcome is sent until it is acknowledged. One call closes a block: it names every
//! outcome that Redis does not know yet, and says how many are simply done. Parts of a block are
//! settled early only if other messages of the block take long.

use bytes::Bytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Span;

use crate::backoff::DELAY_MIN;
use crate::cause::Cause;
use crate::id::{MemberId, MessageId};
use crate::membership::Session;
use crate::message::AHEAD_MAX;
use crate::mutant::{Rule, disabled};
use crate::queue::{Block, Claim};
use crate::store::{Call, Reply, Script, Store, StoreError};

use super::{FollowUp, How, Outcome};

static SETTLE: Script =
    Script::new("settle", include_str!("settle.lua")).lasting(&["ok", "already"]);
static SETTLE_JOBS: Script =
    Script::with_jobs("settle_jobs", include_str!("settle.lua")).lasting(&["ok", "already"]);

/// How long an outcome waits for slower messages of its block.
const WAIT_MAX: Duration = Duration::from_millis(25);
/// The same in a block that came as a pack: settling a part of it makes Redis lay it open.
const WAIT_MAX_PACKED: Duration = Duration::from_millis(100);
/// The most positions, effects and bytes of one call: a bound on how long Redis is busy with it.
const NAMED_MAX: usize = 1000;
const CALL_EFFECTS_MAX: usize = 1000;
const CALL_FOLLOW_UPS_MAX: usize = 500;
/// The most outcomes of one call that run again or mean something to others: each takes Redis some seven microseconds.
const CALL_JOBS_MAX: usize = 500;
const CALL_BYTES_MAX: usize = 1 << 20;

/// What is reported about a message in addition to its outcome.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) kind: Option<Box<str>>,
    pub(crate) took: Duration,
    /// From when it was made to now, if this was its first run.
    pub(crate) wait: Option<Duration>,
    /// Its payload, if it is to be told.
    pub(crate) payload: Option<Bytes>,
    /// Its kind keeps no failed messages.
    pub(crate) forgets: bool,
    /// The span of its run. It ends with this.
    pub(crate) span: Option<Box<Span>>,
}

/// A claim that was used up, and its outcome.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) claim: Claim,
    pub(crate) outcome: Outcome,
    pub(crate) report: Report,
}

impl Ended {
    /// A closing call must name it: it is not simply done, or its end means something to others.
    fn is_named(&self, block: &Block) -> bool {
        let has_duties = block.has_duties(&self.claim) && !disabled(Rule::DutiesAreNamed);
        !self.outcome.is_simply_done() || has_duties
    }

    /// Only the form of the script that knows times and duties can settle it.
    fn needs_jobs(&self, block: &Block) -> bool {
        let is_plain = match self.outcome.how() {
            None | Some(How::Done) => true,
            Some(How::Failed(failure)) => failure.is_kept,
            Some(How::Retry(_) | How::Snooze(_)) => false,
        };
        !is_plain || !self.outcome.follow_ups().is_empty() || block.has_duties(&self.claim)
    }

    /// The word for the script, and what it must know in addition.
    fn word(&self, by: &SettledBy<'_>, session: &Session) -> (&'static str, String) {
        match self.outcome.how() {
            None | Some(How::Done) => ("d", String::new()),
            Some(How::Failed(failure)) if failure.is_kept => {
                ("f", by.info(failure.cause, &failure.reason, session))
            }
            Some(How::Failed(_)) => ("x", String::new()),
            Some(How::Retry(retry)) => ("r", ms(retry.after.unwrap_or(DELAY_MIN))),
            // Only a wait for a member that knows its kind has a reason.
            Some(How::Snooze(snooze)) if snooze.reason.is_some() => ("w", ms(snooze.after)),
            Some(How::Snooze(snooze)) => ("z", ms(snooze.after)),
        }
    }
}

/// What becomes of an outcome that Redis cannot record: a failure, kept or not as the kind of the message says.
fn unrecordable(reason: String, report: &Report) -> Outcome {
    match report.forgets {
        true => Outcome::failed_by(Cause::Handler, reason).forgotten(),
        false => Outcome::failed_by(Cause::Handler, reason),
    }
}

fn ms(time: Duration) -> String {
    time.clamp(DELAY_MIN, AHEAD_MAX).as_millis().to_string()
}

/// One open block and its outcomes.
#[derive(Debug)]
pub(crate) struct Settlement {
    pub(crate) block: Arc<Block>,
    /// Claims of this block that have no outcome yet.
    open: usize,
    pending: Vec<Ended>,
    oldest: Option<Instant>,
    /// How many of `pending` the call in flight carries, and whether it closes the block.
    sent: Option<(usize, bool)>,
}

/// What Redis answered to a settle.
#[derive(Debug)]
pub(crate) enum Settled {
    /// Recorded, now or by an earlier copy of the call. These positions were no longer ours.
    Recorded(Vec<u32>),
    DataLoss,
    /// An effect of the message at this position cannot be applied; nothing was recorded.
    BadEffect(u32, String),
}

impl Settlement {
    pub(crate) fn new(block: Arc<Block>) -> Settlement {
        let open = block.len();
        let pending = Vec::with_capacity(open);
        Settlement { block, open, pending, oldest: None, sent: None }
    }

    /// Uses up a claim.
    pub(crate) fn settle(
        &mut self,
        claim: Claim,
        outcome: Outcome,
        report: Report,
        payload_bytes_max: usize,
    ) {
        debug_assert_eq!(claim.block, self.block.n);
        let outcome = match outcome.check(payload_bytes_max) {
            Ok(()) => outcome,
            Err(why) => unrecordable(format!("its outcome cannot be recorded: {why}"), &report),
        };
        self.open -= 1;
        self.oldest.get_or_insert_with(Instant::now);
        self.pending.push(Ended { claim, outcome, report });
    }

    /// Gives up claims that were returned to their lane.
    pub(crate) fn give_back(&mut self, claims: usize) {
        self.open -= claims;
    }

    /// Is nothing of this block left with us?
    pub(crate) fn is_over(&self) -> bool {
        self.open == 0 && self.pending.is_empty()
    }

    /// Claims that have no outcome yet.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// When the next call of this block is due. `None` while there is nothing to send.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        if self.pending.is_empty() || self.sent.is_some() {
            return None;
        }
        if self.open == 0 {
            return Some(Duration::ZERO);
        }
        let waited = self.oldest.map_or(Duration::ZERO, |since| now.duration_since(since));
        let longest = if self.block.pack().is_none() { WAIT_MAX } else { WAIT_MAX_PACKED };
        Some(longest.saturating_sub(waited))
    }

    /// The ids of outcomes Redis has not acknowledged.
    pub(crate) fn unrecorded(self) -> impl Iterator<Item = MessageId> {
        let block = self.block;
        self.pending.into_iter().map(move |ended| block.id(&ended.claim))
    }

    /// How many outcomes the next call carries: as many as fit, but at least one. If these are all, the
    /// call closes the block, and then outcomes that are simply done need not be named.
    fn next_batch(&self) -> (usize, bool) {
        let (mut named, mut jobs, mut effects, mut follow_ups, mut bytes) = (0, 0, 0, 0, 0);
        let fits = self.pending.iter().take_while(|ended| {
            named += usize::from(ended.is_named(&self.block));
            jobs += usize::from(ended.needs_jobs(&self.block));
            effects += ended.outcome.effects().len();
            follow_ups += ended.outcome.follow_ups().len();
            bytes += ended.outcome.bytes();
            named <= NAMED_MAX
                && jobs <= CALL_JOBS_MAX
                && effects <= CALL_EFFECTS_MAX
                && follow_ups <= CALL_FOLLOW_UPS_MAX
                && bytes <= CALL_BYTES_MAX
        });
        let fits = fits.count().max(1).min(self.pending.len());
        let closing = self.open == 0 && fits == self.pending.len();
        (if closing { fits } else { fits.min(NAMED_MAX) }, closing)
    }

    /// The next call. It closes the block if every claim has its outcome.
    pub(crate) fn call(
        &mut self,
        store: &Store,
        session: &Session,
        settled_by: &SettledBy<'_>,
    ) -> Call<Settled> {
        let (keys, me) = (&store.keys, &session.id);
        let (count, closing) = self.next_batch();
        self.sent = Some((count, closing));
        let batch = &self.pending[..count];

        let names: Vec<&Ended> =
            batch.iter().filter(|ended| !closing || ended.is_named(&self.block)).collect();
        let jobs = names.iter().any(|ended| ended.needs_jobs(&self.block));
        let mut all = if jobs { keys.jobs() } else { vec![keys.members(), keys.counts()] };
        all.extend([
            keys.blocks(me),
            keys.block(me, self.block.n),
            keys.errors(),
            keys.ledger(),
            keys.config(),
            keys.unread(),
            keys.pack(me, self.block.n),
        ]);
        let mut data: HashMap<&str, usize> = HashMap::new();
        for effect in batch.iter().flat_map(|ended| ended.outcome.effects()) {
            let next = data.len() + 1;
            if let Entry::Vacant(new) = data.entry(&effect.name) {
                new.insert(next);
                all.push(keys.data(&effect.name));
            }
        }
        let script = if jobs { &SETTLE_JOBS } else { &SETTLE };
        let mut call = script
            .call(&all)
            .arg(me.as_str())
            .arg(self.block.n)
            .arg(&self.block.stamp)
            .arg(session.trust.lease_ms());
        if closing {
            call.push_arg(count - names.len());
        } else {
            call.push_arg("-");
        }
        call = call.arg(self.block.pack().map_or("", MessageId::as_str)).arg(names.len());
        for ended in &names {
            let (word, info) = ended.word(settled_by, session);
            call = call.arg(self.block.position(&ended.claim)).arg(word).arg(info);
            call = match self.block.place(&ended.claim) {
                Some(place) => call.arg(place.offset).arg(place.length),
                None => call.arg("").arg(""),
            };
        }
        call.push_arg(names.iter().map(|ended| ended.outcome.effects().len()).sum::<usize>());
        for Ended { claim, outcome, .. } in &names {
            for effect in outcome.effects() {
                let index = data.get(effect.name.as_str()).copied().unwrap_or(0);
                call = call.arg(self.block.position(claim)).arg(effect.op).arg(index);
                call = call.arg(&effect.first[..]).arg(&effect.second[..]);
            }
        }
        for ended in names {
            call = self.follow_ups(call, ended, me);
        }
        call.refreshing(&["ok", "already", "gap", "effect"]).reading(Settled::read)
    }

    /// Adds the messages that follow an outcome. That position of that block is settled once, ever, so their ids are
    /// unique, and the same in every copy of the call.
    fn follow_ups(&self, mut call: Call, ended: &Ended, me: &MemberId) -> Call {
        let (n, position) = (self.block.n, self.block.position(&ended.claim));
        let (made_ms, mut envelope) = (self.block.now_ms(Instant::now()), Vec::new());
        for (number, FollowUp { lane, message }) in (1..).zip(ended.outcome.follow_ups()) {
            let id = format_args!("f{me}-{n}-{position}-{number}");
            message.envelope(&mut envelope, *lane, id, made_ms);
            call = call.arg(position).arg("then").arg(&envelope[..]).arg(message.due());
        }
        call
    }

    /// Applies the answer to the call in flight, and returns the outcomes that it settled.
    pub(crate) fn answered(&mut self, answer: &Settled) -> Vec<Ended> {
        let Some((count, _)) = self.sent.take() else { return Vec::new() };
        match answer {
            Settled::Recorded(_) => {
                let rest = self.pending.split_off(count);
                self.oldest = (!rest.is_empty()).then(Instant::now);
                std::mem::replace(&mut self.pending, rest)
            }
            Settled::BadEffect(position, why) => {
                let block = &self.block;
                let mut pending = self.pending.iter_mut();
                if let Some(ended) = pending.find(|ended| block.position(&ended.claim) == *position)
                {
                    let reason = format!("its effect cannot be applied: {why}");
                    ended.outcome = unrecordable(reason, &ended.report);
                }
                Vec::new()
            }
            Settled::DataLoss => Vec::new(),
        }
    }
}

/// The member that settles, as error records show it.
pub(crate) struct SettledBy<'a> {
    pub(crate) label: &'a str,
}

/// What is stored about a failed message beside its envelope.
#[derive(serde::Serialize)]
struct Info<'a> {
    v: u32,
    cause: &'a str,
    reason: &'a str,
    member: &'a str,
    label: &'a str,
}

impl SettledBy<'_> {
    fn info(&self, cause: Cause, reason: &str, session: &Session) -> String {
        let (cause, member) = (cause.as_str(), session.id.as_str());
        let info = Info { v: 1, cause, reason, member, label: self.label };
        serde_json::to_string(&info).unwrap_or_default()
    }
}

impl Settled {
    fn read(reply: Reply) -> Result<Settled, StoreError> {
        match reply.tag() {
            "ok" => {
                let lost = (0..reply.len()).map(|at| Ok(reply.number(at)? as u32));
                Ok(Settled::Recorded(lost.collect::<Result<_, StoreError>>()?))
            }
            "already" => Ok(Settled::Recorded(Vec::new())),
            "gap" => Ok(Settled::DataLoss),
            "effect" => Ok(Settled::BadEffect(reply.number(0)? as u32, reply.text(1)?)),
            _ => Err(reply.unexpected()),
        }
    }
}
