//! One connection that is made again by itself after it breaks.
//!
//! **Invariant:** a call returns either Redis's answer or an error within its deadline, and it is
//! written to at most one connection. After a break the next call reconnects, at most once per back-off
//! step, so a dead Redis is tried only a few times a second. One task connects. All callers wait for
//! it, and no caller can cut it short. No caller ever waits for a mutex.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{Client, Connection};
use super::{Call, PushRouter, Reply, StoreError};
use crate::clock::Moment;

/// How long a first attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long later attempts may take. The first ones are short, because a dead route may hang. The
/// others are longer, in case that was too short.
const RECONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// An attempt that is older than this has lost the runtime it ran on.
const ATTEMPT_MAX: Duration = Duration::from_secs(7);
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection that has been silent for this long while a call waited on it is given up.
const SILENCE_MAX: Duration = Duration::from_millis(900);
/// The log target of calls, at the level `trace`: every call and its result, under one number, and what
/// a session and a worker conclude from the answers.
pub(crate) const CALLS: &str = "artel::calls";
static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Link {
    shared: Arc<Shared>,
}

/// The data that the callers, the connecting task and the end of a connection share.
struct Shared {
    name: &'static str,
    client: Client,
    /// Receives the pushes of Redis, if there are subscriptions.
    router: Option<Arc<PushRouter>>,
    /// Twice the connection's number while it lives, one more after its end.
    epoch: watch::Sender<u64>,
    /// Never held across an `await`.
    state: Mutex<State>,
}

struct State {
    live: Option<Connection>,
    /// The number of this connection.
    generation: u64,
    last_answer: Instant,
    /// How many large calls are under way, and when the last of them must be answered. Other calls wait
    /// behind them.
    travelling: u32,
    busy_until: Instant,
    /// When the last connection ended.
    ended_at: Moment,
    /// Since then an attempt was refused, because no server listened.
    refused: bool,
    failures: u32,
    next_try: Instant,
    /// How many attempts there were. The count is the number of the latest one; failed ones count, too.
    attempts: u64,
    connecting: Option<Attempt>,
}

/// One attempt to connect. All callers wait for the same one.
#[derive(Clone)]
struct Attempt {
    number: u64,
    began: Instant,
    outcome: watch::Receiver<Option<Result<(), StoreError>>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends this connection, if it is still the current one.
    fn over(&self, generation: u64) -> bool {
        let mut state = self.state();
        if state.generation != generation || state.live.take().is_none() {
            return false;
        }
        state.ended_at = Moment::now();
        state.refused = false;
        self.epoch.send_replace(2 * generation + 1);
        true
    }

    async fn connect(
        self: Arc<Shared>,
        generation: u64,
        not_before: Instant,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        tokio::time::sleep_until(not_before).await;
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_write_backpressure_boundary(256 * 1024);
        if let Some(router) = self.router.clone() {
            let shared = Arc::downgrade(&self);
            config = config.set_push_sender(move |push| {
                router.route(push, || {
                    if let Some(shared) = shared.upgrade() {
                        shared.over(generation);
                    }
                });
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let connection = self.client.connect(config, timeout).await;
        let connection = connection.map_err(|error| match StoreError::from(error) {
            StoreError::Broken(reason) => StoreError::Unconnected(reason),
            error => error,
        });
        let mut state = self.state();
        if state.connecting.as_ref().is_none_or(|attempt| attempt.number != generation) {
            return Err(StoreError::Unconnected("another connection is being made".to_owned()));
        }
        state.connecting = None;
        // This stays set, whatever later attempts report: the Redis that comes back is a new one.
        state.refused |= connection.as_ref().is_err_and(is_refused);
        let connection = connection?;
        state.failures = 0;
        state.next_try = Instant::now();
        state.generation = generation;
        state.last_answer = Instant::now();
        state.live = Some(connection);
        self.epoch.send_replace(2 * generation);
        Ok(())
    }
}

impl Link {
    pub(crate) fn new(name: &'static str, client: Client) -> Link {
        Link::with(name, client, None)
    }

    /// A connection that also receives the messages of the channels it subscribes to.
    pub(super) fn hearing(name: &'static str, client: Client, router: Arc<PushRouter>) -> Link {
        Link::with(name, client, Some(router))
    }

    fn with(name: &'static str, client: Client, router: Option<Arc<PushRouter>>) -> Link {
        let now = Instant::now();
        let state = State {
            live: None,
            generation: 0,
            last_answer: now,
            travelling: 0,
            busy_until: now,
            ended_at: Moment::now(),
            refused: false,
            failures: 0,
            next_try: now,
            attempts: 0,
            connecting: None,
        };
        let (epoch, state) = (watch::Sender::new(0), Mutex::new(state));
        Link { shared: Arc::new(Shared { name, client, router, epoch, state }) }
    }

    /// Sends one call and waits for its answer. It connects first if necessary. `timeout` is for a
    /// small call. A call with many bytes gets additional time to travel.
    ///
    /// On an error other than [`StoreError::Server`] the call may still take effect later.
    pub(crate) async fn call<R>(&self, call: &Call<R>, timeout: Duration) -> Result<R, StoreError> {
        self.answer(call, timeout).await.and_then(|(reply, _)| call.read(reply))
    }

    /// As [`call`](Self::call), but returns the answer unread, with its epoch.
    pub(crate) async fn answer<R>(
        &self,
        call: &Call<R>,
        timeout: Duration,
    ) -> Result<(Reply, u64), StoreError> {
        let travels = call.travel_time();
        let timeout = timeout + travels;
        let _travelling = (!travels.is_zero()).then(|| Travelling::begin(&self.shared, timeout));
        let mut generation = 0;
        let told = tracing::enabled!(target: CALLS, tracing::Level::TRACE);
        let number = told.then(|| NUMBER.fetch_add(1, Ordering::Relaxed));
        tracing::trace!(target: CALLS, number, call = call.name, "called");
        let attempt = async {
            let mut connection;
            (connection, generation) = self.connection().await?;
            let answer = connection.send_with(&call.cmd, &call.with).await;
            let answer = match (&answer, &call.source) {
                (Err(error), Some(source)) if error.code() == Some("NOSCRIPT") => {
                    // A restarted Redis has forgotten its scripts; the call had no effect.
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(&**source);
                    connection.send(&load).await?;
                    connection.send_with(&call.cmd, &call.with).await
                }
                _ => answer,
            };
            Ok(Reply::new(answer?))
        };
        let result = match tokio::time::timeout(timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Silent(timeout)),
        };
        self.note(generation, &result);
        match &result {
            Ok(reply) => {
                tracing::trace!(target: CALLS, number, tag = call.logged_tag(reply), "answered");
            }
            Err(error) => {
                tracing::trace!(target: CALLS, number, why = error.kind(), "unanswered");
            }
        }
        result.map(|reply| (reply, 2 * generation))
    }

    /// Subscribes to this channel for the rest of the epoch that is returned. One channel per command:
    /// several in one command would shift the replies of other callers.
    pub(crate) async fn subscribe(
        &self,
        channel: &str,
        timeout: Duration,
    ) -> Result<u64, StoreError> {
        let call = Call::plain("SSUBSCRIBE").arg(channel);
        self.answer(&call, timeout).await.map(|(_, epoch)| epoch)
    }

    /// Is there a connection?
    pub(crate) fn is_live(&self) -> bool {
        self.shared.state().live.is_some()
    }

    /// The number of this epoch. It changes when a connection ends and when one is made.
    pub(crate) fn epoch(&self) -> u64 {
        *self.shared.epoch.borrow()
    }

    /// Waits until this epoch is over.
    pub(crate) async fn past(&self, epoch: u64) {
        // The sender is ours, so the wait cannot fail.
        let _ = self.shared.epoch.subscribe().wait_for(|now| *now != epoch).await;
    }

    /// When the last connection before the current epoch ended.
    pub(crate) fn ended_at(&self) -> Moment {
        self.shared.state().ended_at
    }

    /// Was an attempt refused since the last connection ended? Then Redis itself is or was down, and
    /// not only the network between us.
    pub(crate) fn is_refused(&self) -> bool {
        self.shared.state().refused
    }

    /// Drops the connection and any attempt to connect. Redis drops the blocking calls that wait on it.
    pub(crate) fn reset(&self) {
        let generation = {
            let mut state = self.shared.state();
            state.connecting = None;
            state.generation
        };
        self.shared.over(generation);
    }

    fn note(&self, generation: u64, result: &Result<Reply, StoreError>) {
        let give_up = match result {
            // The primary was demoted: the connection must be made again, to the new one.
            Err(StoreError::Server { code, .. }) => {
                ["READONLY", "MASTERDOWN", "UNBLOCKED"].contains(&code.as_str())
            }
            Ok(_) | Err(StoreError::Odd(_)) => false,
            Err(StoreError::Silent(_)) => {
                let state = self.shared.state();
                let now = Instant::now();
                state.generation == generation
                    && now.duration_since(state.last_answer) >= SILENCE_MAX
                    && (state.travelling == 0 || now >= state.busy_until)
            }
            Err(_) => true,
        };
        if give_up {
            if self.shared.over(generation) {
                tracing::debug!(link = self.shared.name, "connection given up");
            }
        } else if !matches!(result, Err(StoreError::Silent(_))) {
            let mut state = self.shared.state();
            if state.generation == generation {
                state.last_answer = Instant::now();
            }
        }
    }

    /// The connection and its number.
    async fn connection(&self) -> Result<(Connection, u64), StoreError> {
        loop {
            let mut attempt = {
                let mut state = self.shared.state();
                if let Some(connection) = &state.live {
                    return Ok((connection.clone(), state.generation));
                }
                match &state.connecting {
                    Some(attempt) if attempt.began.elapsed() < ATTEMPT_MAX => attempt.clone(),
                    _ => self.begin(&mut state),
                }
            };
            match attempt.outcome.wait_for(Option::is_some).await {
                Ok(outcome) => {
                    if let Some(Err(error)) = outcome.clone() {
                        return Err(error);
                    }
                }
                // The runtime it ran on has ended: another caller must connect.
                Err(_) => {
                    let mut state = self.shared.state();
                    if state.connecting.as_ref().is_some_and(|now| now.number == attempt.number) {
                        state.connecting = None;
                    }
                }
            }
        }
    }

    /// Begins to connect, in a task of its own.
    fn begin(&self, state: &mut State) -> Attempt {
        // Set before the attempt, so that an attempt that is cut short counts, too.
        let not_before = state.next_try;
        state.failures += 1;
        let step = BACKOFF_MIN * 2u32.saturating_pow(state.failures.min(8) - 1);
        state.next_try = not_before.max(Instant::now()) + step.min(BACKOFF_MAX);
        let timeout = connect_timeout(state.generation == 0, state.failures);
        state.attempts += 1;
        let number = state.attempts;
        let (tell, outcome) = watch::channel(None);
        let attempt = Attempt { number, began: Instant::now(), outcome };
        state.connecting = Some(attempt.clone());
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let outcome = shared.clone().connect(number, not_before, timeout).await;
            tell.send_replace(Some(outcome));
        });
        attempt
    }
}

/// A call with many bytes is under way until this is dropped.
struct Travelling<'a>(&'a Shared);

impl<'a> Travelling<'a> {
    fn begin(shared: &'a Shared, timeout: Duration) -> Travelling<'a> {
        let mut state = shared.state();
        state.travelling += 1;
        state.busy_until = state.busy_until.max(Instant::now() + timeout);
        Travelling(shared)
    }
}

impl Drop for Travelling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.travelling -= 1;
        if state.travelling == 0 {
            state.busy_until = Instant::now();
        }
    }
}

fn is_refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Unconnected(reason) if reason.contains("connection refused"))
}

/// How long the next attempt may take. `failures` is how many failed in a row, plus one for this
/// attempt.
fn connect_timeout(first: bool, failures: u32) -> Duration {
    match failures {
        _ if first => CONNECT_TIMEOUT,
        0..=2 => RECONNECT_TIMEOUT.0,
        _ => RECONNECT_TIMEOUT.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link::new(
            "test",
            super::super::Address::new("redis://127.0.0.1:1").client().expect("an address"),
        )
    }

    /// As if this connection had been made.
    fn connected(link: &Link, generation: u64) {
        let mut state = link.shared.state();
        state.generation = generation;
        link.shared.epoch.send_replace(2 * generation);
    }

    #[test]
    fn the_late_end_of_an_old_connection_changes_nothing() {
        let link = link();
        connected(&link, 2);
        assert!(!link.shared.over(1), "its successor is there");
        assert_eq!(link.epoch(), 4);
    }

    #[test]
    fn an_attempt_that_hangs_is_given_up_soon() {
        let seconds = |failures| connect_timeout(false, failures).as_secs();
        assert_eq!([1, 2, 3, 20].map(seconds), [1, 1, 2, 2]);
        assert_eq!(connect_timeout(true, 1).as_secs(), 5);
    }

    /// A Redis that was down and is back has not judged any member yet. That holds until our presence
    /// is back, not only until we are connected.
    #[tokio::test]
    async fn that_redis_was_away_is_remembered_when_it_is_back() {
        let link = link();
        assert!(link.call(&Call::plain("PING"), Duration::from_secs(1)).await.is_err());
        assert!(link.is_refused());
        connected(&link, 2);
        assert!(link.is_refused(), "connected, and not heard of yet");
    }

    #[tokio::test]
    async fn a_dead_redis_is_said_to_all_who_wait_at_once() {
        let link = link();
        let (ping, second) = (Call::plain("PING"), Duration::from_secs(1));
        let (one, two) = tokio::join!(link.call(&ping, second), link.call(&ping, second));
        for answer in [one, two] {
            assert!(matches!(answer, Err(StoreError::Unconnected(_))), "{answer:?}");
        }
        assert_eq!(link.shared.state().attempts, 1, "one attempt for both");
        assert!(link.is_refused());
        assert_eq!(link.epoch(), 0);
    }
}
