//! Proves each rule of the protocol script by script, against real servers: repeats after a lost
//! reply, late copies, refusals; and that each rule is needed: switched off, its test fails.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]

mod alerts; // one member judges, each sink is told once
mod bounds; // how long Redis is busy with one call, and how many bytes it moves
mod bystanders; // senders and takers in the random schedule
mod contest; // locks at random, checked after every step
mod crowds; // what many members cost
mod election; // one generator, terms only grow
mod errors; // taken once, never lost
mod held; // blocks that a process of the random schedule holds
mod job_calls; // calls of the scripts that know times and duties
mod job_faults; // each rule about them is needed
mod job_rights; // what may not be done is not half done
mod job_steps; // what the random schedule does with them
mod jobs; // messages that wait for a time or for others
mod lab; // the bench on which all of this is done
mod membership; // only `join` adds a member, only the judge ends one
mod memory; // a full Redis can still elect, drain and settle
mod notices; // the common log
mod outcomes; // one outcome per message, effects included
mod pack_calls; // calls with packs
mod packs; // batches that no script looks into
mod queue; // accepted once, claimed by one
mod recipes; // permits, latches, barriers: repeats and late copies
mod repeats; // every script: the reply lost, a late copy

mod rules; // the scripts, possibly with one rule switched off
mod schedule; // all of it at random, checked after every step
mod sending; // sent once, put back once
mod several_packs; // one fetch that brings several of them
mod state; // what a generator keeps, and the end of a fleet
mod tenures; // locks end with their session, events have generations
mod unread; // what a worker cannot read is for others
mod witness; // what the random schedule knows beyond the state of Redis
