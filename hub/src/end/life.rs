//! [`Life`]: how a subscriber is ordered to stop, and how others wait for its end.
//!
//! **Invariant:** once [`Life::is_over`] is true, the handler never runs again, and everybody who
//! joined is woken.

use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// Order: handle the waiting events, then end.
const DRAIN: u64 = 1;
/// Order: end now.
const STOP: u64 = 2;
/// An event waits outside the queue.
const DIRECT: u64 = 4;
/// The runner number is stored from this bit on.
const RUNNER: u64 = 1 << 32;

/// The orders to one subscriber, and whether it has ended.
#[derive(Debug)]
pub(crate) struct Life {
    orders: AtomicU64,
    over: Mutex<Over>,
}

#[derive(Debug)]
struct Over {
    is: bool,
    #[expect(clippy::box_collection, reason = "most are never joined, and there may be very many")]
    joiners: Option<Box<Vec<Waker>>>,
}

/// The orders at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders(u64);

impl Orders {
    pub(crate) fn drain(self) -> bool {
        self.0 & DRAIN != 0
    }

    pub(crate) fn stop(self) -> bool {
        self.0 & STOP != 0
    }

    pub(crate) fn direct(self) -> bool {
        self.0 & DIRECT != 0
    }

    /// The number of the runner that may continue. A runner that has another number must check
    /// whether it was replaced.
    pub(crate) fn runner(self) -> u32 {
        (self.0 / RUNNER) as u32
    }
}

impl Life {
    pub(crate) fn new() -> Life {
        let over = Mutex::new(Over { is: false, joiners: None });
        Life { orders: AtomicU64::new(0), over }
    }

    #[inline]
    pub(crate) fn orders(&self) -> Orders {
        Orders(self.orders.load(Ordering::Acquire))
    }

    /// The caller must wake the subscriber afterwards. This is true for all orders.
    pub(crate) fn drain(&self) {
        self.orders.fetch_or(DRAIN, Ordering::SeqCst);
    }

    pub(crate) fn stop(&self) {
        self.orders.fetch_or(STOP, Ordering::SeqCst);
    }

    pub(crate) fn direct(&self) {
        self.orders.fetch_or(DIRECT, Ordering::SeqCst);
    }

    pub(crate) fn took_direct(&self) {
        self.orders.fetch_and(!DIRECT, Ordering::SeqCst);
    }

    /// Asks the runner to check whether it was replaced. If it was not, it continues under the
    /// returned number.
    pub(crate) fn ask_runner(&self) -> u32 {
        let before = Orders(self.orders.fetch_add(RUNNER, Ordering::SeqCst));
        before.runner().wrapping_add(1)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.lock().is
    }

    /// Marks the subscriber as ended and wakes everybody who joined.
    pub(crate) fn end(&self) {
        let joiners = {
            let mut over = self.over.lock();
            over.is = true;
            over.joiners.take()
        };
        joiners.into_iter().flat_map(|joiners| *joiners).for_each(Waker::wake);
    }

    /// Whether it has ended. If not, the waker is woken at the end.
    pub(crate) fn join(&self, waker: &Waker) -> bool {
        let mut over = self.over.lock();
        if !over.is {
            let joiners = over.joiners.get_or_insert_default();
            if !joiners.iter().any(|one| one.will_wake(waker)) {
                joiners.push(waker.clone());
            }
        }
        over.is
    }
}
