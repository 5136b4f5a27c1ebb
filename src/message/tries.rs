//! [`Tries`]: how often a message was run, and why again.
//!
//! **Invariant:** runs that ended with a retry, runs that ended with a snooze and runs whose worker died are counted
//! apart. The number of runs only grows.

/// How often a message was run. In an envelope: `runs`, or `runs.retries.snoozes` if one of the last two is not 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tries {
    /// Runs that were begun, with this one.
    pub(crate) runs: u32,
    /// Runs that ended with a retry.
    pub(crate) retries: u32,
    /// Runs that ended with a snooze.
    pub(crate) snoozes: u32,
}

impl Tries {
    /// The first run.
    pub(crate) const FIRST: Tries = Tries { runs: 1, retries: 0, snoozes: 0 };

    /// Reads them from an envelope.
    pub(super) fn read(text: &[u8]) -> Option<Tries> {
        let mut numbers = std::str::from_utf8(text).ok()?.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (runs, retries, snoozes) = (next()?, next(), next());
        let (retries, snoozes) = match (retries, snoozes) {
            (None, None) if text.iter().all(u8::is_ascii_digit) => (0, 0),
            (Some(retries), Some(snoozes)) if numbers.next().is_none() => (retries, snoozes),
            _ => return None,
        };
        Some(Tries { runs, retries, snoozes })
    }

    /// How many workers died over it.
    pub(crate) fn deaths(self) -> u32 {
        self.runs.saturating_sub(1).saturating_sub(self.retries).saturating_sub(self.snoozes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_snoozes_and_dead_workers_are_counted_apart() {
        let tries = |text: &str| Tries::read(text.as_bytes());
        assert_eq!(tries("1"), Some(Tries::FIRST));
        assert_eq!(tries("7.3.2"), Some(Tries { runs: 7, retries: 3, snoozes: 2 }));
        assert_eq!(tries("7.3.2").map(Tries::deaths), Some(1));
        assert_eq!(tries("4").map(Tries::deaths), Some(3));
        // Never below zero, whatever stands there.
        assert_eq!(tries("1.5.5").map(Tries::deaths), Some(0));
        for odd in ["", ".", "1.", "1.2", "1.2.", "1.2.3.4", "one", "1.x.3", "-1", "99999999999"] {
            assert_eq!(tries(odd), None, "{odd}");
        }
    }
}
