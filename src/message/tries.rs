//! [`Tries`]: how often a message was run, and why again.
//!
//! **Invariant:** runs that ended with a retry, with a snooze or with a wait for a member that knows the kind, and runs whose
//! worker died, are counted apart. The number of runs only grows.

/// How often a message was run. In an envelope: `runs`, `runs.retries.snoozes` if one of these two is not 0, or
/// `runs.retries.snoozes.waits` if it waited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tries {
    /// Runs that were begun, with this one.
    pub(crate) runs: u32,
    /// Runs that ended with a retry.
    pub(crate) retries: u32,
    /// Runs that ended with a snooze.
    pub(crate) snoozes: u32,
    /// Runs that ended because nobody here knows its kind.
    pub(crate) waits: u32,
}

impl Tries {
    /// The first run.
    pub(crate) const FIRST: Tries = Tries { runs: 1, retries: 0, snoozes: 0, waits: 0 };

    /// Reads them from an envelope.
    pub(super) fn read(text: &[u8]) -> Option<Tries> {
        let numbers = std::str::from_utf8(text).ok()?.split('.').map(str::parse);
        let numbers: Vec<u32> = numbers.collect::<Result<_, _>>().ok()?;
        match numbers[..] {
            [runs] => Some(Tries { runs, ..Tries::FIRST }),
            [runs, retries, snoozes] => Some(Tries { runs, retries, snoozes, waits: 0 }),
            [runs, retries, snoozes, waits] => Some(Tries { runs, retries, snoozes, waits }),
            _ => None,
        }
    }

    /// How many workers died over it.
    pub(crate) fn deaths(self) -> u32 {
        let others = [1, self.retries, self.snoozes, self.waits];
        others.into_iter().fold(self.runs, u32::saturating_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_snoozes_and_dead_workers_are_counted_apart() {
        let tries = |text: &str| Tries::read(text.as_bytes());
        assert_eq!(tries("1"), Some(Tries::FIRST));
        assert_eq!(tries("7.3.2"), Some(Tries { runs: 7, retries: 3, snoozes: 2, waits: 0 }));
        assert_eq!(tries("9.3.2.2").map(|tries| (tries.waits, tries.deaths())), Some((2, 1)));
        assert_eq!(tries("7.3.2").map(Tries::deaths), Some(1));
        assert_eq!(tries("4").map(Tries::deaths), Some(3));
        // Never below zero, whatever stands there.
        assert_eq!(tries("1.5.5").map(Tries::deaths), Some(0));
        for odd in [
            "",
            ".",
            "1.",
            "1.2",
            "1.2.",
            "1.2.3.",
            "1.2.3.4.5",
            "one",
            "1.x.3",
            "-1",
            "99999999999",
        ] {
            assert_eq!(tries(odd), None, "{odd}");
        }
    }
}
