//! Publishing: what it takes to get an event in, and who gets it.

pub(crate) mod attempt;
pub(crate) mod current;
pub(crate) mod group;
pub(crate) mod publisher;
pub(crate) mod route;
