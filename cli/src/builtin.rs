//! The built-in generator (random readable text) and the built-in handler (fails 5 % of the
//! messages).

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use artel::{Context, Message, Outcome};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::args::time;

const SUBJECTS: [&str; 8] = [
    "a courier",
    "the baker",
    "our captain",
    "a gardener",
    "the clerk",
    "a pilot",
    "the smith",
    "a diver",
];
const VERBS: [&str; 8] =
    ["brings", "counts", "loses", "mends", "orders", "sells", "sends", "weighs"];
const OBJECTS: [&str; 8] =
    ["crates", "letters", "maps", "nails", "ropes", "sails", "seeds", "stones"];
const PLACES: [&str; 8] = [
    "at the harbour",
    "before noon",
    "by the river",
    "for the market",
    "in the rain",
    "on the hill",
    "to the island",
    "under the bridge",
];

/// Random readable text.
pub(crate) struct Text {
    rng: StdRng,
}

impl Text {
    pub(crate) fn new(seed: Option<u64>) -> Text {
        Text { rng: rng(seed) }
    }

    pub(crate) fn next(&mut self) -> String {
        let mut pick = |words: &[&'static str; 8]| words[self.rng.random_range(0..words.len())];
        let (subject, verb, object, place) =
            (pick(&SUBJECTS), pick(&VERBS), pick(&OBJECTS), pick(&PLACES));
        let count = self.rng.random_range(2..1000);
        format!("{subject} {verb} {count} {object} {place}")
    }
}

fn rng(seed: Option<u64>) -> StdRng {
    StdRng::seed_from_u64(seed.unwrap_or_else(rand::random))
}

/// Simulated work: a time, or a time per byte.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkTime {
    fixed: Duration,
    per_byte: Duration,
}

impl WorkTime {
    fn of(self, bytes: usize) -> Duration {
        self.fixed + self.per_byte.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
    }
}

impl FromStr for WorkTime {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkTime, String> {
        match text.strip_suffix("/byte") {
            Some(per_byte) => Ok(WorkTime { per_byte: time(per_byte)?, ..WorkTime::default() }),
            None => Ok(WorkTime { fixed: time(text)?, ..WorkTime::default() }),
        }
    }
}

/// The built-in handler: simulates work, then fails a share of the messages.
pub(crate) struct Inspector {
    rng: Mutex<StdRng>,
    error_rate: f64,
    work_time: WorkTime,
}

impl Inspector {
    pub(crate) fn new(seed: Option<u64>, error_rate: f64, work_time: WorkTime) -> Inspector {
        Inspector { rng: Mutex::new(rng(seed)), error_rate, work_time }
    }

    pub(crate) async fn inspect(&self, message: Message, context: Context) -> Outcome {
        let work = self.work_time.of(message.payload().len());
        tracing::debug!(id = %context.id, attempt = context.attempt, text = %message.text(), "message");
        if !work.is_zero() {
            tokio::time::sleep(work).await;
        }
        let draw: f64 = self.rng.lock().unwrap_or_else(PoisonError::into_inner).random();
        if draw < self.error_rate { Outcome::failed("found in error") } else { Outcome::done() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_text_repeatable() {
        let (mut one, mut two) = (Text::new(Some(7)), Text::new(Some(7)));
        assert_eq!(one.next(), two.next());
        assert_ne!(one.next(), one.next());
    }

    #[test]
    fn work_is_a_time_or_a_time_per_byte() {
        assert_eq!("2s".parse::<WorkTime>().map(|work| work.of(9)), Ok(Duration::from_secs(2)));
        let per_byte = "10us/byte".parse::<WorkTime>().map(|work| work.of(9));
        assert_eq!(per_byte, Ok(Duration::from_micros(90)));
        assert!("fast".parse::<WorkTime>().is_err());
    }
}
