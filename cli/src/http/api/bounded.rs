//! [`Bounded`]: a list in a body, of which no more is kept than may be in it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// At most `MAX` items, and how many there were.
#[derive(Debug)]
pub(super) struct Bounded<T, const MAX: usize> {
    pub(super) items: Vec<T>,
    pub(super) count: usize,
}

impl<T, const MAX: usize> Bounded<T, MAX> {
    /// Were there more than may be?
    pub(super) fn is_too_long(&self) -> bool {
        self.count > MAX
    }
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Bounded { items: Vec::new(), count: 0 }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut all = Bounded::default();
                while all.count < MAX {
                    let Some(item) = list.next_element()? else { return Ok(all) };
                    all.items.push(item);
                    all.count += 1;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    all.count += 1;
                }
                Ok(all)
            }
        }

        from.deserialize_seq(Reader(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_counted_and_not_kept() {
        let read = |text| serde_json::from_str::<Bounded<u8, 3>>(text).map_err(|it| it.to_string());
        let all = read("[1,2,3]").expect("a list");
        assert!(!all.is_too_long() && all.items == [1, 2, 3]);
        let all = read("[1,2,3,\"x\",{}]").expect("a list");
        assert!(all.is_too_long() && all.items.len() == 3 && all.count == 5);
        assert!(read("[1,\"x\"]").is_err() && read("7").is_err() && read("[1,2,3,4").is_err());
    }
}
