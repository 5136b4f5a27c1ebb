//! Decides which alerts are sent and which are held back because a similar one was sent recently.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::run::handler::Severity;

/// How many kinds of trouble are remembered. Beyond that, the one sent longest ago is forgotten.
const KEYS_MAX: usize = 1024;

/// The severity, the source and the kind of a trouble.
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

/// What to do with an alert.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send it. `repeated` similar alerts were held back since the last one was sent.
    Tell { repeated: u64 },
    /// Hold it back: a similar one was sent recently.
    Hold,
}

impl Cooldown {
    pub(super) fn new(time: Duration) -> Cooldown {
        Cooldown { time, told: HashMap::new() }
    }

    /// What to do with an alert. Its cooldown starts when it is reported as sent with
    /// [`Cooldown::told`].
    pub(super) fn decide(&mut self, key: &Key, now: Instant) -> Decision {
        let Some(told) = self.told.get_mut(key) else { return Decision::Tell { repeated: 0 } };
        if now.duration_since(told.at) < self.time {
            told.held += 1;
            return Decision::Hold;
        }
        Decision::Tell { repeated: told.held }
    }

    /// Records that an alert was sent.
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
        // It could not be sent: the next one is not held back.
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
