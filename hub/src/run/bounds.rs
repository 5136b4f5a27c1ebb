//! [`Bounds`]: where user futures run, and for how long.
//!
//! **Invariant:** every outcome, panics included, is returned as a [`Failure`]. A future that takes
//! too long is dropped.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::hub_core::HubCore;
use crate::publish::current::{Current, within};
use crate::run::handler::HandlerError;
use crate::run::handling::{Failure, discard, panicked};
use crate::run::subscriber::Subscriber;
use crate::wait::inbox::Inbox;

/// The context and the time-out of user code.
pub(crate) struct Bounds<'a> {
    pub(crate) core: &'a HubCore,
    pub(crate) me: &'a Subscriber,
    pub(crate) inbox: &'a Inbox,
    pub(crate) at: Current,
    pub(crate) span: Option<tracing::Span>,
}

impl Bounds<'_> {
    /// Runs a piece of user code as the handler on this thread.
    #[inline]
    fn enter<R>(&self, work: impl FnOnce() -> R) -> Result<R, Failure> {
        let _entered = self.span.as_ref().map(|span| span.enter());
        let done = within(self.at, || catch_unwind(AssertUnwindSafe(work)));
        done.map_err(|panic| panicked(self.me, panic))
    }

    /// Runs user code to its end and catches panics. Stops early if the time-out passes or the
    /// runner was replaced. The caller has shown the runner as inside; on return it is inside
    /// again.
    pub(crate) async fn guard<F>(&self, work: impl FnOnce() -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        let mut slot = pin!(None);
        let (mut work, mut late, mut waited) = (Some(work), None, false);
        let result = poll_fn(|cx| {
            if waited {
                self.inbox.is_inside(true);
            }
            let mut result = None;
            // Most handlers finish without waiting: created, polled and dropped in one step.
            let entered = self.enter(|| {
                if let Some(work) = work.take() {
                    slot.set(Some(work()));
                }
                let Some(future) = slot.as_mut().as_pin_mut() else { return };
                if let Poll::Ready(ready) = future.poll(cx) {
                    result = Some(ready);
                    slot.set(None);
                }
            });
            match (result, entered) {
                (Some(Err(error)), _) => return Poll::Ready(Err(error.into())),
                (_, Err(failure)) => return Poll::Ready(Err(failure)),
                (Some(Ok(())), Ok(())) => return Poll::Ready(Ok(())),
                (None, Ok(())) => {}
            }
            waited = true;
            self.inbox.is_inside(false);
            let Some(time) = self.me.timeout() else { return Poll::Pending };
            if self.inbox.is_replaced(self.me) {
                return Poll::Ready(Ok(())); // the result is ignored
            }
            let late = late.get_or_insert_with(|| Box::pin(self.core.timer.sleep(time)));
            late.as_mut().poll(cx).map(|()| Err(Failure::late(time)))
        })
        .await;
        if slot.is_none() {
            return result;
        }
        // It panicked or took too long. Dropping the future is user code, too.
        self.inbox.is_inside(true);
        match self.enter(|| slot.set(None)) {
            Ok(()) => result,
            Err(failure) => result.and(Err(failure)),
        }
    }
}

/// A handler whose `Drop` may panic.
pub(crate) struct Guarded<H>(pub(crate) Option<H>);

impl<H> Guarded<H> {
    pub(crate) fn get(&mut self) -> &mut H {
        self.0.as_mut().expect("there until it is dropped")
    }
}

impl<H> Drop for Guarded<H> {
    fn drop(&mut self) {
        discard(self.0.take());
    }
}
