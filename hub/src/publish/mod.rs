//! Publishing: how an event gets into the hub, and who receives it.

pub(crate) mod attempt;
pub(crate) mod current;
pub(crate) mod group;
pub(crate) mod publisher;
pub(crate) mod route;
