//! One connection that is made again by itself after it breaks.
//!
//! **Invariant:** a call returns either Redis's answer or an error within its deadline, and it is
//! written to at most one connection, unless an answer proves that it had no effect there: `NOSCRIPT` and
//! `MOVED`. An answer is believed only while its connection lives. After a break the next call
//! reconnects, at most once per back-off step, so a dead Redis is tried only a few times a second. One
//! task connects. All callers wait for it, and no caller can cut it short. No caller ever waits for a
//! mutex.

mod lasting;
mod listing;
mod patience;
mod travelling;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{Client, Found};
use super::dialer::Connection;
use super::place::{Spot, read_moved};
use super::{Call, PushRouter, Replication, Reply, StoreError};
use crate::clock::Moment;
use crate::config::Durability;
use crate::mutant::{Rule, disabled};
use patience::{back_off, connect_timeout};
use travelling::Travelling;

/// An attempt that is older than this has lost the runtime it ran on.
const ATTEMPT_MAX: Duration = Duration::from_secs(7);
/// A connection that has been silent for this long while a call waited on it is given up.
const SILENCE_MAX: Duration = Duration::from_millis(900);
/// A cluster without a primary is asked elsewhere after this time, and sentinels are asked whether a primary that refuses
/// writes is still the right one after that time.
const DOUBT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// The log target of calls, at the level `trace`: every call and its result, under one number, and what
/// a session and a worker conclude from the answers.
pub(crate) const CALLS: &str = "artel::calls";
static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Link {
    shared: Arc<Shared>,
    /// When an answer that is told to a user counts, and where it waits for that.
    durability: Durability,
    replication: Option<Replication>,
}

/// The data that the callers, the connecting task and the end of a connection share.
struct Shared {
    name: &'static str,
    client: Client,
    /// Receives the pushes of Redis, if there are subscriptions.
    router: Option<Arc<PushRouter>>,
    /// Twice the connection's number while it lives, one more after its end.
    epoch: watch::Sender<u64>,
    /// The number of the connection whose server is listed.
    listed: AtomicU64,
    /// Never held across an `await`.
    state: Mutex<State>,
}

struct State {
    live: Option<Found>,
    /// Where the last connection led.
    last: Option<Spot>,
    /// Since when answers say that this server cannot do its work now.
    doubted: Option<Instant>,
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
        // A connection to a server that is not the primary has nothing to say.
        let is_found = Arc::new(AtomicBool::new(false));
        if let Some(router) = self.router.clone() {
            let (shared, is_found) = (Arc::downgrade(&self), is_found.clone());
            config = config.set_push_sender(move |push| {
                if is_found.load(Ordering::Acquire) {
                    router.route(push, || {
                        if let Some(shared) = shared.upgrade() {
                            shared.over(generation);
                        }
                    });
                }
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let found = self.client.connect(config, timeout).await;
        let mut state = self.state();
        if state.connecting.as_ref().is_none_or(|attempt| attempt.number != generation) {
            return Err(StoreError::Unconnected("another connection is being made".to_owned()));
        }
        state.connecting = None;
        let found = found.map_err(|missed| {
            let error = match missed.error {
                StoreError::Broken(reason) => StoreError::Unconnected(reason),
                error => error,
            };
            // This stays set, whatever later attempts report: the Redis that comes back is a new one. A server that never
            // was the primary may be down for long.
            state.refused |=
                is_refused(&error) && (state.last.is_none() || state.last == missed.spot);
            error
        })?;
        state.failures = 0;
        (state.last, state.doubted) = (Some(found.spot.clone()), None);
        state.next_try = Instant::now();
        state.generation = generation;
        state.last_answer = Instant::now();
        state.live = Some(found);
        is_found.store(true, Ordering::Release);
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
            last: None,
            doubted: None,
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
        let listed = AtomicU64::new(0);
        let shared = Arc::new(Shared { name, client, router, epoch, listed, state });
        Link { shared, durability: Durability::Local, replication: None }
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
        let (mut generation, mut place) = (0, None);
        let told = tracing::enabled!(target: CALLS, tracing::Level::TRACE);
        let number = told.then(|| NUMBER.fetch_add(1, Ordering::Relaxed));
        tracing::trace!(target: CALLS, number, call = call.name, "called");
        let attempt = async {
            let mut connection;
            (connection, generation, place) = self.ready().await?;
            if call.epoch.is_some_and(|epoch| epoch != 2 * generation) {
                return Err(StoreError::Unconnected("it was meant for another server".to_owned()));
            }
            let mut answer = connection.write(call, || self.is_own(generation)).await;
            let to = answer.as_ref().err().and_then(|error| moved(error, place.as_ref()));
            if let Some(to) = to.filter(|_| self.is_own(generation)) {
                // The slot is elsewhere; the call had no effect.
                self.shared.client.place().said(to);
                self.shared.over(generation);
                if call.epoch.is_none() {
                    (connection, generation, place) = self.ready().await?;
                    answer = connection.write(call, || self.is_own(generation)).await;
                }
            }
            // The end of a connection is heard before the answers behind it: they may belong to other calls.
            if !self.is_own(generation) {
                return Err(StoreError::Broken("the connection ended meanwhile".to_owned()));
            }
            Ok(Reply::new(answer?))
        };
        let began = Instant::now();
        let result = match tokio::time::timeout(timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Silent(timeout)),
        };
        self.note(generation, place.as_ref(), call.source.is_some(), &result);
        let result = match result {
            Ok(reply) if self.durability != Durability::Local && call.lasts(&reply) => {
                let until = (!call.is_patient).then(|| began + timeout);
                self.covered(generation, until).await.map(|()| reply)
            }
            result => result,
        };
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

    /// Gives a subscription up. If that is not answered the connection ends with its next message.
    pub(crate) async fn unsubscribe(&self, channel: &str, timeout: Duration) {
        let _leaving = self.shared.router.as_ref().map(|router| router.leave(channel));
        let call = Call::plain("SUNSUBSCRIBE").arg(channel);
        if let Err(error) = self.answer(&call, timeout).await {
            tracing::debug!(%error, "a subscription was not given up");
        }
    }

    /// Is there a connection?
    pub(crate) fn is_live(&self) -> bool {
        self.shared.state().live.is_some()
    }

    /// The server to which the connection of this epoch leads, if that is still there.
    pub(crate) fn server_in(&self, epoch: u64) -> Option<String> {
        let state = self.shared.state();
        let found = state.live.as_ref().filter(|_| 2 * state.generation == epoch)?;
        Some(found.server.clone()).filter(|server| !server.is_empty())
    }

    /// Does the connection lead to a node of a cluster?
    pub(crate) fn is_cluster(&self) -> bool {
        self.shared.state().live.as_ref().is_some_and(|found| found.is_cluster)
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

    fn note(
        &self,
        generation: u64,
        place: Option<&Spot>,
        is_script: bool,
        result: &Result<Reply, StoreError>,
    ) {
        let give_up = match result {
            // It is no primary any more: another one must be found.
            Err(StoreError::Server { code, .. }) => self.is_lost(generation, code),
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
                if let (Some(place), Err(StoreError::Server { .. } | StoreError::Silent(_))) =
                    (place, result)
                {
                    self.shared.client.place().lost(place);
                }
            }
        } else if !matches!(result, Err(StoreError::Silent(_))) {
            let mut state = self.shared.state();
            if state.generation == generation {
                state.last_answer = Instant::now();
                // A server that cannot write answers what only reads.
                if result.is_ok() && is_script {
                    state.doubted = None;
                }
            }
        }
    }

    /// Does an answer that has just come belong to its call? Where nothing is pushed it always does.
    fn is_own(&self, generation: u64) -> bool {
        self.shared.router.is_none()
            || self.epoch() == 2 * generation
            || disabled(Rule::AnswersOfTheLiving)
    }

    /// Does this answer say that the server is not the primary, or does one say for long that it cannot do its work?
    fn is_lost(&self, generation: u64, code: &str) -> bool {
        let patience = match code {
            "READONLY" | "MASTERDOWN" | "UNBLOCKED" | "MOVED" => return true,
            "CLUSTERDOWN" => DOUBT.0,
            "NOREPLICAS" | "MISCONF" if self.shared.client.place().has_sentinels() => DOUBT.1,
            _ => return false,
        };
        let (mut state, now) = (self.shared.state(), Instant::now());
        state.generation == generation && now - *state.doubted.get_or_insert(now) >= patience
    }

    /// The connection, its number, and where it leads.
    async fn connection(&self) -> Result<(Connection, u64, Option<Spot>), StoreError> {
        loop {
            let elsewhere = {
                let state = self.shared.state();
                match &state.live {
                    Some(found) if !self.shared.client.place().is_here(&found.server) => {
                        Some(state.generation)
                    }
                    _ => None,
                }
            };
            if let Some(generation) = elsewhere {
                tracing::debug!(link = self.shared.name, "the primary is elsewhere");
                self.shared.over(generation);
            }
            let mut attempt = {
                let mut state = self.shared.state();
                if let Some(found @ Found { connection, spot, .. }) = &state.live {
                    self.shared.client.learn_nodes(found);
                    return Ok((connection.clone(), state.generation, Some(spot.clone())));
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
        state.next_try = not_before.max(Instant::now()) + back_off(state.failures, rand::random());
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

/// Where the slot is, if the answer says so.
fn moved(error: &redis::RedisError, from: Option<&Spot>) -> Option<Spot> {
    match error.code() {
        Some("MOVED") => read_moved(error.detail()?, from?),
        _ => None,
    }
}

fn is_refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Unconnected(reason) if reason.contains("connection refused"))
}

#[cfg(test)]
mod tests;
