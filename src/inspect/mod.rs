//! Tools for people: where a message is, which data effects wrote, which fleets exist, removing a
//! fleet, and what endangers it.
//!
//! **Invariant:** reading changes nothing and is done in small pieces, however much there is to read. A
//! fleet is removed only while nobody is in it, and nobody can join it halfway through.

mod data;
mod examine;
mod find;
mod finding;
mod fleet_findings;
mod fleets;
mod listing;

pub use data::Data;
pub use find::{MessageState, WaitingIn};
pub use finding::{Finding, Level};
pub use listing::{ListCursor, Listed};
