//! [`Priority`]: three lanes with weights. Inside a lane, events keep their order.
//!
//! **Invariant:** no lane starves. While all lanes have waiting events, every round of sixteen
//! takes eleven of high, four of normal and one of low priority.

use serde::{Deserialize, Serialize};

pub(crate) const LANES: usize = 3;
pub(crate) const HIGH: usize = 0;
pub(crate) const NORMAL: usize = 1;
pub(crate) const LOW: usize = 2;

/// How many events of a round each lane may take while other lanes have events.
const WEIGHTS: [u8; LANES] = [11, 4, 1];

/// How urgent an event is. Events of one priority keep their order.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Priority, Topic};
/// const JOBS: Topic<u32> = Topic::new("jobs");
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let _worker = hub.subscribe(&JOBS).spawn(move |job: Delivery<'_, u32>| send.send(*job))?;
/// hub.publish(&JOBS, 1).await?;
/// hub.publisher(&JOBS)?.with_priority(Priority::High).publish(2).await?;
/// hub.idle().await; // the subscriber runs only now
/// assert_eq!(received.try_iter().collect::<Vec<_>>(), [2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Handled before the others.
    High = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Handled when no others wait.
    Low = 2,
}

impl Priority {
    pub(crate) fn lane(self) -> usize {
        self as usize
    }
}

/// How many events each lane may still take in this round.
#[derive(Debug)]
pub(crate) struct Turn {
    left: [u8; LANES],
}

impl Turn {
    pub(crate) fn new() -> Turn {
        Turn { left: WEIGHTS }
    }

    /// Chooses the lane of the next event, given which lanes have events.
    pub(crate) fn choose(&mut self, waiting: [bool; LANES]) -> Option<usize> {
        for _ in 0..2 {
            let lane = (0..LANES).find(|lane| waiting[*lane] && self.left[*lane] > 0);
            if lane.is_some() {
                return lane;
            }
            self.left = WEIGHTS; // every waiting lane has used up its share
        }
        None
    }

    /// Records that one event of this lane was taken.
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
