//! [`EventHub`]: where publishers and subscribers meet.

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use crate::end::life::Life;
use crate::error::{PublishError, Refusal};
use crate::hub_core::{Clock, Handle, HubCore, Settings};
use crate::keep::dead_letter::{DeadLetters, LETTERS_MAX, LetterStore, LetterWriter};
use crate::key::IntoKeys;
use crate::publish::publisher::{Publisher, Receipt};
use crate::run::context::pool::Pool;
use crate::run::context::thread::block_on;
use crate::run::subscribe::Subscribe;
use crate::run::subscriber::{Stage, Subscriber};
use crate::run::subscription::{GRACE, stop};
use crate::run::timer::Timer;
use crate::stats::Stats;
use crate::topic::Topic;

/// How many handlers in a row may lead to an event.
const DEPTH_MAX: u16 = 64;
/// What the store of dead letters is given at least, to write the last ones.
const LETTERS: Duration = Duration::from_secs(1);
/// How many keys are remembered.
const KEYS_MAX: usize = 65_536;

/// What is to be true of a new hub.
#[must_use = "nothing is made before `build`"]
pub struct EventHubBuilder {
    settings: Settings,
    letters_max: usize,
    store: Option<Box<dyn LetterStore>>,
}

/// Why no hub was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A bound that lets nothing through.
    #[error("no hub was made: {what} must be at least 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// The system gave no thread.
    #[error("no hub was made: no thread could be started: {reason}")]
    NoThread {
        /// What it said.
        reason: String,
    },
}

impl EventHubBuilder {
    /// Handlers in a row that may lead to an event, 64 unless said here: an event that a handler
    /// publishes is one deeper than the event it handles. Beyond that a publish is refused as
    /// [`Refusal::TooDeep`], which ends chains that would never end.
    pub fn depth_max(mut self, depth: u16) -> EventHubBuilder {
        self.settings.depth_max = depth;
        self
    }

    /// The heaviest payload, by the [weight](Topic::weighed) of its topic.
    pub fn payload_bytes_max(mut self, bytes: u64) -> EventHubBuilder {
        self.settings.payload_bytes_max = bytes;
        self
    }

    /// Keys the hub remembers, 65,536 unless said here. Those that nobody holds are forgotten first.
    pub fn keys_max(mut self, keys: usize) -> EventHubBuilder {
        self.settings.channels_max = keys;
        self
    }

    /// Threads of the pool, as many as there are cores unless said here. They start with the first
    /// subscriber there.
    pub fn pool_threads(mut self, threads: usize) -> EventHubBuilder {
        self.settings.pool_threads = threads;
        self
    }

    /// The tokio runtime for tasks; else it is the one that `spawn` is called on.
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> EventHubBuilder {
        self.settings.runtime = Some(runtime);
        self
    }

    /// What time it is, for tests.
    pub fn clock(
        mut self,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> EventHubBuilder {
        let clock: Clock = Arc::new(clock);
        self.settings.clock = Some(clock);
        self
    }

    /// Dead letters that are kept in memory, or that may wait for the store: 4,096 unless said here.
    pub fn letters_max(mut self, letters: usize) -> EventHubBuilder {
        self.letters_max = letters;
        self
    }

    /// Where dead letters are kept; in memory unless said here.
    pub fn dead_letters(mut self, store: impl LetterStore) -> EventHubBuilder {
        self.store = Some(Box::new(store));
        self
    }

    /// Makes the hub.
    pub fn build(self) -> Result<EventHub, BuildError> {
        let bounds = [
            ("the number of keys", self.settings.channels_max),
            ("the number of pool threads", self.settings.pool_threads),
            ("the number of dead letters", self.letters_max),
        ];
        for (what, bound) in bounds {
            if bound == 0 {
                return Err(BuildError::Zero { what });
            }
        }
        if cfg!(panic = "abort") {
            tracing::warn!(
                target: "artel_hub",
                "this program aborts when anything panics: a subscriber's panic ends it"
            );
        }
        let letter_writer = LetterWriter::new(self.letters_max, self.store)
            .map_err(|error| BuildError::NoThread { reason: error.to_string() })?;
        let core = HubCore::new(self.settings, letter_writer);
        Ok(EventHub { handle: Arc::new(Handle { core }) })
    }
}

impl std::fmt::Debug for EventHubBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventHubBuilder").finish_non_exhaustive()
    }
}

/// What became of the subscribers when the hub was shut down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// How many ended.
    pub stopped: usize,
    /// Events nobody came to in time; they are dead letters.
    pub leftovers: u64,
    /// Subscribers that are still inside their handlers; they are not called again.
    pub stuck: Vec<String>,
}

/// Publish and subscribe inside one process. Clones share it.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
///
/// const GREETINGS: Topic<String> = Topic::new("greetings");
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let hub = EventHub::new();
/// let (tell, told) = std::sync::mpsc::channel();
/// let subscription = hub
///     .subscribe(&GREETINGS)
///     .name("listener")
///     .spawn(move |text: Delivery<'_, String>| tell.send(text.to_uppercase()))?;
///
/// let receipt = hub.publish(&GREETINGS, "hello".into()).await?;
/// assert_eq!((receipt.matched, receipt.queued), (1, 1));
///
/// hub.idle().await;
/// assert_eq!(told.recv()?, "HELLO");
/// subscription.stop(std::time::Duration::from_secs(1)).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct EventHub {
    handle: Arc<Handle>,
}

/// A hub that may be gone. Made by [`EventHub::downgrade`], for handlers. Events that wait when the
/// last handle is dropped, or when the hub is shut down, are still handled; what their handlers
/// publish then is refused.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, HandlerError, Topic};
///
/// const ORDERS: Topic<u32> = Topic::new("orders");
/// const BILLS: Topic<u32> = Topic::new("bills");
///
/// let hub = EventHub::new();
/// let weak = hub.downgrade();
/// let billing = hub.subscribe(&ORDERS).on(Context::Thread).spawn(
///     move |order: Delivery<'_, u32>| -> Result<(), HandlerError> {
///         // A hub that ends takes no bill: the order becomes a dead letter.
///         let hub = weak.upgrade().ok_or_else(|| HandlerError::skip("the hub is gone"))?;
///         hub.blocking_publish(&BILLS, *order)?;
///         Ok(())
///     },
/// )?;
/// # billing.detach();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeakEventHub {
    handle: Weak<Handle>,
}

impl WeakEventHub {
    /// The hub, unless it is gone.
    pub fn upgrade(&self) -> Option<EventHub> {
        Some(EventHub { handle: self.handle.upgrade()? })
    }
}

impl Default for EventHub {
    fn default() -> EventHub {
        EventHub::new()
    }
}

impl EventHub {
    /// A hub with the usual bounds. It starts no thread before it needs one.
    pub fn new() -> EventHub {
        EventHub::builder().build().expect("the usual bounds are fine and need no thread")
    }

    /// A hub with bounds of your own.
    pub fn builder() -> EventHubBuilder {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let settings = Settings {
            depth_max: DEPTH_MAX,
            payload_bytes_max: u64::MAX,
            channels_max: KEYS_MAX,
            pool_threads: cores,
            runtime: None,
            clock: None,
        };
        EventHubBuilder { settings, letters_max: LETTERS_MAX, store: None }
    }

    pub(crate) fn core(&self) -> &Arc<HubCore> {
        &self.handle.core
    }

    /// The same hub for its own handlers: what a handler holds does not keep the hub alive.
    ///
    /// A handler that holds a clone of its hub keeps it from ending when it is dropped everywhere
    /// else, with its threads.
    pub fn downgrade(&self) -> WeakEventHub {
        WeakEventHub { handle: Arc::downgrade(&self.handle) }
    }

    /// Begins to subscribe to a [`Topic`] or to [`Keys`](crate::Keys).
    pub fn subscribe<T: Send + Sync + 'static>(&self, keys: impl IntoKeys<T>) -> Subscribe<T> {
        Subscribe::new(self.core().clone(), keys.into_keys())
    }

    /// A publisher that has looked its key up once and for all.
    pub fn publisher<T>(&self, topic: &Topic<T>) -> Result<Publisher<T>, Refusal>
    where
        T: Send + Sync + 'static,
    {
        if self.core().is_closed() {
            return Err(Refusal::Closed);
        }
        Publisher::new(self.handle.clone(), topic)
    }

    /// [`Publisher::publish`], with the key looked up.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropped before it is ready, nothing was published.
    pub async fn publish<T>(&self, topic: &Topic<T>, payload: T) -> Result<Receipt, PublishError<T>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.publish(payload).await,
            Err(reason) => Err(PublishError::new(payload, reason)),
        }
    }

    /// [`Publisher::try_publish`], with the key looked up.
    pub fn try_publish<T>(&self, topic: &Topic<T>, payload: T) -> Result<Receipt, PublishError<T>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.try_publish(payload),
            Err(reason) => Err(PublishError::new(payload, reason)),
        }
    }

    /// [`Publisher::blocking_publish`], with the key looked up.
    pub fn blocking_publish<T>(
        &self,
        topic: &Topic<T>,
        payload: T,
    ) -> Result<Receipt, PublishError<T>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.blocking_publish(payload),
            Err(reason) => Err(PublishError::new(payload, reason)),
        }
    }

    /// [`Publisher::publish_batch`], with the key looked up.
    ///
    /// # Cancel safety
    ///
    /// Not safe: dropped before it is ready, the first ones may be published and the others gone.
    pub async fn publish_batch<T>(
        &self,
        topic: &Topic<T>,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<Receipt, PublishError<Vec<T>>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.publish_batch(payloads).await,
            Err(reason) => Err(PublishError::new(payloads.into_iter().collect(), reason)),
        }
    }

    /// How many subscribers ask for this key; the members of a group count one by one.
    pub fn subscriber_count(&self, key: &str) -> usize {
        let registry = self.core().registry();
        match registry.channel(key) {
            Some(channel) => registry.fresh(channel).subscribers(),
            None => registry
                .subscribers()
                .filter(|one| one.is_routed())
                .filter(|one| one.selection.patterns.iter().any(|pattern| pattern.matches(key)))
                .count(),
        }
    }

    /// What everybody did so far.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// The events that could not be handled.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters { core: self.core().clone() }
    }

    /// Waits until every subscriber has handled everything that was published. New events may keep
    /// it waiting; a subscriber that pauses or is stuck does.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn idle(&self) {
        let core = self.core();
        poll_fn(|cx| {
            core.await_idle(cx.waker());
            if core.is_idle() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// [`EventHub::idle`] for threads that may block.
    pub fn blocking_idle(&self) {
        block_on(self.idle());
    }

    /// Whether it was shut down.
    pub fn is_closed(&self) -> bool {
        self.core().is_closed()
    }

    /// Ends the hub, in this order: publishes are refused and those that wait are told so; the
    /// users' subscribers handle what is left, for this long at most; what they do not come to
    /// becomes dead letters; archives write what they have; alerts are sent; dead letters are
    /// written; the hub's threads end. A handler that is inside when the time is over has half a
    /// second more, all of them together; so have the archives, the alerts and the pool, and the
    /// store of dead letters has a second. So this returns at most three seconds late, whoever
    /// hangs. The one event inside a handler that never returns is neither a letter nor counted: it
    /// may yet be handled. [`Shutdown::stuck`] names its subscriber, and no time-out ends it any
    /// more. Dropped without a shutdown, the last handle of a hub lets its subscribers handle
    /// what is waiting, and nobody waits for that.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop, but then the rest goes on without anybody waiting for it.
    pub async fn shutdown(&self, drain: Duration) -> Shutdown {
        let core = self.core();
        let due = Timer::due(drain);
        let mut subscribers = core.close();
        subscribers.sort_by_key(|one| (one.stage, one.id));
        let mut report = Shutdown::default();
        for stage in [Stage::User, Stage::Archive, Stage::Alert] {
            let these: Vec<Arc<Subscriber>> =
                subscribers.iter().filter(|one| one.stage == stage).cloned().collect();
            for (one, stopped) in these.iter().zip(stop(core, &these, due).await) {
                match stopped {
                    Ok(stopped) => {
                        report.stopped += 1;
                        report.leftovers += stopped.leftovers;
                    }
                    Err(_) => {
                        report.leftovers += one.stats().abandoned;
                        report.stuck.push(one.name().to_string());
                    }
                }
            }
        }
        let ending = Arc::new(Ending {
            letter_writer: core.letter_writer.clone(),
            letters_time: due.saturating_duration_since(Instant::now()).max(LETTERS),
            pool: core.take_pool(),
            timer: core.timer.clone(),
            over: Life::new(),
        });
        let work = ending.clone();
        // This waits for threads: on one of its own, as all others may be taken.
        let thread = std::thread::Builder::new().name("artel-hub-end".into());
        if thread.spawn(move || work.end()).is_err() {
            ending.end();
        }
        let over = &ending.over;
        poll_fn(|cx| if over.join(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
        report
    }

    /// [`EventHub::shutdown`] for programs without a runtime.
    pub fn blocking_shutdown(&self, drain: Duration) -> Shutdown {
        block_on(self.shutdown(drain))
    }
}

/// What ends after the last subscriber.
struct Ending {
    letter_writer: Arc<LetterWriter>,
    letters_time: Duration,
    pool: Option<Arc<Pool>>,
    timer: Timer,
    over: Life,
}

impl Ending {
    fn end(&self) {
        self.letter_writer.end(self.letters_time);
        // A thread may be inside a handler that does not return: nobody waits for it for long.
        self.pool.iter().for_each(|pool| pool.join(GRACE));
        self.timer.end();
        self.over.end();
    }
}
