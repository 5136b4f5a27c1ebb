//! The peers, each the way its own documentation recommends, and lossless.

mod actors;
mod buses;
mod channels;

use crate::case::Case;

/// All rows that are not ours.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = channels::cases();
    cases.extend(actors::cases());
    cases.extend(buses::cases());
    cases
}
