//! Breaks a private fleet in every way it can think of, checks its books, and prints the verdict.
//!
//! **Invariant:** nothing that the fleet reports about itself is believed. The verdict comes from a
//! history that every process writes with one system call before and after each step, from the
//! ledger, and from the data in Redis at the end.
//!
//! [`run`] does four things:
//!
//! * It starts the processes: members, a taker of errors and a sender. All are real processes, each
//!   behind a proxy of its own.
//! * It injects faults. A seed decides the plan.
//! * Every twenty seconds it repairs everything and checks the books.
//! * At the end it judges.

mod books;
mod call_log;
mod check;
mod director;
mod failover;
mod history;
mod life;
mod losses;
mod member;
mod numbers;
mod options;
mod outages;
mod plan;
mod process;
mod promise;
mod quiet;
mod report;
mod schedule;
mod sender;
mod sent;
mod stage;
mod strike;
mod taker;
mod topology;
mod trust;
mod wakes;

pub use artel_rig::Target;
pub use director::run;
pub use member::Part;
pub use options::{Keeps, Options, Progress, Stop, Trouble};
pub use plan::Kind;
pub use promise::{Invariant, Seen, Violation};
pub use report::{Paths, Report, Times, Verdict};
pub use topology::Topology;
