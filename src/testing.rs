//! Tests of handlers and generators, without Redis.
//!
//! A handler gets what a worker would give it, and its outcome is what a worker would get. A panic,
//! a time-out or a body that does not decode is a failed message here, too; a worker may retry it.
//!
//! ```
//! use artel::{Cause, Context, Effect, Message, NewMessage, Outcome, testing};
//!
//! async fn order(message: Message, _: Context) -> Outcome {
//!     match message.text().parse() {
//!         Ok(amount) => Outcome::done().with(Effect::incr_by("sold", amount)),
//!         Err(_) => Outcome::failed("not a number"),
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let done = testing::handle(order, "3").await;
//! assert_eq!(done.effects(), [Effect::incr_by("sold", 3)]);
//! let failed = testing::handle(order, NewMessage::from("three").with_kind("order")).await;
//! assert_eq!((failed.cause(), failed.reason()), (Some(Cause::Handler), Some("not a number")));
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::time::{Duration, Instant, SystemTime};

use crate::config::Config;
use crate::generator::{Batch, BoxError, Generate, Tick};
use crate::lane::Lane;
use crate::message::{Message, NewMessage};
use crate::outcome::Outcome;
use crate::term::Term;
use crate::worker::{Context, Handle, Policy};

/// How long a handler may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A message as a worker gets it, in its first attempt.
pub fn message(message: impl Into<NewMessage>) -> Message {
    Message::received(message.into(), Lane::Normal)
}

/// The context that a worker would give with this message.
pub fn context(message: &Message) -> Context {
    Context {
        id: message.id().clone(),
        term: message.id().term(),
        attempt: message.attempt(),
        retry: message.retry(),
        retries_left: 0,
        snoozed: message.snoozed(),
        deadline: Instant::now() + TIMEOUT,
    }
}

/// The tick of this number, with the state that its predecessor kept.
///
/// # Panics
///
/// If the number is 0: ticks are counted from 1.
pub fn tick(count: u64, state: impl Into<Vec<u8>>) -> Tick {
    assert!(count > 0, "ticks are counted from 1");
    let term = Term::parse("1").expect("a number");
    Tick { term, seq: count, count, time: SystemTime::UNIX_EPOCH, state: state.into().into() }
}

/// Calls the handler with a message, and returns its outcome. It needs a tokio runtime with time, as a
/// worker has.
pub async fn handle(handler: impl Handle, new: impl Into<NewMessage>) -> Outcome {
    let policy = Policy::rest(&Config { handler_timeout: TIMEOUT, ..Config::default() });
    crate::worker::handle(&handler, message(new), &policy, Instant::now(), || ()).await
}

/// Calls the generator with a tick.
///
/// # Errors
///
/// The error of the generator.
pub async fn generate(generator: &mut impl Generate, tick: Tick) -> Result<Batch, BoxError> {
    generator.generate(tick).await
}
