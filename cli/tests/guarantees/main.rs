//! Proves each promise with real processes of the program, real servers and real signals.
//!
//! Facts and order are asserted always, with generous deadlines. With `ARTEL_SOAK` set the counts
//! are full and times are asserted, too.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

mod addresses;
mod alerts; // told once, whoever dies
mod api; // the JSON API: as described, once under a key, for whom
mod archive; // what a member keeps on its disk
mod connections; // TLS, ACL, unix sockets
mod errors; // taken once, never lost
mod failover; // one generator, whatever is killed or frozen
mod fleet; // a fleet of real processes
mod folder; // the data folder of the private server
mod following; // a primary that changes
mod generators; // go on where their predecessor stopped
mod handlers; // commands in any language, good and bad
mod history; // what happened to the fleet, from any machine
mod http; // probes and numbers, for whom, whoever else is connected
mod jobs; // just workers, and what became of a message
mod metrics; // the numbers for Prometheus
mod network; // replies lost, links cut, deaf in one direction
mod orders; // paused, drained, stepped down
mod outage; // Redis killed, stopped, frozen, full, forgetful
mod secrets; // each goes in, none comes out
mod sending; // sent once, put back once, no lane starved
mod signals; // events, locks and numbers of the whole fleet
mod stops; // graceful: handed over, handed back
mod times; // what is retried, waits for a time, or comes again and again
mod top; // the fleet on one screen
mod traces; // from the sending of a message to its outcome
mod up; // a fleet in one terminal, and the private server
mod workers; // killed, frozen: one outcome each
