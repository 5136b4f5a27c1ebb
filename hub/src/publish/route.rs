//! [`Registry`]: who subscribes to what, and the routes from each key to its subscribers.
//!
//! **Invariant:** a publish that begins after `subscribe` returned reaches the subscriber. A
//! publish that begins after the subscriber left does not. Publishers read a snapshot and hold no
//! lock of the registry while they deliver. Two subscribers with the same name never match the same
//! key.
//!
//! A subscriber with a wildcard may change the routes of every key. Its arrival only changes the
//! [`Epoch`]: a publisher that finds routes of another epoch has them rebuilt.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Refusal, SubscribeError};
use crate::event::AnyEvent;
use crate::key::{PayloadType, Selection};
use crate::publish::group::Group;
use crate::run::subscriber::{Intake, Subscriber};
use crate::topic::{Channel, Codec, Topic};
use crate::wait::log::Log;

/// The name of a subscriber that was not given one.
pub(crate) fn name_of(number: u64) -> String {
    format!("subscriber-{number}")
}

pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("subscriber-")?.parse().ok()
}

/// Grows whenever a subscriber with a wildcard arrives or leaves.
pub(crate) type Epoch = Arc<AtomicU64>;

/// The destinations of the events of one key.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The epoch in which these routes were built.
    pub(crate) epoch: u64,
    /// In the order in which their locks are taken.
    pub(crate) logs: Vec<Arc<Log<AnyEvent>>>,
    pub(crate) queues: Vec<Arc<Subscriber>>,
    pub(crate) groups: Vec<Arc<Group>>,
    pub(crate) inlines: Vec<Arc<Subscriber>>,
}

impl Routes {
    pub(crate) fn subscribers(&self) -> usize {
        let logs: usize = self.logs.iter().map(|log| log.readers()).sum();
        let groups: usize = self.groups.iter().map(|group| group.len()).sum();
        logs + self.queues.len() + groups + self.inlines.len()
    }
}

/// The subscribers of one selection of keys.
#[derive(Debug, Default)]
struct Outlets {
    log: Option<Arc<Log<AnyEvent>>>,
    queues: Vec<Arc<Subscriber>>,
    inlines: Vec<Arc<Subscriber>>,
    groups: Vec<Arc<Group>>,
}

impl Outlets {
    fn is_empty(&self) -> bool {
        let rest = self.queues.len() + self.inlines.len() + self.groups.len();
        rest == 0 && self.log.is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    epoch: Epoch,
    channels: HashMap<Box<str>, Arc<Channel>>,
    /// How many of the channels belong to the hub itself.
    reserved: usize,
    outlets: HashMap<Arc<Selection>, Outlets>,
    /// Selections by the keys they name, and selections with wildcards.
    exact: HashMap<Box<str>, Vec<Arc<Selection>>>,
    wild: Vec<Arc<Selection>>,
    /// Each subscriber stores its position in this list.
    subscribers: Vec<Arc<Subscriber>>,
    /// Subscribers that were given a name. The others are found by their number.
    names: HashMap<Arc<str>, Vec<Arc<Subscriber>>>,
    /// The highest sequence number of all forgotten keys.
    forgotten: u64,
}

impl Registry {
    pub(crate) fn channel(&self, key: &str) -> Option<&Arc<Channel>> {
        self.channels.get(key)
    }

    pub(crate) fn channels(&self) -> impl Iterator<Item = &Arc<Channel>> {
        self.channels.values()
    }

    /// The current epoch. Publishers compare it with the epoch of their routes.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.clone()
    }

    /// The routes of a channel, rebuilt if they are of another epoch.
    pub(crate) fn fresh(&self, channel: &Channel) -> Arc<Routes> {
        let routes = channel.routes.load_full();
        if routes.epoch == self.epoch.load(Ordering::Relaxed) {
            return routes;
        }
        let routes = Arc::new(self.routes(channel));
        channel.routes.store(routes.clone());
        routes
    }

    /// Rebuilds at most `most` outdated routes. They may hold subscribers that have left.
    pub(crate) fn refresh(&self, most: usize) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let stale = |channel: &&Arc<Channel>| channel.routes.load().epoch != epoch;
        self.channels.values().filter(stale).take(most).for_each(|one| drop(self.fresh(one)));
    }

    /// All logs that have readers.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &Arc<Log<AnyEvent>>> {
        self.outlets.values().filter_map(|outlets| outlets.log.as_ref())
    }

    pub(crate) fn subscribers(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.subscribers.iter()
    }

    pub(crate) fn by_name(&self, name: &str) -> Vec<Arc<Subscriber>> {
        let number = number_of(name);
        let numbered = number.and_then(|id| self.subscribers.iter().find(|one| one.id == id));
        let numbered = numbered.filter(|one| **one.name() == *name && one.is_routed());
        let named = self.names.get(name).into_iter().flatten();
        numbered.into_iter().chain(named).cloned().collect()
    }

    /// The channel of a key, created if missing. When there are too many channels, those that are
    /// unused and that no subscriber names are forgotten.
    pub(crate) fn open<T: 'static>(
        &mut self,
        key: &str,
        codec: Option<Codec>,
        channels_max: usize,
    ) -> Result<Arc<Channel>, Refusal> {
        if let Some(channel) = self.channels.get(key) {
            let channel = channel.clone();
            return same_type::<T>(channel, codec);
        }
        let channels_max = channels_max + self.reserved;
        if self.channels.len() >= channels_max {
            self.forget();
            if self.channels.len() >= channels_max {
                return Err(Refusal::TooManyKeys { keys: channels_max });
            }
        }
        let asked = self.exact.get(key).into_iter().flatten().filter_map(|one| one.payload);
        if let Some(expected) = asked.into_iter().find(|asked| *asked != PayloadType::of::<T>()) {
            return Err(Refusal::WrongType {
                key: key.into(),
                expected: expected.name,
                given: std::any::type_name::<T>(),
            });
        }
        let channel = Arc::new(Channel::new::<T>(key, self.forgotten));
        channel.learn(codec);
        channel.routes.store(Arc::new(self.routes(&channel)));
        self.channels.insert(key.into(), channel.clone());
        Ok(channel)
    }

    /// Creates a channel of the hub itself, before anybody else can take its key.
    pub(crate) fn reserve<T: Send + Sync + 'static>(&mut self, topic: &Topic<T>) -> Arc<Channel> {
        let channel = Arc::new(Channel::new::<T>(topic.key(), 0));
        channel.learn(topic.codec);
        self.channels.insert(topic.key().into(), channel.clone());
        self.reserved += 1;
        channel
    }

    fn forget(&mut self) {
        let exact = &self.exact;
        let mut last = self.forgotten;
        self.channels.retain(|key, channel| {
            let own = key.starts_with("artel-hub/");
            let keep = own || Arc::strong_count(channel) > 1 || exact.contains_key(key);
            if !keep {
                last = last.max(channel.last_sequence());
            }
            keep
        });
        self.forgotten = last;
    }

    /// Checks that no other subscriber has this name and overlapping keys.
    pub(crate) fn check_name(&self, name: &str, wanted: &Selection) -> Result<(), SubscribeError> {
        match self.by_name(name).iter().any(|other| other.selection.overlaps(wanted)) {
            true => Err(SubscribeError::Duplicate { name: name.into() }),
            false => Ok(()),
        }
    }

    /// The same check for a name made from a new number: a user may have chosen that name.
    pub(crate) fn check_number(&self, id: u64, wanted: &Selection) -> Result<(), SubscribeError> {
        let name = name_of(id);
        let mut named = self.names.get(name.as_str()).into_iter().flatten();
        match named.any(|other| other.selection.overlaps(wanted)) {
            true => Err(SubscribeError::Duplicate { name }),
            false => Ok(()),
        }
    }

    /// Checks that the named keys carry the payload type of the subscriber.
    pub(crate) fn check_types(&self, wanted: &Selection) -> Result<(), SubscribeError> {
        let Some(payload) = wanted.payload else { return Ok(()) };
        for pattern in &wanted.patterns {
            let others = self.exact.get(pattern.text()).into_iter().flatten();
            let other = others.filter_map(|one| one.payload).find(|other| *other != payload);
            if let Some(other) = other {
                return Err(SubscribeError::WrongType {
                    key: pattern.text().into(),
                    expected: other.name,
                    given: payload.name,
                });
            }
            let channel = self.channels.get(pattern.text());
            if let Some(channel) = channel.filter(|channel| channel.payload != payload) {
                return Err(SubscribeError::WrongType {
                    key: channel.key().into(),
                    expected: channel.payload.name,
                    given: payload.name,
                });
            }
        }
        Ok(())
    }

    /// Returns one shared copy of equal selections.
    pub(crate) fn intern(&self, selection: Selection) -> Arc<Selection> {
        match self.outlets.get_key_value(&selection) {
            Some((known, _)) => known.clone(),
            None => Arc::new(selection),
        }
    }

    pub(crate) fn log(&self, selection: &Selection) -> Option<Arc<Log<AnyEvent>>> {
        self.outlets.get(selection)?.log.clone()
    }

    pub(crate) fn group(&self, selection: &Selection, name: &str) -> Option<Arc<Group>> {
        self.outlets.get(selection)?.groups.iter().find(|group| *group.name == *name).cloned()
    }

    /// Adds a subscriber to the routes. From here on events reach it. If it reads a log, it has
    /// joined that log before.
    pub(crate) fn add(&mut self, subscriber: &Arc<Subscriber>) {
        subscriber.seat.store(self.subscribers.len() as u32, Ordering::Relaxed);
        self.subscribers.push(subscriber.clone());
        if let Some(name) = subscriber.own_name() {
            self.names.entry(name.clone()).or_default().push(subscriber.clone());
        }
        let selection = subscriber.selection.clone();
        if !self.outlets.contains_key(&selection) {
            self.outlets.insert(selection.clone(), Outlets::default());
            self.index(&selection);
        }
        let Some(outlets) = self.outlets.get_mut(&selection) else { return };
        match (subscriber.group(), &subscriber.intake) {
            (Some(group), _) => {
                group.join(subscriber.clone());
                if outlets.groups.iter().any(|one| Arc::ptr_eq(one, group)) {
                    return;
                }
                outlets.groups.push(group.clone());
            }
            (None, Intake::Log { log, .. }) => {
                if outlets.log.is_some() {
                    return; // the routes contain this log already
                }
                outlets.log = Some(log.clone());
            }
            (None, Intake::Queue { .. }) => outlets.queues.push(subscriber.clone()),
            (None, Intake::Inline(_)) => outlets.inlines.push(subscriber.clone()),
        }
        self.reroute(&selection);
    }

    /// Removes a subscriber that has ended.
    pub(crate) fn forget_subscriber(&mut self, subscriber: &Subscriber) {
        self.unroute(subscriber);
        let seat = subscriber.seat.load(Ordering::Relaxed) as usize;
        if self.subscribers.get(seat).is_some_and(|there| there.id == subscriber.id) {
            self.subscribers.swap_remove(seat);
            if let Some(moved) = self.subscribers.get(seat) {
                moved.seat.store(seat as u32, Ordering::Relaxed);
            }
        }
    }

    /// Removes a subscriber from the routes and frees its name. It stays in the list until it has
    /// ended. A second call has no effect.
    pub(crate) fn unroute(&mut self, subscriber: &Subscriber) {
        if !subscriber.routed.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(name) = subscriber.own_name()
            && let Some(those) = self.names.get_mut(name)
        {
            those.retain(|one| one.id != subscriber.id);
            if those.is_empty() {
                self.names.remove(name);
            }
        }
        let selection = subscriber.selection.clone();
        let Some(outlets) = self.outlets.get_mut(&selection) else { return };
        match (subscriber.group(), &subscriber.intake) {
            (Some(group), _) => {
                if !group.remove(subscriber) {
                    return;
                }
                outlets.groups.retain(|one| !Arc::ptr_eq(one, group));
            }
            (None, Intake::Log { log, .. }) => {
                // All readers of this log may have left, and a new log may have been started since.
                let ours = outlets.log.as_ref().is_some_and(|one| Arc::ptr_eq(one, log));
                if !ours || log.readers() > 0 {
                    return;
                }
                outlets.log = None;
            }
            (None, Intake::Queue { .. }) => outlets.queues.retain(|one| one.id != subscriber.id),
            (None, Intake::Inline(_)) => outlets.inlines.retain(|one| one.id != subscriber.id),
        }
        if outlets.is_empty() {
            self.outlets.remove(&selection);
            self.unindex(&selection);
        }
        self.reroute(&selection);
    }

    fn index(&mut self, selection: &Arc<Selection>) {
        for pattern in selection.patterns.iter().filter(|pattern| !pattern.is_wild()) {
            self.exact.entry(pattern.text().into()).or_default().push(selection.clone());
        }
        if selection.patterns.iter().any(|pattern| pattern.is_wild()) {
            self.wild.push(selection.clone());
        }
    }

    fn unindex(&mut self, selection: &Arc<Selection>) {
        for pattern in selection.patterns.iter().filter(|pattern| !pattern.is_wild()) {
            if let Some(there) = self.exact.get_mut(pattern.text()) {
                there.retain(|one| one != selection);
                if there.is_empty() {
                    self.exact.remove(pattern.text());
                }
            }
        }
        self.wild.retain(|one| one != selection);
    }

    /// Rebuilds the routes of every key of this selection. With a wildcard, it only marks them as
    /// outdated.
    fn reroute(&self, selection: &Selection) {
        if selection.patterns.iter().any(|pattern| pattern.is_wild()) {
            self.epoch.fetch_add(1, Ordering::Release);
            return;
        }
        let named = selection.patterns.iter();
        let channels = named.filter_map(|pattern| self.channels.get(pattern.text()));
        channels.for_each(|channel| channel.routes.store(Arc::new(self.routes(channel))));
    }

    fn routes(&self, channel: &Channel) -> Routes {
        let exact = self.exact.get(channel.key()).into_iter().flatten();
        let mut routes = Routes { epoch: self.epoch.load(Ordering::Relaxed), ..Routes::default() };
        let mut seen = HashSet::new();
        for selection in exact.chain(&self.wild) {
            let ours = selection.matches(channel.key(), channel.payload);
            if !ours || !seen.insert(Arc::as_ptr(selection)) {
                continue;
            }
            let Some(outlets) = self.outlets.get(selection) else { continue };
            routes.logs.extend(outlets.log.clone());
            routes.queues.extend(outlets.queues.iter().cloned());
            routes.groups.extend(outlets.groups.iter().cloned());
            routes.inlines.extend(outlets.inlines.iter().cloned());
        }
        routes.logs.sort_by_key(|log| Arc::as_ptr(log).addr());
        routes
    }
}

pub(crate) fn same_type<T: 'static>(
    channel: Arc<Channel>,
    codec: Option<Codec>,
) -> Result<Arc<Channel>, Refusal> {
    if channel.payload != PayloadType::of::<T>() {
        return Err(Refusal::WrongType {
            key: channel.key().into(),
            expected: channel.payload.name,
            given: std::any::type_name::<T>(),
        });
    }
    channel.learn(codec);
    Ok(channel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Delivery, EventHub, Keys};

    /// Regression: the routes of every key were rebuilt for each subscriber with a wildcard.
    #[test]
    fn a_wildcard_costs_the_keys_nothing_before_they_are_used() {
        const NUMBERS: Topic<u64> = Topic::new("numbers");
        let hub = EventHub::new();
        let publishers: Vec<_> = (0..100)
            .map(|number| hub.publisher(&NUMBERS.child(&number.to_string())).expect("a publisher"))
            .collect();
        let routes = || -> Vec<Arc<Routes>> {
            let registry = hub.core().registry();
            let key = |number: u32| format!("numbers/{number}");
            let channel = |number| registry.channel(&key(number)).expect("known");
            (0..100).map(|number| channel(number).routes.load_full()).collect()
        };
        let before = routes();
        let keys = Keys::<u64>::new(["numbers/*"]).expect("keys");
        let handler = |_: Delivery<'_, u64>| ();
        let one = hub.subscribe(keys).on(Context::Thread).spawn(handler).expect("subscribed");
        let same = before.iter().zip(routes()).filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert_eq!(same, 100);
        for publisher in &publishers {
            assert_eq!(publisher.blocking_publish(1).expect("published").queued, 1);
        }
        drop(one);
        assert_eq!(hub.subscriber_count("numbers/7"), 0);
        assert_eq!(publishers[8].blocking_publish(1).expect("published").matched, 0);
        hub.core().registry().refresh(1000);
        assert!(routes().iter().all(|routes| routes.logs.is_empty()), "nobody is held on to");
    }
}
