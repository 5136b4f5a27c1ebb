//! [`Control`]: the messages that scripts publish to members.
//!
//! **Invariant:** a message is a hint. A message that is lost, late or unreadable costs time and
//! nothing else.
//!
//! Scripts write them with the functions of `control.lua`. Nothing else writes them, and only this file
//! reads them.

use crate::id::MemberId;
use crate::term::Term;

/// One message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Control {
    /// A member has joined.
    Joined(MemberId),
    /// A member has left, and it held nothing.
    Left(MemberId),
    /// A member is dead, or it has left while it held messages or locks.
    Dead(MemberId),
    /// A member leads from now on, under this term.
    Lead(MemberId, Term),
    /// The lease that this member held is free.
    Free(MemberId),
    /// The lock of this name is free. Only one waiter gets this message.
    Unlocked(String),
    /// An order was given or taken back.
    Ordered,
}

impl Control {
    /// Reads a message; `None` if it is not one of ours.
    pub(crate) fn parse(text: &str) -> Option<Control> {
        let (word, rest) = text.split_once('|')?;
        if word == "ordered" {
            return Some(Control::Ordered);
        }
        if word == "lock" {
            return Some(Control::Unlocked(rest.to_owned()));
        }
        let (id, more) = rest.split_once('|').unwrap_or((rest, ""));
        let id = MemberId::from_redis(id)?;
        match word {
            "joined" => Some(Control::Joined(id)),
            "left" => Some(Control::Left(id)),
            "dead" => Some(Control::Dead(id)),
            "lead" => Some(Control::Lead(id, Term::parse(more)?)),
            "free" => Some(Control::Free(id)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every message that a script can write, with `x` in place of the inserted values.
    fn written() -> impl Iterator<Item = String> {
        include_str!("control.lua").lines().filter_map(|line| {
            let text = line.split_once("SPUBLISH', ")?.1.split_once(", ")?.1;
            let text = text.strip_suffix(") end")?;
            Some(text.replace(" .. term", "1").replace(" .. id", "x").replace(" .. name", "x"))
                .map(|text| text.replace(" .. ", "").replace('\'', ""))
        })
    }

    #[test]
    fn what_scripts_write_is_read() {
        let read: Vec<_> = written().map(|text| (Control::parse(&text), text)).collect();
        assert_eq!(read.len(), 7, "{read:?}");
        for (control, text) in read {
            assert!(control.is_some(), "{text:?}");
        }
        let name = Control::parse("lock|a|b");
        assert_eq!(
            name,
            Some(Control::Unlocked("a|b".to_owned())),
            "a name may have anything in it"
        );
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        for odd in ["", "dead", "dead|", "dead|no id!", "lead|x", "lead|x|y", "later|x"] {
            assert_eq!(Control::parse(odd), None, "{odd:?}");
        }
    }
}
