//! EventHub: publish and subscribe inside one process. No subscriber can hurt another.
//!
//! A publisher passes a payload and a key to the hub. The hub finds the subscribers of that key.
//! Each subscriber handles the event in its own context. It has its own queue, its own overflow
//! policy, its own filters, restarts and statistics. If one subscriber fails, panics or is slow,
//! the others and the publisher are not affected. One exception is intended: a subscriber that may
//! not lose events makes publishers wait when its queue is full. This is the default.
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
//! | feature | provides |
//! |---|---|
//! | `sqlite` | `SqliteArchive` and `SqliteLetters`, in files that any SQLite can read |
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
//! | [`Context::Task`], the default | as a task of the tokio runtime | almost everything; a hundred thousand of them fit on two threads | a handler that blocks delays other tasks; the hub [reports](HubNotice::Blocking) it |
//! | [`Context::Thread`] | on its own thread | handlers that block: files, databases, C libraries | more than a few dozen are expensive; there is no tokio reactor for async handlers |
//! | [`Context::Pool`] | on the hub's own threads | programs without a runtime; work that must not use the runtime's threads | a handler that blocks for ever takes a thread from the others, unless it has a [time-out](Subscribe::handler_timeout) |
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
//! A [`Topic`] is a key and the type of its payloads. Keys have levels: `orders/created/eu`. A
//! subscriber may ask for several keys and for patterns ([`Keys`]):
//!
//! * `*` is one level.
//! * `**` is one or more levels, at the end of a pattern. `orders/**` does not match `orders`.
//! * `**` alone also matches the hub's own [notices](NOTICES).
//!
//! Publishing under a key without subscribers is not an error. Two subscribers with overlapping
//! keys cannot have the same name.
//!
//! # Publishing, and order
//!
//! [`publish`](EventHub::publish) is async and waits for room.
//! [`blocking_publish`](EventHub::blocking_publish) does the same in a thread.
//! [`try_publish`](EventHub::try_publish) never waits. A [`Publisher`] looks up its key only once,
//! can have a priority, and publishes batches. The [`Receipt`] says how many subscribers got the
//! event. A refused publish returns the payload.
//!
//! Handlers may publish, too, and so cause further events. By default at most 64 handlers in a row
//! may lead to an event; see [`depth_max`](EventHubBuilder::depth_max). A longer chain is refused,
//! so it cannot run for ever.
//!
//! *Events that one publisher publishes one after the other, under one key and with one
//! [`Priority`], reach every subscriber in that order.* Between publishers, keys and priorities
//! there is no order. One exception: all subscribers with the same keys that never lose events see
//! the same order. A subscriber sees every event whose publish began after `subscribe` returned.
//!
//! ```
//! use artel_hub::{EventHub, Priority, Refusal, Topic};
//! const JOBS: Topic<String> = Topic::new("jobs");
//!
//! let hub = EventHub::new();
//! let urgent = hub.publisher(&JOBS)?.with_priority(Priority::High);
//! let receipt = urgent.blocking_publish_batch(["a".to_string(), "b".to_string()])?;
//! assert_eq!((receipt.events, receipt.matched), (2, 0)); // there are no subscribers
//! let refused = hub.try_publish(&JOBS.at("jobs/*"), "c".to_string()).unwrap_err();
//! assert!(matches!(refused.reason(), Refusal::Key(_)));
//! assert_eq!(refused.into_payload(), "c");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bounds, and what happens at them
//!
//! Every subscriber has a [`Queue`] with a maximum number of events, an optional maximum number of
//! bytes, and an [`Overflow`] policy. No event is lost silently. A drop appears
//!
//! * in the [`Receipt`] and in the statistics,
//! * in a [notice](HubNotice::Lagging),
//! * in the next [`Delivery::lagged`],
//! * and, with [`keep_dropped`](Subscribe::keep_dropped), as a dead letter.
//!
//! ```
//! use artel_hub::{Context, Delivery, EventHub, Overflow, Queue, Topic};
//! const PRICES: Topic<u64> = Topic::new("prices");
//!
//! let hub = EventHub::new();
//! let (go, wait) = std::sync::mpsc::channel::<()>();
//! let (send, received) = std::sync::mpsc::channel();
//! let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
//! let _slow = hub
//!     .subscribe(&PRICES)
//!     .on(Context::Thread)
//!     .queue(Queue::bounded(2).on_full(Overflow::DropOldest))
//!     .spawn(move |price: Delivery<'_, u64>| {
//!         wait.lock().unwrap().recv().ok();
//!         send.send((*price, price.lagged())).ok();
//!     })?;
//! let dropped: u64 =
//!     (0..10).map(|n| hub.blocking_publish(&PRICES, n).unwrap().dropped).sum();
//! drop(go); // lets the handler continue
//! hub.blocking_idle();
//! let received: Vec<(u64, u64)> = received.try_iter().collect();
//! assert_eq!(received.iter().map(|(_, lagged)| lagged).sum::<u64>(), dropped);
//! assert_eq!(received.last().unwrap().0, 9); // the newest are there
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Groups
//!
//! The members of a [group](Subscribe::group) share the events of their keys. They take turns, or
//! [a hash](Share::by) of the payload chooses the member. Events with the same hash keep their
//! order while the set of members does not change. When a member leaves, its waiting events go to
//! the other members.
//!
//! # Filters
//!
//! A subscriber can filter by predicate, by [field](Subscribe::field), by
//! [pattern](Subscribe::only), by [hours of the day](Subscribe::between) and by
//! [rate](Subscribe::rate). Filters run in the subscriber's context, so an expensive one slows down
//! no other subscriber.
//!
//! # Failure
//!
//! A handler returns [retry](HandlerError::retry), [skip](HandlerError::skip) or
//! [fatal](HandlerError::fatal), with a [`Severity`]. Any other error returned with `?` is retried.
//! A panic is fatal.
//!
//! After a fatal error the factory creates a new handler, as often as the [`Restart`] budget
//! allows. The queue is kept. An event that fails too often becomes a [dead letter](DeadLetters),
//! which can be listed and delivered again. When the budget is spent, the subscriber is stopped,
//! its unhandled events become dead letters, and a critical [notice](NOTICES) is published.
//!
//! A new closure is cloned from the one that was passed to [`spawn`](Subscribe::spawn). Changes to
//! captured values are lost then, unless these values are shared.
//! [`spawn_with`](Subscribe::spawn_with) takes a factory instead.
//!
//! A handler that hangs is detected. By default a handler may take 30 seconds on a task, and any
//! time elsewhere; [`handler_timeout`](Subscribe::handler_timeout) changes this. An event that
//! takes longer becomes a dead letter with the cause `timeout`, and the subscriber continues with a
//! new handler. If publishers wait for a subscriber for a second, a
//! [notice](HubNotice::PublishersWait) names it.
//!
//! ```
//! use artel_hub::{Delivery, EventHub, Handler, HandlerError, LetterFilter, Restart, Topic};
//! const LINES: Topic<String> = Topic::json("lines");
//!
//! /// Created again after every panic, so it never continues with inconsistent state.
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
//! A [`History`] is an archive in [lines of JSON](JsonLinesArchive) or, with the feature `sqlite`,
//! in an SQLite file. It is a normal subscriber. It can be queried by key, time and text while it
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
//! * Dropping a [`Subscription`] unsubscribes. Its waiting events are discarded and counted. `let _
//!   =` drops it at once. [`stop`](Subscription::stop) handles the waiting events first and waits
//!   for the end. After it the handler never runs again.
//! * A handler that publishes should hold a [`WeakEventHub`]. Otherwise it keeps its hub alive for
//!   ever.
//! * [`idle`](EventHub::idle) waits until everything is handled. [`shutdown`](EventHub::shutdown)
//!   ends everything in a documented order.
//! * [`stats`](EventHub::stats) returns counters that can be serialized. Handler times are sampled.
//! * [`notify`] sends alerts to an administrator by webhook or mail.
//! * With a `tracing` subscriber at level `debug` for the target `artel_hub`, a span links each
//!   publish to all its handlers.
//!
//! The hub inside a small web service: [`web_service`]. Its performance, measured beside others:
//! `BENCHMARKS.md` in this crate's folder.
//!
//! # Why not …?
//!
//! * **… a queue per subscriber for all?** Each delivery would cost a reference count up and down,
//!   and a synchronized push and pop. Subscribers that lose nothing need no copy: they read one log
//!   in place, each with its own cursor and its own bound. Subscribers that may lose events have
//!   queues, because an event that is dropped for one is not dropped for another.
//! * **… transactional publish** (visible when a database commits)? It needs the log of the
//!   database, not of the hub. Publish after the commit. If an event must not be lost in between,
//!   use an outbox in the database.
//! * **… a file or broker that remembers unhandled events?** The hub ends with its process. The
//!   archive and the dead letters outlive it. For work that some process must complete, use the
//!   fleet that this hub is part of.
//! * **… error reporting services such as Sentry?** Their clients read `tracing`, and the hub logs
//!   every notice there. Anything else is a [`notify::Send`] of a few lines.
//! * **… interceptors around every publish and every handler?** Filters, wrapping handlers and
//!   spans do the same, without a chain that every event pays for.
//! * **… sticky values, request and reply, delayed publish, replay?** Not yet. The log is numbered
//!   and keeps unread events, so they can be added.
//! * **… one lock-free ring like the Disruptor?** It needs a spinning core per consumer, and a
//!   fixed set of consumers.
//! * **… `panic = "abort"`?** Then a panic in a subscriber ends the program. The hub logs a warning
//!   when it is built.
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
mod report;
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
pub use report::{HubReport, REPORTS, Reporting, SubscriberReport};
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
