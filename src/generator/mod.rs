//! Stage 2: what is made. Takes: `&Lease`. Hands on: [`NewMessage`]s.
//!
//! **Invariant:** `generate` is called only while this process leads and trusts its lease, by one
//! process of the fleet at a time as far as Redis is concerned: what a stale one made is refused.

mod runner;

use std::future::Future;

use futures_util::future::BoxFuture;

use crate::queue::NewMessage;
use crate::term::Term;

pub(crate) use runner::{Ending, Outlet, Runner};

/// An error of user code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One call of the generator.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tick {
    /// The term under which the messages will be accepted.
    pub term: Term,
    /// The number the next message will get within this term.
    pub seq: u64,
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
    /// The messages of this tick, none or many. An error skips the tick and is told as a notice.
    fn generate(
        &mut self,
        tick: Tick,
    ) -> impl Future<Output = Result<Vec<NewMessage>, BoxError>> + Send;
}

impl<F, Fut, B> Generate for F
where
    F: FnMut(Tick) -> Fut + Send + 'static,
    Fut: Future<Output = B> + Send,
    B: IntoBatch,
{
    async fn generate(&mut self, tick: Tick) -> Result<Vec<NewMessage>, BoxError> {
        self(tick).await.into_batch()
    }
}

/// What a generator closure may return.
pub trait IntoBatch {
    /// The messages it stands for.
    fn into_batch(self) -> Result<Vec<NewMessage>, BoxError>;
}

impl IntoBatch for Vec<NewMessage> {
    fn into_batch(self) -> Result<Vec<NewMessage>, BoxError> {
        Ok(self)
    }
}

impl<T: IntoBatch> IntoBatch for Option<T> {
    fn into_batch(self) -> Result<Vec<NewMessage>, BoxError> {
        self.map_or(Ok(Vec::new()), T::into_batch)
    }
}

impl<T: IntoBatch, E: Into<BoxError>> IntoBatch for Result<T, E> {
    fn into_batch(self) -> Result<Vec<NewMessage>, BoxError> {
        self.map_err(Into::into)?.into_batch()
    }
}

macro_rules! one_message {
    ($($type:ty),*) => {
        $(impl IntoBatch for $type {
            fn into_batch(self) -> Result<Vec<NewMessage>, BoxError> {
                Ok(vec![self.into()])
            }
        })*
    };
}
one_message!(NewMessage, String, &'static str, Vec<u8>);

/// [`Generate`] behind a pointer, so that a fleet has no type parameters.
pub(crate) trait DynGenerate: Send {
    fn generate(&mut self, tick: Tick) -> BoxFuture<'_, Result<Vec<NewMessage>, BoxError>>;
}

impl<G: Generate> DynGenerate for G {
    fn generate(&mut self, tick: Tick) -> BoxFuture<'_, Result<Vec<NewMessage>, BoxError>> {
        Box::pin(Generate::generate(self, tick))
    }
}
