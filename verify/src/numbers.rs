//! [`Numbers`]: a set of numbers, a bit each. Numbers that are near one another share their room.

use std::collections::BTreeMap;

/// A set of numbers.
#[derive(Debug, Default)]
pub(crate) struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    /// Adds a number; `false` if it was in the set already.
    pub(crate) fn put(&mut self, number: u64) -> bool {
        let (word, bit) = (self.0.entry(number / 64).or_default(), 1 << (number % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.0.get(&(number / 64)).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// All of them, the smallest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        let bits = |(word, bits): (&u64, &u64)| {
            let (word, bits) = (*word, *bits);
            (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| word * 64 + bit)
        };
        self.0.iter().flat_map(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_wherever_they_are() {
        let (mut set, all) = (Numbers::default(), [0, 1, 63, 64, 1_794_710_083, 1 << 60]);
        assert!(all.iter().all(|number| set.put(*number)) && !set.put(63));
        assert_eq!((set.iter().collect::<Vec<_>>(), set.count()), (all.to_vec(), 6));
        assert!(set.has(64) && !set.has(65));
    }
}
