//! [`LeaseUse`]: what a member does with the lease.
//!
//! **Invariant:** a lease in our name that we do not use is given back, and a member does not lead
//! under a term that has ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::term::Term;

/// What this member does with the lease.
#[derive(Clone, Debug)]
pub(crate) enum LeaseUse {
    /// Nothing. A lease in its name was granted to a late copy of a call and is given back.
    Idle,
    /// An acquire is under way, so a lease in its name may be the answer to it.
    Acquiring,
    /// It generates under this term until the token is cancelled.
    Leading(Term, CancellationToken),
}

/// The result of comparing it with the lease in Redis.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Difference {
    /// Redis has this term in our name, but nobody here uses it: it must be given back.
    Unused(Term),
    /// There is none, or it was handled.
    Nothing,
}

/// The current use of the lease, and when the generator last made progress.
#[derive(Debug)]
pub(crate) struct LeaseTracker {
    present: Mutex<LeaseUse>,
    progress: AtomicU64,
}

impl LeaseTracker {
    pub(super) fn new(began: Moment) -> LeaseTracker {
        let (present, progress) = (Mutex::new(LeaseUse::Idle), AtomicU64::new(began.as_micros()));
        LeaseTracker { present, progress }
    }

    pub(crate) fn set(&self, present: LeaseUse) {
        self.note_progress();
        *self.present.lock().expect("never poisoned") = present;
    }

    pub(crate) fn get(&self) -> LeaseUse {
        self.present.lock().expect("never poisoned").clone()
    }

    /// The term under which it leads, if it does.
    pub(crate) fn term(&self) -> Option<Term> {
        match self.get() {
            LeaseUse::Leading(term, _) => Some(term),
            LeaseUse::Idle | LeaseUse::Acquiring => None,
        }
    }

    /// Notes that the generator has just made progress, so it does not only live.
    pub(crate) fn note_progress(&self) {
        self.progress.store(Moment::now().as_micros(), Ordering::Release);
    }

    pub(crate) fn progress(&self) -> Moment {
        Moment::from_micros(self.progress.load(Ordering::Acquire))
    }

    /// Compares the term that Redis has in our name with our use of the lease. A difference counts only
    /// if that use was the same before and after the call. Ends a term that is over.
    pub(crate) fn compare(&self, before: LeaseUse, mine: Option<Term>) -> Difference {
        match (before, self.get(), mine) {
            (LeaseUse::Idle, LeaseUse::Idle, Some(term)) => return Difference::Unused(term),
            (LeaseUse::Leading(before, _), LeaseUse::Leading(term, over), mine)
                if before == term && mine != Some(term) =>
            {
                over.cancel();
            }
            _ => {}
        }
        Difference::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(n: u64) -> Term {
        Term::parse(&n.to_string()).expect("a term")
    }

    #[test]
    fn a_lease_that_nobody_uses_is_given_back() {
        let lease = LeaseTracker::new(Moment::now());
        assert_eq!(lease.compare(lease.get(), Some(term(7))), Difference::Unused(term(7)));
        assert_eq!(lease.compare(lease.get(), None), Difference::Nothing);
        let before = lease.get();
        lease.set(LeaseUse::Acquiring);
        assert_eq!(
            lease.compare(before, Some(term(7))),
            Difference::Nothing,
            "asked for meanwhile"
        );
        let before = lease.get();
        lease.set(LeaseUse::Idle);
        assert_eq!(
            lease.compare(before, Some(term(7))),
            Difference::Nothing,
            "asked for until now"
        );
    }

    #[test]
    fn a_term_that_ended_is_not_led_any_longer() {
        let (lease, over) = (LeaseTracker::new(Moment::now()), CancellationToken::new());
        lease.set(LeaseUse::Leading(term(7), over.clone()));
        assert_eq!(lease.term(), Some(term(7)));
        lease.compare(lease.get(), Some(term(7)));
        assert!(!over.is_cancelled());
        lease.compare(lease.get(), Some(term(8)));
        assert!(over.is_cancelled());
    }
}
