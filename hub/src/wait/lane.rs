//! [`Priority`]: a few lanes with weights, first come first served inside each.
//!
//! **Invariant:** no lane starves: while all lanes have events waiting, every round of sixteen
//! takes eleven of high, four of normal and one of low priority.

use serde::{Deserialize, Serialize};

/// How many lanes there are.
pub(crate) const LANES: usize = 3;
pub(crate) const HIGH: usize = 0;
pub(crate) const NORMAL: usize = 1;
pub(crate) const LOW: usize = 2;

/// How much of a round each lane may take while others wait.
const WEIGHTS: [u8; LANES] = [11, 4, 1];

/// How urgent an event is. Order is kept among events of one priority.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Before the others.
    High = 0,
    /// The usual.
    #[default]
    Normal = 1,
    /// When there is nothing better to do.
    Low = 2,
}

impl Priority {
    pub(crate) fn lane(self) -> usize {
        self as usize
    }
}

/// What each lane may still take of this round.
#[derive(Debug)]
pub(crate) struct Turn {
    left: [u8; LANES],
}

impl Turn {
    pub(crate) fn new() -> Turn {
        Turn { left: WEIGHTS }
    }

    /// The lane to take the next event from, given which have any.
    pub(crate) fn choose(&mut self, waiting: [bool; LANES]) -> Option<usize> {
        for _ in 0..2 {
            let lane = (0..LANES).find(|lane| waiting[*lane] && self.left[*lane] > 0);
            if lane.is_some() {
                return lane;
            }
            self.left = WEIGHTS; // whoever waits has used up its share
        }
        None
    }

    /// One event of this lane was taken.
    pub(crate) fn took(&mut self, lane: usize) {
        self.left[lane] = self.left[lane].saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(turn: &mut Turn, waiting: [bool; LANES]) -> Option<usize> {
        let lane = turn.choose(waiting)?;
        turn.took(lane);
        Some(lane)
    }

    #[test]
    fn no_lane_starves() {
        let mut turn = Turn::new();
        for _ in 0..4 {
            let mut taken = [0; LANES];
            for _ in 0..16 {
                taken[take(&mut turn, [true; LANES]).expect("one waits")] += 1;
            }
            assert_eq!(taken, [11, 4, 1]);
        }
    }

    #[test]
    fn a_lane_that_is_alone_is_never_held_back() {
        let mut turn = Turn::new();
        for _ in 0..100 {
            assert_eq!(take(&mut turn, [false, false, true]), Some(2));
        }
        assert_eq!(take(&mut turn, [true, false, true]), Some(0));
        assert_eq!(take(&mut turn, [false; LANES]), None);
    }
}
