//! [`Subscription`]: the owner's handle of a subscriber.
//!
//! **Invariant:** after a successful [`Subscription::stop`], the handler never runs again. After a
//! drop, at most the current call finishes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::error::StopError;
use crate::hub_core::HubCore;
use crate::publish::current::current;
use crate::run::context::thread::block_on;
use crate::run::subscriber::{Intake, Subscriber};
use crate::run::timer::Timer;
use crate::stats::SubscriberStats;

/// How much time a handler has, after the time to drain, to notice that it must stop.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// What a stopped subscriber did.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, Topic};
/// const JOBS: Topic<u32> = Topic::new("jobs");
///
/// let hub = EventHub::new();
/// let worker = hub.subscribe(&JOBS).on(Context::Pool).spawn(|_: Delivery<'_, u32>| ())?;
/// hub.blocking_publish(&JOBS, 1)?;
/// hub.blocking_publish(&JOBS, 2)?;
/// let stopped = worker.blocking_stop(std::time::Duration::from_secs(5))?;
/// assert_eq!((stopped.processed, stopped.leftovers, stopped.dropped), (2, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Events it handled in total.
    pub processed: u64,
    /// Events it did not handle. They are dead letters.
    pub leftovers: u64,
    /// Events it lost because its queue was full.
    pub dropped: u64,
}

/// The owner's handle of a subscriber. Dropping it unsubscribes.
///
/// Dropping it discards the waiting events. [`stop`](Subscription::stop) handles them first. `let _
/// =` drops at once: bind it to a name such as `_kept`, or [`detach`](Subscription::detach) it.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Topic};
/// const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let clock = hub.subscribe(&TICKS).name("clock").inline(|_: Delivery<'_, u64>| ())?;
/// hub.blocking_publish(&TICKS, 1)?;
/// assert_eq!((clock.name(), clock.stats().processed), ("clock", 1));
/// drop(clock);
/// assert_eq!(hub.subscriber_count("ticks"), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it unsubscribes; keep it, or call `detach`"]
pub struct Subscription {
    /// `None` after it was detached or stopped.
    core: Option<Arc<HubCore>>,
    me: Arc<Subscriber>,
}

impl Subscription {
    pub(crate) fn new(core: Arc<HubCore>, me: Arc<Subscriber>) -> Subscription {
        Subscription { core: Some(core), me }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.me.name()
    }

    /// Its counters.
    pub fn stats(&self) -> SubscriberStats {
        self.me.stats()
    }

    /// Whether it has ended, by itself or because it was told to.
    pub fn is_over(&self) -> bool {
        self.me.life.is_over()
    }

    /// Keeps it subscribed for as long as the hub exists.
    pub fn detach(mut self) {
        self.core = None;
    }

    /// Unsubscribes, lets it handle the waiting events for at most `drain`, and waits for its end.
    /// The remaining events become dead letters. A running handler has another half second to
    /// notice that its time has passed.
    ///
    /// # Cancel safety
    ///
    /// Safe: if the future is dropped before it is ready, the subscriber drains and ends by itself.
    pub async fn stop(mut self, drain: Duration) -> Result<Stopped, StopError> {
        // From here on the subscriber ends, even if this future is dropped.
        let Some(core) = self
            .core
            .take_if(|core| current(core.id()).is_none_or(|at| at.subscriber != self.me.id))
        else {
            return Err(StopError::FromItself { name: self.name().to_string() });
        };
        let me = std::slice::from_ref(&self.me);
        let stopped = stop(&core, me, Timer::due(drain)).await.pop();
        stopped.unwrap_or(Err(StopError::FromItself { name: self.name().to_string() }))
    }

    /// [`Subscription::stop`] for threads that may block.
    pub fn blocking_stop(self, drain: Duration) -> Result<Stopped, StopError> {
        block_on(self.stop(drain))
    }
}

/// Lets all of them drain at the same time, then ends them.
pub(crate) async fn stop(
    core: &Arc<HubCore>,
    these: &[Arc<Subscriber>],
    due: Instant,
) -> Vec<Result<Stopped, StopError>> {
    let begun = Instant::now();
    for me in these {
        me.keep_leftovers();
        core.end(me);
    }
    // All have the same deadline and drain at the same time, so they can be awaited one by one.
    for me in these {
        joined(core, me, due).await;
    }
    let late: Vec<&Arc<Subscriber>> = these.iter().filter(|me| !me.life.is_over()).collect();
    for me in &late {
        me.life.stop();
        me.wake();
    }
    let due = Instant::now() + GRACE;
    for me in late {
        if !joined(core, me, due).await {
            let reason = "its subscriber is inside a handler that does not return";
            let leaving = me.leaves();
            core.leave_behind(me, me.take_waiting(), reason);
            drop(leaving);
            core.caught_up();
        }
    }
    let stopped = |me: &Arc<Subscriber>| {
        if !me.life.is_over() {
            let (name, waited) = (me.name().to_string(), begun.elapsed());
            return Err(StopError::StillRunning { name, waited });
        }
        let SubscriberStats { processed, abandoned: leftovers, dropped, .. } = me.stats();
        Ok(Stopped { processed, leftovers, dropped })
    };
    these.iter().map(stopped).collect()
}

/// Waits for its end, at most until `due`. Returns whether it has ended.
async fn joined(core: &HubCore, me: &Subscriber, due: Instant) -> bool {
    let mut late = pin!(core.timer.until(due));
    poll_fn(|cx| {
        if me.life.join(cx.waker()) {
            return Poll::Ready(true);
        }
        late.as_mut().poll(cx).map(|()| me.life.is_over())
    })
    .await
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(core) = &self.core {
            core.discard(&self.me);
        }
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inline = matches!(self.me.intake, Intake::Inline(_));
        let mut subscription = f.debug_struct("Subscription");
        subscription.field("name", self.me.name()).field("inline", &inline).finish()
    }
}
