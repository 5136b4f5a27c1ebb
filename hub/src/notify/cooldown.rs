//! What is told, and what is held back because it was told a moment ago.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::handler::Severity;

/// Troubles that are remembered; beyond them the one told longest ago is forgotten.
const KEYS_MAX: usize = 1024;

type Key = (Severity, String);

#[derive(Debug)]
struct Told {
    at: Instant,
    held: u64,
}

#[derive(Debug)]
pub(super) struct Cooldown {
    time: Duration,
    told: HashMap<Key, Told>,
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

    pub(super) fn decide(&mut self, key: &Key, now: Instant) -> Decision {
        if let Some(told) = self.told.get_mut(key) {
            if now.duration_since(told.at) < self.time {
                told.held += 1;
                return Decision::Hold;
            }
            let repeated = std::mem::take(&mut told.held);
            told.at = now;
            return Decision::Tell { repeated };
        }
        if self.told.len() >= KEYS_MAX {
            let oldest = self.told.iter().min_by_key(|(_, told)| told.at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.told.remove(&oldest);
            }
        }
        self.told.insert(key.clone(), Told { at: now, held: 0 });
        Decision::Tell { repeated: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_told_once_per_cooldown() {
        let (mut cooldown, start) = (Cooldown::new(Duration::from_secs(60)), Instant::now());
        let key = (Severity::Critical, "billing".to_string());
        assert_eq!(cooldown.decide(&key, start), Decision::Tell { repeated: 0 });
        for second in 1..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(cooldown.decide(&key, now), Decision::Hold);
        }
        let later = start + Duration::from_secs(60);
        assert_eq!(cooldown.decide(&key, later), Decision::Tell { repeated: 59 });
        let other = (Severity::Error, "billing".to_string());
        assert_eq!(cooldown.decide(&other, later), Decision::Tell { repeated: 0 });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut cooldown, start) = (Cooldown::new(Duration::from_secs(60)), Instant::now());
        for number in 0..2 * KEYS_MAX as u64 {
            let now = start + Duration::from_millis(number);
            cooldown.decide(&(Severity::Error, number.to_string()), now);
        }
        assert_eq!(cooldown.told.len(), KEYS_MAX);
    }
}
