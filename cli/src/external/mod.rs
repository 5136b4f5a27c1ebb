//! Handlers and generators in any language: commands of the user.
//!
//! **Invariant:** a command gets its message once per attempt. It is ended, with everything it
//! started, when its message is settled by time-out or taken away. All its output is read to the
//! end and kept in bounded memory. A command that cannot be started is tried again until the
//! deadline of its message: one broken machine must not move the whole queue into the error store
//! at once.

mod answer;
mod exec;
mod lines;
mod once;
mod pace;
mod process;
mod source;

pub(crate) use exec::Exec;
pub(crate) use lines::Lines;
pub(crate) use process::{CommandLine, end_all};
pub(crate) use source::Source;
