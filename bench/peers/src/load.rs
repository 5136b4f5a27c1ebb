//! What every peer shares: the payloads, a count of handled messages with the time of the first, and the measurement of
//! latency. All times come from one clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

pub(crate) use artel_bench::load::{BYTES, LOOPS, Result, payloads};
use artel_bench::load::{PACE, SAMPLES, WARM_UP};

/// How often to look for the end.
const LOOK: Duration = Duration::from_millis(1);
/// After this long without an end, work has failed.
const PATIENCE: Duration = Duration::from_secs(50);
/// After this long without a message, latency has failed.
const SILENCE: Duration = Duration::from_secs(10);

/// Payloads for peers that send JSON.
pub(crate) fn texts() -> impl Iterator<Item = String> + Send {
    payloads().map(|payload| String::from_utf8_lossy(payload).into_owned())
}

/// Messages one way: how long they took, and how many were added, or times the handler was called.
pub(crate) struct Ran {
    pub(crate) took: Duration,
    pub(crate) messages: usize,
    /// The CPU time of their own processes, if they have any.
    pub(crate) cpu: Option<Duration>,
}

impl Ran {
    /// In this process.
    pub(crate) fn here(took: Duration, messages: usize) -> Ran {
        Ran { took, messages, cpu: None }
    }
}

/// Counts handled messages and remembers when the first handler was called.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<(OnceLock<Instant>, AtomicUsize)>);

impl Tally {
    /// A handler was called, with this many messages.
    pub(crate) fn note(&self, messages: usize) {
        self.0.0.get_or_init(Instant::now);
        self.0.1.fetch_add(messages, Ordering::Relaxed);
    }

    /// How many messages were handled.
    pub(crate) fn handled(&self) -> usize {
        self.0.1.load(Ordering::Relaxed)
    }

    /// The time since the first call.
    pub(crate) fn took(&self) -> Result<Duration> {
        Ok(self.0.0.get().ok_or("nothing was handled")?.elapsed())
    }

    /// Waits until all are handled and Redis says that nothing is left to acknowledge; says how long that took since the
    /// first call.
    pub(crate) async fn end<F, Left>(&self, count: usize, mut left: F) -> Result<Duration>
    where
        F: FnMut() -> Left,
        Left: Future<Output = Result<usize>>,
    {
        let began = Instant::now();
        loop {
            let handled = self.handled();
            let unsettled = if handled < count { None } else { Some(left().await?) };
            if unsettled == Some(0) {
                return self.took();
            }
            if began.elapsed() > PATIENCE {
                let unsettled = unsettled.unwrap_or(count - handled);
                return Err(format!("handled {handled} of {count}, {unsettled} left").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Runs one sender per slot, each with its share of the batches; says how long that took.
pub(crate) async fn slots<F, Send_>(count: usize, batch: usize, mut start: F) -> Result<Duration>
where
    F: FnMut(usize) -> Send_,
    Send_: Future<Output = Result<()>> + Send + 'static,
{
    let began = Instant::now();
    let mut senders = JoinSet::new();
    let batches = count / batch;
    for slot in 0..LOOPS {
        senders.spawn(start(batches / LOOPS + usize::from(slot < batches % LOOPS)));
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

/// The clock of messages that carry their time, as text because some peers send JSON.
#[derive(Clone)]
pub(crate) struct Ear {
    began: Instant,
    heard: UnboundedSender<Duration>,
}

/// Where the latencies arrive.
pub(crate) type Heard = UnboundedReceiver<Duration>;

impl Ear {
    /// Begins at zero.
    pub(crate) fn open() -> (Ear, Heard) {
        let (heard, hear) = unbounded_channel();
        (Ear { began: Instant::now(), heard }, hear)
    }

    /// A handler starts with this payload.
    pub(crate) fn hear(&self, payload: &[u8]) {
        let now = self.began.elapsed();
        let stamp = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        if let Some(stamp) = stamp {
            let _ = self.heard.send(now.saturating_sub(Duration::from_nanos(stamp)));
        }
    }

    /// A payload that carries this moment.
    fn stamp(&self) -> String {
        let width = BYTES;
        format!("{:0>width$}", self.began.elapsed().as_nanos())
    }

    /// Sends one message after the other at an even pace; says how long each took to its handler.
    pub(crate) async fn listen<F, Sent>(
        self,
        mut heard: Heard,
        mut send: F,
    ) -> Result<Vec<Duration>>
    where
        F: FnMut(String) -> Sent + Send + 'static,
        Sent: Future<Output = Result<()>> + Send + 'static,
    {
        let sending = tokio::spawn(async move {
            let mut pace = tokio::time::interval(PACE);
            for _ in 0..WARM_UP + SAMPLES {
                pace.tick().await;
                send(self.stamp()).await?;
            }
            Result::Ok(())
        });
        let mut latencies = Vec::with_capacity(WARM_UP + SAMPLES);
        while latencies.len() < WARM_UP + SAMPLES {
            match tokio::time::timeout(SILENCE, heard.recv()).await {
                Ok(Some(latency)) => latencies.push(latency),
                _ => break,
            }
        }
        let got = latencies.len();
        if got < WARM_UP + SAMPLES {
            sending.abort();
            return Err(format!("only {got} of {} messages came", WARM_UP + SAMPLES).into());
        }
        sending.await??;
        Ok(latencies)
    }
}
