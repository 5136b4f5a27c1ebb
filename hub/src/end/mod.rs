//! The end of a subscriber, and what it leaves.

pub(crate) mod leftovers;
pub(crate) mod life;
