//! How one attempt to publish goes: who has room, who is to be waited for, and who gets it.
//!
//! **Invariant:** an attempt delivers to everybody or to nobody. All logs are locked, always in the
//! same order, before the first is written to; no lock is held while user code runs or anybody is
//! woken. Room in a queue that publishers wait for is taken before anything is written, and given
//! back if nothing is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::end::leftovers::STOPPED;
use crate::error::Refusal;
use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::publish::group::queue_of;
use crate::publish::publisher::Receipt;
use crate::publish::route::Routes;
use crate::run::context::inline::{self, Called};
use crate::run::subscriber::Subscriber;
use crate::topic::Channel;
use crate::wait::log::{Full, Log, Wakes, Writer};
use crate::wait::overflow::Overflow;
use crate::wait::queue::{EventQueue, Pushed, Room};
use crate::wait::signal::Signal;

/// What an attempt that finds no room is to do.
#[derive(Clone, Copy)]
pub(crate) enum Patience<'a> {
    /// Say so; queues that block for a time do not block.
    None,
    /// Do without those that have none, or that are closed.
    Skip,
    /// Say so.
    Some,
    /// Say so, and have the signal woken when there is room. Waiting began then.
    Wait { signal: &'a Arc<Signal>, since: Instant },
}

/// What one attempt came to.
pub(crate) enum Attempt {
    /// The first of the events are published, as many as the receipt says.
    Done(Receipt),
    Refused(Refusal),
    /// These are full, and any of them will do; a deadline, if that is not to last.
    Wait {
        whom: Vec<u64>,
        until: Option<Instant>,
    },
}

/// Room that was taken for the event, in queues that publishers wait for.
type Rooms = Vec<Room<AnyEvent>>;

/// Publishes the first of these events, or finds out who is in the way. What is published is taken:
/// a reader may have it already, and to touch it again would take it out of that reader's cache.
pub(crate) fn attempt(
    core: &HubCore,
    channel: &Channel,
    events: &mut [Option<AnyEvent>],
    patience: Patience<'_>,
) -> Attempt {
    let routes = core.routes(channel);
    let skip = matches!(patience, Patience::Skip);
    if core.is_closed() && !skip {
        return Attempt::Refused(Refusal::Closed);
    }
    let mut receipt = Receipt::default();
    if routes.queues.is_empty() && routes.groups.is_empty() && routes.inlines.is_empty() {
        return match write(&routes.logs, events, patience, &mut receipt) {
            Some(attempt) => attempt,
            None => Attempt::Done(receipt),
        };
    }
    let Some(event) = events.first().cloned().flatten() else { return Attempt::Done(receipt) };
    let mut rooms = Rooms::new();
    if let Some(wait) = queues_full(&routes, &event, patience, &mut rooms) {
        return wait;
    }
    let members = match choose(&routes, &event, patience, &mut rooms) {
        Ok(chosen) => chosen,
        Err(attempt) => return attempt,
    };
    if let Some(attempt) = write(&routes.logs, &mut events[..1], patience, &mut receipt) {
        return attempt;
    }
    let mut spread = Spread { core, channel, event: &event, rooms, receipt };
    spread.to(&routes, members);
    Attempt::Done(spread.receipt)
}

/// Writes as many events as there is room for into every log, all at once. All locks are given back
/// before anybody is woken.
#[inline]
fn write(
    logs: &[Arc<Log<AnyEvent>>],
    events: &mut [Option<AnyEvent>],
    patience: Patience<'_>,
    receipt: &mut Receipt,
) -> Option<Attempt> {
    if let [log] = logs {
        let mut writers = [log.lock()];
        let failed = fill(&mut writers, events, patience, receipt);
        let [writer] = writers;
        writer.finish().wake();
        published(events, receipt);
        return failed;
    }
    let mut writers: Vec<Writer<'_, AnyEvent>> = logs.iter().map(|log| log.lock()).collect();
    let failed = fill(&mut writers, events, patience, receipt);
    let wakes: Vec<Wakes<AnyEvent>> = writers.into_iter().map(Writer::finish).collect();
    wakes.into_iter().for_each(Wakes::wake);
    published(events, receipt);
    failed
}

/// What nobody read is dropped only now: it is the user's, and no lock is held any more.
#[inline]
fn published(events: &mut [Option<AnyEvent>], receipt: &Receipt) {
    events[..receipt.events as usize].iter_mut().for_each(|place| *place = None);
}

#[inline]
fn fill(
    writers: &mut [Writer<'_, AnyEvent>],
    events: &mut [Option<AnyEvent>],
    patience: Patience<'_>,
    receipt: &mut Receipt,
) -> Option<Attempt> {
    let skip = matches!(patience, Patience::Skip);
    for place in events {
        let Some(event) = place else { break };
        let (bytes, lane) = (event.bytes.into(), event.lane.into());
        for writer in &mut *writers {
            let cursor = match writer.room(bytes) {
                Ok(()) => continue,
                Err(_) if skip => continue,
                Err(_) if receipt.events > 0 => return None,
                Err(Full::Closed) => return Some(Attempt::Refused(Refusal::Closed)),
                Err(Full::By(cursor)) => cursor,
            };
            match patience {
                Patience::Wait { signal, .. } if !writer.wait(&cursor, bytes, signal) => {}
                _ => return Some(Attempt::Wait { whom: vec![cursor.owner], until: None }),
            }
        }
        receipt.sequence = event.sequence();
        receipt.events += 1;
        let last = writers.len().saturating_sub(1);
        for (at, writer) in writers.iter_mut().enumerate() {
            let readers = writer.readers() as u64;
            receipt.matched += readers;
            if readers == 0 || (skip && writer.room(bytes).is_err()) {
                continue;
            }
            receipt.queued += readers;
            let event = if at == last { place.take() } else { place.clone() };
            if let Some(event) = event {
                writer.push(lane, event, bytes);
            }
        }
    }
    None
}

/// A queue that blocks for a time and has no room yet.
fn queues_full(
    routes: &Routes,
    event: &AnyEvent,
    patience: Patience<'_>,
    rooms: &mut Rooms,
) -> Option<Attempt> {
    let mut full = |one: &Arc<Subscriber>| wait_for(queue_of(one)?, event, patience, rooms);
    routes.queues.iter().find_map(&mut full)
}

/// Takes room in this queue, if it is one that publishers wait for; or says how long to wait.
fn wait_for(
    queue: &Arc<EventQueue<AnyEvent>>,
    event: &AnyEvent,
    patience: Patience<'_>,
    rooms: &mut Rooms,
) -> Option<Attempt> {
    let time = match queue.bounds.overflow {
        Overflow::Block if !matches!(patience, Patience::Skip) => None,
        Overflow::BlockFor(time) if !matches!(patience, Patience::None | Patience::Skip) => {
            Some(time)
        }
        _ => return None,
    };
    let bytes = event.bytes.into();
    loop {
        if let Some(room) = Room::take(queue, bytes) {
            rooms.push(room);
            return None;
        }
        let whom = vec![queue.owner];
        let Patience::Wait { signal, since } = patience else {
            return (time != Some(Duration::ZERO)).then_some(Attempt::Wait { whom, until: None });
        };
        let until = time.and_then(|time| since.checked_add(time));
        if until.is_some_and(|until| Instant::now() >= until) {
            return None; // it is dropped
        }
        if queue.wait(bytes, signal) {
            return Some(Attempt::Wait { whom, until });
        }
    }
}

/// Whose turn it is in every group; or whom to wait for.
fn choose(
    routes: &Routes,
    event: &AnyEvent,
    patience: Patience<'_>,
    rooms: &mut Rooms,
) -> Result<Vec<Arc<Subscriber>>, Attempt> {
    let mut members = Vec::with_capacity(routes.groups.len());
    for group in &routes.groups {
        loop {
            let chosen = catch_unwind(AssertUnwindSafe(|| group.choose(event)));
            let Ok(chosen) = chosen else {
                let group = group.name.to_string();
                return Err(Attempt::Refused(Refusal::ShareFailed { group }));
            };
            let full = chosen.as_ref().and_then(|member| queue_of(member));
            let full = full.and_then(|queue| wait_for(queue, event, patience, rooms));
            let Some(Attempt::Wait { whom, until }) = full else {
                members.extend(chosen);
                break;
            };
            match patience {
                // Any other member will do, and so will a new one.
                Patience::Wait { signal, .. } if !group.wait(event.bytes.into(), signal) => {}
                _ => return Err(Attempt::Wait { whom: group.alternatives(whom), until }),
            }
        }
    }
    Ok(members)
}

/// Gives one event to queues, groups and inline handlers. Nothing here waits.
struct Spread<'a> {
    core: &'a HubCore,
    channel: &'a Channel,
    event: &'a AnyEvent,
    rooms: Rooms,
    receipt: Receipt,
}

impl Spread<'_> {
    fn to(&mut self, routes: &Routes, members: Vec<Arc<Subscriber>>) {
        for subscriber in &routes.queues {
            self.push(subscriber);
        }
        for member in members {
            if self.push(&member) {
                continue;
            }
            // It has just left: this is for the others, like all it leaves.
            if let Some(group) = member.group().filter(|group| !group.remove(&member)) {
                let event = vec![self.event.clone()];
                let left = self.core.leave_behind(&member, event, STOPPED);
                self.receipt.matched += group.len().min(1) as u64;
                self.receipt.queued += 1 - left.min(1);
            }
        }
        for subscriber in &routes.inlines {
            match inline::call(self.core, subscriber, self.event) {
                Called::Yes => {
                    self.receipt.matched += 1;
                    self.receipt.queued += 1;
                }
                Called::Lost => {
                    self.receipt.matched += 1;
                    self.dropped(1);
                }
                Called::Gone => {}
            }
        }
    }

    fn dropped(&mut self, events: u64) {
        self.receipt.dropped += events;
        self.channel.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// `false` if the subscriber is leaving.
    fn push(&mut self, subscriber: &Arc<Subscriber>) -> bool {
        let Some(queue) = queue_of(subscriber) else { return true };
        let (lane, event) = (self.event.priority().lane(), self.event.clone());
        let room = self.rooms.iter().position(|room| room.is_in(queue));
        let pushed = match room.map(|place| self.rooms.swap_remove(place)) {
            Some(room) => room.push(lane, event),
            None => queue.push(lane, event, self.event.bytes.into()),
        };
        let lost = match pushed {
            Pushed::Queued => {
                self.receipt.queued += 1;
                Vec::new()
            }
            Pushed::Instead(dropped) => {
                self.receipt.queued += 1;
                dropped
            }
            Pushed::Dropped(event) => vec![event],
            Pushed::Detach(event) => {
                self.core.detach(subscriber);
                vec![event]
            }
            Pushed::Full(event) => vec![event], // nobody waits for room: it is a notice
            Pushed::Closed(_) => return false,
        };
        self.receipt.matched += 1;
        if !lost.is_empty() {
            self.dropped(lost.len() as u64);
            self.core.lost(subscriber, lost);
        }
        true
    }
}
