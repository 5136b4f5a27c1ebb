//! [`Life`]: how a subscriber is told to stop, and how others learn that it has.
//!
//! **Invariant:** once [`Life::is_over`], the handler never runs again; whoever joins is woken.

use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// Handle what is waiting, then end.
const DRAIN: u64 = 1;
/// End now.
const STOP: u64 = 2;
/// Something waits outside the queue.
const DIRECT: u64 = 4;
/// The number of the runner is counted from this bit on.
const RUNNER: u64 = 1 << 32;

/// What a subscriber is to do, and whether it is over.
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

/// What was ordered.
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

    /// Which runner is to go on. Another number than one's own means: see whether one was replaced.
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

    /// To be followed by a wake-up of the subscriber, as all orders are.
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

    /// Its runner is to see whether it is to go on, under the number that is returned.
    pub(crate) fn ask_runner(&self) -> u32 {
        let before = Orders(self.orders.fetch_add(RUNNER, Ordering::SeqCst));
        before.runner().wrapping_add(1)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.lock().is
    }

    /// The subscriber is gone; everybody who joins may go on.
    pub(crate) fn end(&self) {
        let joiners = {
            let mut over = self.over.lock();
            over.is = true;
            over.joiners.take()
        };
        joiners.into_iter().flat_map(|joiners| *joiners).for_each(Waker::wake);
    }

    /// Is it over? If not, the waker is woken when it is.
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
