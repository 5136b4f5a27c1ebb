//! Breaks a private fleet in every way it can think of, checks its books, and prints the verdict.
//!
//! **Invariant:** nothing is believed that the fleet says of itself: the verdict comes from a history
//! that every process writes with one system call before and after each step, from the ledger, and from
//! what is in Redis at the end.
//!
//! [`run`] starts the cast (members, a taker of errors and a sender, real processes, each behind a proxy of its
//! own), lets faults happen by a plan that a seed decides, mends everything every twenty seconds to look
//! at the books, and judges at the end.

mod books;
mod cast;
mod check;
mod director;
mod history;
mod member;
mod options;
mod plan;
mod promise;
mod quiet;
mod report;
mod schedule;
mod scribe;
mod sent;
mod stage;
mod strike;
mod trust;
mod wakes;

pub use director::run;
pub use member::Part;
pub use options::{Options, Progress, Stop, Target, Trouble};
pub use plan::Kind;
pub use promise::{Invariant, Seen, Violation};
pub use report::{Paths, Report, Times, Verdict};
