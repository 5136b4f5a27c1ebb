//! Artel's side: ordinary members, used as anybody would, measured from outside.
//!
//! A run is timed from the first call of the closure, because joining and the election are not what
//! is measured, to the moment when the books say that everything is accounted for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Member, Message, MessageCounts, NewMessage, Outcome, Tick};

use crate::load::{Clock, LOOPS, PACE, Result, SAMPLES, WARM_UP, payloads};

/// Messages per call of the generator. With a tick of a millisecond that is two million a second,
/// so the pace never is the limit; the library splits them into pushes of its own size.
const PER_TICK: usize = 2_000;
/// How often this process looks at its own counter, which costs Redis nothing.
const FAR: Duration = Duration::from_millis(20);
/// How often the books are read once that counter says it cannot take long any more.
const NEAR: Duration = Duration::from_millis(2);
/// After this long a run has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the calls of a closure, and knows when the first one was.
#[derive(Clone, Default)]
struct Meter(Arc<(OnceLock<Instant>, AtomicUsize)>);

impl Meter {
    fn add(&self, count: usize) {
        self.0.0.get_or_init(Instant::now);
        self.0.1.fetch_add(count, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.1.load(Ordering::Relaxed)
    }

    /// Waits until this many are counted here, then until the books agree; says how long that took
    /// since the first.
    async fn run(
        &self,
        member: &Member,
        count: usize,
        agree: impl Fn(&MessageCounts) -> bool,
    ) -> Result<Duration> {
        let patience = Instant::now() + PATIENCE;
        while self.count() < count && Instant::now() < patience {
            tokio::time::sleep(FAR).await;
        }
        loop {
            let books = member.fleet().status().await?.messages;
            let end = Instant::now();
            if agree(&books) {
                if books.balance != 0 {
                    return Err(format!("the books do not balance: {books:?}").into());
                }
                let start = self.0.0.get().ok_or("nothing was counted")?;
                return Ok(end - *start);
            }
            if end > patience {
                return Err(format!("no end after {PATIENCE:?}: {books:?}").into());
            }
            tokio::time::sleep(NEAR).await;
        }
    }
}

/// Generates `count` messages with a member that does nothing else; says how long that took.
pub(crate) async fn push(url: &str, fleet: &str, count: usize) -> Result<Duration> {
    let mut config = Config::default();
    config.interval = Duration::from_millis(1);
    config.messages_max = Some(count as u64);
    config.backlog_max = Some(10 * count);
    let meter = Meter::default();
    let made = meter.clone();
    let mut payloads = payloads();
    let generate = move |_: Tick| {
        made.add(PER_TICK);
        let payloads = payloads.by_ref().take(PER_TICK);
        let batch: Vec<_> = payloads.map(|payload| NewMessage::from(payload.to_vec())).collect();
        async { batch }
    };
    let member = Fleet::open(url, fleet)?.join().config(config).generate(generate).start().await?;
    let took = meter.run(&member, count, |books| books.generated == count as u64).await?;
    stop([member]).await;
    Ok(took)
}

/// Handles `count` waiting messages with a member that does nothing else; says how long that took.
pub(crate) async fn drain(url: &str, fleet: &str, count: usize) -> Result<Duration> {
    let mut config = Config::default();
    config.concurrency = LOOPS;
    let meter = Meter::default();
    let seen = meter.clone();
    let handle = move |_: Message, _: Context| {
        seen.add(1);
        async { Outcome::done() }
    };
    let member = Fleet::open(url, fleet)?.join().config(config).handle(handle).start().await?;
    let took = meter.run(&member, count, |books| books.done == count as u64).await?;
    stop([member]).await;
    Ok(took)
}

/// From inside the generator's closure to the start of the handler, in another member.
pub(crate) async fn latency(url: &str, fleet: &str) -> Result<Vec<Duration>> {
    let clock = Clock::start();
    let (heard, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let mut config = Config::default();
    config.concurrency = LOOPS;
    config.interval = PACE;
    config.messages_max = Some((WARM_UP + SAMPLES) as u64);
    // Each over connections of its own, as in processes of their own.
    let builder = || Ok::<_, artel::Error>(Fleet::open(url, fleet)?.join().config(config.clone()));
    let handle = move |message: Message, _: Context| {
        let _ = heard.send(clock.since(message.payload()));
        async { Outcome::done() }
    };
    let worker = builder()?.handle(handle).start().await?;
    let generate = move |_: Tick| async move { NewMessage::from(clock.stamp()) };
    let generator = builder()?.generate(generate).start().await?;
    let mut latencies = Vec::with_capacity(WARM_UP + SAMPLES);
    while latencies.len() < WARM_UP + SAMPLES {
        let next = tokio::time::timeout(PATIENCE, hear.recv()).await?;
        latencies.push(next.ok_or("the worker is gone")??);
    }
    stop([generator, worker]).await;
    Ok(latencies)
}

/// Ends members in this order, and waits until they have left.
pub(crate) async fn stop(members: impl IntoIterator<Item = Member>) {
    for member in members {
        member.stop();
        member.stopped().await;
    }
}
