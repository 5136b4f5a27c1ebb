//! Which lane a block starts with, as a pure function of its number.
//!
//! **Invariant:** in a cycle of as many blocks as the weights add up to, each lane is first exactly as
//! often as its weight, spread as evenly as possible. So no lane is starved, however full the others
//! are. What the first lane cannot fill is filled from the others, the most urgent first.

use crate::config::LaneWeights;
use crate::lane::Lane;

/// A whole cycle of turns.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Vec<Lane>);

impl Turns {
    pub(crate) fn new(weights: LaneWeights) -> Turns {
        let LaneWeights { high, generated, normal, low } = weights;
        let weights = [
            (Lane::High, i64::from(high)),
            (Lane::Generated, i64::from(generated)),
            (Lane::Normal, i64::from(normal)),
            (Lane::Low, i64::from(low)),
        ];
        let total: i64 = weights.iter().map(|(_, weight)| weight).sum();
        // In every turn each lane earns its weight. The richest lane is first and pays for the turn.
        let mut purse = [0; 4];
        let turn = |_| {
            let mut richest = 0;
            for (at, (_, weight)) in weights.iter().enumerate() {
                purse[at] += weight;
                if purse[at] > purse[richest] {
                    richest = at;
                }
            }
            purse[richest] -= total;
            weights[richest].0
        };
        Turns((0..total).map(turn).collect())
    }

    /// The order in which block `n` is filled.
    pub(crate) fn order(&self, n: u64) -> [Lane; 4] {
        let mut order = Lane::ALL;
        if let Some(first) = self.0.get((n % self.0.len().max(1) as u64) as usize) {
            // The sort is stable: the others stay in their order.
            order.sort_by_key(|lane| lane != first);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_is_first_as_often_as_its_weight() {
        let turns = Turns::new(LaneWeights::default());
        let firsts: Vec<Lane> = (0..16).map(|n| turns.order(n)[0]).collect();
        for (lane, weight) in
            [(Lane::High, 10), (Lane::Generated, 3), (Lane::Normal, 2), (Lane::Low, 1)]
        {
            assert_eq!(firsts.iter().filter(|first| **first == lane).count(), weight, "{lane}");
        }
        assert_eq!(turns.order(16), turns.order(0));
    }

    #[test]
    fn the_others_follow_by_urgency() {
        let turns = Turns::new(LaneWeights { high: 0, generated: 0, normal: 0, low: 1 });
        assert_eq!(turns.order(7), [Lane::Low, Lane::High, Lane::Generated, Lane::Normal]);
    }

    #[test]
    fn the_turns_of_a_lane_are_spread_out() {
        let turns = Turns::new(LaneWeights { high: 1, generated: 1, normal: 0, low: 0 });
        let firsts: Vec<Lane> = (0..4).map(|n| turns.order(n)[0]).collect();
        assert_eq!(firsts, [Lane::High, Lane::Generated, Lane::High, Lane::Generated]);
    }
}
