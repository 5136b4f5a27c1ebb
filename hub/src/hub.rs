//! [`EventHub`]: the hub itself, its builder and its shutdown.

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

/// Default for [`EventHubBuilder::depth_max`].
const DEPTH_MAX: u16 = 64;
/// The minimum time that shutdown gives the store to write the last dead letters.
const LETTERS: Duration = Duration::from_secs(1);
/// Default for [`EventHubBuilder::keys_max`].
const KEYS_MAX: usize = 65_536;

/// Settings of a new hub, from [`EventHub::builder`].
///
/// ```
/// use artel_hub::{EventHub, Refusal, Topic};
/// const BLOBS: Topic<Vec<u8>> = Topic::new("blobs").weighed(Vec::len);
///
/// let hub = EventHub::builder().pool_threads(2).payload_bytes_max(1024).letters_max(100).build()?;
/// let refused = hub.try_publish(&BLOBS, vec![0; 2000]).unwrap_err();
/// assert_eq!(*refused.reason(), Refusal::TooLarge { bytes: 2000, most: 1024 });
/// # Ok::<(), artel_hub::BuildError>(())
/// ```
#[must_use = "the hub is not built before `build`"]
pub struct EventHubBuilder {
    settings: Settings,
    letters_max: usize,
    store: Option<Box<dyn LetterStore>>,
}

/// Why a hub was not built.
///
/// ```
/// use artel_hub::{BuildError, EventHub};
///
/// let error = EventHub::builder().pool_threads(0).build().unwrap_err();
/// assert!(matches!(error, BuildError::Zero { what: "the number of pool threads" }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting that must be at least 1 is 0.
    #[error("the hub was not built: {what} must be at least 1")]
    Zero {
        /// The setting.
        what: &'static str,
    },
    /// The operating system did not start a thread.
    #[error("the hub was not built: a thread could not be started: {reason}")]
    NoThread {
        /// The error of the operating system.
        reason: String,
    },
}

impl EventHubBuilder {
    /// How many handlers in a row may lead to an event. Default: 64. An event that a handler
    /// publishes is one level deeper than the event it handles. A deeper publish is refused as
    /// [`Refusal::TooDeep`]. This ends chains that would otherwise never end.
    pub fn depth_max(mut self, depth: u16) -> EventHubBuilder {
        self.settings.depth_max = depth;
        self
    }

    /// The maximum weight of a payload in bytes, by the [weight](Topic::weighed) of its topic.
    /// Default: no limit.
    pub fn payload_bytes_max(mut self, bytes: u64) -> EventHubBuilder {
        self.settings.payload_bytes_max = bytes;
        self
    }

    /// How many keys the hub remembers. Default: 65,536. Unused keys are forgotten first.
    pub fn keys_max(mut self, keys: usize) -> EventHubBuilder {
        self.settings.channels_max = keys;
        self
    }

    /// How many threads the pool has. Default: the number of cores. The threads start with the
    /// first subscriber on the pool.
    pub fn pool_threads(mut self, threads: usize) -> EventHubBuilder {
        self.settings.pool_threads = threads;
        self
    }

    /// The tokio runtime for tasks. Default: the runtime on which `spawn` is called.
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> EventHubBuilder {
        self.settings.runtime = Some(runtime);
        self
    }

    /// Replaces the clock that stamps events, for tests.
    pub fn clock(
        mut self,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> EventHubBuilder {
        let clock: Clock = Arc::new(clock);
        self.settings.clock = Some(clock);
        self
    }

    /// How many dead letters are kept in memory, or may wait for the store. Default: 4,096.
    pub fn letters_max(mut self, letters: usize) -> EventHubBuilder {
        self.letters_max = letters;
        self
    }

    /// Where dead letters are stored. Default: in memory.
    pub fn dead_letters(mut self, store: impl LetterStore) -> EventHubBuilder {
        self.store = Some(Box::new(store));
        self
    }

    /// Builds the hub.
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
                "this program is built with panic=abort: a panic in a subscriber ends the program"
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

/// The result of a shutdown.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, Topic};
/// const JOBS: Topic<u32> = Topic::new("jobs");
///
/// let hub = EventHub::new();
/// let worker = hub.subscribe(&JOBS).on(Context::Pool).spawn(|_: Delivery<'_, u32>| ())?;
/// hub.blocking_publish(&JOBS, 7)?;
/// let report = hub.blocking_shutdown(std::time::Duration::from_secs(5));
/// assert_eq!((report.stopped, report.leftovers), (1, 0));
/// assert!(report.stuck.is_empty() && worker.stats().processed == 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// How many subscribers ended.
    pub stopped: usize,
    /// How many events were not handled in time. They are dead letters.
    pub leftovers: u64,
    /// Subscribers whose handlers have not returned. They are not called again.
    pub stuck: Vec<String>,
}

/// Publish and subscribe inside one process. Clones share the hub.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
///
/// const GREETINGS: Topic<String> = Topic::new("greetings");
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let subscription = hub
///     .subscribe(&GREETINGS)
///     .name("listener")
///     .spawn(move |text: Delivery<'_, String>| send.send(text.to_uppercase()))?;
///
/// let receipt = hub.publish(&GREETINGS, "hello".into()).await?;
/// assert_eq!((receipt.matched, receipt.queued), (1, 1));
///
/// hub.idle().await;
/// assert_eq!(received.recv()?, "HELLO");
/// subscription.stop(std::time::Duration::from_secs(1)).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct EventHub {
    handle: Arc<Handle>,
}

/// A reference to a hub that does not keep it alive, for handlers. [`EventHub::downgrade`] returns
/// it. Events that wait when the last handle is dropped, or when the hub is shut down, are still
/// handled. If their handlers publish then, the publish is refused.
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
///         // While the hub ends, a bill cannot be published: the order becomes a dead letter.
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
    /// The hub, if it still exists.
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
    /// A hub with default settings. It starts threads only when it needs them.
    pub fn new() -> EventHub {
        EventHub::builder().build().expect("the usual bounds are fine and need no thread")
    }

    /// Settings for a new hub.
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

    /// A reference for the hub's own handlers that does not keep the hub alive.
    ///
    /// A handler that holds a clone of its hub keeps the hub and its threads alive, even when all
    /// other clones are dropped.
    pub fn downgrade(&self) -> WeakEventHub {
        WeakEventHub { handle: Arc::downgrade(&self.handle) }
    }

    /// Starts to build a subscriber for a [`Topic`] or for [`Keys`](crate::Keys).
    pub fn subscribe<T: Send + Sync + 'static>(&self, keys: impl IntoKeys<T>) -> Subscribe<T> {
        Subscribe::new(self.core().clone(), keys.into_keys())
    }

    /// A publisher for one key. It looks up the key once.
    pub fn publisher<T>(&self, topic: &Topic<T>) -> Result<Publisher<T>, Refusal>
    where
        T: Send + Sync + 'static,
    {
        if self.core().is_closed() {
            return Err(Refusal::Closed);
        }
        Publisher::new(self.handle.clone(), topic)
    }

    /// Looks up the key and calls [`Publisher::publish`].
    ///
    /// # Cancel safety
    ///
    /// Safe: if the future is dropped before it is ready, the event is not published.
    pub async fn publish<T>(&self, topic: &Topic<T>, payload: T) -> Result<Receipt, PublishError<T>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.publish(payload).await,
            Err(reason) => Err(PublishError::new(payload, reason)),
        }
    }

    /// Looks up the key and calls [`Publisher::try_publish`].
    pub fn try_publish<T>(&self, topic: &Topic<T>, payload: T) -> Result<Receipt, PublishError<T>>
    where
        T: Send + Sync + 'static,
    {
        match self.publisher(topic) {
            Ok(publisher) => publisher.try_publish(payload),
            Err(reason) => Err(PublishError::new(payload, reason)),
        }
    }

    /// Looks up the key and calls [`Publisher::blocking_publish`].
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

    /// Looks up the key and calls [`Publisher::publish_batch`].
    ///
    /// # Cancel safety
    ///
    /// Not safe: if the future is dropped before it is ready, the first events may be published and
    /// the others are lost.
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

    /// How many subscribers this key has. Each member of a group counts.
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

    /// The counters of the hub, its subscribers and its keys.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// The events that could not be handled.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters { core: self.core().clone() }
    }

    /// Waits until every subscriber has handled everything that was published. New events can
    /// prolong the wait. A subscriber that pauses or is stuck does prolong it.
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

    /// Whether the hub was shut down.
    pub fn is_closed(&self) -> bool {
        self.core().is_closed()
    }

    /// Ends the hub in this order:
    ///
    /// 1. New publishes are refused. Publishers that wait are refused, too.
    /// 2. Your subscribers handle the waiting events, at most for the time `drain`.
    /// 3. Events that were not handled become dead letters.
    /// 4. Archives write their waiting events. Alerts are sent. Dead letters are written.
    /// 5. The threads of the hub end.
    ///
    /// After `drain`, all running handlers together have another half second. So do the archives,
    /// the alerts and the pool. The store of dead letters has a second. Even if handlers hang, this
    /// function therefore returns at most three seconds after `drain`.
    ///
    /// If a handler never returns, its current event is neither a dead letter nor counted, because
    /// it may still be handled. [`Shutdown::stuck`] names the subscriber, and no time-out applies
    /// to it any more.
    ///
    /// If the last handle of a hub is dropped without a shutdown, the subscribers still handle the
    /// waiting events, but nothing waits for them.
    ///
    /// # Cancel safety
    ///
    /// Safe: subscribers that drain continue, but nothing waits for them. The later steps happen
    /// when the last handle is dropped.
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
        // This waits for threads. It has its own thread because all others may be busy.
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

/// The parts that end after the last subscriber.
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
        // A thread of the pool may be inside a handler that does not return: do not wait long.
        self.pool.iter().for_each(|pool| pool.join(GRACE));
        self.timer.end();
        self.over.end();
    }
}
