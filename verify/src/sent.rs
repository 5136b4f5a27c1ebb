//! [`Sendings`]: which messages were made from what was sent under a key, or put back to work.

use std::collections::HashMap;

use crate::history::{Id, id_of, id_text};

/// The prefix of a sent message's maker. The number after it is the key of the message.
pub(crate) const KEY: &str = "key:";
/// The prefix of a requeued message's maker. The id after it is that of the failed message.
pub(crate) const OF: &str = "of:";

/// The prefix of the maker of a message that follows an outcome. The id after it is that of the message that ended.
pub(crate) const THEN: &str = "then:";
/// The prefix of the maker of a message of a periodic entry.
pub(crate) const ENTRY: &str = "cron:";

/// Everything that was sent or put back to work.
#[derive(Debug, Default)]
pub(crate) struct Sendings {
    /// The first message that was seen for each key, or for each failed message.
    seen: HashMap<String, Id>,
    /// The others. Of several only one may be there in the end.
    others: Vec<(String, Id)>,
    /// From what each message was made, as it was seen last: a step that was forgotten may be made again from something else.
    latest: HashMap<Id, String>,
    /// The ids that the sender got as answers, by number.
    told: HashMap<u64, Id>,
}

impl Sendings {
    pub(crate) fn sent(&mut self, number: u64, id: Id) {
        self.told.insert(number, id);
    }

    /// Records that a worker begins with this message. Returns another message with the same maker,
    /// if there is one.
    pub(crate) fn started(&mut self, id: Id, maker: &str) -> Option<Id> {
        self.latest.insert(id, maker.to_owned());
        let first = *self.seen.entry(maker.to_owned()).or_insert(id);
        if first != id {
            self.others.push((maker.to_owned(), id));
        }
        let number = maker.strip_prefix(KEY).and_then(|number| number.parse().ok());
        let told = number.and_then(|number: u64| self.told.get(&number)).copied();
        [first].into_iter().chain(told).find(|other| *other != id)
    }

    /// Records that `id` was made when `of` was put back to work. Returns the same as
    /// [`Sendings::started`].
    pub(crate) fn came(&mut self, id: Id, of: Id) -> Option<Id> {
        self.started(id, &format!("{OF}{}", id_text(of)))
    }

    /// Records that `id` follows the outcome of `of`. Returns the same as [`Sendings::started`].
    pub(crate) fn follows(&mut self, id: Id, of: Id) -> Option<Id> {
        self.started(id, &format!("{THEN}{}", id_text(of)))
    }

    /// Is the outcome of this message followed by another one?
    pub(crate) fn is_followed(&self, of: Id) -> bool {
        self.seen.contains_key(&format!("{THEN}{}", id_text(of)))
    }

    /// The messages whose outcomes are followed by others.
    pub(crate) fn followed(&self) -> impl Iterator<Item = Id> {
        self.seen.keys().filter_map(|maker| id_of(maker.strip_prefix(THEN)?))
    }

    /// Failed messages that were put back to work.
    pub(crate) fn origins(&self) -> impl Iterator<Item = Id> {
        self.seen.keys().filter_map(|maker| id_of(maker.strip_prefix(OF)?))
    }

    /// The messages that a sender was told of.
    pub(crate) fn told(&self) -> impl Iterator<Item = Id> {
        self.told.values().copied()
    }

    /// Keeps only what was made from others and is there.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&Id) -> bool) {
        let latest = &self.latest;
        let made = |maker: &String, id: &Id| is_there(id) && latest.get(id) == Some(maker);
        self.seen.retain(|maker, id| made(maker, id));
        let others = std::mem::take(&mut self.others);
        self.seen.extend(others.into_iter().filter(|(maker, id)| made(maker, id)));
    }

    /// The number of failed messages that were put back to work.
    pub(crate) fn put_back(&self) -> usize {
        self.origins().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Source;

    #[test]
    fn what_is_sent_or_put_back_is_added_once() {
        let mut sendings = Sendings::default();
        let of = |number| (Source::Sender(7), number);
        sendings.sent(1, of(1));
        assert_eq!(sendings.started(of(1), "key:1"), None);
        assert_eq!(sendings.started(of(1), "key:1"), None, "a further attempt");
        assert_eq!(sendings.started(of(2), "key:1"), Some(of(1)), "the key was used already");
        sendings.sent(3, of(3));
        assert_eq!(sendings.started(of(4), "key:3"), Some(of(3)), "the sender was told otherwise");
        assert_eq!(sendings.started(of(5), "of:9-1"), None);
        let ninth = (Source::Term(9), 1);
        assert_eq!(sendings.came(of(5), ninth), None, "known already");
        assert_eq!(sendings.came(of(6), ninth), Some(of(5)), "put back twice");
        assert_eq!(sendings.origins().collect::<Vec<_>>(), [ninth]);
    }
}
