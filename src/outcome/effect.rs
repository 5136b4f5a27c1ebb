//! [`Effect`]: a write that is committed together with an outcome.
//!
//! **Invariant:** an effect happens exactly once, in the script that settles its message; if it
//! cannot be applied (wrong type, no number, no right), nothing of that outcome is recorded and the
//! message fails with that reason instead.

/// A write to a key of the fleet, `artel:{fleet}:data:<name>`.
///
/// Names live in a space of their own, so no effect can touch the fleet's books.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Effect {
    pub(super) op: &'static str,
    pub(super) name: String,
    pub(super) first: Vec<u8>,
    pub(super) second: Vec<u8>,
}

impl Effect {
    fn new(op: &'static str, name: impl Into<String>, first: Vec<u8>, second: Vec<u8>) -> Effect {
        Effect { op, name: name.into(), first, second }
    }

    /// Sets a string.
    pub fn set(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Effect {
        Effect::new("SET", name, value.into(), Vec::new())
    }

    /// Adds to a whole number, strictly between −2⁵³ and 2⁵³.
    pub fn incr_by(name: impl Into<String>, by: i64) -> Effect {
        Effect::new("INCRBY", name, by.to_string().into_bytes(), Vec::new())
    }

    /// Sets a field of a hash.
    pub fn hset(
        name: impl Into<String>,
        field: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Effect {
        Effect::new("HSET", name, field.into(), value.into())
    }

    /// Adds to a whole number in a field of a hash, strictly between −2⁵³ and 2⁵³.
    pub fn hincr_by(name: impl Into<String>, field: impl Into<Vec<u8>>, by: i64) -> Effect {
        Effect::new("HINCRBY", name, field.into(), by.to_string().into_bytes())
    }

    /// Adds a member to a set.
    pub fn sadd(name: impl Into<String>, member: impl Into<Vec<u8>>) -> Effect {
        Effect::new("SADD", name, member.into(), Vec::new())
    }

    /// Appends to a list.
    pub fn rpush(name: impl Into<String>, element: impl Into<Vec<u8>>) -> Effect {
        Effect::new("RPUSH", name, element.into(), Vec::new())
    }
}
