//! What is kept: dead letters, archives, and alerts about them.

pub(crate) mod dead_letter;
pub(crate) mod history;
pub mod notify;
