//! Who is told, each by a task of its own.
//!
//! **Invariant:** a sink that hangs holds up no other one, and nobody who judges. An alert is tried a few times; then the sink
//! rests, longer and longer, and the alert waits with those who judge. Nothing is dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use artel_hub::notify::{Alert, Send, SendError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::membership::Session;
use crate::meter::Meter;
use crate::watch::jittered;

/// Alerts that may wait for a sink. What comes then is tried later.
const WAITING_MAX: usize = 64;
/// How often an alert is tried, and the first pause; each is twice as long as the one before.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);
/// How long a sink rests when an alert could not be told, at first and at most.
const REST: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(60);

/// What became of an alert.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Told {
    Yes,
    /// It was not tried.
    No,
    /// It was tried, and nobody knows whether it arrived.
    InDoubt,
}

/// Called with what became of the alert.
pub(super) type Then = Box<dyn FnOnce(Told) + std::marker::Send>;

/// An alert, the session in which this member may tell it, and who wants to know.
type Waiting = (Alert, Option<Arc<Session>>, Then);

/// One sink, and what waits for it.
pub(super) struct Sink {
    pub(super) name: String,
    queue: mpsc::Sender<Waiting>,
    rest: Rest,
    meter: Arc<Meter>,
    task: JoinHandle<()>,
}

impl Sink {
    pub(super) fn start(name: String, channel: Box<dyn Send>, meter: Arc<Meter>) -> Sink {
        let (queue, mut received) = mpsc::channel::<Waiting>(WAITING_MAX);
        let rest = Rest::default();
        let mut serving = Serving {
            name: name.clone(),
            channel: Arc::new(Mutex::new(channel)),
            rest: rest.clone(),
            rounds: 0,
            meter: meter.clone(),
        };
        let task = tokio::spawn(async move {
            while let Some((alert, session, then)) = received.recv().await {
                then(serving.round(&alert, session.as_deref()).await);
            }
        });
        Sink { name, queue, rest, meter, task }
    }

    /// Tells an alert, sometime. A claim is told while its session lasts: then others may have it.
    pub(super) fn tell(&self, alert: Alert, session: Option<Arc<Session>>, then: Then) {
        if let Err(error) = self.queue.try_send((alert, session, then)) {
            self.meter.alert(&self.name, "deferred");
            let (.., then) = error.into_inner();
            then(Told::No);
        }
    }

    /// It failed, and should get nothing for now.
    pub(super) fn rests(&self) -> bool {
        self.rest.lasts()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until when a sink gets nothing.
#[derive(Clone, Default)]
struct Rest(Arc<Mutex<Option<Instant>>>);

impl Rest {
    fn lasts(&self) -> bool {
        let until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn begin(&self, time: Duration) {
        let until = Instant::now() + time;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }
}

struct Serving {
    name: String,
    channel: Arc<Mutex<Box<dyn Send>>>,
    rest: Rest,
    /// How often in a row an alert could not be told.
    rounds: u32,
    meter: Arc<Meter>,
}

/// How long a sink rests after so many rounds without success.
fn rest_after(rounds: u32) -> Duration {
    (REST * 2u32.pow(rounds.saturating_sub(1).min(10))).min(REST_MAX)
}

impl Serving {
    /// Tries an alert a few times.
    async fn round(&mut self, alert: &Alert, session: Option<&Session>) -> Told {
        // What came before the rest began was not tried.
        if self.rest.lasts() {
            self.meter.alert(&self.name, "deferred");
            return Told::No;
        }
        let mut last = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(jittered(PAUSE * 2u32.pow(attempt - 1))).await;
            }
            // Whoever was frozen may have lost the claim: another member tells it now.
            if session.is_some_and(|session| !session.trust.holds()) {
                return if attempt == 0 { Told::No } else { Told::InDoubt };
            }
            let mut alert = alert.clone();
            alert.is_repeat |= attempt > 0; // who knows what became of the try before
            match self.send(alert).await {
                Ok(()) => {
                    self.meter.alert(&self.name, "sent");
                    if std::mem::take(&mut self.rounds) > 0 {
                        tracing::info!(sink = self.name, "alerts are sent again");
                    }
                    return Told::Yes;
                }
                Err(error) => {
                    self.meter.alert(&self.name, "failed");
                    tracing::debug!(sink = self.name, %error, "an alert was not sent");
                    last = Some(error);
                }
            }
        }
        self.rounds = self.rounds.saturating_add(1);
        let rest = jittered(rest_after(self.rounds));
        self.rest.begin(rest);
        self.meter.alert(&self.name, "deferred");
        if let Some(error) = last {
            let again = format!("{} s", rest.as_secs());
            tracing::warn!(sink = self.name, %error, again, "an alert was not sent; it is tried again");
        }
        Told::InDoubt
    }

    async fn send(&self, alert: Alert) -> Result<(), SendError> {
        let channel = self.channel.clone();
        let sent = tokio::task::spawn_blocking(move || {
            channel.lock().unwrap_or_else(PoisonError::into_inner).send(&alert)
        });
        sent.await.unwrap_or_else(|_| Err(SendError::new("the sink panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_that_fails_rests_longer_and_longer() {
        let rests: Vec<u64> = (1..7).map(|rounds| rest_after(rounds).as_secs()).collect();
        assert_eq!(rests, [5, 10, 20, 40, 60, 60]);
        assert_eq!(rest_after(u32::MAX), REST_MAX);
    }
}
