//! Proves what the screen says and which exit code follows, for wrong input above all: one clear
//! error, a hint, the right code, no secret.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

mod bench; // what is measured, and what is left alone
mod deploy; // files for systemd, Kubernetes and monitoring
mod doctor; // what endangers the promise, and what mends it
mod fake; // a server that claims to be older than it is
mod image; // the files for containers
mod large; // replies without end
mod output; // what the commands print
mod pages; // the page of commands is what `--help` says
mod screen; // one run of the program
mod screens; // what fits on which screen, with and without colour
mod settings; // flag, variable, file, default
mod shown; // every command and program on the pages is run
mod signals; // events and locks: what they say, and with which exit code
mod stored; // errors: listed, taken, put back, copied
mod terminal; // what others wrote, on a screen
mod wrong_commands; // handlers and generators that are none
mod wrong_input; // addresses, names, values, servers that are unfit
mod wrong_sending; // what cannot be sent
mod wrong_server; // no server, or one that cannot be started
mod wrong_settings; // files and variables
mod wrong_times; // times, entries and delays
mod wrong_tls; // certificates that are not to be trusted
