//! One connection that comes back by itself.
//!
//! **Invariant:** a call either returns Redis's answer or an error within its deadline; it is
//! written to at most one connection. After a break the next call connects anew, at most once per
//! back-off step, so a dead Redis is asked a few times a second and no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::{Call, StoreError, Switchboard};

/// A bound only: every call has a shorter deadline of its own, except at the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection that has been silent for this long while a call waited on it is given up.
const SILENCE_MAX: Duration = Duration::from_millis(900);

pub(crate) struct Link {
    name: &'static str,
    /// Counts connections made, lost and given up: while it stands still, it is the same one.
    epoch: watch::Sender<u64>,
    /// The latest connection whose end was heard of before anything was sent on it.
    ended: Arc<AtomicU64>,
    client: redis::Client,
    /// Who hears what arrives without being asked for.
    switchboard: Option<Arc<Switchboard>>,
    state: Mutex<State>,
}

struct State {
    /// The connection, if there is one, and which of its successors it is.
    live: Option<MultiplexedConnection>,
    generation: u64,
    /// The epoch that began with it.
    epoch: u64,
    last_answer: Instant,
    failures: u32,
    next_try: Instant,
}

impl Link {
    pub(crate) fn new(name: &'static str, client: redis::Client) -> Link {
        let now = Instant::now();
        let state = State {
            live: None,
            generation: 0,
            epoch: 0,
            last_answer: now,
            failures: 0,
            next_try: now,
        };
        Link {
            name,
            epoch: watch::Sender::new(0),
            ended: Arc::default(),
            client,
            switchboard: None,
            state: Mutex::new(state),
        }
    }

    /// A connection that also hears what is published on the channels it subscribes to.
    pub(super) fn hearing(
        name: &'static str,
        client: redis::Client,
        switchboard: Arc<Switchboard>,
    ) -> Link {
        Link { switchboard: Some(switchboard), ..Link::new(name, client) }
    }

    /// Sends one call and waits for its answer, `timeout` at most, connecting first if need be.
    ///
    /// On an error other than [`StoreError::Server`] the call may still take effect later.
    pub(crate) async fn call(&self, call: &Call, timeout: Duration) -> Result<Value, StoreError> {
        self.call_in_epoch(call, timeout).await.map(|(value, _)| value)
    }

    /// As [`call`](Self::call), and says in which epoch it was answered.
    async fn call_in_epoch(
        &self,
        call: &Call,
        timeout: Duration,
    ) -> Result<(Value, u64), StoreError> {
        let (mut generation, mut epoch) = (0, 0);
        let attempt = async {
            let mut connection;
            (connection, generation, epoch) = self.connection().await?;
            let answer = send(&mut connection, &call.cmd).await;
            let answer = match (&answer, &call.source) {
                (Err(error), Some(source)) if error.code() == Some("NOSCRIPT") => {
                    // A restarted Redis has forgotten its scripts; the call had no effect.
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(&**source);
                    send(&mut connection, &load).await?;
                    send(&mut connection, &call.cmd).await
                }
                _ => answer,
            };
            Ok(answer?)
        };
        let result = match tokio::time::timeout(timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Silent(timeout)),
        };
        self.note(generation, &result).await;
        result.map(|value| (value, epoch))
    }

    /// Hears what is published on this channel for the rest of the epoch that is returned. One
    /// channel per command: several in one would shift other callers' replies.
    pub(crate) async fn subscribe(
        &self,
        channel: &str,
        timeout: Duration,
    ) -> Result<u64, StoreError> {
        let call = Call::plain("SSUBSCRIBE").arg(channel);
        self.call_in_epoch(&call, timeout).await.map(|(_, epoch)| epoch)
    }

    /// As [`call`](Self::call), but only over a connection that is already there.
    pub(crate) async fn call_live(
        &self,
        call: &Call,
        timeout: Duration,
    ) -> Result<Value, StoreError> {
        // Not to be waited for: whoever holds the lock may be stuck behind busy handlers.
        if !self.state.try_lock().is_ok_and(|state| state.live.is_some()) {
            return Err(StoreError::Broken("not connected".to_owned()));
        }
        self.call(call, timeout).await
    }

    /// Which connection this is: another number, another connection, or none.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Waits until this epoch is over.
    pub(crate) async fn past(&self, epoch: u64) {
        // The sender is ours, so the wait cannot fail.
        let _ = self.epoch.subscribe().wait_for(|now| *now != epoch).await;
    }

    /// Drops the connection; Redis forgets whatever it was still waiting for on it.
    pub(crate) async fn reset(&self) {
        self.give_up(&mut *self.state.lock().await);
    }

    fn give_up(&self, state: &mut State) -> bool {
        let had_one = state.live.take().is_some();
        if had_one {
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
        had_one
    }

    async fn note(&self, generation: u64, result: &Result<Value, StoreError>) {
        if generation == 0 {
            return;
        }
        let mut state = self.state.lock().await;
        if state.generation != generation {
            return;
        }
        match result {
            // A primary that was demoted under us: the connection must be made anew elsewhere.
            Err(StoreError::Server { code, .. })
                if ["READONLY", "MASTERDOWN", "UNBLOCKED"].contains(&code.as_str()) =>
            {
                self.give_up(&mut state);
            }
            Ok(_) | Err(StoreError::Server { .. } | StoreError::Odd(_)) => {
                state.last_answer = Instant::now();
            }
            Err(StoreError::Silent(_)) if state.last_answer.elapsed() < SILENCE_MAX => {}
            Err(error) => {
                if self.give_up(&mut state) {
                    tracing::debug!(link = self.name, %error, "connection given up");
                }
            }
        }
    }

    /// The connection, which of them it is, and the epoch that began with it.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64, u64), StoreError> {
        let mut state = self.state.lock().await;
        if state.generation <= self.ended.load(Ordering::Acquire) {
            self.give_up(&mut state);
        }
        if let Some(connection) = &state.live {
            return Ok((connection.clone(), state.generation, state.epoch));
        }
        tokio::time::sleep_until(state.next_try).await;
        // Noted before the attempt, so that an attempt that is cut short counts as one.
        state.failures += 1;
        let step = BACKOFF_MIN * 2u32.saturating_pow(state.failures.min(8) - 1);
        state.next_try = Instant::now() + step.min(BACKOFF_MAX);
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_write_backpressure_boundary(256 * 1024);
        let generation = state.generation + 1;
        if let Some(switchboard) = self.switchboard.clone() {
            let (ended, epoch) = (self.ended.clone(), self.epoch.clone());
            config = config.set_push_sender(move |push| {
                switchboard.connect(push, || {
                    ended.fetch_max(generation, Ordering::AcqRel);
                    epoch.send_modify(|epoch| *epoch += 1);
                });
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| match StoreError::from(error) {
            StoreError::Broken(reason) => StoreError::Unconnected(reason),
            error => error,
        })?;
        state.failures = 0;
        state.next_try = Instant::now();
        state.generation = generation;
        self.epoch.send_modify(|epoch| *epoch += 1);
        state.epoch = self.epoch();
        state.last_answer = Instant::now();
        state.live = Some(connection.clone());
        Ok((connection, state.generation, state.epoch))
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    cmd: &redis::Cmd,
) -> redis::RedisResult<Value> {
    match connection.send_packed_command(cmd).await? {
        error @ Value::ServerError(_) => error.extract_error(),
        value => Ok(value),
    }
}
