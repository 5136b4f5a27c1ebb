//! [`Effect`]: a write that is committed together with an outcome.
//!
//! **Invariant:** an effect happens exactly once, in the script that settles its message. If it cannot
//! be applied (wrong type, not a number, no right), nothing of that outcome is recorded and the message
//! fails with that reason instead.

/// A write to a key of the fleet, `artel:{fleet}:data:<name>`.
///
/// These names have a prefix of their own, so no effect can touch the fleet's books. Names and fields
/// have 1 to 1,024 bytes and no control characters; values are any bytes.
///
/// ```
/// use artel::{Effect, Outcome};
///
/// let outcome = Outcome::done()
///     .with(Effect::incr_by("sold", 3))
///     .with(Effect::hset("prices", "tea", "4.20"));
/// assert_eq!(outcome.effects().len(), 2);
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Effect {
    pub(super) op: &'static str,
    pub(super) name: String,
    pub(super) first: Vec<u8>,
    pub(super) second: Vec<u8>,
}

/// The most bytes of a name or a field.
const NAME_BYTES_MAX: usize = 1024;

impl Effect {
    /// The most effects of one outcome.
    pub const MAX: usize = 100;
    /// The most bytes of all effects of one outcome.
    pub const BYTES_MAX: usize = 1 << 20;

    /// The bytes of its name, field and value.
    pub(super) fn bytes(&self) -> usize {
        self.name.len() + self.first.len() + self.second.len()
    }

    /// Checks it without Redis. The error says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let field = self.op.starts_with('H').then_some(&self.first[..]);
        for (what, bytes) in [("name", Some(self.name.as_bytes())), ("field", field)] {
            let Some(bytes) = bytes else { continue };
            if bytes.is_empty() || bytes.len() > NAME_BYTES_MAX {
                return Err(format!("a {what} must have 1 to {NAME_BYTES_MAX} bytes"));
            }
            if bytes.iter().any(u8::is_ascii_control) {
                return Err(format!("a {what} must have no control characters"));
            }
        }
        Ok(())
    }

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
