//! [`Subscribe`]: what a new subscriber is to be like.

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

/// How often an event is tried before it becomes a dead letter, unless the subscriber says so.
const ATTEMPTS: u32 = 3;
/// How long a handler on a task may take, unless the subscriber says so.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A subscriber in the making. Ends with [`spawn`](Subscribe::spawn) or
/// [`inline`](Subscribe::inline).
#[must_use = "nobody is subscribed before `spawn` or `inline`"]
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

    /// What notices, statistics and dead letters call it. Two subscribers whose keys overlap cannot
    /// have one name. Without a name it gets a number.
    pub fn name(mut self, name: impl Into<String>) -> Subscribe<T> {
        self.name = Some(name.into());
        self
    }

    /// Where it runs: on a task unless said here.
    pub fn on(mut self, context: Context) -> Subscribe<T> {
        self.context = context;
        self
    }

    /// How far it may fall behind, and what happens then: 1024 events, and publishers wait.
    pub fn queue(mut self, queue: Queue) -> Subscribe<T> {
        self.queue = Some(queue);
        self
    }

    pub(crate) fn queue_unless_set(mut self, queue: Queue) -> Subscribe<T> {
        self.queue.get_or_insert(queue);
        self
    }

    /// How often its handler is made anew: twenty times within a minute unless said here. An event
    /// that panics costs one for each of its [attempts](Subscribe::attempts).
    pub fn restart(mut self, restart: Restart) -> Subscribe<T> {
        self.restart = restart;
        self
    }

    /// How often one event is tried before it becomes a dead letter: three times unless said here.
    pub fn attempts(mut self, attempts: u32) -> Subscribe<T> {
        self.attempts = attempts;
        self
    }

    /// How long its handler may take for one event: 30 seconds on a task, as long as it likes on a
    /// thread and on the pool, unless said here; `None` is as long as it likes. An event that takes
    /// longer becomes a dead letter, and the subscriber gets a new handler as after a panic. A
    /// handler that awaits is dropped; a thread that is inside one that blocks is left alone, and
    /// what it comes back with is ignored. A blocking handler may be found some time later, up to a
    /// quarter of this or a second. Each time costs a [restart](Subscribe::restart). On a task, a
    /// handler that blocks keeps a thread of the runtime: when all of them are kept, no new handler
    /// runs. Zero is refused when subscribing.
    pub fn handler_timeout(mut self, time: impl Into<Option<Duration>>) -> Subscribe<T> {
        self.timeout = Some(time.into());
        self
    }

    /// Events it loses because its queue is full become dead letters.
    pub fn keep_dropped(mut self) -> Subscribe<T> {
        self.keeps_dropped = true;
        self
    }

    /// Shares the events of these keys with the others of the same group and the same keys: each
    /// event goes to one of them. Their filters should agree. What waits for a member that leaves,
    /// the event an `async fn` was in the middle of among it, goes to the others, as far as they have
    /// room.
    pub fn group(mut self, name: impl Into<String>, share: Share<T>) -> Subscribe<T> {
        self.group = Some((name.into(), share));
        self
    }

    /// Only events for which this is true. It is cloned for a handler that is made anew because the
    /// one before [took too long](Subscribe::handler_timeout).
    pub fn filter(
        mut self,
        mut check: impl FnMut(&T) -> bool + Clone + Send + 'static,
    ) -> Subscribe<T> {
        self.filters.add(move |_, payload| check(payload).into());
        self
    }

    /// Only events for which this is true; an error makes the event a dead letter.
    pub fn try_filter(
        mut self,
        mut check: impl FnMut(&T) -> Result<bool, HandlerError> + Clone + Send + 'static,
    ) -> Subscribe<T> {
        self.filters.add(move |_, payload| check(payload).into());
        self
    }

    /// Only events under keys like this.
    pub fn only(mut self, pattern: &str) -> Subscribe<T> {
        if let Err(error) = self.filters.add_pattern(pattern) {
            self.keys = self.keys.and(Err(error));
        }
        self
    }

    /// Only events whose JSON has this value at this path, with dots between names: `address.country`;
    /// a number is a place in a list, `tags.0`. A name with a dot in it cannot be reached, and what is
    /// not there is not `null`. Values are compared as JSON: 1 is not 1.0. Needs a topic declared with
    /// [`Topic::json`](crate::Topic::json); events of others become dead letters.
    pub fn field(mut self, path: &str, value: impl Into<Value>) -> Subscribe<T> {
        self.filters.add_field(path, value.into());
        self
    }

    /// Only events published within these hours of the day.
    pub fn between(mut self, hours: Hours) -> Subscribe<T> {
        self.filters.add_hours(hours);
        self
    }

    /// Not more events than this; the others pass it by.
    pub fn rate(mut self, rate: Rate) -> Subscribe<T> {
        self.filters.add_rate(rate);
        self
    }

    pub(crate) fn stage(mut self, stage: Stage) -> Subscribe<T> {
        self.stage = stage;
        self
    }

    /// Subscribes a handler, usually a closure `|event: Delivery<'_, T>| …`, with its type written out.
    /// It is cloned when it has to be made anew, as it is now: what it captured and changed since is
    /// forgotten then, unless it is shared. [`spawn_with`](Subscribe::spawn_with) takes what is not
    /// to be cloned. A handler that waits implements [`Handler`].
    ///
    /// The subscriber is unsubscribed when the [`Subscription`] is dropped. `let _ = … .spawn(…)`
    /// drops it at once.
    pub fn spawn<H>(self, handler: H) -> Result<Subscription, SubscribeError>
    where
        H: Handler<T> + Clone,
    {
        self.spawn_with(move || handler.clone())
    }

    /// Subscribes a handler that is made by a factory: now, in its own context, and after every
    /// panic or fatal error.
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

    /// Subscribes a closure that publishers call themselves, in their own thread, before `publish`
    /// returns. It should be quick: everybody who publishes waits for it.
    pub fn inline<F, R>(self, handler: F) -> Result<Subscription, SubscribeError>
    where
        F: FnMut(Delivery<'_, T>) -> R + Clone + Send + 'static,
        R: IntoOutcome + 'static,
    {
        self.inline_with(move || handler.clone())
    }

    /// The same, made by a factory: with the first event, and after every panic or fatal error.
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

    /// Everything that can be wrong with it, before anything is done.
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

    /// Gives it a place in the routes. From here on events wait for it.
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

/// The runtime it is called on.
fn here() -> Result<tokio::runtime::Handle, SubscribeError> {
    tokio::runtime::Handle::try_current().map_err(|_| SubscribeError::NoRuntime)
}

/// May one of this name have these keys?
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
