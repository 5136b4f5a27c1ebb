//! [`Kind`]: a kind of message, the type of its payload, and how it is handled.
//!
//! **Invariant:** the same value makes messages of a kind and handles them, so sender and handler agree on its name and
//! type.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::policy::{Limit, Policy};
use super::{Context, DynHandle, Handle};
use crate::Error;
use crate::backoff::Backoff;
use crate::cause::Cause;
use crate::config::{Config, HANDLER_TIMEOUT_MAX};
use crate::message::{Message, NewMessage, RETRIES_MAX};
use crate::outcome::{IntoOutcome, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of message. `T` is what its payload holds, as JSON; [`Message`] takes it as it is.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Context, Fleet, Kind};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Mail { to: String }
///
/// const MAIL: Kind<Mail> = Kind::new("mail");
///
/// let fleet = Fleet::connect(url, "shop").await?;
/// let member = fleet
///     .join()
///     .on(MAIL.retries(8), |mail: Mail, _: Context| async move { println!("to {}", mail.to) })
///     .start()
///     .await?;
/// fleet.send(MAIL.message(&Mail { to: "ann".to_owned() })?).await?;
/// while fleet.status().await?.messages.done == 0 {
///     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// }
/// member.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Kind<T = Message> {
    name: &'static str,
    options: KindOptions,
    payload: PhantomData<fn(T)>,
}

/// The options of a kind. What is not set is as in [`Config`].
#[derive(Clone, Debug)]
pub(crate) struct KindOptions {
    retries: Option<u32>,
    backoff: Option<Backoff>,
    timeout: Option<Duration>,
    concurrency: Option<usize>,
    forget_failed: bool,
}

impl KindOptions {
    const NONE: KindOptions = KindOptions {
        retries: None,
        backoff: None,
        timeout: None,
        concurrency: None,
        forget_failed: false,
    };

    /// What they mean beside these settings, for the kind with this number.
    pub(crate) fn policy(&self, config: &Config, kind: usize) -> Policy {
        Policy {
            retries: self.retries.or(config.retries),
            backoff: self.backoff.clone().unwrap_or_else(|| config.backoff.clone()),
            timeout: self.timeout.unwrap_or(config.handler_timeout),
            forget_failed: self.forget_failed,
            limit: self.concurrency.map(|most| Limit { kind, most }),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |field, problem: String| Err(Error::Config { field, problem });
        if self.retries.is_some_and(|retries| retries > RETRIES_MAX) {
            return bad("retries", format!("must be at most {RETRIES_MAX}"));
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero() || timeout > HANDLER_TIMEOUT_MAX) {
            return bad(
                "timeout",
                format!("must be more than 0 and at most {HANDLER_TIMEOUT_MAX:?}"),
            );
        }
        if self.concurrency.is_some_and(|count| count == 0 || count > 10_000) {
            return bad("concurrency", "must be between 1 and 10000".to_owned());
        }
        self.backoff.as_ref().map_or(Ok(()), Backoff::check)
    }
}

impl<T> Kind<T> {
    /// A kind of this name.
    pub const fn new(name: &'static str) -> Kind<T> {
        Kind { name, options: KindOptions::NONE, payload: PhantomData }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How often a message is retried: after an error, a panic, a time-out, or if its handler asks for it.
    pub const fn retries(mut self, most: u32) -> Kind<T> {
        self.options.retries = Some(most);
        self
    }

    /// How long a message waits before it is retried.
    pub fn backoff(mut self, backoff: Backoff) -> Kind<T> {
        self.options.backoff = Some(backoff);
        self
    }

    /// A handler that runs longer is stopped.
    pub const fn timeout(mut self, time: Duration) -> Kind<T> {
        self.options.timeout = Some(time);
        self
    }

    /// How many of them this process handles at the same time. More of them wait, and other kinds run meanwhile. If another
    /// member is idle, it gets those that wait for long.
    pub const fn concurrency(mut self, most: usize) -> Kind<T> {
        self.options.concurrency = Some(most);
        self
    }

    /// Failed messages are not kept. A notice is published all the same.
    pub const fn forget_failed(mut self) -> Kind<T> {
        self.options.forget_failed = true;
        self
    }
}

impl<T: Serialize> Kind<T> {
    /// A message of this kind.
    ///
    /// # Errors
    ///
    /// If the value cannot be written as JSON.
    pub fn message(&self, value: &T) -> Result<NewMessage, serde_json::Error> {
        Ok(NewMessage::json(value)?.with_kind(self.name))
    }
}

/// What the handler of a kind can take: a [`Message`], or anything that reads from JSON.
///
/// ```
/// use artel::{Context, Kind, Message};
///
/// # let fleet = artel::Fleet::open("redis://127.0.0.1", "orders")?;
/// let member = fleet
///     .join()
///     .on(Kind::new("raw").retries(3), |message: Message, _: Context| async move {
///         println!("{}", message.text());
///     })
///     .on(Kind::new("sum"), |numbers: Vec<u64>, _: Context| async move {
///         println!("{}", numbers.iter().sum::<u64>());
///     });
/// # assert!(member.check().is_ok());
/// # Ok::<(), artel::Error>(())
/// ```
pub trait FromMessage: Sized {
    /// Reads it. The error says why it cannot be read.
    ///
    /// # Errors
    ///
    /// If the payload is not what it should be.
    fn from_message(message: Message) -> Result<Self, String>;
}

impl FromMessage for Message {
    fn from_message(message: Message) -> Result<Message, String> {
        Ok(message)
    }
}

impl<T: DeserializeOwned> FromMessage for T {
    fn from_message(message: Message) -> Result<T, String> {
        message.json().map_err(|error| error.to_string())
    }
}

/// A kind and a handler that fit together: a name with any [`Handle`], or a [`Kind`] with a function of its type.
///
/// ```
/// use artel::{Context, HandledBy, Kind, Message};
///
/// fn fits<H>(_: impl HandledBy<H>, _: H) {}
/// fits("raw", |_: Message, _: Context| async {});
/// fits(Kind::new("number"), |_: u32, _: Context| async {});
/// ```
pub trait HandledBy<H> {
    /// Puts them together.
    fn into_route(self, handler: H) -> Route;
}

/// A kind with its handler. Made by [`HandledBy`].
pub struct Route {
    pub(crate) name: String,
    pub(crate) options: KindOptions,
    pub(crate) handler: Arc<dyn DynHandle>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("name", &self.name).field("options", &self.options).finish()
    }
}

impl<H: Handle> HandledBy<H> for &str {
    fn into_route(self, handler: H) -> Route {
        self.to_owned().into_route(handler)
    }
}

impl<H: Handle> HandledBy<H> for String {
    fn into_route(self, handler: H) -> Route {
        Route { name: self, options: KindOptions::NONE, handler: Arc::new(handler) }
    }
}

impl<T, F, Fut, R> HandledBy<F> for Kind<T>
where
    T: FromMessage + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome,
{
    fn into_route(self, handler: F) -> Route {
        let handler = Arc::new(Typed { handler, payload: PhantomData });
        Route { name: self.name.to_owned(), options: self.options, handler }
    }
}

/// Reads the payload before it calls the handler.
struct Typed<F, T> {
    handler: F,
    payload: PhantomData<fn(T)>,
}

impl<F, T, Fut, R> Handle for Typed<F, T>
where
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    T: FromMessage + Send + 'static,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome,
{
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        match T::from_message(message) {
            Ok(payload) => (self.handler)(payload, context).await.into_outcome(),
            Err(why) => Outcome::failed_by(Cause::Decode, why),
        }
    }
}
