//! Who is told, each by a task of its own.
//!
//! **Invariant:** a sink that hangs holds up no other one, and nobody who judges. An alert is tried a few times; then another
//! member may try.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use artel_hub::notify::{Alert, Send, SendError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::meter::Meter;
use crate::watch::jittered;

/// Alerts that may wait for a sink. What comes then is tried later.
const WAITING_MAX: usize = 64;
/// How often an alert is tried, and the first pause; each is twice as long as the one before.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// Called with whether the alert was told.
pub(super) type Then = Box<dyn FnOnce(bool) + std::marker::Send>;

/// One sink, and what waits for it.
pub(super) struct Sink {
    pub(super) name: String,
    queue: mpsc::Sender<(Alert, Then)>,
    meter: Arc<Meter>,
    task: JoinHandle<()>,
}

impl Sink {
    pub(super) fn start(name: String, channel: Box<dyn Send>, meter: Arc<Meter>) -> Sink {
        let (queue, received) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(serve(
            name.clone(),
            Arc::new(Mutex::new(channel)),
            received,
            meter.clone(),
        ));
        Sink { name, queue, meter, task }
    }

    /// Tells an alert, sometime. If too many wait, `then` learns it at once.
    pub(super) fn tell(&self, alert: Alert, then: Then) {
        if let Err(error) = self.queue.try_send((alert, then)) {
            self.meter.alert(&self.name, "dropped");
            let (_, then) = error.into_inner();
            then(false);
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    name: String,
    channel: Arc<Mutex<Box<dyn Send>>>,
    mut received: mpsc::Receiver<(Alert, Then)>,
    meter: Arc<Meter>,
) {
    while let Some((alert, then)) = received.recv().await {
        let mut told = false;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(jittered(PAUSE * 2u32.pow(attempt - 1))).await;
            }
            let (channel, mut alert) = (channel.clone(), alert.clone());
            alert.is_repeat |= attempt > 0; // who knows what became of the try before
            let sent = tokio::task::spawn_blocking(move || {
                channel.lock().unwrap_or_else(PoisonError::into_inner).send(&alert)
            });
            match sent.await.unwrap_or_else(|_| Err(SendError::new("the sink panicked"))) {
                Ok(()) => {
                    told = true;
                    meter.alert(&name, "sent");
                    break;
                }
                Err(error) => {
                    meter.alert(&name, "failed");
                    tracing::warn!(sink = name, %error, "an alert was not sent");
                }
            }
        }
        if !told {
            meter.alert(&name, "dropped");
        }
        then(told);
    }
}
