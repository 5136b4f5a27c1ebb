//! What must hold, by name; and what there was, whether promised or not.

use serde::Serialize;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Invariant {
    /// All messages of a term come from one process, and none was made after a later term had begun.
    OneGenerator,
    /// Nobody trusts its session longer than two thirds of a lease after a call that was answered.
    TrustBounded,
    /// The numbers within a term have no gaps.
    DenseSequences,
    /// What a generator keeps goes with its messages: the next leader begins where the last one stopped.
    StateKept,
    /// No message has two outcomes.
    SettledOnce,
    /// Every message that was accepted has an outcome.
    NothingLost,
    /// No message has an outcome that nobody made, or another outcome than its handler gave.
    NothingInvented,
    /// A message has an outcome only after a handler returned it.
    HandledFirst,
    /// A worker that was told its outcome is recorded was told the truth.
    AnswersTrue,
    /// What is sent under a key, and a failed message that is put back to work, is added once.
    AddedOnce,
    /// Effects happened exactly as often as outcomes say.
    EffectsEqualOutcomes,
    /// No attempt at a message is made twice, and none after the last that is allowed.
    EachAttemptOnce,
    /// What was taken and what is stored is what failed.
    ErrorsKept,
    /// Added equals waiting plus held plus settled, and every counter equals the facts.
    BooksBalance,
    /// Nobody says that Redis lost data when it has not.
    NoLossInvented,
    /// Nobody is judged dead within a lease of a call that was answered, if nothing was in its way.
    WellAreSpared,
    /// Whoever waits for an event returns when it is set.
    NoWakeUpMissed,
    /// Once the faults are over somebody leads, everybody takes part, and the queue empties.
    Heals,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Invariant; 18] = [
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
        Invariant::NoLossInvented,
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
            Invariant::NoLossInvented => "no loss reported where there was none",
            Invariant::WellAreSpared => "nobody well is judged dead",
            Invariant::NoWakeUpMissed => "no wake-up missed",
            Invariant::Heals => "heals within the bound",
        }
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// What was broken.
    pub invariant: Invariant,
    /// How, in words.
    pub what: String,
    /// Words to look for in the history.
    #[serde(skip)]
    pub(crate) about: Vec<String>,
    /// The lines of the history that show it.
    pub history: Vec<String>,
}

/// What there was, whether promised or not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// Messages that were accepted.
    pub accepted: u64,
    /// Messages with an outcome.
    pub settled: u64,
    /// Messages with a second outcome: there must be none.
    pub settled_twice: u64,
    /// Those that were sent or put back to work, not generated.
    pub sent: u64,
    /// Those found in error.
    pub failed: u64,
    /// Those that failed because so many workers died over them.
    pub given_up: u64,
    /// Errors taken.
    pub taken: u64,
    /// Terms under which messages were accepted.
    pub terms: u64,
    /// Second and further attempts: a handler may run more than once.
    pub attempted_again: u64,
    /// Outcomes that were not recorded because the message had moved on.
    pub claims_lost: u64,
    /// Writes of a generator that no longer led, refused.
    pub fenced: u64,
    /// Messages of dead members that were put back.
    pub adopted: u64,
    /// Errors printed more than once: a taker died between printing and saying so.
    pub printed_again: u64,
    /// Calls that were repeated, and that Redis said it had carried out already.
    pub already: u64,
    /// Waits for an event that returned.
    pub woken: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// How often the file of Redis was torn by a kill, and had to be written anew.
    pub torn: u64,
    /// How often Redis came back without all of its data.
    pub losses: u64,
    /// Accepted messages that went with the data of Redis.
    pub lost_with_redis: u64,
    /// Attempts and outcomes that Redis forgot, and that were made again.
    pub redone_after_loss: u64,
    /// How often members said that Redis had lost data.
    pub loss_noticed: u64,
    /// How often generating had to wait for room.
    pub full: u64,
}
