//! [`Share`] and `Group`: several subscribers that share the events of their keys.
//!
//! **Invariant:** each event goes to exactly one member of the group. With [`Share::by`], events
//! with the same hash go to the same member, in order, while the set of members does not change.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::event::AnyEvent;
use crate::run::subscriber::{Intake, Subscriber};
use crate::sync::Mutex;
use crate::wait::queue::EventQueue;
use crate::wait::signal::Signal;

type HashOf = Arc<dyn Fn(&AnyEvent) -> u64 + Send + Sync>;

/// How the members of a group share events. For [`Subscribe::group`](crate::Subscribe::group).
///
/// ```
/// use artel_hub::{Delivery, EventHub, Share, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders"); // the number of the customer
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let member = || {
///     let member = hub.subscribe(&ORDERS).group("billing", Share::by(|customer: &u32| *customer));
///     member.spawn(|_: Delivery<'_, u32>| ())
/// };
/// let (first, second) = (member()?, member()?);
/// hub.publish_batch(&ORDERS, [7, 7, 7]).await?;
/// hub.idle().await;
/// let processed = (first.stats().processed, second.stats().processed);
/// assert!(processed == (3, 0) || processed == (0, 3)); // a customer stays with one member
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Share<T> {
    pub(crate) hash: Option<HashOf>,
    payload: std::marker::PhantomData<fn(T)>,
}

impl<T: 'static> Share<T> {
    /// Members take turns. A member whose queue is full is skipped.
    pub fn round_robin() -> Share<T> {
        Share { hash: None, payload: std::marker::PhantomData }
    }

    /// Events for which `key` returns equal values go to the same member, in order.
    pub fn by<K: Hash>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Share<T> {
        let hash = move |event: &AnyEvent| {
            let mut hasher = DefaultHasher::new();
            if let Some(payload) = event.view::<T>() {
                key(payload).hash(&mut hasher);
            }
            hasher.finish()
        };
        Share { hash: Some(Arc::new(hash)), payload: std::marker::PhantomData }
    }
}

impl<T> Clone for Share<T> {
    fn clone(&self) -> Share<T> {
        Share { hash: self.hash.clone(), payload: std::marker::PhantomData }
    }
}

impl<T> std::fmt::Debug for Share<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.hash.is_some() { "Share::by" } else { "Share::round_robin" })
    }
}

/// The members that share one selection of keys under one name.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    hash: Option<HashOf>,
    members: Mutex<Vec<Arc<Subscriber>>>,
    next: AtomicUsize,
    /// Publishers that wait for any member.
    writers: Mutex<Vec<Arc<Signal>>>,
}

/// The queue of a subscriber, if it has its own.
pub(crate) fn queue_of(member: &Subscriber) -> Option<&Arc<EventQueue<AnyEvent>>> {
    match &member.intake {
        Intake::Queue { queue, .. } => Some(queue),
        _ => None,
    }
}

impl Group {
    pub(crate) fn new(name: Arc<str>, hash: Option<HashOf>) -> Group {
        let (members, writers) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        Group { name, hash, members, next: AtomicUsize::new(0), writers }
    }

    pub(crate) fn is_by_hash(&self) -> bool {
        self.hash.is_some()
    }

    pub(crate) fn join(&self, member: Arc<Subscriber>) {
        self.members.lock().push(member);
        self.changed();
    }

    /// Wakes the publishers that wait, because the choice of a member may have changed.
    fn changed(&self) {
        let writers = std::mem::take(&mut *self.writers.lock());
        writers.iter().for_each(|writer| writer.wake());
    }

    /// Registers the signal. It is woken when a member joins or leaves. Without a hash it is also
    /// woken when any member has room. `false` if a member has room now.
    pub(crate) fn wait(&self, bytes: u64, signal: &Arc<Signal>) -> bool {
        crate::wait::signal::remember(&mut self.writers.lock(), signal);
        let members = self.members.lock().clone();
        self.is_by_hash()
            || members.iter().filter_map(|one| queue_of(one)).all(|queue| queue.wait(bytes, signal))
    }

    /// The subscribers a publisher waits for when `chosen` is full: any member, or only `chosen`
    /// with a hash.
    pub(crate) fn alternatives(&self, chosen: Vec<u64>) -> Vec<u64> {
        match self.is_by_hash() {
            true => chosen,
            false => self.members.lock().iter().map(|member| member.id).collect(),
        }
    }

    /// `true` if the group is empty now.
    pub(crate) fn remove(&self, member: &Subscriber) -> bool {
        let mut members = self.members.lock();
        members.retain(|one| one.id != member.id);
        let empty = members.is_empty();
        drop(members);
        self.changed();
        empty
    }

    pub(crate) fn len(&self) -> usize {
        self.members.lock().len()
    }

    /// Chooses the member for an event: one with room if possible, else the one to wait for. The
    /// hash function is user code: no lock is held while it runs, and it may panic.
    pub(crate) fn choose(&self, event: &AnyEvent) -> Option<Arc<Subscriber>> {
        let hash = self.hash.as_ref().map(|hash| hash(event));
        let members = self.members.lock().clone();
        if let Some(hash) = hash {
            // Rendezvous hashing: if a member leaves, only its own share moves.
            let rank = |member: &Arc<Subscriber>| {
                let mut hasher = DefaultHasher::new();
                (hash, member.id).hash(&mut hasher);
                hasher.finish()
            };
            return members.into_iter().max_by_key(rank);
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = event.bytes.into();
        let turn = |step: usize| members.get(first.wrapping_add(step) % members.len().max(1));
        (0..members.len())
            .filter_map(turn)
            .find(|member| queue_of(member).is_some_and(|queue| queue.has_room(bytes)))
            .or_else(|| turn(0))
            .cloned()
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}
