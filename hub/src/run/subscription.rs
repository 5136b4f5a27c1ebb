//! [`Subscription`]: the owner's end of a subscriber.
//!
//! **Invariant:** after [`Subscription::stop`] returned well, the handler never runs again; after a
//! drop, at most the call in progress ends.

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

/// How much longer than its time to drain a handler may take to notice that it has passed.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// What a subscriber that was stopped had done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Events it handled in its life.
    pub processed: u64,
    /// Events it had not come to; they are dead letters.
    pub leftovers: u64,
    /// Events it lost because its queue was full.
    pub dropped: u64,
}

/// A subscriber that is subscribed until this is dropped.
///
/// Dropping it discards what was waiting; [`stop`](Subscription::stop) handles that first. `let _ =`
/// drops at once: give it a name, if only `_kept`, or [`detach`](Subscription::detach) it.
#[must_use = "dropping it unsubscribes; keep it, or call `detach`"]
pub struct Subscription {
    /// Gone once it is left to itself.
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

    /// What it did so far.
    pub fn stats(&self) -> SubscriberStats {
        self.me.stats()
    }

    /// Whether it has ended, by itself or because it was told to.
    pub fn is_over(&self) -> bool {
        self.me.life.is_over()
    }

    /// Leaves it subscribed for as long as the hub lives.
    pub fn detach(mut self) {
        self.core = None;
    }

    /// Takes it out of the hub, lets it handle what was published before, for this long at most,
    /// and waits for its end. What is left then is made dead letters. A handler that runs has half a
    /// second more to notice that its time is over.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropped before it is ready, the subscriber drains and ends by itself.
    pub async fn stop(mut self, drain: Duration) -> Result<Stopped, StopError> {
        // Taken: what follows ends it, dropped or not.
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

/// Has them drain, all at the same time, then ends them.
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
    // One after the other is waited for, until the same moment: they all drain meanwhile.
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

/// Waits for its end, until then at most.
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
