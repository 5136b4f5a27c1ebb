//! Which handler runs on this thread, and who waits for whom.
//!
//! **Invariant:** a publish that could only end after itself is refused instead of waiting: the
//! handlers that wait for room and the subscribers they wait for never form a circle.

use std::cell::Cell;
use std::collections::HashMap;

use crate::sync::Mutex;

/// The handler that runs on this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    /// Which hub, by the address of its heart.
    pub(crate) hub: usize,
    pub(crate) subscriber: u64,
    /// Of the event being handled.
    pub(crate) depth: u16,
    /// The thread serves others as well, so that it must not sleep.
    pub(crate) shared: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// What runs here now, if it belongs to this hub.
pub(crate) fn current(hub: usize) -> Option<Current> {
    CURRENT.get().filter(|current| current.hub == hub)
}

/// Runs `f` as this handler.
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

/// The handler that runs here goes on with an event of this depth.
#[inline]
pub(crate) fn at_depth(depth: u16) {
    if let Some(current) = CURRENT.get().filter(|current| current.depth != depth) {
        CURRENT.set(Some(Current { depth, ..current }));
    }
}

/// Who waits for room with whom, at this moment.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    edges: Mutex<HashMap<u64, Vec<u64>>>,
}

/// One who waits; forgets so when dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    waits: &'a Waits,
    who: u64,
    whom: u64,
}

impl Waits {
    /// Writes down that `who` waits for `whom`, unless that would close a circle.
    pub(crate) fn begin(&self, who: u64, whom: u64) -> Option<Waiting<'_>> {
        let mut edges = self.edges.lock();
        let mut seen = vec![whom];
        let mut next = 0;
        while let Some(&one) = seen.get(next) {
            if one == who {
                return None;
            }
            next += 1;
            for &further in edges.get(&one).into_iter().flatten() {
                if !seen.contains(&further) {
                    seen.push(further);
                }
            }
        }
        edges.entry(who).or_default().push(whom);
        Some(Waiting { waits: self, who, whom })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut edges = self.waits.edges.lock();
        if let Some(whom) = edges.get_mut(&self.who) {
            if let Some(place) = whom.iter().position(|one| *one == self.whom) {
                whom.swap_remove(place);
            }
            if whom.is_empty() {
                edges.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_refused_and_a_chain_is_not() {
        let waits = Waits::default();
        let first = waits.begin(1, 2).expect("a chain");
        let _second = waits.begin(2, 3).expect("a chain");
        assert!(waits.begin(3, 1).is_none());
        assert!(waits.begin(4, 4).is_none());
        assert!(waits.begin(4, 1).is_some());
        drop(first);
        assert!(waits.begin(3, 1).is_some());
        assert_eq!(waits.edges.lock().len(), 1);
    }
}
