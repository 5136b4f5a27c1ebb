//! [`Subscribe`]: the settings of a new subscriber.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::error::SubscribeError;
use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::key::{KeyError, Keys, Selection};
use crate::publish::group::{Group, Share};
use crate::publish::route::Registry;
use crate::run::context::Context;
use crate::run::context::inline::{Inline, Worker};
use crate::run::filter::{Filters, Hours, Rate};
use crate::run::handler::{Delivery, Handler, HandlerError, IntoOutcome};
use crate::run::handling::Sampler;
use crate::run::restart::{AttemptRecord, Budget, Restart};
use crate::run::runner_maker::{RunnerMaker, RunnerStart, StartRunner};
use crate::run::subscriber::{Intake, New, Runs, Stage, Subscriber};
use crate::run::subscription::Subscription;
use crate::wait::cursor::Cursor;
use crate::wait::inbox::Source;
use crate::wait::log::Log;
use crate::wait::overflow::{Overflow, Queue};
use crate::wait::queue::{self, QueueReader};
use crate::wait::reader::Reader;

/// Default for [`Subscribe::attempts`].
const ATTEMPTS: u32 = 3;
/// Default for [`Subscribe::handler_timeout`] on a task.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Builds a subscriber. [`EventHub::subscribe`](crate::EventHub::subscribe) returns it.
/// [`spawn`](Subscribe::spawn) or [`inline`](Subscribe::inline) completes it.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, Queue, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// let billing = hub
///     .subscribe(&ORDERS)
///     .name("billing")
///     .on(Context::Thread)
///     .queue(Queue::bounded(100))
///     .filter(|total: &u32| *total > 0)
///     .spawn(|_: Delivery<'_, u32>| ())?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// assert_eq!(billing.blocking_stop(std::time::Duration::from_secs(5))?.processed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is not subscribed before `spawn` or `inline`"]
pub struct Subscribe<T> {
    core: Arc<HubCore>,
    keys: Result<Keys<T>, KeyError>,
    name: Option<String>,
    context: Context,
    queue: Option<Queue>,
    restart: Restart,
    attempts: u32,
    filters: Filters<T>,
    group: Option<(String, Share<T>)>,
    keeps_dropped: bool,
    timeout: Option<Option<Duration>>,
    stage: Stage,
}

impl<T: Send + Sync + 'static> Subscribe<T> {
    pub(crate) fn new(core: Arc<HubCore>, keys: Result<Keys<T>, KeyError>) -> Subscribe<T> {
        Subscribe {
            core,
            keys,
            name: None,
            context: Context::Task,
            queue: None,
            restart: Restart::default(),
            attempts: ATTEMPTS,
            filters: Filters::new(),
            group: None,
            keeps_dropped: false,
            timeout: None,
            stage: Stage::User,
        }
    }

    /// Its name in notices, statistics and dead letters. Two subscribers with overlapping keys
    /// cannot have the same name. Default: a name made from a number.
    pub fn name(mut self, name: impl Into<String>) -> Subscribe<T> {
        self.name = Some(name.into());
        self
    }

    /// Where it runs. Default: on a task.
    pub fn on(mut self, context: Context) -> Subscribe<T> {
        self.context = context;
        self
    }

    /// How far it may fall behind, and what happens then. Default: 1024 events, and publishers
    /// wait.
    pub fn queue(mut self, queue: Queue) -> Subscribe<T> {
        self.queue = Some(queue);
        self
    }

    pub(crate) fn queue_unless_set(mut self, queue: Queue) -> Subscribe<T> {
        self.queue.get_or_insert(queue);
        self
    }

    /// How many restarts it may have. Default: 20 per minute. An event that panics costs one
    /// restart per [attempt](Subscribe::attempts).
    pub fn restart(mut self, restart: Restart) -> Subscribe<T> {
        self.restart = restart;
        self
    }

    /// How often one event is tried before it becomes a dead letter. Default: 3.
    pub fn attempts(mut self, attempts: u32) -> Subscribe<T> {
        self.attempts = attempts;
        self
    }

    /// How long its handler may take for one event. Default: 30 seconds on a task, no limit on a
    /// thread and on the pool. `None` means no limit. Zero is refused when subscribing.
    ///
    /// An event that takes longer becomes a dead letter, and the subscriber gets a new handler, as
    /// after a panic. This costs a [restart](Subscribe::restart).
    ///
    /// * A handler that awaits is dropped.
    /// * A thread that is blocked inside a handler is left alone, and its result is ignored. This
    ///   may be noticed late: by up to a quarter of this time, or up to a second.
    /// * On a task, a handler that blocks keeps a thread of the runtime. When all of these threads
    ///   are blocked, no new handler runs.
    pub fn handler_timeout(mut self, time: impl Into<Option<Duration>>) -> Subscribe<T> {
        self.timeout = Some(time.into());
        self
    }

    /// Events that it loses because its queue is full become dead letters.
    pub fn keep_dropped(mut self) -> Subscribe<T> {
        self.keeps_dropped = true;
        self
    }

    /// Makes it a member of a group. All members have the same keys, and each event goes to one of
    /// them. Their filters should agree. When a member leaves, its waiting events go to the other
    /// members, as far as they have room. This includes an event that an `async fn` had begun.
    pub fn group(mut self, name: impl Into<String>, share: Share<T>) -> Subscribe<T> {
        self.group = Some((name.into(), share));
        self
    }

    /// Handles only events for which this returns true. It is cloned if the handler is replaced
    /// because it [took too long](Subscribe::handler_timeout).
    pub fn filter(
        mut self,
        mut check: impl FnMut(&T) -> bool + Clone + Send + 'static,
    ) -> Subscribe<T> {
        self.filters.add(move |_, payload| check(payload).into());
        self
    }

    /// Handles only events for which this returns true. An error makes the event a dead letter.
    pub fn try_filter(
        mut self,
        mut check: impl FnMut(&T) -> Result<bool, HandlerError> + Clone + Send + 'static,
    ) -> Subscribe<T> {
        self.filters.add(move |_, payload| check(payload).into());
        self
    }

    /// Handles only events whose key matches this pattern.
    pub fn only(mut self, pattern: &str) -> Subscribe<T> {
        if let Err(error) = self.filters.add_pattern(pattern) {
            self.keys = self.keys.and(Err(error));
        }
        self
    }

    /// Handles only events whose JSON has this value at this path.
    ///
    /// * Names are separated by dots: `address.country`. A number is an index into a list:
    ///   `tags.0`.
    /// * A name that contains a dot cannot be addressed.
    /// * A missing value is not `null`. Values are compared as JSON: 1 is not 1.0.
    /// * The topic must be declared with [`Topic::json`](crate::Topic::json). Events of other
    ///   topics become dead letters.
    pub fn field(mut self, path: &str, value: impl Into<Value>) -> Subscribe<T> {
        self.filters.add_field(path, value.into());
        self
    }

    /// Handles only events published within these hours of the day.
    pub fn between(mut self, hours: Hours) -> Subscribe<T> {
        self.filters.add_hours(hours);
        self
    }

    /// Handles at most this many events. Other events are skipped.
    pub fn rate(mut self, rate: Rate) -> Subscribe<T> {
        self.filters.add_rate(rate);
        self
    }

    pub(crate) fn stage(mut self, stage: Stage) -> Subscribe<T> {
        self.stage = stage;
        self
    }

    /// Subscribes a handler, usually a closure `|event: Delivery<'_, T>| …` with its type written
    /// out. A handler that awaits implements [`Handler`].
    ///
    /// After a failure, a new handler is cloned from the original one. Changes to captured values
    /// are lost then, unless these values are shared. If the handler cannot be cloned, use
    /// [`spawn_with`](Subscribe::spawn_with).
    ///
    /// Dropping the [`Subscription`] unsubscribes. `let _ = … .spawn(…)` drops it at once.
    pub fn spawn<H>(self, handler: H) -> Result<Subscription, SubscribeError>
    where
        H: Handler<T> + Clone,
    {
        self.spawn_with(move || handler.clone())
    }

    /// Subscribes a handler that a factory creates: at the start and after every panic or fatal
    /// error. The factory runs in the subscriber's context.
    pub fn spawn_with<H, F>(mut self, factory: F) -> Result<Subscription, SubscribeError>
    where
        H: Handler<T>,
        F: FnMut() -> H + Send + 'static,
    {
        if self.core.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let runtime = match self.context {
            Context::Task if self.core.settings.runtime.is_none() => Some(here()?),
            _ => None,
        };
        self.core.start_threads().map_err(no_thread)?;
        let selection = self.check()?;
        let context = match self.context {
            Context::Task => Runs::Task,
            Context::Pool => Runs::Pool,
            Context::Thread => Runs::Thread,
        };
        if self.context == Context::Pool {
            self.core.pool().map_err(no_thread)?;
        }
        let filters = std::mem::replace(&mut self.filters, Filters::new());
        let budget = Budget::new(self.restart, self.attempts);
        let maker = Arc::new(RunnerMaker::new(factory, filters, budget, context, runtime));
        let (me, source) = self.register(selection, context, maker.clone())?;
        if let Some(time) = me.timeout() {
            self.core.timer.watch(time);
        }
        let begin = RunnerStart { source, runner: 0, pause: None };
        maker.start(&self.core, &me, begin).map_err(no_thread)?;
        Ok(Subscription::new(self.core, me))
    }

    /// Subscribes a closure that publishers call in their own thread, before `publish` returns. It
    /// should be quick: every publisher waits for it.
    pub fn inline<F, R>(self, handler: F) -> Result<Subscription, SubscribeError>
    where
        F: FnMut(Delivery<'_, T>) -> R + Clone + Send + 'static,
        R: IntoOutcome + 'static,
    {
        self.inline_with(move || handler.clone())
    }

    /// Like [`inline`](Subscribe::inline), but a factory creates the closure: with the first event
    /// and after every panic or fatal error.
    pub fn inline_with<H, F, R>(self, factory: F) -> Result<Subscription, SubscribeError>
    where
        H: FnMut(Delivery<'_, T>) -> R + Send + 'static,
        R: IntoOutcome + 'static,
        F: FnMut() -> H + Send + 'static,
    {
        for (what, set) in [
            ("a group", self.group.is_some()),
            ("a queue", self.queue.is_some()),
            ("keep_dropped", self.keeps_dropped),
            ("a handler time-out", self.timeout.is_some()),
        ] {
            if set {
                return Err(SubscribeError::NotInline { what });
            }
        }
        let selection = self.check()?;
        self.core.start_threads().map_err(no_thread)?;
        let worker = Worker {
            core: Arc::downgrade(&self.core),
            filters: self.filters,
            record: AttemptRecord::default(),
            budget: Budget::new(self.restart, self.attempts),
            factory,
            handler: None,
            sampler: Sampler::default(),
        };
        let intake =
            Intake::Inline(Box::new(Inline::new(Arc::downgrade(&self.core), Box::new(worker))));
        let mut registry = self.core.registry_mut();
        let (id, name) = admit(&self.core, &registry, self.name, &selection)?;
        let selection = registry.intern(selection);
        let me = Arc::new(Subscriber::new(New {
            id,
            name,
            selection,
            context: Runs::Inline,
            stage: self.stage,
            intake,
            keeps_dropped: false,
            timeout: None,
            maker: None,
        }));
        registry.add(&me);
        drop(registry);
        Ok(Subscription::new(self.core, me))
    }

    /// Checks all settings before anything is done.
    fn check(&self) -> Result<Selection, SubscribeError> {
        let keys = self.keys.as_ref().map_err(|error| SubscribeError::Key(error.clone()))?;
        let group = self.group.as_ref().map(|(name, _)| name);
        for name in self.name.iter().chain(group) {
            let printable = !name.chars().any(char::is_control);
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !printable {
                return Err(SubscribeError::BadName { name: name.clone() });
            }
        }
        let queue = self.queue.unwrap_or_default();
        if queue.events == 0 || queue.bytes == 0 {
            let (events, bytes) = (queue.events, queue.bytes);
            return Err(SubscribeError::NoRoom { events, bytes });
        }
        if self.attempts == 0 {
            return Err(SubscribeError::NoAttempts);
        }
        if self.timeout == Some(Some(Duration::ZERO)) {
            return Err(SubscribeError::NoTime);
        }
        Ok(keys.selection.clone())
    }

    /// Adds the subscriber to the routes. From here on events wait for it.
    fn register(
        &self,
        selection: Selection,
        context: Runs,
        maker: Arc<dyn StartRunner>,
    ) -> Result<(Arc<Subscriber>, Source), SubscribeError> {
        let mut registry = self.core.registry_mut();
        let (id, name) = admit(&self.core, &registry, self.name.clone(), &selection)?;
        let group = match &self.group {
            None => None,
            Some((name, share)) if share.hash.is_some() && selection.payload.is_none() => {
                return Err(SubscribeError::NeedsType { group: name.clone() });
            }
            Some((name, share)) => Some(match registry.group(&selection, name) {
                Some(group) if group.is_by_hash() != share.hash.is_some() => {
                    return Err(SubscribeError::GroupDiffers { group: name.clone() });
                }
                Some(group) => group,
                None => Arc::new(Group::new(name.as_str().into(), share.hash.clone())),
            }),
        };
        let bounds = self.queue.unwrap_or_default();
        let (intake, source) = if bounds.overflow == Overflow::Block && group.is_none() {
            let log = registry.log(&selection).unwrap_or_else(|| Arc::new(Log::new()));
            let cursor = Cursor::new(id, bounds.events as u64, bounds.bytes);
            let reader = Reader::new(log.clone(), cursor.clone());
            (Intake::Log { log, cursor: cursor.into() }, Source::Log(reader))
        } else {
            let same: fn(&AnyEvent, &AnyEvent) -> bool = |a, b| a.key() == b.key();
            let queue = Arc::new(queue::EventQueue::new(id, bounds, same));
            let reader = QueueReader::new(queue.clone(), 0);
            (Intake::Queue { queue, group }, Source::Queue(reader))
        };
        let selection = registry.intern(selection);
        let usual = (context == Runs::Task).then_some(TASK_TIMEOUT);
        let me = Arc::new(Subscriber::new(New {
            id,
            name,
            selection,
            context,
            stage: self.stage,
            intake,
            keeps_dropped: self.keeps_dropped,
            timeout: self.timeout.unwrap_or(usual),
            maker: Some(maker),
        }));
        registry.add(&me);
        Ok((me, source))
    }
}

/// The runtime of the caller.
fn here() -> Result<tokio::runtime::Handle, SubscribeError> {
    tokio::runtime::Handle::try_current().map_err(|_| SubscribeError::NoRuntime)
}

/// Checks that a subscriber with this name may have these keys. Returns its number and its name.
fn admit(
    core: &HubCore,
    registry: &Registry,
    name: Option<String>,
    selection: &Selection,
) -> Result<(u64, Option<Arc<str>>), SubscribeError> {
    if core.is_closed() {
        return Err(SubscribeError::Closed);
    }
    let id = core.next_id();
    match &name {
        Some(name) => registry.check_name(name, selection)?,
        None => registry.check_number(id, selection)?,
    }
    registry.check_types(selection)?;
    Ok((id, name.map(Arc::from)))
}

fn no_thread(error: std::io::Error) -> SubscribeError {
    SubscribeError::NoThread { reason: error.to_string() }
}

impl<T> std::fmt::Debug for Subscribe<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut subscribe = f.debug_struct("Subscribe");
        subscribe.field("keys", &self.keys).field("name", &self.name).finish_non_exhaustive()
    }
}
