//! Log lines that repeat: the first few are logged one by one, the others are counted and logged
//! together.
//!
//! **Invariant:** every line is logged or counted, and a count is logged within [`EVERY`]; a flood
//! of one kind of line cannot hide another kind, unless there are more than [`KINDS_MAX`] kinds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often the counts are logged.
pub(crate) const EVERY: Duration = Duration::from_secs(10);
/// How many kinds of lines are counted separately.
const KINDS_MAX: usize = 32;
/// Two lines are of the same kind if their first characters are the same: this many of them.
const COMPARED_CHARS: usize = 100;

pub(crate) struct Repeats {
    /// How many lines of a kind are logged one by one before the others are counted.
    singly: u64,
    known: BTreeMap<String, Repeat>,
}

struct Repeat {
    since: Instant,
    told: u64,
    more: u64,
    /// The last line that was counted.
    last: String,
}

/// The count of one kind of line.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Counted {
    pub(crate) more: u64,
    pub(crate) last: String,
}

impl Repeats {
    pub(crate) fn after(singly: u64) -> Repeats {
        Repeats { singly, known: BTreeMap::new() }
    }

    /// Is this line to be logged by itself? Otherwise it is counted.
    pub(crate) fn is_new(&mut self, what: &str, now: Instant) -> bool {
        self.is_new_of(same(what), what, now)
    }

    /// The same, for a caller that knows of which kind the line is.
    pub(crate) fn is_new_of(&mut self, kind: String, what: &str, now: Instant) -> bool {
        let mut key = kind;
        if self.known.len() >= KINDS_MAX && !self.known.contains_key(&key) {
            key = String::new(); // one kind for all the others
        }
        let repeat = self.known.entry(key).or_insert(Repeat {
            since: now,
            told: 0,
            more: 0,
            last: String::new(),
        });
        if repeat.told < self.singly {
            repeat.told += 1;
            return true;
        }
        repeat.more += 1;
        what.clone_into(&mut repeat.last);
        false
    }

    /// The counts that are due to be logged. A kind that did not come again is forgotten.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Counted> {
        let mut due = Vec::new();
        self.known.retain(|_, repeat| {
            if now.saturating_duration_since(repeat.since) < EVERY {
                return true;
            }
            repeat.since = now;
            let more = std::mem::take(&mut repeat.more);
            if more > 0 {
                due.push(Counted { more, last: std::mem::take(&mut repeat.last) });
            }
            more > 0
        });
        due
    }

    /// All counts that are not logged yet.
    pub(crate) fn rest(&mut self) -> Vec<Counted> {
        let known = std::mem::take(&mut self.known).into_values();
        let counted = known.filter(|repeat| repeat.more > 0);
        counted.map(|repeat| Counted { more: repeat.more, last: repeat.last }).collect()
    }
}

/// The key of a kind: the line without its numbers, which differ from line to line.
pub(crate) fn same(what: &str) -> String {
    let mut text = String::new();
    for c in what.chars().take(COMPARED_CHARS) {
        match c.is_ascii_digit() {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_hides_nothing_else() {
        let (mut repeats, now) = (Repeats::after(5), Instant::now());
        let told = (0..1000).filter(|n| repeats.is_new(&format!("no order {n}"), now)).count();
        assert_eq!(told, 5);
        assert!(repeats.is_new("no customer", now));
        assert_eq!(repeats.due(now + EVERY / 2), []);
        let last = "no order 999".to_owned();
        assert_eq!(repeats.due(now + EVERY), [Counted { more: 995, last }]);
    }

    #[test]
    fn what_stopped_is_told_again_when_it_comes_back() {
        let (mut repeats, now) = (Repeats::after(5), Instant::now());
        assert_eq!((0..7).filter(|_| repeats.is_new("x", now)).count(), 5);
        assert_eq!(repeats.due(now + EVERY).len(), 1);
        assert!(!repeats.is_new("x", now + EVERY), "it goes on");
        assert_eq!(repeats.due(now + 2 * EVERY).len(), 1);
        assert_eq!(repeats.due(now + 3 * EVERY), []);
        assert!(repeats.is_new("x", now + 3 * EVERY));
    }

    #[test]
    fn the_number_of_things_is_bounded() {
        let (mut repeats, now) = (Repeats::after(5), Instant::now());
        let name = |n: u8| char::from(b'!' + n % 90).to_string().repeat(usize::from(n / 90) + 1);
        for n in 0..200 {
            repeats.is_new(&name(n), now);
        }
        assert!(repeats.known.len() <= KINDS_MAX + 1);
        let counted: u64 = repeats.rest().iter().map(|counted| counted.more).sum();
        assert!(counted > 100, "{counted}");
    }
}
