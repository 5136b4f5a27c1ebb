//! Stage 4: handling messages. Takes: claims. Hands on: [`Outcome`]s.
//!
//! **Invariant:** a handler is started only while this process trusts its session, and its outcome
//! is recorded only if the claim is still its own. A panic or a time-out is an accident, retried
//! or failed, never a dead worker.

mod call;
mod exchange;
mod kind;
mod kinds;
mod plan;
mod policy;
mod report;
mod runner;
mod settling;
mod slot_queue;
mod slots;
mod waits;

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;

use crate::cause::Cause;
use crate::id::MessageId;
use crate::message::Message;
use crate::outcome::{IntoOutcome, Outcome};
use crate::term::Term;

pub(crate) use call::handle;
pub(crate) use kind::Route;
pub use kind::{FromMessage, HandledBy, Kind};
pub(crate) use kinds::Routing;
pub(crate) use policy::Policy;
pub(crate) use runner::{Mode, Worker};
use slots::Slot;

/// What a handler may know about a message in addition to its payload.
///
/// For effects outside Redis, `id` is an idempotency key (the same over all attempts) and
/// `(term, attempt)` a fencing pair (a later attempt compares greater within a message).
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Context, Message, Outcome, testing};
///
/// let handler = |_: Message, cx: Context| async move {
///     match cx.attempt {
///         1 => Outcome::done(),
///         _ => Outcome::failed("it was tried before"),
///     }
/// };
/// assert!(testing::handle(handler, "order 7").await.is_done());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The message's id.
    pub id: MessageId,
    /// The term under which it was generated, if it was.
    pub term: Option<Term>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// How often it was retried before this attempt.
    pub retry: u32,
    /// How often it will be retried if this attempt ends with an error.
    pub retries_left: u32,
    /// How often it was snoozed before this attempt.
    pub snoozed: u32,
    /// When the handler is stopped.
    pub deadline: Instant,
}

/// Handles messages. Async closures implement it.
///
/// ```
/// use artel::{Context, Handle, Message, Outcome};
///
/// fn takes(_: impl Handle) {}
/// takes(|message: Message, _: Context| async move {
///     if message.payload().is_empty() { Outcome::failed("empty") } else { Outcome::done() }
/// });
/// takes(|message: Message, _: Context| async move {
///     String::from_utf8(message.into_payload()).map(|_| ())
/// });
/// ```
pub trait Handle: Send + Sync + 'static {
    /// Handles one message. It is called again if the message is retried or snoozed, or if a process died or
    /// was cut off. Only one final [`Outcome`] is recorded.
    fn handle(&self, message: Message, context: Context) -> impl Future<Output = Outcome> + Send;
}

impl<F, Fut, R> Handle for F
where
    F: Fn(Message, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome,
{
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        self(message, context).await.into_outcome()
    }
}

/// A handler of typed messages; made by [`json`].
///
/// ```
/// use artel::{Context, Json, json};
///
/// fn handler() -> Json<impl Fn(u32, Context) -> std::future::Ready<()> + Clone, u32> {
///     json(|_number: u32, _: Context| std::future::ready(()))
/// }
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// assert!(artel::testing::handle(handler(), "7").await.is_done());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Json<F, T> {
    handler: F,
    payload: PhantomData<fn(T)>,
}

/// Makes a handler that takes its payload as JSON. A payload that does not decode goes to the error
/// store (cause `decode`), not into a retry loop.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Order { amount: u32 }
///
/// fn takes(_: impl artel::Handle) {}
/// takes(artel::json(|order: Order, _: artel::Context| async move {
///     if order.amount > 0 { Ok(()) } else { Err("nothing ordered") }
/// }));
/// ```
pub fn json<F, T, Fut, R>(handler: F) -> Json<F, T>
where
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome,
{
    Json { handler, payload: PhantomData }
}

impl<F, T, Fut, R> Handle for Json<F, T>
where
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    T: DeserializeOwned + Send + 'static,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome,
{
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        match message.json() {
            Ok(payload) => (self.handler)(payload, context).await.into_outcome(),
            Err(error) => Outcome::failed_by(Cause::Decode, error.to_string()),
        }
    }
}

/// [`Handle`] behind a pointer, so that a fleet has no type parameters.
pub(crate) trait DynHandle: Send + Sync {
    /// Handles one message.
    fn handle(&self, message: Message, context: Context) -> BoxFuture<'_, Outcome>;

    /// Runs a slot. Its loop is made for this handler, so there is one box per slot and none per message.
    fn run(self: Arc<Self>, slot: Slot) -> BoxFuture<'static, ()>;
}

impl<H: Handle> DynHandle for H {
    fn handle(&self, message: Message, context: Context) -> BoxFuture<'_, Outcome> {
        Box::pin(Handle::handle(self, message, context))
    }

    fn run(self: Arc<Self>, slot: Slot) -> BoxFuture<'static, ()> {
        Box::pin(slot.run(self))
    }
}

/// The outcome of a message that cannot be read.
fn unreadable() -> Outcome {
    Outcome::failed_by(Cause::Decode, "not a message of this version")
}
