//! One call of a handler.
//!
//! **Invariant:** whatever the user's code does, it ends in an outcome: a panic or a time-out is an accident, never a
//! dead worker.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use futures_util::FutureExt;

use super::policy::Policy;
use super::{Context, Handle};
use crate::cause::Cause;
use crate::message::Message;
use crate::outcome::Outcome;
use crate::panic::{drop_quietly, panic_text};

/// Calls the handler with a message, for at most the time of this policy from `start` on. `waits` is called if the handler is not done at
/// once.
pub(crate) async fn handle<H: Handle + ?Sized>(
    handler: &H,
    message: Message,
    policy: &Policy,
    start: Instant,
    waits: impl FnOnce(),
) -> Outcome {
    let timeout = policy.timeout;
    let most = policy.accidents(message.retries_max());
    let context = Context {
        id: message.id.clone(),
        term: message.id.term(),
        attempt: message.attempt(),
        retry: message.retry(),
        retries_left: most.saturating_sub(message.retry()),
        snoozed: message.snoozed(),
        deadline: start + timeout,
    };
    // The call itself may panic, too, before there is a future.
    let mut handling = match catch_unwind(AssertUnwindSafe(|| handler.handle(message, context))) {
        Ok(handling) => pin!(Some(handling)),
        Err(panic) => return panicked(panic),
    };
    let outcome = match handling.as_mut().as_pin_mut() {
        Some(running) => {
            let mut running = AssertUnwindSafe(running).catch_unwind();
            // Most handlers of tiny messages are done at once and never need the timer.
            match futures_util::poll!(&mut running) {
                Poll::Ready(outcome) => Ok(outcome),
                Poll::Pending => {
                    waits();
                    let mut end = pin!(tokio::time::sleep_until((start + timeout).into()));
                    let mut is_polled = true;
                    poll_fn(|cx| {
                        // It was polled a moment ago, and wakes this task. Polled again before this task has let others
                        // run, it might block the thread.
                        if !std::mem::take(&mut is_polled)
                            && let Poll::Ready(outcome) = running.poll_unpin(cx)
                        {
                            return Poll::Ready(Ok(outcome));
                        }
                        end.as_mut().poll(cx).map(Err)
                    })
                    .await
                }
            }
        }
        None => return Outcome::failed("the handler was not called"),
    };
    // The values that the handler leaves behind may panic, too, when they are dropped.
    let dropped = catch_unwind(AssertUnwindSafe(|| handling.set(None)));
    match (outcome, dropped) {
        (Ok(Ok(outcome)), Ok(())) => outcome,
        (Ok(Ok(outcome)), Err(panic)) => {
            drop_quietly(outcome);
            panicked(panic)
        }
        (Ok(Err(panic)), dropped) => {
            drop_quietly(dropped);
            panicked(panic)
        }
        (Err(_), dropped) => {
            drop_quietly(dropped);
            let reason = format!("the handler ran longer than {timeout:?}");
            Outcome::accident(Cause::Timeout, reason)
        }
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Outcome {
    Outcome::accident(Cause::Handler, format!("the handler panicked: {}", panic_text(panic)))
}
