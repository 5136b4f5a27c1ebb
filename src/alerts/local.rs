//! What one process judges for itself: whether it fires, and what each sink must be told of it. Pure.
//!
//! **Invariant:** a sink is told the begin of an episode, and then its end, in this order. What a sink could not be told is told
//! later, as long as nothing has begun since.

use std::time::Instant;

use super::rule::AlertRule;
use super::sinks::Told;

/// Whether an alert that one process judges for itself fires.
#[derive(Debug, Default)]
pub(super) struct Local {
    since: Option<Instant>,
    fires: bool,
    ended: Option<Instant>,
    /// How often it has fired.
    episode: u64,
}

/// What is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Firing,
    Resolved,
}

impl Local {
    pub(super) fn step(&mut self, holds: bool, rule: &AlertRule, now: Instant) -> Option<Change> {
        if !holds {
            self.since = None;
            if !std::mem::take(&mut self.fires) {
                return None;
            }
            self.ended = Some(now);
            return Some(Change::Resolved);
        }
        let since = *self.since.get_or_insert(now);
        let cooled = self.ended.is_none_or(|ended| now.duration_since(ended) >= rule.cooldown);
        let fires = now.duration_since(since) >= rule.hold && cooled;
        let is_new = fires && !self.fires;
        self.fires |= fires;
        self.episode += u64::from(is_new);
        is_new.then_some(Change::Firing)
    }
}

/// What one sink was told of one alert: the last episode that it knows to have begun, and to have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    fired: u64,
    resolved: u64,
    is_busy: bool,
    in_doubt: Option<Change>,
}

impl Said {
    /// What must be told now, and whether it may have been told before. Then it is busy until [`end`](Said::end).
    pub(super) fn begin(&mut self, local: &Local) -> Option<(Change, u64, bool)> {
        let (change, episode) = match self.fired > self.resolved {
            true if local.episode > self.fired || !local.fires => (Change::Resolved, self.fired),
            false if local.episode > self.fired => (Change::Firing, local.episode),
            _ => return None,
        };
        if std::mem::replace(&mut self.is_busy, true) {
            return None;
        }
        Some((change, episode, self.in_doubt == Some(change)))
    }

    /// Is it being told now?
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub(super) fn end(&mut self, change: Change, episode: u64, told: Told) {
        self.is_busy = false;
        match (told, change) {
            (Told::No, _) => {}
            (Told::InDoubt, change) => self.in_doubt = Some(change),
            (Told::Yes, change) => {
                self.in_doubt = None;
                let known = match change {
                    Change::Firing => &mut self.fired,
                    Change::Resolved => &mut self.resolved,
                };
                *known = episode;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_local_alert_fires_once_after_its_hold_and_is_resolved_once() {
        let rule: AlertRule = "redis_down > 10s cooldown 60s".parse().expect("a rule");
        let begun = Instant::now();
        let (mut local, s) = (Local::default(), Duration::from_secs);
        let mut at = |second: u64, holds| local.step(holds, &rule, begun + s(second));
        assert_eq!((at(0, true), at(9, true), at(9, false)), (None, None, None), "too short");
        assert_eq!((at(10, true), at(20, true)), (None, Some(Change::Firing)));
        assert_eq!((at(30, true), at(40, false)), (None, Some(Change::Resolved)));
        assert_eq!((at(41, false), at(42, true), at(60, true)), (None, None, None), "cooldown");
        assert_eq!((at(100, true), at(101, true)), (Some(Change::Firing), None));
    }

    #[test]
    fn a_sink_that_could_not_be_told_is_told_begin_and_end_later() {
        let rule: AlertRule = "redis_down > 0s".parse().expect("a rule");
        let (mut local, mut said, now) = (Local::default(), Said::default(), Instant::now());
        assert_eq!(said.begin(&local), None);
        local.step(true, &rule, now);
        assert_eq!(said.begin(&local), Some((Change::Firing, 1, false)));
        assert_eq!(said.begin(&local), None, "it is being told");
        local.step(false, &rule, now);
        said.end(Change::Firing, 1, Told::No);
        assert_eq!(said.begin(&local), Some((Change::Firing, 1, false)), "it was not tried");
        said.end(Change::Firing, 1, Told::InDoubt);
        assert_eq!(said.begin(&local), Some((Change::Firing, 1, true)), "it may have arrived");
        said.end(Change::Firing, 1, Told::Yes);
        assert_eq!(said.begin(&local), Some((Change::Resolved, 1, false)));
        said.end(Change::Resolved, 1, Told::Yes);
        assert_eq!(said.begin(&local), None);
    }
}
