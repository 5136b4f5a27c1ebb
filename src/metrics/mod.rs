//! [`MetricsSource`]: the numbers of a member and of its fleet, in the text format of Prometheus.
//!
//! **Invariant:** a page is made without waiting for anybody but Redis, and for Redis at most [`BOOKS_TIMEOUT`]. One member
//! of a fleet tells the numbers of the whole fleet: the generator, or the lowest rank where nobody leads. So many who ask
//! cost Redis no more than one.

mod text;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use artel_hub::EventHub;
use tokio::sync::{Mutex, watch};

use crate::fleet::Fleet;
use crate::membership::Session;
use crate::meter::{End, Meter};
use crate::notice::NAMES;
use crate::outcome::FleetNumbers;
use crate::process;
use crate::role::Role;
use text::Text;

/// How long Redis may take to tell the numbers of the fleet.
const BOOKS_TIMEOUT: Duration = Duration::from_secs(1);
/// The numbers of the fleet are asked for at most this often.
const FRESH: Duration = Duration::from_secs(1);

/// The last numbers of the fleet, and when they were asked for.
pub(crate) type KnownNumbers = Arc<Mutex<Option<(Instant, Option<FleetNumbers>)>>>;

/// Where the numbers of a member come from. Made by [`Member::metrics`](crate::Member::metrics); it works on after the
/// member was stopped.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let page = member.metrics().page().await;
/// assert!(page.contains("artel_is_generator{fleet=\"orders\"} 0"));
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MetricsSource {
    pub(crate) fleet: Fleet,
    pub(crate) meter: Arc<Meter>,
    pub(crate) sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(crate) roles: watch::Receiver<Role>,
    pub(crate) hub: Option<EventHub>,
    pub(crate) began: Instant,
    pub(crate) numbers: KnownNumbers,
    /// Without a member there are only the numbers of the fleet.
    pub(crate) is_member: bool,
}

impl Fleet {
    /// The numbers of the whole fleet, for a process that is no member of it. It tells them whoever else does: such a
    /// process is asked instead of the members, not beside them.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let fleet = artel::Fleet::connect(url, "orders").await?;
    /// let page = fleet.metrics().page().await;
    /// assert!(page.contains("artel_books_balance{fleet=\"orders\"} 0"));
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metrics(&self) -> MetricsSource {
        MetricsSource {
            fleet: self.clone(),
            meter: Arc::default(),
            sessions: watch::channel(None).1,
            roles: watch::channel(Role::Outside).1,
            hub: None,
            began: Instant::now(),
            numbers: KnownNumbers::default(),
            is_member: false,
        }
    }
}

impl MetricsSource {
    /// The page that `/metrics` serves.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn page(&self) -> String {
        let mut text = Text::new(self.fleet.store.fleet());
        let session = self.sessions.borrow().clone();
        if self.is_member {
            self.process(&mut text, session.as_deref());
            self.messages(&mut text);
        }
        if let Some(hub) = &self.hub {
            subscribers(&mut text, hub);
        }
        let speaks = !self.is_member
            || session.is_some_and(|session| session.trust.holds() && session.speaks());
        text.gauge(
            "artel_speaks_for_fleet",
            "1 if this process tells the numbers of the whole fleet.",
            [(vec![], f64::from(u8::from(speaks)))],
        );
        if speaks && let Some(numbers) = self.numbers().await {
            numbers_of_fleet(&mut text, &numbers);
        }
        text.into_page()
    }

    /// One page for several fleets.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn pages(sources: &[MetricsSource]) -> String {
        let pages = futures_util::future::join_all(sources.iter().map(MetricsSource::page)).await;
        text::joined(pages)
    }

    fn process(&self, text: &mut Text, session: Option<&Session>) {
        let leads = *self.roles.borrow() == Role::Generator && session.is_some();
        let term = session.and_then(|session| session.tenures.lease.term());
        let tally = session.map(|session| &session.tally);
        let number = |n: u64| [(vec![], n as f64)];
        let is = |it: bool| [(vec![], f64::from(u8::from(it)))];
        text.gauge(
            "artel_build_info",
            "The version of this process.",
            [(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        );
        text.gauge(
            "artel_uptime_seconds",
            "For how long this process has been a member.",
            [(vec![], self.began.elapsed().as_secs_f64())],
        );
        if let Some(bytes) = process::memory_bytes() {
            text.gauge("artel_memory_bytes", "Memory that this process uses.", number(bytes));
        }
        let answers = session.is_some_and(|session| session.trust.holds());
        text.gauge(
            "artel_redis_up",
            "1 if this process has a session and Redis answers.",
            is(answers),
        );
        text.gauge("artel_is_generator", "1 if this process generates.", is(leads));
        text.gauge(
            "artel_term",
            "The term under which this process generates, or 0.",
            number(term.map_or(0, crate::term::Term::get)),
        );
        let gauge = |it: Option<&std::sync::atomic::AtomicU64>| {
            number(it.map_or(0, |it| it.load(Ordering::Relaxed)))
        };
        text.gauge(
            "artel_handlers_running",
            "Handlers that run in this process.",
            gauge(tally.map(|tally| &tally.in_flight)),
        );
        text.gauge(
            "artel_messages_held",
            "Messages that this process has claimed, started or not.",
            gauge(tally.map(|tally| &tally.claimed)),
        );
        let counted = self.meter.notices();
        text.counter(
            "artel_notices_total",
            "Notices of this process, by name.",
            NAMES.map(|name| (vec![("notice", name)], counted.get(name).copied().unwrap_or(0))),
        );
        let alerts = self.meter.alerts();
        text.counter(
            "artel_alerts_total",
            "Alerts of this process by sink and result: sent, failed (one try), deferred (tried again later).",
            alerts
                .iter()
                .map(|((sink, result), n)| (vec![("sink", &**sink), ("result", *result)], *n)),
        );
        text.histogram(
            "artel_failover_seconds",
            "For how long nobody led before this process did.",
            [(vec![], &self.meter.failover)],
        );
        text.histogram(
            "artel_redis_round_trip_seconds",
            "How long Redis took to answer heartbeats.",
            [(vec![], &self.meter.redis)],
        );
    }

    fn messages(&self, text: &mut Text) {
        let kinds = self.meter.kinds();
        text.counter(
            "artel_messages_generated_total",
            "Messages that this process generated.",
            [(vec![], self.meter.generated.load(Ordering::Relaxed))],
        );
        text.counter(
            "artel_messages_total",
            "Runs of messages in this process, by how they ended.",
            kinds.iter().flat_map(|(name, kind)| {
                let end =
                    |end: End| (vec![("kind", &**name), ("outcome", end.name())], kind.ended(end));
                End::ALL.map(end)
            }),
        );
        text.histogram(
            "artel_handler_seconds",
            "How long handlers ran in this process.",
            kinds.iter().map(|(name, kind)| (vec![("kind", &**name)], &kind.handler)),
        );
        text.histogram(
            "artel_message_wait_seconds",
            "From when a message was made to its first run, in this process.",
            kinds.iter().map(|(name, kind)| (vec![("kind", &**name)], &kind.wait)),
        );
    }

    /// The numbers of the fleet, at most [`FRESH`] old. `None` if Redis does not answer; who asks meanwhile is not kept
    /// waiting either.
    async fn numbers(&self) -> Option<FleetNumbers> {
        let asked = tokio::time::timeout(BOOKS_TIMEOUT, async {
            let mut known = self.numbers.lock().await;
            if let Some((when, numbers)) = &*known
                && when.elapsed() < FRESH
            {
                return numbers.clone();
            }
            // Noted first: if this takes too long, the next one does not wait for Redis again.
            *known = Some((Instant::now(), None));
            let numbers = self.fleet.numbers().await.ok();
            *known = Some((Instant::now(), numbers.clone()));
            numbers
        });
        asked.await.ok().flatten()
    }
}

fn numbers_of_fleet(text: &mut Text, fleet: &FleetNumbers) {
    let one = |n: f64| [(vec![], n)];
    let lanes = || fleet.lanes.iter();
    text.gauge(
        "artel_fleet_waiting",
        "Messages that wait, by lane.",
        lanes().map(|lane| (vec![("lane", lane.name)], lane.waiting as f64)),
    );
    text.gauge(
        "artel_fleet_oldest_waiting_seconds",
        "Age of the oldest message that waits, by lane; 0 if none does.",
        lanes().map(|lane| (vec![("lane", lane.name)], lane.oldest.as_secs_f64())),
    );
    text.gauge(
        "artel_fleet_paused",
        "1 if nothing is fetched from this lane.",
        lanes().map(|lane| (vec![("lane", lane.name)], f64::from(u8::from(lane.is_paused)))),
    );
    text.gauge("artel_fleet_claimed", "Messages that workers hold.", one(fleet.claimed as f64));
    text.gauge(
        "artel_fleet_scheduled",
        "Messages that wait for a time.",
        one(fleet.scheduled as f64),
    );
    text.gauge(
        "artel_fleet_errors_stored",
        "Failed messages that are kept.",
        one(fleet.errors as f64),
    );
    text.counter(
        "artel_fleet_messages_total",
        "Messages of the fleet since it was born, by what became of them.",
        fleet.totals.iter().map(|(what, count)| (vec![("what", *what)], *count)),
    );
    text.gauge(
        "artel_fleet_members",
        "Members, by role.",
        fleet.members.iter().map(|(role, count)| (vec![("role", *role)], *count as f64)),
    );
    text.gauge(
        "artel_fleet_orphans",
        "Dead members whose messages are still to be put back.",
        one(fleet.orphans as f64),
    );
    text.gauge(
        "artel_fleet_leaderless",
        "1 if nobody leads although a member could. Where no member can lead it is 0.",
        fleet.is_leaderless.map(|it| (vec![], f64::from(u8::from(it)))),
    );
    text.gauge("artel_fleet_term", "The highest term that was granted.", one(fleet.term as f64));
    text.gauge(
        "artel_books_balance",
        "Messages that are in the books and nowhere else, or the other way round: 0, or something is wrong.",
        one(fleet.balance as f64),
    );
}

fn subscribers(text: &mut Text, hub: &EventHub) {
    let stats = hub.stats();
    let all = || stats.subscribers.iter();
    text.gauge(
        "artel_hub_lag",
        "Events that wait for a subscriber of the hub.",
        all().map(|one| (vec![("subscriber", &*one.name)], one.lag as f64)),
    );
    text.counter(
        "artel_hub_events_total",
        "Events that a subscriber handled.",
        all().map(|one| (vec![("subscriber", &*one.name)], one.processed)),
    );
    text.counter(
        "artel_hub_dropped_total",
        "Events that a subscriber lost because its queue was full.",
        all().map(|one| (vec![("subscriber", &*one.name)], one.dropped)),
    );
    text.counter(
        "artel_hub_errors_total",
        "Attempts of a subscriber that failed.",
        all().map(|one| (vec![("subscriber", &*one.name)], one.errors)),
    );
    text.counter(
        "artel_hub_restarts_total",
        "New handlers that a subscriber got.",
        all().map(|one| (vec![("subscriber", &*one.name)], one.restarts)),
    );
    text.gauge(
        "artel_hub_failed",
        "Subscribers that were stopped early.",
        [(vec![], stats.failed as f64)],
    );
}

impl std::fmt::Debug for MetricsSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetricsSource").finish_non_exhaustive()
    }
}
