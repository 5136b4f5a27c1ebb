//! What the hub keeps or sends out: dead letters, archives and alerts.

pub(crate) mod dead_letter;
pub(crate) mod history;
pub mod notify;
