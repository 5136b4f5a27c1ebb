//! How much to ask for, as a pure function of the load.
//!
//! **Invariant:** a worker asks for as many messages as its free slots can start now, plus about 25 ms
//! of work: hundreds of tiny messages, or none beyond the free slots when they are slow. A slot that is
//! busy with one message for longer than that is not counted on. A message that then waits 100 ms
//! longer than planned is overdue, and an idle worker may have it.

use std::time::Duration;

/// How much work is kept ready, so that slots do not wait for Redis.
pub(super) const AHEAD: Duration = Duration::from_millis(25);

/// The most full blocks that are kept ready: one is handled while the next travels.
const BLOCKS_AHEAD: usize = 3;

/// A message that has waited for a slot for longer than this is overdue: the plan, and 100 ms.
pub(super) const OVERDUE: Duration = Duration::from_millis(25 + 100);

/// How much work a slot takes at a time.
pub(super) const GROUP: Duration = Duration::from_micros(100);

/// How many of the messages that wait a slot takes at a time, if one takes this long: about [`GROUP`] of work, and at most
/// half of what waits. Before anything is known it is one.
pub(super) fn group(mean: Option<Duration>, waiting: usize) -> usize {
    let planned = mean.map_or(1, |mean| GROUP.as_nanos() / mean.as_nanos().max(1));
    usize::try_from(planned).unwrap_or(usize::MAX).clamp(1, waiting.div_ceil(2).max(1))
}

/// The load of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) slots: usize,
    /// Slots that are busy with one message for longer than [`AHEAD`].
    pub(super) stuck: usize,
    /// Claimed messages, started or not.
    pub(super) inside: usize,
    /// Mean handler time, if a message was handled yet.
    pub(super) mean: Option<Duration>,
    pub(super) batch_max: usize,
}

/// How many messages to ask for; 0 for none.
pub(super) fn ask(load: Load) -> usize {
    let free = load.slots.saturating_sub(load.inside);
    let surplus = load.inside.saturating_sub(load.slots);
    let ahead = match load.mean {
        None => 0,
        Some(mean) => {
            let moving = load.slots.saturating_sub(load.stuck);
            let ahead = AHEAD.as_nanos() * moving as u128 / mean.as_nanos().max(1);
            usize::try_from(ahead).unwrap_or(usize::MAX).min(load.batch_max * BLOCKS_AHEAD)
        }
    };
    if surplus > ahead / 2 {
        return 0;
    }
    (free + ahead - surplus).min(load.batch_max)
}

/// The mean after one more handler run: recent runs weigh more.
pub(super) fn mean_with(mean: Option<Duration>, took: Duration) -> Duration {
    // In whole nanoseconds: dividing a `Duration` takes longer than handling a tiny message.
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let Some(mean) = mean else { return took };
    let (mean, took) = (nanos(mean), nanos(took));
    Duration::from_nanos(mean - mean / 16 + took / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(queued: usize, running: usize, mean: Option<Duration>) -> Load {
        Load { slots: 4, stuck: 0, inside: queued + running, mean, batch_max: 500 }
    }

    #[test]
    fn slow_messages_are_claimed_only_by_free_slots() {
        let slow = Some(Duration::from_secs(2));
        assert_eq!(ask(load(0, 0, slow)), 4);
        assert_eq!(ask(load(0, 3, slow)), 1);
        assert_eq!(ask(load(0, 4, slow)), 0);
        assert_eq!(ask(load(2, 2, slow)), 0);
    }

    #[test]
    fn tiny_messages_are_claimed_by_the_hundred() {
        let tiny = Some(Duration::from_micros(2));
        assert_eq!(ask(load(0, 0, tiny)), 500);
        assert_eq!(
            ask(load(750, 4, tiny)),
            500,
            "the next block travels while this one is handled"
        );
        assert_eq!(ask(load(751, 4, tiny)), 0);
    }

    #[test]
    fn slots_that_are_stuck_are_not_counted_on() {
        let tiny = Some(Duration::from_millis(1));
        assert_eq!(ask(load(0, 0, tiny)), 104);
        assert_eq!(ask(Load { stuck: 2, ..load(0, 2, tiny) }), 52);
        assert_eq!(ask(Load { stuck: 4, ..load(0, 4, tiny) }), 0);
    }

    #[test]
    fn a_message_on_its_way_to_a_slot_does_not_hide_the_free_ones() {
        assert_eq!(ask(load(1, 0, None)), 3);
    }

    #[test]
    fn before_anything_is_known_only_free_slots_are_filled() {
        assert_eq!(ask(load(0, 1, None)), 3);
    }

    #[test]
    fn a_slot_takes_a_group_of_quick_messages_and_leaves_half() {
        let quick = Some(Duration::from_nanos(500));
        assert_eq!(group(quick, 1000), 200);
        assert_eq!(group(quick, 100), 50);
        assert_eq!((group(quick, 1), group(quick, 0)), (1, 1));
        assert_eq!(group(Some(Duration::ZERO), 1000), 500);
        assert_eq!(group(Some(Duration::from_millis(1)), 1000), 1);
        assert_eq!(group(None, 1000), 1);
    }

    #[test]
    fn the_mean_follows_recent_runs() {
        let mut mean = Some(Duration::from_millis(100));
        for _ in 0..100 {
            mean = Some(mean_with(mean, Duration::from_millis(1)));
        }
        assert!(mean < Some(Duration::from_millis(2)));
    }
}
