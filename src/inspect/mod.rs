//! What people ask for: where a message is, what effects wrote, which fleets there are, and away with one.
//!
//! **Invariant:** looking changes nothing and is done in small pieces, however much there is to look
//! through. A fleet is removed only while nobody is in it, and nobody can join it halfway through.

mod data;
mod find;
mod fleets;

pub use data::Data;
pub use find::{MessageState, WaitingIn};
