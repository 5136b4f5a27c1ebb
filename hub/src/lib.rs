//! EventHub: publish and subscribe inside one process, where no subscriber can hurt another.
//!
//! Publishers hand a payload and a key to the hub; the hub finds the subscribers of that key, and
//! each of them works on it in its own context, with its own queue, its own policy for when it
//! falls behind, its own filters, restarts and statistics. One subscriber's error, panic or slowness
//! never touches another one or the publisher, unless it asked to: a subscriber that may lose
//! nothing makes publishers wait when it is full, and that is the default.
//!
//! ```
//! use artel_hub::{Delivery, EventHub, HandlerError, Topic};
//! use std::time::Duration;
//!
//! struct Order { id: u64, total: u32 }
//! const ORDERS: Topic<Order> = Topic::new("orders/created");
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let hub = EventHub::new();
//! let billing = hub
//!     .subscribe(&ORDERS)
//!     .name("billing")
//!     .filter(|order: &Order| order.total > 0)
//!     .spawn(|order: Delivery<'_, Order>| match order.id {
//!         13 => Err(HandlerError::skip("nobody bills thirteen")),
//!         _ => Ok(()),
//!     })?;
//! for id in 10..20 {
//!     hub.publish(&ORDERS, Order { id, total: 7 }).await?;
//! }
//! let stopped = billing.stop(Duration::from_secs(5)).await?;
//! assert_eq!(stopped.processed, 9);
//! assert_eq!(hub.dead_letters().count()?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | feature | gives |
//! |---|---|
//! | `sqlite` | `SqliteArchive` and `SqliteLetters`, in files that any SQLite reads |
//! | `webhook` | `notify::Webhook` |
//! | `mail` | `notify::Mail` |
//!
//! ```toml
//! [dependencies]
//! artel-hub = { version = "0.1", features = ["sqlite", "webhook"] }
//! ```
//!
//! # Where subscribers run
//!
//! | | runs | use it for | know that |
//! |---|---|---|---|
//! | [`Context::Task`], the default | as a task of the tokio runtime | almost everything; a hundred thousand of them fit on two threads | a handler that blocks holds up other tasks; the hub [tells](HubNotice::Blocking) you |
//! | [`Context::Thread`] | on a thread of its own | handlers that block: files, databases, C libraries | more than a few dozen cost more than they give; what an async handler awaits there has no tokio reactor |
//! | [`Context::Pool`] | on the hub's own threads | programs without a runtime; work that must not take the runtime's threads | one that blocks for ever takes a thread from the others there, unless its [time](Subscribe::handler_timeout) is bounded |
//! | [`inline`](Subscribe::inline) | in the publisher's thread, before `publish` returns | counters, caches, checks: a microsecond at most | every publisher waits for it |
//!
//! ```
//! use artel_hub::{Context, Delivery, EventHub, Topic};
//! const TICKS: Topic<u64> = Topic::new("ticks");
//!
//! let hub = EventHub::new(); // no runtime is needed for these three
//! let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
//! let counter = count.clone();
//! let inline = hub.subscribe(&TICKS).inline(move |tick: Delivery<'_, u64>| {
//!     counter.fetch_add(*tick, std::sync::atomic::Ordering::Relaxed);
//! })?;
//! let thread = hub.subscribe(&TICKS).on(Context::Thread).spawn(|_: Delivery<'_, u64>| ())?;
//! let pool = hub.subscribe(&TICKS).on(Context::Pool).spawn(|_: Delivery<'_, u64>| ())?;
//! hub.blocking_publish(&TICKS, 3)?;
//! assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 3);
//! assert_eq!(hub.subscriber_count("ticks"), 3);
//! hub.blocking_shutdown(std::time::Duration::from_secs(5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Keys and types
//!
//! A [`Topic`] is a key and the type of its payloads. Keys have levels, `orders/created/eu`; a
//! subscriber may ask for several, and for patterns: `*` is one level, `**` one or more, at the end
//! ([`Keys`]). `orders/**` is not `orders`, and `**` hears the hub's own [notices](NOTICES), too. Publishing to nobody is fine. Two subscribers whose keys overlap cannot have one name.
//!
//! # Publishing, and order
//!
//! [`publish`](EventHub::publish) is async and waits for room, [`blocking_publish`
//! ](EventHub::blocking_publish) does so in a thread, [`try_publish`](EventHub::try_publish) never
//! waits. A [`Publisher`] has looked its key up; it has a priority and takes batches. The
//! [`Receipt`] says what became of it; a refusal gives the payload back. What a handler publishes may
//! lead to further events, 64 handlers in a row unless the [builder](EventHubBuilder::depth_max) says
//! otherwise; the next one is refused, so that no chain goes on for ever.
//!
//! *Events that one publisher publishes one after the other, under one key and with one
//! [`Priority`], reach every subscriber in that order.* Between publishers, keys and priorities there
//! is no order, except that subscribers of the same keys that lose nothing all see the same one. A
//! subscriber sees every event whose publish began after `subscribe` returned.
//!
//! ```
//! use artel_hub::{EventHub, Priority, Refusal, Topic};
//! const JOBS: Topic<String> = Topic::new("jobs");
//!
//! let hub = EventHub::new();
//! let urgent = hub.publisher(&JOBS)?.with_priority(Priority::High);
//! let receipt = urgent.blocking_publish_batch(["a".to_string(), "b".to_string()])?;
//! assert_eq!((receipt.events, receipt.matched), (2, 0)); // nobody listens
//! let refused = hub.try_publish(&JOBS.at("jobs/*"), "c".to_string()).unwrap_err();
//! assert!(matches!(refused.reason(), Refusal::Key(_)));
//! assert_eq!(refused.into_payload(), "c");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bounds, and what happens at them
//!
//! Every subscriber has a [`Queue`] bounded by events and, if you like, by bytes, and an [`Overflow`]
//! policy. Nothing is lost silently: a drop is in the [`Receipt`], in the statistics, in a
//! [notice](HubNotice::Lagging), in the next [`Delivery::lagged`], and with
//! [`keep_dropped`](Subscribe::keep_dropped) it is a dead letter.
//!
//! ```
//! use artel_hub::{Context, Delivery, EventHub, Overflow, Queue, Topic};
//! const PRICES: Topic<u64> = Topic::new("prices");
//!
//! let hub = EventHub::new();
//! let (go, wait) = std::sync::mpsc::channel::<()>();
//! let (tell, told) = std::sync::mpsc::channel();
//! let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
//! let _slow = hub
//!     .subscribe(&PRICES)
//!     .on(Context::Thread)
//!     .queue(Queue::bounded(2).on_full(Overflow::DropOldest))
//!     .spawn(move |price: Delivery<'_, u64>| {
//!         wait.lock().unwrap().recv().ok();
//!         tell.send((*price, price.lagged())).ok();
//!     })?;
//! let dropped: u64 =
//!     (0..10).map(|n| hub.blocking_publish(&PRICES, n).unwrap().dropped).sum();
//! drop(go); // it may go on
//! hub.blocking_idle();
//! let told: Vec<(u64, u64)> = told.try_iter().collect();
//! assert_eq!(told.iter().map(|(_, lagged)| lagged).sum::<u64>(), dropped);
//! assert_eq!(told.last().unwrap().0, 9); // the newest are there
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Groups
//!
//! The members of a [group](Subscribe::group) share the events of their keys: one after the other, or
//! [by a hash](Share::by) of the payload, which keeps the order of each hash while the members stay
//! the same. What a member leaves behind goes to the others.
//!
//! # Filters
//!
//! By predicate, by [field](Subscribe::field), by [pattern](Subscribe::only), by [hours of the
//! day](Subscribe::between), by [rate](Subscribe::rate). They run in the subscriber's context, so an
//! expensive one costs nobody else.
//!
//! # Failure
//!
//! A handler says [retry](HandlerError::retry), [skip](HandlerError::skip) or
//! [fatal](HandlerError::fatal), with a [`Severity`]; any error with `?` is retried. A panic is fatal.
//! After a fatal error the handler is made anew by its factory, as often as its [`Restart`] budget
//! allows; its queue stays. An event that fails too often becomes a [dead letter](DeadLetters), to be
//! listed and delivered again. When the budget is spent the subscriber is stopped, what it had not
//! handled becomes dead letters, and a critical [notice](NOTICES) says so.
//!
//! A closure is cloned to be made anew, as it was when it was given to [`spawn`](Subscribe::spawn): what
//! it captured and changed since is forgotten, unless it is shared. [`spawn_with`](Subscribe::spawn_with)
//! takes a factory.
//!
//! A handler that hangs is noticed. On a task it may take 30 seconds, elsewhere as long as it likes, or
//! what [`handler_timeout`](Subscribe::handler_timeout) says; an event that takes longer is a dead letter
//! with the cause `timeout`, and the subscriber goes on with a new handler. Publishers that wait for a
//! subscriber for a second cause a [notice](HubNotice::PublishersWait) that names it.
//!
//! ```
//! use artel_hub::{Delivery, EventHub, Handler, HandlerError, LetterFilter, Restart, Topic};
//! const LINES: Topic<String> = Topic::json("lines");
//!
//! /// Made anew after every panic, so that it never goes on with half-changed state.
//! struct Counter { letters: usize }
//!
//! impl Handler<String> for Counter {
//!     async fn handle(&mut self, line: Delivery<'_, String>) -> Result<(), HandlerError> {
//!         let first = line.chars().next().ok_or_else(|| HandlerError::skip("an empty line"))?;
//!         assert!(first.is_ascii(), "only ASCII was thought of");
//!         self.letters += line.len();
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let hub = EventHub::new();
//! let counter = hub
//!     .subscribe(&LINES)
//!     .name("counter")
//!     .attempts(2)
//!     .restart(Restart::times(10))
//!     .spawn_with(|| Counter { letters: 0 })?;
//! for line in ["one", "", "große", "über", "last"] {
//!     hub.publish(&LINES, line.to_string()).await?;
//! }
//! hub.idle().await;
//! let stats = counter.stats();
//! assert_eq!((stats.processed, stats.letters, stats.restarts), (3, 2, 2));
//! let letters = hub.dead_letters().list(&LetterFilter::all().subscriber("counter"))?;
//! assert_eq!(letters[1].reason, "panicked: only ASCII was thought of");
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # History
//!
//! A [`History`] is an archive in [lines of JSON](JsonLinesArchive) or, with the feature `sqlite`, in
//! an SQLite file. It is a subscriber like any other and can be asked by key, time and text while it
//! is written.
//!
//! ```
//! use artel_hub::{EventHub, History, JsonLinesArchive, Keys, Query, Topic};
//! const LINES: Topic<String> = Topic::json("lines/en");
//!
//! let folder = tempfile::tempdir()?; // or any other
//! let history = History::new(JsonLinesArchive::rotating(&folder, 64 << 20, 10)?);
//! let hub = EventHub::new();
//! let archive = hub.subscribe(Keys::any(["lines/**"])?).name("archive").archive(&history)?;
//! hub.blocking_publish(&LINES, "the quick brown fox".into())?;
//! archive.blocking_stop(std::time::Duration::from_secs(5))?;
//! let found = history.query(&Query::all().key("lines/*")?.text("brown"))?;
//! assert_eq!(found[0].key, "lines/en");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Life, statistics, alerts, traces
//!
//! Dropping a [`Subscription`] unsubscribes, and what was waiting is discarded and counted; `let _ =` drops
//! it at once. [`stop`](Subscription::stop) drains and joins, and after it the handler never runs again. A
//! handler that publishes holds a [`WeakEventHub`], or its hub never ends by being dropped. [`idle`](EventHub::idle) waits for quiet, [`shutdown`
//! ](EventHub::shutdown) ends everything in a written order. [`stats`](EventHub::stats) is a serde
//! structure; handler times are sampled. [`notify`] tells an administrator by webhook or mail. With a
//! subscriber of `tracing` at `debug` for the target `artel_hub`, a span leads from the publish to
//! every handler.
//!
//! The hub inside a small web service: [`web_service`]. What it costs, measured beside others:
//! `BENCHMARKS.md` in this crate's folder.
//!
//! # Why not …?
//!
//! * **… a queue per subscriber for all?** Writing every delivery costs a reference count up and down
//!   and a synchronised push and pop. Subscribers that lose nothing need not own a copy: they read one
//!   log in place, each by its own cursor, with its own bound. Those that may lose something have
//!   queues, because what is dropped for one is not for another.
//! * **… transactional publish** (visible when a database commits)? It takes the database's log, not
//!   the hub's. Publish after the commit, and let an outbox in the database do it if it must.
//! * **… a file or broker that remembers what subscribers have not handled?** The hub ends with its
//!   process. The archive and the dead letters outlive it; for work that must be done by somebody,
//!   somewhere, there is the fleet this hub is part of.
//! * **… error reporting services such as Sentry?** Their clients speak `tracing`, and everything the
//!   hub has to say is said there as well; anything else is a [`notify::Send`] of a few lines.
//! * **… interceptors around every publish and every handler?** A filter, a wrapping handler and the
//!   spans do what they are used for, without a chain that every event pays for.
//! * **… sticky values, request and reply, delayed publish, replay?** Not yet. The log has numbers and
//!   keeps what somebody has not read, so there is room for them.
//! * **… one lock-free ring like the Disruptor?** It needs a core per consumer that spins, and a fixed
//!   set of consumers.
//! * **… `panic = "abort"`?** Then a subscriber's panic ends the program; the hub says so when it is
//!   built.
#![forbid(unsafe_code)]

mod clock;
mod end;
mod error;
mod event;
mod hub;
mod hub_core;
mod keep;
mod key;
mod notice;
mod publish;
mod run;
mod stats;
mod sync;
mod topic;
mod wait;

/// The hub inside a small web service.
#[doc = include_str!("../docs/web_service.md")]
pub mod web_service {}

pub use error::{PublishError, Refusal, StopError, SubscribeError};
pub use event::AnyEvent;
pub use hub::{BuildError, EventHub, EventHubBuilder, Shutdown, WeakEventHub};
#[cfg(feature = "sqlite")]
pub use keep::dead_letter::SqliteLetters;
pub use keep::dead_letter::{
    Cause, DeadLetters, JsonLinesLetters, Letter, LetterError, LetterFilter, LetterStore,
    Redelivered,
};
#[cfg(feature = "sqlite")]
pub use keep::history::SqliteArchive;
pub use keep::history::{ArchiveError, ArchiveStore, History, JsonLinesArchive, Query, Record};
pub use keep::notify;
pub use key::{IntoKeys, KEY_BYTES_MAX, KEYS_MAX, KeyError, Keys};
pub use notice::{HubNotice, NOTICES};
pub use publish::group::Share;
pub use publish::publisher::{Publisher, Receipt};
pub use run::context::Context;
pub use run::filter::{Hours, Rate};
pub use run::handler::{Delivery, Handler, HandlerError, IntoOutcome, Severity};
pub use run::restart::{Backoff, Restart};
pub use run::subscribe::Subscribe;
pub use run::subscription::{Stopped, Subscription};
pub use stats::{HandlerTimes, State, Stats, SubscriberStats, TopicStats};
pub use topic::Topic;
pub use wait::lane::Priority;
pub use wait::overflow::{Overflow, Queue};
