//! [`Budget`]: the time that one call may take.
//!
//! **Invariant:** however often a call is repeated, its time is counted from its beginning.

use std::time::Duration;

use crate::clock::Moment;

/// How long one try waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a call may take.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    began: Moment,
    pub(crate) timeout: Duration,
}

impl Budget {
    /// This time from now on.
    pub(crate) fn new(timeout: Duration) -> Budget {
        Budget { began: Moment::now(), timeout }
    }

    /// The one that ends last.
    pub(crate) fn later(self, other: Budget) -> Budget {
        if other.end() > self.end() { other } else { self }
    }

    fn end(self) -> Moment {
        self.began + self.timeout
    }

    pub(crate) fn spent(self) -> Duration {
        Moment::now().since(self.began)
    }

    pub(crate) fn left(self) -> Duration {
        self.end().since(Moment::now())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// How long one try may wait for its answer.
    pub(crate) fn one_try(self) -> Duration {
        self.left().min(CALL_TIMEOUT)
    }
}
