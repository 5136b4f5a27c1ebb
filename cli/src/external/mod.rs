//! Handlers and generators in any language: commands of the user's.
//!
//! **Invariant:** a command gets its message once per attempt and is gone, with everything it
//! started, when its message is settled by time-out or taken away. Whatever it prints is read to the
//! end and kept in bounded memory. A command that cannot be started is tried again, as long as its
//! message has time: one broken machine must not empty the queue into the error store at once.

mod exec;
mod lines;
mod pace;
mod process;
mod source;

pub(crate) use exec::Exec;
pub(crate) use lines::Lines;
pub(crate) use process::{CommandLine, end_all};
pub(crate) use source::Source;
