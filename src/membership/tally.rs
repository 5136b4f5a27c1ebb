//! [`Tally`]: what a member counts about its work. For people only.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::timings::Timings;

/// The counts of one session.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Handlers that run.
    pub(crate) in_flight: AtomicU64,
    /// Messages it has claimed, started or not.
    pub(crate) claimed: AtomicU64,
    /// It works, has a free slot and has nothing to do.
    pub(crate) idle: AtomicBool,
    /// It handles messages now.
    pub(crate) works: AtomicBool,
    /// How long its handlers took.
    pub(crate) timings: Timings,
}
