//! One attempt to publish: who has room, whom to wait for, and who gets the event.
//!
//! **Invariant:** an attempt delivers to everybody or to nobody. All logs are locked, always in the
//! same order, before the first one is written. No lock is held while user code runs or while
//! anybody is woken. Room in a queue that publishers wait for is reserved before anything is
//! written, and released if nothing is written.

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

/// What an attempt does if it finds no room.
#[derive(Clone, Copy)]
pub(crate) enum Patience<'a> {
    /// It fails. Queues that block for a limited time do not block.
    None,
    /// It skips subscribers that have no room or are closed.
    Skip,
    /// It fails.
    Some,
    /// It fails, and the signal is woken when there is room. The wait began at `since`.
    Wait { signal: &'a Arc<Signal>, since: Instant },
}

/// The result of one attempt.
pub(crate) enum Attempt {
    /// The first events are published. The receipt says how many.
    Done(Receipt),
    Refused(Refusal),
    /// These subscribers are full; room with any of them is enough. `until` is the deadline, if
    /// there is one.
    Wait {
        whom: Vec<u64>,
        until: Option<Instant>,
    },
}

/// Room reserved for the event in queues that publishers wait for.
type Rooms = Vec<Room<AnyEvent>>;

/// Publishes the first of these events, or finds out whom to wait for. Published events are taken
/// out of the slice: a reader may already use them, and touching them again would cost that reader
/// its cache line.
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

/// Writes into every log, all at once, as many events as fit. Releases all locks before it wakes
/// anybody.
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

/// Drops events that have no reader. This happens only now because their `Drop` is user code and no
/// lock is held any more.
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

/// Reserves room in all queues that publishers wait for. Returns a wait if one of them is full.
fn queues_full(
    routes: &Routes,
    event: &AnyEvent,
    patience: Patience<'_>,
    rooms: &mut Rooms,
) -> Option<Attempt> {
    let mut full = |one: &Arc<Subscriber>| wait_for(queue_of(one)?, event, patience, rooms);
    routes.queues.iter().find_map(&mut full)
}

/// Reserves room in this queue, if publishers wait for it. Returns a wait if it is full.
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
            return None; // the event is dropped for this subscriber
        }
        if queue.wait(bytes, signal) {
            return Some(Attempt::Wait { whom, until });
        }
    }
}

/// Chooses a member in every group. Fails with a wait if there is no room.
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
                // Room with another member is enough, also with a new one.
                Patience::Wait { signal, .. } if !group.wait(event.bytes.into(), signal) => {}
                _ => return Err(Attempt::Wait { whom: group.alternatives(whom), until }),
            }
        }
    }
    Ok(members)
}

/// Gives one event to queues, groups and inline handlers. Never waits.
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
            // The member has just left: the event goes to the others, like everything it leaves.
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
            Pushed::Full(event) => vec![event], // a notice: nobody waits for room
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
