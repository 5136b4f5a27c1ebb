//! Stage 2: making messages. Takes: `&Lease`. Hands on: [`NewMessage`]s.
//!
//! **Invariant:** `generate` is called only while this process leads and trusts its lease. For Redis
//! there is one such process in the fleet at a time: messages of a stale generator are refused.

mod runner;

use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;

use crate::message::NewMessage;
use crate::term::Term;

pub(crate) use runner::Runner;

/// An error of user code.
///
/// ```
/// use artel::{BoxError, NewMessage, Tick};
///
/// async fn generate(tick: Tick) -> Result<NewMessage, BoxError> {
///     Ok(NewMessage::from(std::str::from_utf8(tick.state())?.to_uppercase()))
/// }
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let made = generate(artel::testing::tick(1, "a")).await.expect("text");
/// assert_eq!(made.payload(), b"A");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One call of the generator.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Tick, testing};
///
/// let mut generate = |tick: Tick| async move { format!("tick {}", tick.count) };
/// let batch = testing::generate(&mut generate, testing::tick(7, "")).await.expect("made");
/// assert_eq!(batch.messages()[0].payload(), b"tick 7");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tick {
    /// The term under which the messages will be accepted.
    pub term: Term,
    /// The number the next message will get within this term.
    pub seq: u64,
    /// Which tick of this term it is: 1, 2, …
    pub count: u64,
    /// Redis time: the same clock in every process.
    pub time: SystemTime,
    pub(crate) state: Arc<[u8]>,
}

impl Tick {
    /// Is it the first tick since this process leads? [`state`](Self::state) has what its predecessor
    /// kept.
    pub fn is_first(&self) -> bool {
        self.count == 1
    }

    /// The state that was kept with the last messages that Redis accepted, by this generator or an
    /// earlier one. Empty if none was ever kept. See [`Batch::with_state`].
    pub fn state(&self) -> &[u8] {
        &self.state
    }
}

/// What a generator makes in one tick.
///
/// Redis keeps a state in the same step as the messages, so that the next leader goes on exactly where
/// this one stopped: nothing is left out, nothing is made twice.
///
/// ```
/// use artel::{Batch, Tick};
///
/// fn takes(_: impl artel::Generate) {}
/// takes(|tick: Tick| async move {
///     let done: u64 = std::str::from_utf8(tick.state())?.parse().unwrap_or(0);
///     let page = (done + 1..=done + 10).map(|number| format!("order {number}"));
///     Ok::<_, std::str::Utf8Error>(Batch::new(page).with_state((done + 10).to_string()))
/// });
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Batch {
    pub(crate) messages: Vec<NewMessage>,
    pub(crate) state: Option<Vec<u8>>,
}

impl Batch {
    /// The messages it adds.
    pub fn messages(&self) -> &[NewMessage] {
        &self.messages
    }

    /// The state it keeps, if it keeps one.
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// The most bytes of a state.
    pub const STATE_BYTES_MAX: usize = 64 << 10;
    /// The most messages of a tick that keeps a state: they are added in one step.
    pub const STATED_MESSAGES_MAX: usize = 10_000;
    /// The most bytes of their payloads.
    pub const STATED_BYTES_MAX: usize = 4 << 20;

    /// A batch of these messages. It leaves the state as it is.
    pub fn new(messages: impl IntoIterator<Item = impl Into<NewMessage>>) -> Batch {
        Batch { messages: messages.into_iter().map(Into::into).collect(), state: None }
    }

    /// Keeps this state together with the messages, or alone if there are none.
    pub fn with_state(mut self, state: impl Into<Vec<u8>>) -> Batch {
        self.state = Some(state.into());
        self
    }
}

/// Makes messages, one call per tick. Async closures implement it.
///
/// ```
/// use artel::{Generate, NewMessage, Tick};
///
/// fn takes(_: impl Generate) {}
/// takes(|tick: Tick| async move { format!("message {}", tick.seq) });
/// takes(|_: Tick| async { vec![NewMessage::from("one"), NewMessage::from("two")] });
/// ```
pub trait Generate: Send + 'static {
    /// The messages of this tick, none or many. An error skips the tick and is reported as a notice. A
    /// generator that is replaced gets no error: it is not called again, and a call that is under way
    /// is dropped. The next leader gets the state that was accepted last.
    fn generate(&mut self, tick: Tick) -> impl Future<Output = Result<Batch, BoxError>> + Send;
}

impl<F, Fut, B> Generate for F
where
    F: FnMut(Tick) -> Fut + Send + 'static,
    Fut: Future<Output = B> + Send,
    B: IntoBatch,
{
    async fn generate(&mut self, tick: Tick) -> Result<Batch, BoxError> {
        self(tick).await.into_batch()
    }
}

/// What a generator closure may return.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{NewMessage, Tick, testing};
///
/// // One text would do, too, or a `Batch`.
/// let mut generate = |_: Tick| async { vec![NewMessage::from("a"), NewMessage::from("b")] };
/// let batch = testing::generate(&mut generate, testing::tick(1, "")).await.expect("made");
/// assert_eq!(batch.messages().len(), 2);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait IntoBatch {
    /// The messages it stands for.
    fn into_batch(self) -> Result<Batch, BoxError>;
}

impl IntoBatch for Batch {
    fn into_batch(self) -> Result<Batch, BoxError> {
        Ok(self)
    }
}

impl IntoBatch for Vec<NewMessage> {
    fn into_batch(self) -> Result<Batch, BoxError> {
        Ok(Batch { messages: self, state: None })
    }
}

impl<T: IntoBatch> IntoBatch for Option<T> {
    fn into_batch(self) -> Result<Batch, BoxError> {
        self.map_or(Ok(Batch::default()), T::into_batch)
    }
}

impl<T: IntoBatch, E: Into<BoxError>> IntoBatch for Result<T, E> {
    fn into_batch(self) -> Result<Batch, BoxError> {
        self.map_err(Into::into)?.into_batch()
    }
}

macro_rules! one_message {
    ($($type:ty),*) => {
        $(impl IntoBatch for $type {
            fn into_batch(self) -> Result<Batch, BoxError> {
                Ok(Batch::new([self]))
            }
        })*
    };
}
one_message!(NewMessage, String, &'static str, Vec<u8>);

/// [`Generate`] behind a pointer, so that a fleet has no type parameters.
pub(crate) trait DynGenerate: Send {
    fn generate(&mut self, tick: Tick) -> BoxFuture<'_, Result<Batch, BoxError>>;
}

impl<G: Generate> DynGenerate for G {
    fn generate(&mut self, tick: Tick) -> BoxFuture<'_, Result<Batch, BoxError>> {
        Box::pin(Generate::generate(self, tick))
    }
}
