//! [`Note`]: what only a process saw, for the common log. Pure, but for the call.
//!
//! **Invariant:** a process writes at most [`PER_MINUTE`] entries of one kind in a minute, and then how many more there
//! were. So a flood of one kind hides no other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::notice::Notice;
use crate::store::{Call, Reply, Script, Store, StoreError};

static NOTE: Script = Script::new("note", include_str!("note.lua"));

/// How many entries of one kind one process writes in a minute.
const PER_MINUTE: u32 = 30;
const MINUTE: Duration = Duration::from_secs(60);
/// So many failed messages, and half of all, are a burst.
const BURST_MIN: u64 = 10;

/// One entry, before it is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Note {
    pub(crate) kind: &'static str,
    /// What happened, in one line.
    pub(crate) text: String,
}

impl Note {
    fn new(kind: &'static str, text: impl Into<String>) -> Note {
        Note { kind, text: text.into() }
    }

    /// What the common log says of a notice. Nothing if a script has written it already, or if it is about one message
    /// among many.
    pub(crate) fn of(notice: &Notice) -> Option<Note> {
        Some(match notice {
            Notice::Fenced { term } => {
                Note::new("fenced", format!("Redis refused a write of the stale term {term}"))
            }
            Notice::NoWorker => Note::new("no-worker", "leads, and nobody works"),
            Notice::Full { reason } => Note::new("full", format!("generating waits: {reason}")),
            Notice::Flowing => Note::new("flowing", "generating goes on"),
            Notice::ClaimLost { id } => Note::new(
                "claim-lost",
                format!("the outcome of {id} came too late and was not recorded"),
            ),
            Notice::SessionLost { member } => {
                Note::new("session-lost", format!("lost its session {member}, and joins again"))
            }
            Notice::Disconnected { reason } => {
                Note::new("disconnected", format!("Redis did not answer: {reason}"))
            }
            Notice::Denied { reason } => {
                Note::new("denied", format!("Redis denied access: {reason}"))
            }
            Notice::Reconnected { after } => Note::new(
                "reconnected",
                format!("Redis answers again, after {} ms", after.as_millis()),
            ),
            Notice::DataLossSeen { what } => {
                Note::new("data-loss", format!("Redis has lost acknowledged writes: {what}"))
            }
            Notice::Refused { reason } => {
                Note::new("refused", format!("Redis refused to record outcomes: {reason}"))
            }
            Notice::Unread { id, failed } => {
                let end = if *failed { "it failed" } else { "it was given back" };
                Note::new("unread", format!("{id} could not be read in time: {end}"))
            }
            Notice::Exhausted { keys } => Note::new(
                "exhausted",
                format!("no larger number can be granted: {}", keys.join(", ")),
            ),
            Notice::Unreplicated { replicas, wanted } => Note::new(
                "unreplicated",
                format!("{replicas} of {wanted} replicas have the last writes"),
            ),
            Notice::SlotMoving { slot, after } => Note::new(
                "slot-moving",
                format!(
                    "slot {slot} has been on its way to another node for {} s",
                    after.as_secs()
                ),
            ),
            Notice::GenerateFailed { reason } => {
                Note::new("generate-failed", format!("nothing was generated: {reason}"))
            }
            Notice::Overdue { late } => {
                Note::new("overdue", format!("a scheduled message is {} s late", late.as_secs()))
            }
            Notice::Missed { notices } => Note::new(
                "missed",
                format!("{notices} notices came too fast and are not in this log"),
            ),
            _ => return None,
        })
    }

    /// The call that writes it. The mark makes it safe to repeat.
    pub(crate) fn call(&self, store: &Store, mark: &str, by: &Author) -> Call<()> {
        let call = NOTE.call(&[store.keys.notices()]).arg(mark).arg(self.kind).arg(&by.member);
        let call = call.arg("text").arg(self.text.chars().take(300).collect::<String>());
        let call =
            call.arg("label").arg(&by.label).arg("role").arg(&by.role).arg("term").arg(&by.term);
        call.reading(written)
    }
}

/// Who writes: its id, its name for people, its role, its term if it leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Author {
    pub(crate) member: String,
    pub(crate) label: String,
    pub(crate) role: String,
    pub(crate) term: String,
}

fn written(reply: Reply) -> Result<(), StoreError> {
    match reply.tag() {
        "ok" | "already" => Ok(()),
        _ => Err(reply.unexpected()),
    }
}

/// Lets [`PER_MINUTE`] entries of each kind pass in a minute, and counts the others.
#[derive(Debug)]
pub(crate) struct Thrift {
    since: Instant,
    passed: HashMap<&'static str, u32>,
    more: u64,
}

impl Thrift {
    pub(crate) fn new(now: Instant) -> Thrift {
        Thrift { since: now, passed: HashMap::new(), more: 0 }
    }

    pub(crate) fn passes(&mut self, kind: &'static str, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= MINUTE {
            self.since = now;
            self.passed.clear();
        }
        let passed = self.passed.entry(kind).or_default();
        let passes = *passed < PER_MINUTE;
        *passed += u32::from(passes);
        self.more += u64::from(!passes);
        passes
    }

    /// When a minute is over: how many entries did not pass.
    pub(crate) fn rest(&mut self, now: Instant) -> Option<Note> {
        if self.more == 0 || now.saturating_duration_since(self.since) < MINUTE {
            return None;
        }
        let more = std::mem::take(&mut self.more);
        Some(Note::new("more", format!("{more} more entries of this member are not in this log")))
    }
}

/// Finds bursts of errors: the failed messages of one window after the other.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    failed: u64,
    reason: String,
    /// How many messages have failed since the burst began.
    lasting: Option<u64>,
}

impl Burst {
    pub(crate) fn count(&mut self, reason: &str) {
        self.failed += 1;
        if self.failed == 1 {
            self.reason = reason.chars().take(100).collect();
        }
    }

    /// The end of a window in which this many messages were done.
    pub(crate) fn window(&mut self, done: u64) -> Option<Note> {
        let failed = std::mem::take(&mut self.failed);
        let is_burst = failed >= BURST_MIN && failed >= done;
        let before = self.lasting;
        self.lasting = is_burst.then(|| before.unwrap_or(0) + failed);
        match (before, is_burst) {
            (None, true) => {
                let all = failed + done;
                let text = format!("{failed} of {all} messages failed: {}", self.reason);
                Some(Note::new("errors", text))
            }
            (Some(lasting), false) => {
                let text = format!("the burst of errors is over: {lasting} messages failed");
                Some(Note::new("errors-over", text))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_entries_is_counted_and_hides_no_other_kind() {
        let now = Instant::now();
        let mut thrift = Thrift::new(now);
        let passed = (0..100).filter(|_| thrift.passes("claim-lost", now)).count();
        assert_eq!((passed, thrift.rest(now)), (PER_MINUTE as usize, None));
        assert!(thrift.passes("data-loss", now));
        let rest = thrift.rest(now + MINUTE).expect("a count");
        assert!(rest.text.starts_with("70 more"), "{rest:?}");
        assert!(thrift.passes("claim-lost", now + MINUTE));
        assert!(thrift.rest(now + MINUTE * 3).is_none());
    }

    #[test]
    fn a_burst_is_told_when_it_begins_and_when_it_ends() {
        let mut burst = Burst::default();
        let fail = |burst: &mut Burst, n: u64| (0..n).for_each(|_| burst.count("no such order"));
        fail(&mut burst, 9);
        assert_eq!(burst.window(0), None, "too few");
        fail(&mut burst, 50);
        assert_eq!(burst.window(950), None, "five of a hundred");
        fail(&mut burst, 30);
        let note = burst.window(10).expect("it begins");
        assert_eq!(note.text, "30 of 40 messages failed: no such order");
        fail(&mut burst, 20);
        assert_eq!(burst.window(3), None, "it lasts");
        let note = burst.window(100).expect("it ends");
        assert_eq!(note.text, "the burst of errors is over: 50 messages failed");
    }

    #[test]
    fn what_a_script_writes_is_not_written_again() {
        use crate::id::MemberId;
        assert_eq!(Note::of(&Notice::Joined { member: MemberId::random() }), None);
        assert!(Note::of(&Notice::NoWorker).is_some());
    }
}
