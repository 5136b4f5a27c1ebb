//! From sending a message to the start of its handler, in another member.
//!
//! **Invariant:** if its sender was held up, a message's time counts from the moment at which it was due. So a stall is seen
//! in every message that it held up. Timers that are a millisecond late do not count.

use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Message, Outcome};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::flow::{PATIENCE, SLOTS, join};
use crate::load::Clock;
use crate::report::{Latency, Point};
use crate::{Result, ms};

/// While connections and caches warm up.
const WARM_UP: Duration = Duration::from_millis(500);
/// A timer that is later than this was held up by something.
const STALL: Duration = Duration::from_millis(3);
/// The shortest pause between two groups of sends: timers are no finer.
const TICK: Duration = Duration::from_millis(1);

/// Sends this many messages a second for this long.
pub(crate) async fn latency(url: &str, fleet: &str, rate: u32, time: Duration) -> Result<Latency> {
    let clock = Clock::start();
    let (heard, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let mut config = Config::default();
    config.concurrency = SLOTS;
    let handler = move |message: Message, _: Context| {
        let _ = heard.send(clock.since(message.payload()));
        async { Outcome::done() }
    };
    let worker = join(url, fleet, config, handler).await?;
    let sender = Fleet::connect(url, fleet).await?.sender();
    let pause = TICK.max(Duration::from_secs(1) / rate);
    let per_pause = (f64::from(rate) * pause.as_secs_f64()).round().max(1.0) as usize;
    let mut pace = tokio::time::interval(pause);
    let (began, mut sends, mut sent) = (Instant::now(), JoinSet::new(), 0);
    while began.elapsed() < WARM_UP + time {
        let (due, now) = (pace.tick().await.into_std(), Instant::now());
        let due = if now.saturating_duration_since(due) > STALL { due } else { now };
        for _ in 0..per_pause {
            let (sender, payload) = (sender.clone(), clock.stamp_of(due));
            sends.spawn(async move { sender.send(payload).await });
            sent += 1;
        }
        while let Some(ended) = sends.try_join_next() {
            ended??;
        }
    }
    let skipped = (f64::from(rate) * WARM_UP.as_secs_f64()) as usize;
    let mut histogram = Histogram::<u64>::new(3)?;
    for count in 0..sent {
        let next = tokio::time::timeout(PATIENCE, hear.recv()).await?;
        let took = next.ok_or("the worker is gone")??;
        if count >= skipped {
            histogram.record(took.as_nanos() as u64)?;
        }
    }
    while let Some(ended) = sends.join_next().await {
        ended??;
    }
    worker.shutdown().await;
    Ok(read(rate, &histogram))
}

fn read(rate: u32, histogram: &Histogram<u64>) -> Latency {
    let at = |percent: f64| ms(Duration::from_nanos(histogram.value_at_percentile(percent)));
    let points = histogram.iter_quantiles(2).map(|step| Point {
        percent: step.quantile_iterated_to() * 100.0,
        ms: ms(Duration::from_nanos(step.value_iterated_to())),
    });
    Latency {
        rate,
        messages: histogram.len(),
        p50_ms: at(50.0),
        p99_ms: at(99.0),
        p999_ms: at(99.9),
        max_ms: ms(Duration::from_nanos(histogram.max())),
        distribution: points.collect(),
    }
}
