//! How one attempt to publish goes: who has room, who is to be waited for, and who gets it.
//!
//! **Invariant:** an attempt delivers to everybody or to nobody. All logs are locked, always in the
//! same order, before the first is written to; no lock is held while user code runs or anybody is
//! woken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::context::inline::{self, Called};
use crate::error::Refusal;
use crate::event::AnyEvent;
use crate::group::queue_of;
use crate::heart::Heart;
use crate::log::{Full, Log, Wakes, Writer};
use crate::overflow::Overflow;
use crate::publish::Receipt;
use crate::queue::{Pushed, Queue};
use crate::route::Routes;
use crate::signal::Signal;
use crate::subscriber::Subscriber;
use crate::topic::Channel;

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
    /// This one is full; a deadline, if that is not to last.
    Wait {
        whom: u64,
        until: Option<Instant>,
    },
}

/// Publishes the first of these events, or finds out who is in the way. What is published is taken:
/// a reader may have it already, and to touch it again would take it out of that reader's cache.
pub(crate) fn attempt(
    heart: &Heart,
    channel: &Channel,
    events: &mut [Option<AnyEvent>],
    patience: Patience<'_>,
) -> Attempt {
    let routes = channel.routes.load();
    let skip = matches!(patience, Patience::Skip);
    if heart.is_closed() && !skip {
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
    if let Some(wait) = queues_full(&routes, &event, patience) {
        return wait;
    }
    let members = match choose(&routes, &event, patience) {
        Ok(chosen) => chosen,
        Err(attempt) => return attempt,
    };
    if let Some(attempt) = write(&routes.logs, &mut events[..1], patience, &mut receipt) {
        return attempt;
    }
    spread(heart, channel, &routes, members, &event, &mut receipt);
    Attempt::Done(receipt)
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
                _ => return Some(Attempt::Wait { whom: cursor.owner, until: None }),
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
fn queues_full(routes: &Routes, event: &AnyEvent, patience: Patience<'_>) -> Option<Attempt> {
    let full = |one: &Arc<Subscriber>| wait_for(queue_of(one)?, event, patience);
    routes.queues.iter().find_map(full)
}

/// Whether this queue is worth waiting for.
fn wait_for(queue: &Queue<AnyEvent>, event: &AnyEvent, patience: Patience<'_>) -> Option<Attempt> {
    let time = match queue.bounds.overflow {
        Overflow::Block if !matches!(patience, Patience::Skip) => None,
        Overflow::BlockFor(time) if !matches!(patience, Patience::None | Patience::Skip) => {
            Some(time)
        }
        _ => return None,
    };
    let (bytes, whom) = (event.bytes.into(), queue.owner);
    let Patience::Wait { signal, since } = patience else {
        let full = time != Some(Duration::ZERO) && !queue.has_room(bytes);
        return full.then_some(Attempt::Wait { whom, until: None });
    };
    let until = time.and_then(|time| since.checked_add(time));
    let late = until.is_some_and(|until| Instant::now() >= until);
    (!late && queue.wait(bytes, signal)).then_some(Attempt::Wait { whom, until })
}

/// Whose turn it is in every group; or whom to wait for.
fn choose(
    routes: &Routes,
    event: &AnyEvent,
    patience: Patience<'_>,
) -> Result<Vec<Arc<Subscriber>>, Attempt> {
    let mut members = Vec::with_capacity(routes.groups.len());
    for group in &routes.groups {
        let chosen = catch_unwind(AssertUnwindSafe(|| group.choose(event)));
        let Ok(chosen) = chosen else {
            let group = group.name.to_string();
            return Err(Attempt::Refused(Refusal::ShareFailed { group }));
        };
        let Some(member) = chosen else { continue };
        if let Some(wait) = queue_of(&member).and_then(|queue| wait_for(queue, event, patience)) {
            match patience {
                // Any other member will do, and so will a new one.
                Patience::Wait { signal, .. } if !group.wait(event.bytes.into(), signal) => {
                    return choose(routes, event, patience);
                }
                _ => return Err(wait),
            }
        }
        members.push(member);
    }
    Ok(members)
}

/// Gives the event to queues, groups and inline handlers. Nothing here waits.
fn spread(
    heart: &Heart,
    channel: &Channel,
    routes: &Routes,
    members: Vec<Arc<Subscriber>>,
    event: &AnyEvent,
    receipt: &mut Receipt,
) {
    for subscriber in &routes.queues {
        push(heart, channel, subscriber, event, receipt);
    }
    for member in members {
        let group = member.group().cloned();
        let mut next = Some(member);
        // A member that has just left is passed over; soon nobody is left or somebody takes it.
        while let Some(member) = next.take() {
            if !push(heart, channel, &member, event, receipt) {
                let chosen = group.as_ref().map(|group| {
                    group.leave(&member);
                    catch_unwind(AssertUnwindSafe(|| group.choose(event)))
                });
                next = chosen.and_then(Result::ok).flatten();
            }
        }
    }
    for subscriber in &routes.inlines {
        match inline::call(heart, subscriber, event) {
            Called::Yes => {
                receipt.matched += 1;
                receipt.queued += 1;
            }
            Called::Lost => {
                receipt.matched += 1;
                receipt.dropped += 1;
                channel.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Called::Gone => {}
        }
    }
}

/// `false` if the subscriber is leaving.
fn push(
    heart: &Heart,
    channel: &Channel,
    subscriber: &Arc<Subscriber>,
    event: &AnyEvent,
    receipt: &mut Receipt,
) -> bool {
    let Some(queue) = queue_of(subscriber) else { return true };
    let lost = match queue.push(event.priority().lane(), event.clone(), event.bytes.into()) {
        Pushed::Queued => {
            receipt.queued += 1;
            Vec::new()
        }
        Pushed::Instead(dropped) => {
            receipt.queued += 1;
            dropped
        }
        Pushed::Dropped(event) => vec![event],
        Pushed::Detach(event) => {
            heart.detach(subscriber);
            vec![event]
        }
        Pushed::Closed(_) => return false,
    };
    receipt.matched += 1;
    if !lost.is_empty() {
        receipt.dropped += lost.len() as u64;
        channel.dropped.fetch_add(lost.len() as u64, Ordering::Relaxed);
        heart.lost(subscriber, lost);
    }
    true
}
