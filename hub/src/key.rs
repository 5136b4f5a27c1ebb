//! Keys, patterns and [`Keys`]: an event is published under a key, a subscriber asks for keys and
//! patterns.
//!
//! **Invariant:** a pattern matches a key level by level; `/` separates levels. A literal matches
//! itself. `*` matches exactly one level. `**` matches one or more levels and is allowed only at
//! the end. Nothing else is special.

use std::any::TypeId;
use std::marker::PhantomData;

use crate::event::AnyEvent;
use crate::topic::Topic;

/// The maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// The maximum number of keys and patterns of one subscriber.
pub const KEYS_MAX: usize = 256;

/// Why a key or a pattern is invalid.
///
/// ```
/// use artel_hub::{EventHub, KeyError, Keys, Topic};
///
/// let error = Keys::<u64>::new(["orders/**/eu"]).unwrap_err();
/// assert_eq!(error, KeyError::BadPattern { pattern: "orders/**/eu".into() });
///
/// const BAD: Topic<u64> = Topic::new("orders//eu");
/// let refused = EventHub::new().try_publish(&BAD, 1).unwrap_err();
/// assert!(refused.to_string().contains("has an empty level"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is empty.
    #[error("the key is empty: give it a name such as \"orders/created\"")]
    Empty,
    /// It is longer than [`KEY_BYTES_MAX`].
    #[error("the key has {bytes} bytes, at most {KEY_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It contains a control character.
    #[error("the key {key:?} has a control character at byte {at}")]
    Control {
        /// The key.
        key: String,
        /// The byte position of the character.
        at: usize,
    },
    /// A level is empty: the key begins or ends with `/`, or has two slashes in a row.
    #[error("the key {key:?} has an empty level: write names between single slashes")]
    EmptyLevel {
        /// The key.
        key: String,
    },
    /// The key to publish under contains a wildcard.
    #[error("the key {key:?} has a wildcard: only subscribers may use `*` and `**`")]
    Wildcard {
        /// The key.
        key: String,
    },
    /// A star is part of a longer level, or `**` is not at the end.
    #[error(
        "the pattern {pattern:?} is invalid: `*` must be a whole level, `**` must be the last level"
    )]
    BadPattern {
        /// The pattern.
        pattern: String,
    },
    /// The list of keys is empty.
    #[error("no key was given")]
    NoKeys,
    /// The list has more than [`KEYS_MAX`] keys.
    #[error("{keys} keys are too many for one subscriber (at most {KEYS_MAX}): use a pattern")]
    TooMany {
        /// How many keys it has.
        keys: usize,
    },
}

fn check_text(key: &str) -> Result<(), KeyError> {
    if key.is_empty() {
        return Err(KeyError::Empty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(KeyError::TooLong { bytes: key.len() });
    }
    if let Some((at, _)) = key.char_indices().find(|(_, c)| c.is_control()) {
        return Err(KeyError::Control { key: key.into(), at });
    }
    if key.split('/').any(str::is_empty) {
        return Err(KeyError::EmptyLevel { key: key.into() });
    }
    Ok(())
}

/// Checks that events can be published under this key.
pub(crate) fn check_key(key: &str) -> Result<(), KeyError> {
    check_text(key)?;
    match key.contains('*') {
        true => Err(KeyError::Wildcard { key: key.into() }),
        false => Ok(()),
    }
}

/// A key, or a pattern that matches keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pattern {
    text: Box<str>,
    wild: bool,
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Result<Pattern, KeyError> {
        check_text(text)?;
        let last = text.split('/').count() - 1;
        for (level, name) in text.split('/').enumerate() {
            let fine = match name {
                "*" => true,
                "**" => level == last,
                _ => !name.contains('*'),
            };
            if !fine {
                return Err(KeyError::BadPattern { pattern: text.into() });
            }
        }
        Ok(Pattern { text: text.into(), wild: text.contains('*') })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_wild(&self) -> bool {
        self.wild
    }

    pub(crate) fn matches(&self, key: &str) -> bool {
        if !self.wild {
            return *self.text == *key;
        }
        let mut levels = key.split('/');
        for name in self.text.split('/') {
            match (name, levels.next()) {
                ("**", Some(_)) => return true,
                ("*", Some(_)) => {}
                (name, Some(level)) if name == level => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }

    /// Whether some key matches both.
    pub(crate) fn overlaps(&self, other: &Pattern) -> bool {
        let (mut left, mut right) = (self.text.split('/'), other.text.split('/'));
        loop {
            match (left.next(), right.next()) {
                (None, None) => return true,
                (Some("**"), Some(_)) | (Some(_), Some("**")) => return true,
                (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
                _ => return false,
            }
        }
    }
}

/// The type of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PayloadType {
    id: TypeId,
    pub(crate) name: &'static str,
}

impl PayloadType {
    pub(crate) fn of<T: 'static>() -> PayloadType {
        PayloadType { id: TypeId::of::<T>(), name: std::any::type_name::<T>() }
    }
}

/// What one subscriber asks for: sorted patterns, and the type of the payloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Selection {
    pub(crate) patterns: Box<[Pattern]>,
    /// `None`: events of any type.
    pub(crate) payload: Option<PayloadType>,
}

impl Selection {
    pub(crate) fn matches(&self, key: &str, payload: PayloadType) -> bool {
        self.payload.is_none_or(|wanted| wanted == payload)
            && self.patterns.iter().any(|pattern| pattern.matches(key))
    }

    pub(crate) fn overlaps(&self, other: &Selection) -> bool {
        self.patterns.iter().any(|mine| other.patterns.iter().any(|theirs| mine.overlaps(theirs)))
    }
}

/// The keys and patterns of one subscriber, and the type of its payloads.
///
/// ```
/// use artel_hub::{AnyEvent, Keys};
///
/// struct Order;
/// // Every `Order` published one level below `orders`, or under `returns`.
/// let orders = Keys::<Order>::new(["orders/*", "returns"])?;
/// // Events of any type below `orders`, at any depth.
/// let all = Keys::any(["orders/**"])?;
/// assert!(Keys::<Order>::new(["orders/**/eu"]).is_err()); // `**` only at the end
/// # Ok::<(), artel_hub::KeyError>(())
/// ```
pub struct Keys<T> {
    pub(crate) selection: Selection,
    payload: PhantomData<fn() -> T>,
}

impl<T: 'static> Keys<T> {
    /// Events with a payload of type `T` under any of these keys or patterns. Events of other types
    /// under the same keys are ignored.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Keys<T>, KeyError> {
        Keys::of(patterns, Some(PayloadType::of::<T>()))
    }

    fn of<P: AsRef<str>>(
        patterns: impl IntoIterator<Item = P>,
        payload: Option<PayloadType>,
    ) -> Result<Keys<T>, KeyError> {
        let mut checked = Vec::new();
        for pattern in patterns {
            checked.push(Pattern::new(pattern.as_ref())?);
            if checked.len() > KEYS_MAX {
                return Err(KeyError::TooMany { keys: checked.len() });
            }
        }
        if checked.is_empty() {
            return Err(KeyError::NoKeys);
        }
        checked.sort();
        checked.dedup();
        let selection = Selection { patterns: checked.into(), payload };
        Ok(Keys { selection, payload: PhantomData })
    }
}

impl Keys<AnyEvent> {
    /// Events of every type under any of these keys or patterns.
    pub fn any<P: AsRef<str>>(
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Keys<AnyEvent>, KeyError> {
        Keys::of(patterns, None)
    }
}

impl<T> std::fmt::Debug for Keys<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<&str> = self.selection.patterns.iter().map(Pattern::text).collect();
        f.debug_tuple("Keys").field(&texts).finish()
    }
}

impl<T> Clone for Keys<T> {
    fn clone(&self) -> Keys<T> {
        Keys { selection: self.selection.clone(), payload: PhantomData }
    }
}

/// Something to subscribe to: a [`Topic`] or [`Keys`].
/// [`EventHub::subscribe`](crate::EventHub::subscribe) takes it.
///
/// ```
/// use artel_hub::{Delivery, EventHub, IntoKeys, Keys, SubscribeError, Subscription, Topic};
///
/// fn count(hub: &EventHub, keys: impl IntoKeys<u64>) -> Result<Subscription, SubscribeError> {
///     hub.subscribe(keys).inline(|_: Delivery<'_, u64>| ())
/// }
/// const TICKS: Topic<u64> = Topic::new("ticks/fast");
/// let hub = EventHub::new();
/// let _one = count(&hub, &TICKS)?;
/// let _all = count(&hub, Keys::new(["ticks/*"])?)?;
/// assert_eq!(hub.subscriber_count("ticks/fast"), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be subscribed to",
    note = "use a `Topic`, `Keys::<T>::new([\"orders/*\"])?` or `Keys::any([\"orders/**\"])?`"
)]
pub trait IntoKeys<T> {
    /// Converts it into keys. Fails if a key is invalid.
    fn into_keys(self) -> Result<Keys<T>, KeyError>;
}

impl<T> IntoKeys<T> for Keys<T> {
    fn into_keys(self) -> Result<Keys<T>, KeyError> {
        Ok(self)
    }
}

impl<T: Send + Sync + 'static> IntoKeys<T> for &Topic<T> {
    fn into_keys(self) -> Result<Keys<T>, KeyError> {
        check_key(self.key())?;
        Keys::new([self.key()])
    }
}

impl<T: Send + Sync + 'static> IntoKeys<T> for Topic<T> {
    fn into_keys(self) -> Result<Keys<T>, KeyError> {
        (&self).into_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, key: &str) -> bool {
        Pattern::new(pattern).expect("a pattern").matches(key)
    }

    #[test]
    fn a_star_is_one_level_and_two_are_the_rest() {
        for (pattern, key, fits) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/*", "a/b", true),
            ("a/*", "a", false),
            ("a/*", "a/b/c", false),
            ("*/b", "a/b", true),
            ("*/*", "a", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a/b", true),
            ("a/**", "a", false),
            ("a/**", "ab/c", false),
            ("**", "a/b", true),
            ("a/*/c/**", "a/b/c/d/e", true),
            ("a/*/c/**", "a/b/x/d", false),
        ] {
            assert_eq!(matches(pattern, key), fits, "{pattern} {key}");
        }
    }

    #[test]
    fn patterns_overlap_when_a_key_fits_both() {
        let overlap = |a: &str, b: &str| {
            let (a, b) = (Pattern::new(a).expect("one"), Pattern::new(b).expect("one"));
            assert_eq!(a.overlaps(&b), b.overlaps(&a));
            a.overlaps(&b)
        };
        assert!(overlap("a/*", "a/b"));
        assert!(overlap("a/*", "*/b"));
        assert!(overlap("a/**", "a/b/c"));
        assert!(overlap("**", "a"));
        assert!(!overlap("a/**", "a"));
        assert!(!overlap("a/*", "a/b/c"));
        assert!(!overlap("a/b", "a/c"));
    }

    #[test]
    fn bad_keys_are_named() {
        assert_eq!(check_key(""), Err(KeyError::Empty));
        assert_eq!(check_key(&"k".repeat(513)), Err(KeyError::TooLong { bytes: 513 }));
        assert!(check_key(&"k".repeat(512)).is_ok());
        assert!(matches!(check_key("a\nb"), Err(KeyError::Control { at: 1, .. })));
        assert!(matches!(check_key("a\u{7f}"), Err(KeyError::Control { .. })));
        assert!(matches!(check_key("a/*"), Err(KeyError::Wildcard { .. })));
        for empty in ["/a", "a/", "a//b", "/"] {
            assert!(matches!(check_key(empty), Err(KeyError::EmptyLevel { .. })), "{empty}");
        }
        for bad in ["a/**/b", "a*", "a/b*/c", "***"] {
            assert!(matches!(Pattern::new(bad), Err(KeyError::BadPattern { .. })), "{bad}");
        }
        assert!(matches!(Keys::<u8>::new(Vec::<String>::new()), Err(KeyError::NoKeys)));
        let many = (0..300).map(|n| n.to_string());
        assert!(matches!(Keys::<u8>::new(many), Err(KeyError::TooMany { .. })));
    }
}
