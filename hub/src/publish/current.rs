//! Which handler runs on this thread, and which handlers wait for which subscribers.
//!
//! **Invariant:** a publish that would wait for its own end is refused. The handlers that wait for
//! room and the subscribers they wait for never form a cycle.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The handler that runs on this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    /// The hub, by the address of its core.
    pub(crate) hub: usize,
    pub(crate) subscriber: u64,
    /// The depth of the event being handled.
    pub(crate) depth: u16,
    /// Other subscribers run on this thread, too, so it must not block.
    pub(crate) shared: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// The handler that runs on this thread, if it belongs to this hub.
pub(crate) fn current(hub: usize) -> Option<Current> {
    CURRENT.get().filter(|current| current.hub == hub)
}

/// Runs `f` as part of this handler.
pub(crate) fn within<R>(current: Current, f: impl FnOnce() -> R) -> R {
    struct Back(Option<Current>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _back = Back(CURRENT.replace(Some(current)));
    f()
}

/// Sets the depth of the event that the handler on this thread handles now.
#[inline]
pub(crate) fn at_depth(depth: u16) {
    if let Some(current) = CURRENT.get().filter(|current| current.depth != depth) {
        CURRENT.set(Some(Current { depth, ..current }));
    }
}

/// Who waits for room at this moment, and for whom.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    next: AtomicU64,
    handlers: Mutex<Edges>,
    publishers: Mutex<Publishers>,
}

/// The waits of each handler. A handler continues when all its waits have ended. A wait ends when
/// any of the subscribers it waits for continues.
type Edges = HashMap<u64, Vec<(u64, Vec<u64>)>>;

#[derive(Debug, Default)]
struct Publishers {
    next: u64,
    waiting: HashMap<u64, Blocked>,
}

#[derive(Debug)]
struct Blocked {
    whom: u64,
    since: Instant,
}

/// A handler that waits. Dropping it removes the wait.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    waits: &'a Waits,
    who: u64,
    number: u64,
}

/// A publisher that waits. Dropping it removes the wait.
#[derive(Debug)]
pub(crate) struct Publishing<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Waits {
    /// Records that `who` waits for any of `whom`. `None` if it could then wait for ever.
    pub(crate) fn begin(&self, who: u64, whom: &[u64]) -> Option<Waiting<'_>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut edges = self.handlers.lock();
        edges.entry(who).or_default().push((number, whom.to_vec()));
        let waiting = Waiting { waits: self, who, number };
        let fine = goes_on(&edges, who);
        drop(edges);
        fine.then_some(waiting)
    }

    /// Removes the waits of a subscriber whose runner was replaced: the next runner does not wait.
    pub(crate) fn forget(&self, who: u64) {
        self.handlers.lock().remove(&who);
    }

    /// Records that a publisher has waited for this subscriber since then.
    pub(crate) fn publishes(&self, whom: u64, since: Instant) -> Publishing<'_> {
        let mut publishers = self.publishers.lock();
        publishers.next += 1;
        let number = publishers.next;
        publishers.waiting.insert(number, Blocked { whom, since });
        Publishing { waits: self, number }
    }

    /// The subscribers that publishers wait for: how many publishers, and the longest wait.
    pub(crate) fn publishers(&self, now: Instant) -> HashMap<u64, (u64, Duration)> {
        let mut longest = HashMap::new();
        for blocked in self.publishers.lock().waiting.values() {
            let (many, time) = longest.entry(blocked.whom).or_insert((0, Duration::ZERO));
            *many += 1;
            *time = now.saturating_duration_since(blocked.since).max(*time);
        }
        longest
    }
}

/// Whether this one continues at some time, provided that all that do not wait continue.
fn goes_on(edges: &Edges, who: u64) -> bool {
    let mut fine: HashSet<u64> = HashSet::new();
    loop {
        let free = |one: &u64| fine.contains(one) || !edges.contains_key(one);
        let goes =
            |waits: &Vec<(u64, Vec<u64>)>| waits.iter().all(|(_, whom)| whom.iter().any(free));
        let more: Vec<u64> = edges
            .iter()
            .filter(|(one, waits)| !fine.contains(*one) && goes(waits))
            .map(|(one, _)| *one)
            .collect();
        if more.contains(&who) {
            return true;
        }
        if more.is_empty() {
            return false;
        }
        fine.extend(more);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut edges = self.waits.handlers.lock();
        if let Some(waits) = edges.get_mut(&self.who) {
            waits.retain(|(number, _)| *number != self.number);
            if waits.is_empty() {
                edges.remove(&self.who);
            }
        }
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.waits.publishers.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_refused_and_a_chain_is_not() {
        let waits = Waits::default();
        let first = waits.begin(1, &[2]).expect("a chain");
        let _second = waits.begin(2, &[3]).expect("a chain");
        assert!(waits.begin(3, &[1]).is_none());
        assert!(waits.begin(4, &[4]).is_none());
        assert!(waits.begin(4, &[1]).is_some());
        drop(first);
        assert!(waits.begin(3, &[1]).is_some());
        assert_eq!(waits.handlers.lock().len(), 1);
    }

    /// A handler that waits for any member of a group waits for ever only if all members wait for
    /// it.
    #[test]
    fn one_that_goes_on_is_enough() {
        let waits = Waits::default();
        let _itself = waits.begin(1, &[1, 2]).expect("the other one has time");
        let second = waits.begin(2, &[1, 2, 3]).expect("the third has time");
        assert!(waits.begin(3, &[1, 2, 3]).is_none(), "nobody would be left");
        drop(second);
        assert!(waits.begin(3, &[1, 2, 3]).is_some());
    }

    #[test]
    fn publishers_are_counted_by_whom_they_wait_for() {
        let (waits, since) = (Waits::default(), Instant::now());
        let (_one, two) = (waits.publishes(7, since), waits.publishes(7, since));
        let later = since + Duration::from_secs(2);
        assert_eq!(waits.publishers(later)[&7], (2, Duration::from_secs(2)));
        drop(two);
        assert_eq!(waits.publishers(later)[&7].0, 1);
    }
}
