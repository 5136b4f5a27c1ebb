//! The promises by name, and the counts of a run, also of what is not promised.

use serde::Serialize;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Invariant {
    /// All messages of a term come from one process, and none was made after a later term had begun.
    OneGenerator,
    /// No process trusts its session longer than two thirds of a lease after a call that was
    /// answered.
    TrustBounded,
    /// The numbers within a term have no gaps.
    DenseSequences,
    /// The state that a generator keeps matches its messages: the next leader begins where the last
    /// one stopped.
    StateKept,
    /// No message has two outcomes.
    SettledOnce,
    /// Every message that was accepted has an outcome.
    NothingLost,
    /// Every outcome belongs to a message that somebody made, and is the outcome that its handler
    /// returned.
    NothingInvented,
    /// A message has an outcome only after a handler returned it.
    HandledFirst,
    /// If Redis confirmed to a worker that its outcome is recorded, it is recorded.
    AnswersTrue,
    /// A message that is sent under a key is added once, and so is a failed message that is put
    /// back to work.
    AddedOnce,
    /// Effects happened exactly as often as the outcomes require.
    EffectsEqualOutcomes,
    /// No attempt at a message is made twice, and none is made after the last allowed attempt.
    EachAttemptOnce,
    /// The errors that were taken or are stored are exactly the messages that failed.
    ErrorsKept,
    /// Added equals waiting plus held plus settled, and every counter equals the facts.
    BooksBalance,
    /// No message starts before its time, and no run that a handler asked for comes too early.
    NotBeforeItsTime,
    /// At every quiet point nothing is overdue.
    NotLate,
    /// A message runs as often as its handler asked for, and every run that was promised comes.
    RetriedAsTold,
    /// What follows an outcome is added once, and only with that outcome.
    FollowUpsOnce,
    /// A periodic entry fires once for each time; one that makes up for all times misses none.
    EntriesOnce,
    /// No process reports that Redis lost data when it has not.
    NoLossInvented,
    /// What a living process was told and Redis forgot is named, with at least its amount.
    NoLossUnnamed,
    /// No member is judged dead within a lease of a call that was answered, if nothing disturbed
    /// it.
    WellAreSpared,
    /// Every waiter returns when its event is set.
    NoWakeUpMissed,
    /// After the faults, a member leads, all members take part, and the queue empties.
    Heals,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Invariant; 24] = [
        Invariant::OneGenerator,
        Invariant::TrustBounded,
        Invariant::DenseSequences,
        Invariant::StateKept,
        Invariant::SettledOnce,
        Invariant::NothingLost,
        Invariant::NothingInvented,
        Invariant::HandledFirst,
        Invariant::AnswersTrue,
        Invariant::AddedOnce,
        Invariant::EffectsEqualOutcomes,
        Invariant::EachAttemptOnce,
        Invariant::ErrorsKept,
        Invariant::BooksBalance,
        Invariant::NotBeforeItsTime,
        Invariant::NotLate,
        Invariant::RetriedAsTold,
        Invariant::FollowUpsOnce,
        Invariant::EntriesOnce,
        Invariant::NoLossInvented,
        Invariant::NoLossUnnamed,
        Invariant::WellAreSpared,
        Invariant::NoWakeUpMissed,
        Invariant::Heals,
    ];

    /// Is it judged only for terms whose messages Redis has not lost?
    pub(crate) fn needs_data(self) -> bool {
        matches!(
            self,
            Invariant::DenseSequences
                | Invariant::SettledOnce
                | Invariant::NothingLost
                | Invariant::HandledFirst
                | Invariant::AnswersTrue
                | Invariant::AddedOnce
                | Invariant::NoLossInvented
                | Invariant::EffectsEqualOutcomes
                | Invariant::EachAttemptOnce
                | Invariant::ErrorsKept
                | Invariant::RetriedAsTold
                | Invariant::FollowUpsOnce
                | Invariant::EntriesOnce
        )
    }

    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Invariant::OneGenerator => "one accepted generator at a time",
            Invariant::TrustBounded => "nobody trusts itself for too long",
            Invariant::DenseSequences => "numbers without gaps",
            Invariant::StateKept => "generators go on where the last one stopped",
            Invariant::SettledOnce => "settled exactly once",
            Invariant::NothingLost => "nothing lost",
            Invariant::NothingInvented => "nothing invented, nothing of the fenced",
            Invariant::HandledFirst => "settled only after it was handled",
            Invariant::AnswersTrue => "recorded means recorded",
            Invariant::AddedOnce => "sent or put back, added once",
            Invariant::EffectsEqualOutcomes => "effects equal outcomes",
            Invariant::EachAttemptOnce => "each attempt made once",
            Invariant::ErrorsKept => "errors taken equal errors stored",
            Invariant::BooksBalance => "books balance",
            Invariant::NotBeforeItsTime => "nothing before its time",
            Invariant::NotLate => "nothing overdue",
            Invariant::RetriedAsTold => "retried as told",
            Invariant::FollowUpsOnce => "follow-ups once, with their outcome",
            Invariant::EntriesOnce => "periodic entries once for each time",
            Invariant::NoLossInvented => "no loss reported where there was none",
            Invariant::NoLossUnnamed => "what was told and lost is named",
            Invariant::WellAreSpared => "nobody well is judged dead",
            Invariant::NoWakeUpMissed => "no wake-up missed",
            Invariant::Heals => "heals within the bound",
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// The promise that is broken.
    pub invariant: Invariant,
    /// How, in words.
    pub what: String,
    /// Words to look for in the history.
    #[serde(skip)]
    pub(crate) about: Vec<String>,
    /// The lines of the history that show it.
    pub history: Vec<String>,
}

/// The counts of a run, also of what is not promised.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// Messages that were accepted.
    pub accepted: u64,
    /// Messages with an outcome.
    pub settled: u64,
    /// Of these, those that were settled while the fleet kept no ledger.
    pub settled_without_ledger: u64,
    /// Messages with a second outcome: there must be none.
    pub settled_twice: u64,
    /// Messages that were sent or put back to work, not generated.
    pub sent: u64,
    /// Messages that failed.
    pub failed: u64,
    /// Messages that failed because too many workers died while they held them.
    pub given_up: u64,
    /// Errors taken.
    pub taken: u64,
    /// Terms under which messages were accepted.
    pub terms: u64,
    /// Second and further attempts: a handler may run more than once.
    pub attempted_again: u64,
    /// Runs that ended with a retry or a snooze.
    pub run_again: u64,
    /// Messages that were sent for later.
    pub delayed: u64,
    /// Messages that follow an outcome.
    pub followed: u64,
    /// Messages of periodic entries.
    pub fired: u64,
    /// Messages that were cancelled while they waited for their time.
    pub cancelled: u64,
    /// Outcomes that were not recorded because another worker had the message.
    pub claims_lost: u64,
    /// Refused writes of generators that no longer led.
    pub fenced: u64,
    /// Messages of dead members that were put back.
    pub adopted: u64,
    /// Errors that were printed more than once, because a taker died between printing and
    /// confirming.
    pub printed_again: u64,
    /// Repeated calls that Redis had carried out already.
    pub already: u64,
    /// Waits for an event that returned.
    pub woken: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// How often a kill tore the append-only file of Redis, so that it had to be rewritten.
    pub torn: u64,
    /// How often Redis came back without all of its data.
    pub losses: u64,
    /// Messages and outcomes that were lost, and that a process had heard of and lived to name.
    pub told_and_lost: u64,
    /// Steps that were named as lost.
    pub named: u64,
    /// Accepted messages that were lost with the data of Redis.
    pub lost_with_redis: u64,
    /// Attempts and outcomes that Redis forgot, and that were made again.
    pub redone_after_loss: u64,
    /// How often members reported that Redis had lost data.
    pub loss_noticed: u64,
    /// How often generating had to wait for room.
    pub full: u64,
}
