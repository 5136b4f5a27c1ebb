//! [`EventWatch`]: what this process knows about one event, for all its waiters.
//!
//! **Invariant:** a waiter returns if the event is set after its wait began, however briefly. A wait
//! begins with its first answered read: a set that was cleared before that does not count.
//!
//! Why no wake-up is lost: Redis runs one command after the other.
//!
//! * The subscription is confirmed before the first read. A set that ran before that read is seen by
//!   it.
//! * A set that runs after that read runs after the subscription, too, so its message is on its way to
//!   us. It can be lost only with the connection. The end of a connection, or the timer, leads to
//!   another read.
//! * A set that was cleared before that other read has left a new generation behind.
//! * A message carries the generation, and the script that wrote the generation published it. A
//!   generation newer than the first read proves a set, without another round trip.
//!
//! All waiters share one subscription, and one read answers all who asked before it was sent. After the
//! last waiter has left, the subscription is kept for a while and then dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::mutant::{Rule, disabled};
use crate::store::{
    Call, Link, Listener, PushRouter, Reply, Route, Script, SessionLink, Signal, StoreError,
};

static READ: Script = Script::new("event_read", include_str!("event_read.lua"));

/// How long a subscription is kept after the last waiter has left.
const LINGER: Duration = Duration::from_secs(10);
/// The longest time between two reads. A read also notices that the last waiter has left.
const EVERY_MAX: Duration = Duration::from_secs(60);
/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(100);
/// The shortest and the longest time-out of a read.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// The pause, shortened at random, so that not all processes act at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.8 + 0.2 * rand::random::<f64>())
}

/// What Redis answered about an event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    pub(crate) set: bool,
    pub(crate) generation: u64,
    pub(crate) left: Option<Duration>,
}

/// An answered read, and the highest question it answers.
#[derive(Clone, Debug)]
struct Answer {
    question: u64,
    read: Result<Read, StoreError>,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { question: 0, read: Ok(Read::default()) }
    }
}

/// What the waiters look at.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The highest generation that was received in a message.
    heard: u64,
    answer: Answer,
}

/// The state at the beginning of a wait.
#[derive(Debug)]
struct Start {
    heard: u64,
    question: u64,
    generation: u64,
}

/// Has there been a new generation since the wait began or, if `level`, is the event set? Then it
/// returns the generation. If the generation went back, Redis has lost data, and only later generations
/// count.
fn woken(start: &mut Start, seen: &Seen, level: bool) -> Result<Option<u64>, StoreError> {
    if seen.heard > start.heard.max(start.generation) {
        return Ok(Some(seen.heard));
    }
    if seen.answer.question <= start.question {
        return Ok(None);
    }
    let read = seen.answer.read.clone()?;
    let newer = read.generation > start.generation || (level && read.set);
    if read.generation < start.generation {
        start.heard = start.heard.max(seen.heard);
    }
    start.generation = read.generation;
    start.question = seen.answer.question;
    Ok(newer.then_some(read.generation))
}

/// One event, as this process sees it.
pub(crate) struct EventWatch {
    key: String,
    channel: String,
    link: Arc<Link>,
    router: Arc<PushRouter>,
    /// Weak: a watch does not keep the connection alive.
    session: Weak<SessionLink>,
    seen: watch::Sender<Seen>,
    answers: watch::Sender<Answer>,
    /// Counts the reads that were asked for and those that were sent.
    questions: AtomicU64,
    asked: Notify,
    /// The longest time between two reads, ms.
    every_ms: AtomicU64,
    waiting: AtomicUsize,
    /// Does a task listen for all waiters?
    listening: Mutex<bool>,
    warned: AtomicBool,
}

impl Listener for EventWatch {
    fn hear(&self, text: &str) {
        let generation = text.parse().unwrap_or(0);
        let mut proof = false;
        self.seen.send_if_modified(|seen| {
            let newer = generation > seen.heard;
            // A generation below the last read proves nothing: Redis may have lost data and count
            // again.
            let read = seen.answer.read.as_ref().map_or(0, |read| read.generation);
            proof = newer && generation >= read;
            seen.heard = seen.heard.max(generation);
            newer
        });
        if !proof && self.waiting.load(Ordering::Acquire) > 0 {
            // Perhaps it is not from a script of ours: read the event.
            self.questions.fetch_add(1, Ordering::AcqRel);
            self.asked.notify_one();
        }
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        self.router.remove(&self.route());
    }
}

/// One waiter, until this is dropped.
struct Waiting<'a>(&'a EventWatch);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EventWatch {
    pub(crate) fn new(signal: Signal, session: &Arc<SessionLink>) -> Arc<EventWatch> {
        let watch = Arc::new(EventWatch {
            key: signal.key,
            channel: signal.channel,
            link: session.link.clone(),
            router: session.router.clone(),
            session: Arc::downgrade(session),
            seen: watch::Sender::default(),
            answers: watch::Sender::default(),
            questions: AtomicU64::new(0),
            asked: Notify::new(),
            every_ms: AtomicU64::new(u64::MAX),
            waiting: AtomicUsize::new(0),
            listening: Mutex::new(false),
            warned: AtomicBool::new(false),
        });
        let listener: Arc<dyn Listener> = watch.clone();
        session.router.add(watch.route(), Arc::downgrade(&listener));
        watch
    }

    fn route(&self) -> Route {
        Route::Channel(self.channel.clone())
    }

    /// Waits until the event is set, even if it is cleared again at once. Reads it at least once per
    /// `every`.
    pub(crate) async fn wait(self: &Arc<EventWatch>, every: Duration) -> Result<(), StoreError> {
        let _waiting = self.enter(every);
        let mut seen = self.seen.subscribe();
        let heard = seen.borrow_and_update().heard;
        let first = self.fresh().await;
        let read = first.read?;
        if read.set {
            return Ok(());
        }
        tracing::trace!(key = self.key, "waiting");
        let start = Start { heard, question: first.question, generation: read.generation };
        self.until_woken(start, seen, true).await.map(|_| ())
    }

    /// Waits for a generation after this one, and returns it.
    pub(crate) async fn wait_past(
        self: &Arc<EventWatch>,
        generation: u64,
        every: Duration,
    ) -> Result<u64, StoreError> {
        let _waiting = self.enter(every);
        let mut seen = self.seen.subscribe();
        let heard = seen.borrow_and_update().heard;
        let first = self.fresh().await;
        let read = first.read?;
        if read.generation > generation {
            return Ok(read.generation);
        }
        let start = Start { heard, question: first.question, generation: read.generation };
        self.until_woken(start, seen, false).await
    }

    async fn until_woken(
        &self,
        mut start: Start,
        mut seen: watch::Receiver<Seen>,
        level: bool,
    ) -> Result<u64, StoreError> {
        loop {
            if let Some(generation) = woken(&mut start, &seen.borrow_and_update(), level)? {
                return Ok(generation);
            }
            // The sender is ours, so the wait cannot fail.
            let _ = seen.changed().await;
        }
    }

    /// The answer to a read that is sent from now on, after the subscription.
    async fn fresh(&self) -> Answer {
        let mut answers = self.answers.subscribe();
        let mine = self.questions.fetch_add(1, Ordering::AcqRel) + 1;
        self.asked.notify_one();
        match answers.wait_for(|answer| answer.question >= mine).await {
            Ok(answer) => answer.clone(),
            Err(_) => Answer {
                question: mine,
                read: Err(StoreError::odd("no task listens to this event")),
            },
        }
    }

    /// Counts one more waiter, and makes sure that a task listens.
    fn enter(self: &Arc<EventWatch>, every: Duration) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut listening = self.listening.lock().expect("never poisoned");
        self.every_ms.fetch_min(every.as_millis() as u64, Ordering::AcqRel);
        if !*listening && let Some(session) = self.session.upgrade() {
            *listening = true;
            session.spawn(self.clone().listen());
        }
        Waiting(self)
    }

    /// Ends the listening, unless there is a new waiter. Returns whether it ends.
    fn retire(&self) -> bool {
        let mut listening = self.listening.lock().expect("never poisoned");
        *listening = self.waiting.load(Ordering::Acquire) > 0;
        if !*listening {
            self.every_ms.store(u64::MAX, Ordering::Release);
        }
        !*listening
    }

    /// Listens for all waiters: keeps a subscription, and reads whenever there is a reason.
    async fn listen(self: Arc<EventWatch>) {
        let mut on = None;
        loop {
            let every = self.every();
            let timeout = every.clamp(TIMEOUT.0, TIMEOUT.1);
            let early = match disabled(Rule::SubscribeThenRead) {
                true => self.read(timeout).await,
                false => None,
            };
            let subscribed = match on {
                Some(epoch) if epoch == self.link.epoch() => Ok(epoch),
                _ => self.link.subscribe(&self.channel, timeout).await,
            };
            on = subscribed.as_ref().ok().copied();
            let denied = subscribed.is_err_and(|error| self.is_denied(&error, every));
            let answered = match early {
                None => self.read(timeout).await,
                early => early,
            };
            let idle = self.waiting.load(Ordering::Acquire) == 0;
            // A waiter that joined during this read may want to read more often.
            let every = self.every();
            let pause = match () {
                () if idle => LINGER,
                () if answered.is_some() && (on.is_some() || denied) => jittered(every),
                () => RETRY.min(every),
            };
            let broken = async {
                match on {
                    Some(epoch) if !idle && !disabled(Rule::ReadAfterReconnect) => {
                        self.link.past(epoch).await;
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.asked_after(answered) => {}
                () = broken => {}
                () = tokio::time::sleep(pause) => if idle {
                    // Unsubscribe before the decision: a subscription made afterwards must not be
                    // undone.
                    self.link.unsubscribe(&self.channel, timeout).await;
                    on = None;
                    if self.retire() {
                        return;
                    }
                },
            }
        }
    }

    fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms.load(Ordering::Acquire)).min(EVERY_MAX)
    }

    /// Waits for a question that this read has not answered.
    async fn asked_after(&self, answered: Option<u64>) {
        loop {
            self.asked.notified().await;
            if answered.is_none_or(|answered| self.questions.load(Ordering::Acquire) > answered) {
                return;
            }
        }
    }

    /// Reads once and gives the answer to all waiters. Returns the last question that it answers;
    /// `None` if Redis did not answer.
    async fn read(&self, timeout: Duration) -> Option<u64> {
        // The read has a number of its own. It answers all questions before it, and a waiter that
        // already has an answer sees that this one is later.
        let question = self.questions.fetch_add(1, Ordering::AcqRel) + 1;
        let answer = self.link.call(&read_call(&self.key), timeout).await;
        if answer.as_ref().is_err_and(StoreError::is_passing) {
            return None;
        }
        let answer = Answer { question, read: answer };
        self.seen.send_if_modified(|seen| {
            let news = match (&seen.answer.read, &answer.read) {
                (Ok(before), Ok(now)) => {
                    if now.generation < before.generation {
                        tracing::warn!(
                            key = self.key,
                            "the generation of an event went back: Redis lost data"
                        );
                    }
                    now.set || now.generation != before.generation
                }
                _ => true,
            };
            seen.answer = answer.clone();
            news
        });
        self.answers.send_replace(answer);
        Some(question)
    }

    /// Without the right to subscribe, waiting still works, by regular reads. This is logged once.
    fn is_denied(&self, error: &StoreError, every: Duration) -> bool {
        let denied = matches!(error, StoreError::Server { code, .. } if code == "NOPERM");
        if denied && !self.warned.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                %error,
                "this user may not subscribe to {}: asking every {every:?} instead",
                self.channel
            );
        }
        denied
    }
}

/// Reads an event.
pub(crate) fn read_call(key: &str) -> Call<Read> {
    READ.call(&[key.to_owned()]).reading(|reply: Reply| {
        let left = reply.number(1)?;
        Ok(Read {
            set: reply.tag() == "set",
            generation: reply.number(0)? as u64,
            left: (left > 0).then(|| Duration::from_millis(left as u64)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(heard: u64, question: u64, set: bool, generation: u64) -> Seen {
        let read = Ok(Read { set, generation, left: None });
        Seen { heard, answer: Answer { question, read } }
    }

    fn start() -> Start {
        Start { heard: 5, question: 10, generation: 7 }
    }

    fn is_woken(seen: Seen) -> bool {
        woken(&mut start(), &seen, true).expect("no error").is_some()
    }

    #[test]
    fn only_what_came_after_the_first_read_wakes() {
        assert!(!is_woken(seen(5, 10, false, 7)), "nothing happened");
        assert!(!is_woken(seen(7, 10, false, 7)), "a message of before the first read");
        assert!(!is_woken(seen(5, 9, true, 9)), "a read of before the first one");
        assert!(is_woken(seen(8, 10, false, 7)), "a message");
        assert!(is_woken(seen(5, 11, true, 7)), "it is set, by somebody who counts nothing");
        assert!(is_woken(seen(5, 11, false, 8)), "a pulse: set and cleared between two reads");
    }

    #[test]
    fn a_pulse_counts_also_where_being_set_does_not() {
        let past = |seen| woken(&mut start(), &seen, false).expect("no error");
        assert_eq!(past(seen(5, 11, true, 7)), None);
        assert_eq!(past(seen(5, 11, false, 8)), Some(8));
    }

    #[test]
    fn after_data_loss_what_is_there_now_counts() {
        let mut start = start();
        let mut look = |seen| woken(&mut start, &seen, true).expect("no error");
        assert_eq!(look(seen(7, 10, false, 7)), None);
        assert_eq!(look(seen(7, 11, false, 0)), None);
        assert_eq!(look(seen(7, 12, false, 0)), None, "heard before the loss");
        assert_eq!(look(seen(7, 13, false, 1)), Some(1));
    }
}
