//! One connection that comes back by itself.
//!
//! **Invariant:** a call either returns Redis's answer or an error within its deadline; it is
//! written to at most one connection. After a break the next call connects anew, at most once per
//! back-off step, so a dead Redis is asked a few times a second and no more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;

use super::{Call, StoreError};

/// A bound only: every call has a shorter deadline of its own, except at the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// A connection that has been silent for this long while a call waited on it is given up.
const SILENCE_MAX: Duration = Duration::from_millis(900);

/// Hints that wait to be heard; more are dropped, nothing depends on them.
const HINTS_MAX: usize = 1024;

/// What arrives without being asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Hint {
    /// A message on a channel. Hints only hurry things; nothing depends on them.
    Message(String),
    /// The connection is gone, and with it our presence.
    Lost,
}

pub(crate) struct Link {
    name: &'static str,
    /// Counts connections made and given up: as long as it stands still, it is the same one.
    epoch: AtomicU64,
    client: redis::Client,
    hints: Option<Sender<Hint>>,
    state: Mutex<State>,
}

struct State {
    /// The connection, if there is one, and which of its successors it is.
    live: Option<MultiplexedConnection>,
    generation: u64,
    last_answer: Instant,
    failures: u32,
    next_try: Instant,
}

impl Link {
    pub(crate) fn new(name: &'static str, client: redis::Client) -> Link {
        let now = Instant::now();
        let state =
            State { live: None, generation: 0, last_answer: now, failures: 0, next_try: now };
        let epoch = AtomicU64::new(0);
        Link { name, epoch, client, hints: None, state: Mutex::new(state) }
    }

    pub(crate) fn hearing(name: &'static str, client: redis::Client) -> (Link, Receiver<Hint>) {
        let (sender, receiver) = mpsc::channel(HINTS_MAX);
        let mut link = Link::new(name, client);
        link.hints = Some(sender);
        (link, receiver)
    }

    /// Sends one call and waits for its answer, `timeout` at most, connecting first if need be.
    ///
    /// On an error other than [`StoreError::Server`] the call may still take effect later.
    pub(crate) async fn call(&self, call: &Call, timeout: Duration) -> Result<Value, StoreError> {
        let mut generation = 0;
        let attempt = async {
            let (mut connection, now) = self.connection().await?;
            generation = now;
            let answer = send(&mut connection, &call.cmd).await;
            let answer = match (&answer, call.script) {
                (Err(error), Some(script)) if error.code() == Some("NOSCRIPT") => {
                    // A restarted Redis has forgotten its scripts; the call had no effect.
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(script.source);
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
        result
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
        self.epoch.load(Ordering::Acquire)
    }

    /// Drops the connection; Redis forgets whatever it was still waiting for on it.
    pub(crate) async fn reset(&self) {
        self.give_up(&mut *self.state.lock().await);
    }

    fn give_up(&self, state: &mut State) -> bool {
        let had_one = state.live.take().is_some();
        if had_one {
            self.epoch.fetch_add(1, Ordering::AcqRel);
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

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), StoreError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.live {
            return Ok((connection.clone(), state.generation));
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
        if let Some(hints) = self.hints.clone() {
            config = config.set_push_sender(move |push: PushInfo| {
                if let Some(hint) = hint(push) {
                    // Too many to be heard: what they hurry happens a little later.
                    let _ = hints.try_send(hint);
                }
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
        state.generation += 1;
        self.epoch.fetch_add(1, Ordering::AcqRel);
        state.last_answer = Instant::now();
        state.live = Some(connection.clone());
        Ok((connection, state.generation))
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

fn hint(push: PushInfo) -> Option<Hint> {
    match push.kind {
        PushKind::Disconnection => Some(Hint::Lost),
        PushKind::SMessage => match push.data.into_iter().nth(1) {
            Some(Value::BulkString(bytes)) => {
                Some(Hint::Message(String::from_utf8_lossy(&bytes).into_owned()))
            }
            _ => None,
        },
        _ => None,
    }
}
