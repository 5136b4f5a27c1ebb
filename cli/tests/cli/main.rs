//! Proves what the screen says and which exit code follows, for wrong input above all: one clear
//! error, a hint, the right code, no secret.
#![allow(missing_docs, unreachable_pub)]

mod fake; // a server that claims to be older than it is
mod output; // what the commands print
mod wrong_input; // every wrong input
