//! Time: messages that wait until they are due, and periodic entries.
//!
//! **Invariant:** Redis's clock decides, and nothing else. No message starts before it is due. Whoever looks lets go what is
//! due, so no process is the only one that can. A periodic entry fires once for each of its times, whoever leads.

mod agenda;
mod crons;
mod entry;
mod firing;
mod promote;
mod times;

pub use agenda::{Schedule, ScheduleCursor, Scheduled};
pub use crons::{CronEntry, CronSet, Crons};
pub use entry::{CatchUp, Cron};
pub(crate) use firing::{Entries, Fired, Firing};
pub(crate) use promote::{PROMOTE_MAX, promote};
