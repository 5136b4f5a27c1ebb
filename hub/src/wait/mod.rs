//! Where events wait: in a log with many readers, in a queue of one subscriber, or in the list of
//! events for one subscriber only.

pub(crate) mod cursor;
pub(crate) mod direct;
pub(crate) mod inbox;
pub(crate) mod lane;
pub(crate) mod log;
pub(crate) mod overflow;
pub(crate) mod queue;
pub(crate) mod reader;
pub(crate) mod segment;
pub(crate) mod signal;
