//! One call of a handler.
//!
//! **Invariant:** whatever the user's code does, it ends in an outcome: a panic or a time-out is a failed message, never a
//! dead worker.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::{Context, DynHandle};
use crate::cause::Cause;
use crate::message::Message;
use crate::outcome::Outcome;
use crate::panic::{drop_quietly, panic_text};

/// Calls the handler with a message, for at most this time from `start` on.
pub(crate) async fn handle(
    handler: &dyn DynHandle,
    message: Message,
    start: Instant,
    timeout: Duration,
) -> Outcome {
    let context = Context {
        id: message.id.clone(),
        term: message.id.term(),
        attempt: message.attempt,
        deadline: start + timeout,
    };
    // The call itself may panic, too, before there is a future.
    let called = AssertUnwindSafe(|| handler.handle(message, context));
    let mut handling = match std::panic::catch_unwind(called) {
        Ok(handling) => handling,
        Err(panic) => return panicked(panic),
    };
    let mut running = AssertUnwindSafe(&mut handling).catch_unwind();
    // Most handlers of tiny messages are done at once and never need the timer.
    let outcome = match futures_util::poll!(&mut running) {
        std::task::Poll::Ready(outcome) => Ok(outcome),
        std::task::Poll::Pending => tokio::time::timeout(timeout, running).await,
    };
    // The values that the handler leaves behind may panic, too, when they are dropped.
    let dropped = std::panic::catch_unwind(AssertUnwindSafe(move || drop(handling)));
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
            Outcome::failed_by(Cause::Timeout, reason)
        }
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Outcome {
    Outcome::failed(format!("the handler panicked: {}", panic_text(panic)))
}
