//! The end of a subscriber, and the events it leaves.

pub(crate) mod leftovers;
pub(crate) mod life;
