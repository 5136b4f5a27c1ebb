//! What a message under test does: how often it is retried, whether it fails, what follows it.
//!
//! **Invariant:** the id of a message alone decides, or the number under which it was sent. So every attempt agrees, and the
//! checker knows what must happen.

use std::time::Duration;

use crate::history::{Id, Source};

/// Of a hundred messages, how many fail, and how many have effects that cannot be applied.
const FAILED_OF_100: u64 = 5;
const REFUSED_OF_100: u64 = 1;
/// Of a hundred messages, how many are retried, snoozed, and followed by another one.
const RETRIED_OF_100: u64 = 10;
const SNOOZED_OF_100: u64 = 2;
const FOLLOWED_OF_100: u64 = 5;
/// After how long a handler wants another run.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A number below 100 for this message; another one for each purpose.
fn fate((source, seq): Id, purpose: u64) -> u64 {
    let from = match source {
        Source::Term(from) | Source::Sender(from) => from,
        Source::Outcome(member) => (member ^ (member >> 64)) as u64,
        Source::Entry(kind, number) => 1_000_003 * (kind as u64 + 1) + u64::from(number),
    };
    let mut mixed = (from
        ^ purpose.wrapping_mul(0x94d0_49bb_1331_11eb)
        ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 31;
    mixed % 100
}

/// Must this message be kept as an error, or forgotten if its kind forgets?
pub(crate) fn is_failed(id: Id) -> bool {
    fate(id, 0) < FAILED_OF_100 + REFUSED_OF_100
}

/// Is that because Redis refuses its effects?
pub(crate) fn is_refused(id: Id) -> bool {
    is_failed(id) && fate(id, 0) >= FAILED_OF_100
}

/// Does a message that is done have effects? Both kinds must be tried.
pub(crate) fn has_effects((_, seq): Id) -> bool {
    seq / 3 % 2 == 0
}

/// How often its handler asks for a retry before it says how the message ended.
pub(crate) fn retries(id: Id) -> u32 {
    match fate(id, 1) {
        share if share < RETRIED_OF_100 => 1 + share as u32 % 3,
        _ => 0,
    }
}

/// How often its handler snoozes it first.
pub(crate) fn snoozes(id: Id) -> u32 {
    u32::from(fate(id, 2) < SNOOZED_OF_100)
}

/// Is its outcome followed by another message? Not if Redis refuses the outcome.
pub(crate) fn is_followed(id: Id) -> bool {
    fate(id, 3) < FOLLOWED_OF_100 && !is_refused(id)
}

/// The kind whose failures are not kept.
pub(crate) const NOISE: &str = "noise";

/// Is this message of a sender of the kind whose failures are not kept?
pub(crate) fn is_noise(number: u64) -> bool {
    number % 10 == 3
}

/// What a sender does with a message that it sends for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Later {
    /// Nothing: it starts at its time.
    Waits,
    Cancelled,
    RunNow,
    Moved,
}

/// For how long this message of a sender waits, and what becomes of it meanwhile.
pub(crate) fn later(number: u64) -> Option<(Duration, Later)> {
    let what = match (number % 8, number / 8 % 3) {
        (1 | 4, _) => Later::Waits,
        (7, 0) => Later::Cancelled,
        (7, 1) => Later::RunNow,
        (7, _) => Later::Moved,
        _ => return None,
    };
    Some((Duration::from_millis(400 + number % 7 * 200), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_end_comes() {
        let ids: Vec<Id> =
            (0..20_000).map(|seq| (Source::Term(1_794_710_083_943_807), seq)).collect();
        let share = |is: &dyn Fn(Id) -> bool| {
            ids.iter().filter(|id| is(**id)).count() as f64 / ids.len() as f64
        };
        let near = |share: f64, wanted: f64| (share - wanted).abs() < wanted / 3.0;
        assert!(near(share(&is_failed), 0.06) && near(share(&is_refused), 0.01));
        assert!(
            near(share(&|id| retries(id) > 0), 0.10) && near(share(&|id| retries(id) == 3), 0.03)
        );
        assert!(near(share(&|id| snoozes(id) > 0), 0.02) && near(share(&is_followed), 0.05));
        assert!(ids.iter().any(|id| retries(*id) > 0 && is_failed(*id) && is_followed(*id)));
        let of = |what| {
            (0..24).filter(|number| later(*number).is_some_and(|(_, is)| is == what)).count()
        };
        assert_eq!(
            [Later::Waits, Later::Cancelled, Later::RunNow, Later::Moved].map(of),
            [6, 1, 1, 1]
        );
    }
}
