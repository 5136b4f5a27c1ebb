//! [`HubCore`]: the state that all parts of one hub share. [`Handle`]: what its users hold.
//!
//! **Invariant:** runners hold the core, users hold the handle. When the last handle is dropped,
//! nobody can publish any more, so all subscribers drain and end. When the last runner has ended,
//! the core ends its threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::task::Waker;
use std::time::{Instant, SystemTime};

use arc_swap::Guard;

use crate::clock::coarse_now;
use crate::end::leftovers::letters;
use crate::error::Refusal;
use crate::event::{AnyEvent, Meta, drop_panics};
use crate::keep::dead_letter::{Cause, Letter, LetterWriter};
use crate::key::check_key;
use crate::notice::{HubNotice, NOTICES};
use crate::publish::attempt::{Attempt, Patience, attempt};
use crate::publish::current::Waits;
use crate::publish::route::{Epoch, Registry, Routes, same_type};
use crate::run::context::inline::{self, Called};
use crate::run::context::pool::Pool;
use crate::run::handler::Severity;
use crate::run::subscriber::{Found, Intake, Phase, Subscriber};
use crate::run::timer::{LOOK, Timer};
use crate::run::watch::Watch;
use crate::stats::{Stats, TopicStats};
use crate::sync::Mutex;
use crate::topic::{Channel, Topic};
use crate::wait::lane::Priority;

thread_local! {
    /// Whether this thread is publishing a notice of the hub.
    static SAYING: Cell<bool> = const { Cell::new(false) };
}

/// How many routes are refreshed per periodic check, so that they release subscribers that have
/// left.
const REFRESHED: usize = 1000;

struct SayGuard;

impl Drop for SayGuard {
    fn drop(&mut self) {
        SAYING.set(false);
    }
}

pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The settings from the builder.
pub(crate) struct Settings {
    pub(crate) depth_max: u16,
    pub(crate) payload_bytes_max: u64,
    pub(crate) channels_max: usize,
    pub(crate) pool_threads: usize,
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    pub(crate) clock: Option<Clock>,
}

pub(crate) struct HubCore {
    pub(crate) settings: Settings,
    registry: RwLock<Registry>,
    epoch: Epoch,
    pub(crate) timer: Timer,
    pub(crate) waits: Waits,
    pub(crate) letter_writer: Arc<LetterWriter>,
    closed: AtomicBool,
    faults_said: AtomicU64,
    /// The channel of the hub's own notices. It exists as long as the hub.
    notices: Arc<Channel>,
    notices_lost: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) discarded: AtomicU64,
    next_id: AtomicU64,
    /// Events that were given to a single subscriber, for example redelivered dead letters.
    delivered: AtomicU64,
    pool: Mutex<Option<Arc<Pool>>>,
    idle: Idle,
}

/// The callers that wait until the hub is idle.
#[derive(Default)]
struct Idle {
    waiting: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

impl HubCore {
    pub(crate) fn new(settings: Settings, letter_writer: Arc<LetterWriter>) -> Arc<HubCore> {
        let mut registry = Registry::default();
        let notices = registry.reserve(&NOTICES);
        registry.reserve(&crate::keep::notify::ALERTS);
        Arc::new(HubCore {
            settings,
            epoch: registry.epoch(),
            registry: RwLock::new(registry),
            notices,
            timer: Timer::default(),
            waits: Waits::default(),
            letter_writer,
            closed: AtomicBool::new(false),
            faults_said: AtomicU64::new(drop_panics()),
            notices_lost: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            delivered: AtomicU64::new(0),
            pool: Mutex::new(None),
            idle: Idle::default(),
        })
    }

    /// Identifies this hub, for handlers that publish.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn now(&self) -> SystemTime {
        self.settings.clock.as_ref().map_or_else(coarse_now, |clock| clock())
    }

    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The destinations of an event under this key.
    #[inline]
    pub(crate) fn routes(&self, channel: &Channel) -> Guard<Arc<Routes>> {
        let routes = channel.routes.load();
        match routes.epoch == self.epoch.load(Ordering::Acquire) {
            true => routes,
            false => Guard::from_inner(self.registry().fresh(channel)),
        }
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Starts the timer thread and the thread that checks the subscribers.
    pub(crate) fn start_threads(self: &Arc<HubCore>) -> std::io::Result<()> {
        let core: Weak<HubCore> = Arc::downgrade(self);
        let mut watch = Watch::default();
        self.timer.start(move || {
            if let Some(core) = core.upgrade() {
                watch.look(&core);
            }
        })
    }

    pub(crate) fn pool(self: &Arc<HubCore>) -> std::io::Result<Arc<Pool>> {
        let mut pool = self.pool.lock();
        match &*pool {
            Some(pool) => Ok(pool.clone()),
            None => Ok(pool.insert(Pool::start(self.settings.pool_threads)?).clone()),
        }
    }

    pub(crate) fn take_pool(&self) -> Option<Arc<Pool>> {
        self.pool.lock().take()
    }

    pub(crate) fn channel<T: Send + Sync + 'static>(
        &self,
        topic: &Topic<T>,
    ) -> Result<Arc<Channel>, Refusal> {
        check_key(topic.key())?;
        let known = self.registry().channel(topic.key()).cloned();
        match known {
            Some(channel) => same_type::<T>(channel, topic.codec),
            None => {
                let most = self.settings.channels_max;
                self.registry_mut().open::<T>(topic.key(), topic.codec, most)
            }
        }
    }

    /// Logs and publishes a notice about the hub or one of its subscribers. Never waits: a listener
    /// whose queue is full misses the notice, other listeners do not.
    pub(crate) fn say(&self, notice: HubNotice) {
        match notice.severity() {
            Severity::Warning => tracing::warn!(target: "artel_hub", "{notice}"),
            Severity::Error | Severity::Critical => {
                tracing::error!(target: "artel_hub", "{notice}")
            }
        }
        // A notice caused by publishing a notice is only counted.
        if SAYING.replace(true) {
            return self.notice_lost();
        }
        let _said = SayGuard;
        let mut meta = Meta::new(self.notices.clone(), self.now(), 0, Priority::Normal);
        meta.sequence = self.notices.next_sequence();
        let event = AnyEvent::new(meta, notice);
        let attempt = attempt(self, &self.notices, &mut [Some(event)], Patience::Skip);
        if !matches!(attempt, Attempt::Done(receipt) if receipt.queued == receipt.matched) {
            self.notice_lost();
        }
    }

    /// Publishes a notice about an event. If that event is a notice itself, this is only logged: a
    /// listener that fails at notices would cause notices for ever.
    pub(crate) fn say_of(&self, event: &AnyEvent, notice: HubNotice) {
        match event.key() == NOTICES.key() {
            true => tracing::error!(target: "artel_hub", "{notice}"),
            false => self.say(notice),
        }
    }

    fn notice_lost(&self) {
        self.notices_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a subscriber lost these events because its queue was full.
    pub(crate) fn lost(&self, subscriber: &Subscriber, events: Vec<AnyEvent>) {
        let many = events.len() as u64;
        let dropped =
            subscriber.counts.troubles().dropped.fetch_add(many, Ordering::Relaxed) + many;
        if subscriber.keeps_dropped {
            self.keep(letters(subscriber, &events, "its queue was full", Cause::Dropped));
        }
        if !subscriber.lagging.swap(true, Ordering::Relaxed) {
            let subscriber_name = subscriber.name().to_string();
            self.say(HubNotice::Lagging { subscriber: subscriber_name, dropped });
        }
    }

    /// Passes dead letters to the writer. Publishes a notice if some are lost.
    pub(crate) fn keep(&self, letters: Vec<Letter>) {
        if let Err((letters, reason)) = self.letter_writer.keep(letters) {
            self.say(HubNotice::LettersLost { letters, reason });
        }
    }

    /// Gives an event to this subscriber only. `false` if the subscriber does not take it.
    pub(crate) fn deliver(&self, subscriber: &Arc<Subscriber>, event: &AnyEvent) -> bool {
        self.delivered.fetch_add(1, Ordering::SeqCst);
        match &subscriber.intake {
            Intake::Inline(_) => inline::call(self, subscriber, event) == Called::Yes,
            _ => subscriber.deliver(event),
        }
    }

    /// Removes a subscriber from the routes and orders it to end after its waiting events.
    pub(crate) fn end(&self, subscriber: &Subscriber) {
        subscriber.shut();
        subscriber.life.drain();
        self.registry_mut().unroute(subscriber);
        subscriber.wake();
        if let Intake::Inline(inline) = &subscriber.intake {
            subscriber.enter_if(Phase::Running, Phase::Stopped);
            if inline.busy() == 0 {
                self.over(subscriber); // else the thread that runs it does this
            }
        }
        self.caught_up();
    }

    /// Marks a subscriber as ended: its handler does not run any more.
    pub(crate) fn over(&self, subscriber: &Subscriber) {
        self.registry_mut().forget_subscriber(subscriber);
        subscriber.life.end();
    }

    /// Refuses every publish from now on, including those that wait.
    pub(crate) fn close(&self) -> Vec<Arc<Subscriber>> {
        self.closed.store(true, Ordering::SeqCst);
        let registry = self.registry_mut();
        let subscribers: Vec<_> = registry.subscribers().cloned().collect();
        let logs: Vec<_> = registry.logs().cloned().collect();
        drop(registry); // publishers are woken without this lock
        logs.iter().for_each(|log| log.close());
        subscribers
    }

    /// Whether all events are handled. The check is valid only if nothing is published or delivered
    /// in the meantime: an event could move from a subscriber not yet checked to one already
    /// checked.
    pub(crate) fn is_idle(&self) -> bool {
        let registry = self.registry();
        let moved = || {
            let published: u64 = registry.channels().map(|one| one.last_sequence()).sum();
            published.wrapping_add(self.delivered.load(Ordering::SeqCst))
        };
        let before = moved();
        let all = registry.subscribers().all(|subscriber| subscriber.behind() == 0);
        all && moved() == before
    }

    /// Registers a waker for the next time the hub may be idle.
    pub(crate) fn await_idle(&self, waker: &Waker) {
        let mut wakers = self.idle.wakers.lock();
        if !wakers.iter().any(|one| one.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.idle.waiting.store(wakers.len(), Ordering::SeqCst);
    }

    /// Wakes the callers that wait until the hub is idle. Called when a subscriber has caught up.
    pub(crate) fn caught_up(&self) {
        if self.idle.waiting.load(Ordering::SeqCst) > 0 {
            let wakers = {
                let mut wakers = self.idle.wakers.lock();
                self.idle.waiting.store(0, Ordering::SeqCst);
                std::mem::take(&mut *wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// The periodic check, once a second: reports subscribers that make no progress.
    pub(crate) fn look_around(&self) {
        let subscribers: Vec<_> = self.registry().subscribers().cloned().collect();
        let publishers = self.waits.publishers(Instant::now());
        for subscriber in subscribers {
            if let Intake::Log { log, cursor } = &subscriber.intake {
                log.tidy();
                log.offer_room(&cursor.load());
            }
            let name = || subscriber.name().to_string();
            if let Some(for_ms) = subscriber.take_blocked() {
                self.say(HubNotice::Blocking { subscriber: name(), for_ms });
            }
            // Reported after a second, and then each time the duration has doubled.
            let waited = publishers.get(&subscriber.id).filter(|(_, time)| *time >= LOOK);
            if let Some((publishers, time)) =
                waited.filter(|(_, time)| time.as_secs().is_power_of_two())
            {
                let (publishers, for_ms) = (*publishers, time.as_millis() as u64);
                self.say(HubNotice::PublishersWait { subscriber: name(), publishers, for_ms });
            }
            let notice = match subscriber.look() {
                Found::Fine => continue,
                Found::GoesOn => HubNotice::Unstuck { subscriber: name() },
                // Reported at the beginning, and then each time the duration has doubled.
                Found::StuckSince(looks) if !looks.is_power_of_two() => continue,
                Found::StuckSince(looks) => {
                    let for_ms = u64::from(looks) * LOOK.as_millis() as u64;
                    let lag = subscriber.behind();
                    HubNotice::Stuck { subscriber: name(), for_ms, lag }
                }
            };
            self.say(notice);
        }
        if let Some((waiting, reason)) = self.letter_writer.trouble() {
            self.say(HubNotice::LettersWait { waiting, reason });
        }
        self.registry().refresh(REFRESHED);
        self.caught_up(); // this also forgets callers that no longer wait
        let faults = drop_panics();
        if self.faults_said.swap(faults, Ordering::Relaxed) != faults {
            self.say(HubNotice::DropPanicked { times: faults });
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let registry = self.registry();
        let mut subscribers: Vec<_> = registry.subscribers().map(|one| one.stats()).collect();
        let mut topics: Vec<_> = registry
            .channels()
            .filter(|one| one.last_sequence() > 0 || registry.fresh(one).subscribers() > 0)
            .map(|channel| TopicStats {
                key: channel.key().into(),
                payload: channel.payload.name,
                published: channel.last_sequence(),
                dropped: channel.dropped.load(Ordering::Relaxed),
                subscribers: registry.fresh(channel).subscribers(),
            })
            .collect();
        subscribers.sort_by(|a, b| a.name.cmp(&b.name));
        topics.sort_by(|a, b| a.key.cmp(&b.key));
        Stats {
            subscribers,
            topics,
            drop_panics: drop_panics(),
            notices_lost: self.notices_lost.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            letters_lost: self.letter_writer.lost(),
            discarded: self.discarded.load(Ordering::Relaxed),
        }
    }
}

impl Drop for HubCore {
    fn drop(&mut self) {
        drop(self.take_pool());
        self.timer.end();
        self.letter_writer.close();
    }
}

impl std::fmt::Debug for HubCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubCore").finish_non_exhaustive()
    }
}

/// The reference that a hub and its publishers hold.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<HubCore>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        for subscriber in self.core.close() {
            self.core.end(&subscriber);
        }
    }
}
