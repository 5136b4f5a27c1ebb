//! One file per command.

pub(crate) mod bench;
pub(crate) mod clean;
pub(crate) mod config;
pub(crate) mod cron;
pub(crate) mod data;
pub(crate) mod doctor;
pub(crate) mod embedded;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod fleets;
pub(crate) mod history;
pub(crate) mod lock;
pub(crate) mod notice_log;
pub(crate) mod notify;
pub(crate) mod orders;
pub(crate) mod pages;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod send;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod take;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod verify;
