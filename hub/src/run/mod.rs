//! Running: subscribers, their handlers, and the handling of failures.

pub(crate) mod bounds;
pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod filter;
pub(crate) mod handler;
pub(crate) mod handling;
pub(crate) mod restart;
pub(crate) mod runner;
pub(crate) mod runner_maker;
pub(crate) mod runner_task;
pub(crate) mod subscribe;
pub(crate) mod subscriber;
pub(crate) mod subscription;
pub(crate) mod timer;
pub(crate) mod watch;
