//! [`Outages`]: how long nobody led, or nothing flowed.
//!
//! **Invariant:** an outage is over when a worker begins with a message that was made after it began.

use std::collections::BTreeMap;

use crate::history::{Entry, Source, now};

/// The times when nobody led, or nothing flowed, by cause.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    open: Vec<Open>,
    /// How long each outage took, by its cause and by whether anything else was broken.
    pub(crate) over: BTreeMap<(&'static str, bool), Vec<u64>>,
    last_term: u64,
    pub(crate) terms: u64,
    /// Since when at least one outage is open.
    since: u64,
    pub(crate) total: u64,
    pub(crate) longest: u64,
}

#[derive(Debug)]
struct Open {
    cause: &'static str,
    since: u64,
    term: u64,
    /// The same term may continue after it.
    same: bool,
    /// Another fault made it longer.
    disturbed: bool,
}

impl Outages {
    /// How many have not ended.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Begins an outage: the generator of this term does not lead any more. `hurt`: Redis itself
    /// has a fault.
    pub(crate) fn begin(&mut self, cause: &'static str, term: u64, same: bool, hurt: bool) {
        let disturbed = hurt || !self.open.is_empty();
        if self.open.is_empty() {
            self.since = now();
        }
        self.disturb();
        self.open.push(Open { cause, since: now(), term, same, disturbed });
    }

    /// A fault of Redis or of the generator makes all open outages longer.
    pub(crate) fn disturb(&mut self) {
        self.open.iter_mut().for_each(|open| open.disturbed = true);
    }

    /// Reads an entry. An outage is over when a worker begins with a message that was made after
    /// the outage began.
    pub(crate) fn history(&mut self, at: u64, entry: &Entry) {
        if let Entry::Leads(term) = entry
            && *term > self.last_term
        {
            self.last_term = *term;
            self.terms += 1;
        }
        let Entry::Start { id: (Source::Term(term), _), made, .. } = entry else { return };
        let over = &mut self.over;
        self.open.retain(|open| {
            let ended = *made > open.since && (open.same || *term > open.term);
            if ended {
                over.entry((open.cause, open.disturbed))
                    .or_default()
                    .push(at.saturating_sub(open.since));
            }
            !ended
        });
        if self.open.is_empty() && self.since > 0 {
            let took = at.saturating_sub(std::mem::take(&mut self.since));
            self.total += took;
            self.longest = self.longest.max(took);
        }
    }
}
