//! What is told, and what is held back because it was told a moment ago.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::run::handler::Severity;

/// Troubles that are remembered; beyond them the one told longest ago is forgotten.
const KEYS_MAX: usize = 1024;

/// How bad it is, where, and which kind of trouble.
pub(super) type Key = (Severity, String, &'static str);

#[derive(Debug)]
struct LastSent {
    at: Instant,
    held: u64,
}

#[derive(Debug)]
pub(super) struct Cooldown {
    time: Duration,
    told: HashMap<Key, LastSent>,
}

/// What is to be done with an alert.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Tell it, and that the like happened so often since the last time.
    Tell { repeated: u64 },
    /// It was told lately.
    Hold,
}

impl Cooldown {
    pub(super) fn new(time: Duration) -> Cooldown {
        Cooldown { time, told: HashMap::new() }
    }

    /// What is to be done with an alert; it cools down once it was [told](Cooldown::told).
    pub(super) fn decide(&mut self, key: &Key, now: Instant) -> Decision {
        let Some(told) = self.told.get_mut(key) else { return Decision::Tell { repeated: 0 } };
        if now.duration_since(told.at) < self.time {
            told.held += 1;
            return Decision::Hold;
        }
        Decision::Tell { repeated: told.held }
    }

    /// Somebody has it.
    pub(super) fn told(&mut self, key: &Key, now: Instant) {
        if self.told.len() >= KEYS_MAX && !self.told.contains_key(key) {
            let oldest = self.told.iter().min_by_key(|(_, told)| told.at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.told.remove(&oldest);
            }
        }
        self.told.insert(key.clone(), LastSent { at: now, held: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_told_once_per_cooldown() {
        let (mut cooldown, start) = (Cooldown::new(Duration::from_secs(60)), Instant::now());
        let key = (Severity::Critical, "billing".to_string(), "alert");
        assert_eq!(cooldown.decide(&key, start), Decision::Tell { repeated: 0 });
        // Nobody could be told: the next one is not held back.
        assert_eq!(cooldown.decide(&key, start), Decision::Tell { repeated: 0 });
        cooldown.told(&key, start);
        for second in 1..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(cooldown.decide(&key, now), Decision::Hold);
        }
        let later = start + Duration::from_secs(60);
        assert_eq!(cooldown.decide(&key, later), Decision::Tell { repeated: 59 });
        cooldown.told(&key, later);
        assert_eq!(cooldown.decide(&key, later), Decision::Hold);
        let other = (Severity::Error, "billing".to_string(), "alert");
        assert_eq!(cooldown.decide(&other, later), Decision::Tell { repeated: 0 });
        let kind = (Severity::Critical, "billing".to_string(), "letters_lost");
        assert_eq!(cooldown.decide(&kind, later), Decision::Tell { repeated: 0 });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut cooldown, start) = (Cooldown::new(Duration::from_secs(60)), Instant::now());
        for number in 0..2 * KEYS_MAX as u64 {
            let now = start + Duration::from_millis(number);
            cooldown.told(&(Severity::Error, number.to_string(), "alert"), now);
        }
        assert_eq!(cooldown.told.len(), KEYS_MAX);
    }
}
