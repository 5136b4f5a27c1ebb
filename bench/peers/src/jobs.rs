//! Delayed jobs and retries, Artel beside BullMQ's own Rust port, in the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Message, NewMessage, Outcome};
use artel_measure::Gauge;
use artel_rig::{Kind, Server};

use crate::bullmq;
use crate::load::{LOOPS, Result};

/// Jobs of one step.
pub(crate) const COUNT: usize = 20_000;
/// How long delayed jobs wait: long enough to send all of them.
pub(crate) const DELAY: Duration = Duration::from_secs(6);
/// How long a job waits before it is retried.
pub(crate) const BACKOFF: Duration = Duration::from_millis(100);
/// After this long a step has failed.
const LIMIT: Duration = Duration::from_secs(120);
const FLEET: &str = "peer-jobs";

/// What was noted about jobs.
#[derive(Clone)]
pub(crate) struct Noted {
    began: Instant,
    late: Arc<std::sync::Mutex<Vec<f64>>>,
    pub(crate) done: Arc<AtomicUsize>,
}

impl Noted {
    fn new() -> Noted {
        Noted { began: Instant::now(), late: Arc::default(), done: Arc::default() }
    }

    /// The time at which a job that is sent now is due, as text.
    pub(crate) fn due(&self) -> String {
        (self.began.elapsed() + DELAY).as_micros().to_string()
    }

    /// A job with this payload begins.
    pub(crate) fn begins(&self, payload: &str) {
        let due = payload.parse::<u64>().unwrap_or(0);
        let late = (self.began.elapsed().as_micros() as u64).saturating_sub(due);
        self.late.lock().expect("ours").push(late as f64 / 1e3);
    }

    pub(crate) async fn until_done(&self, count: usize) -> Result<Duration> {
        let began = Instant::now();
        while self.done.load(Ordering::Relaxed) < count {
            if began.elapsed() > LIMIT {
                return Err(format!("{} of {count} done", self.done.load(Ordering::Relaxed)).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(began.elapsed())
    }

    /// The median and the 99th percentile of the lateness, ms.
    fn percentiles(&self) -> (f64, f64) {
        let mut late = self.late.lock().expect("ours").clone();
        late.sort_by(f64::total_cmp);
        (late[late.len() / 2], late[late.len() * 99 / 100])
    }
}

/// What one peer did in one round.
struct Row {
    delayed_per_s: f64,
    delayed_us: f64,
    late: (f64, f64),
    retried_per_s: f64,
    retried_us: f64,
}

/// Measures both, and prints them.
pub(crate) async fn run(rounds: usize) -> Result<()> {
    let server = Server::with(Kind::Redis, &["--appendonly", "no"]);
    let (url, mut gauge) = (server.url(), Gauge::open(&server.url())?);
    let mut rows: [Vec<Row>; 2] = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for (index, rows) in rows.iter_mut().enumerate() {
            let row = measure(index == 0, &url, &mut gauge).await?;
            // Round 0 only fills caches and loads scripts.
            if round > 0 {
                rows.push(row);
            }
        }
    }
    println!("{}, rounds: {rounds}, {COUNT} jobs each; median (min..max)\n", gauge.server()?);
    println!("{:<44}{:<28}{}", "", "artel", "bullmq-official");
    type Figure = fn(&Row) -> f64;
    let figures: [(&str, Figure); 6] = [
        ("delayed: sent and handled, jobs/s", |row| row.delayed_per_s),
        ("delayed: Redis CPU, all of it, us/job", |row| row.delayed_us),
        ("delayed: late when all are due, p50 ms", |row| row.late.0),
        ("delayed: late when all are due, p99 ms", |row| row.late.1),
        ("retried once: handled, jobs/s", |row| row.retried_per_s),
        ("retried once: Redis CPU, all of it, us/job", |row| row.retried_us),
    ];
    for (name, figure) in figures {
        println!("{name:<44}{:<28}{}", show(&rows[0], figure), show(&rows[1], figure));
    }
    Ok(())
}

fn show(rows: &[Row], figure: fn(&Row) -> f64) -> String {
    let mut values: Vec<f64> = rows.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    let (min, max) = (values[0], values[values.len() - 1]);
    let digits =
        |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} ({}..{})", digits(values[values.len() / 2]), digits(min), digits(max))
}

async fn measure(is_artel: bool, url: &str, gauge: &mut Gauge) -> Result<Row> {
    gauge.flush()?;
    let noted = Noted::new();
    let before = gauge.cpu()?;
    let sending = match is_artel {
        true => artel_delayed(url, &noted).await?,
        false => bullmq::delayed(url, &noted).await?,
    };
    let each = |gauge: &mut Gauge, before: Duration| -> Result<f64> {
        Ok(gauge.cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / COUNT as f64)
    };
    let delayed_us = each(gauge, before)?;
    gauge.flush()?;
    let noted_again = Noted::new();
    let before = gauge.cpu()?;
    let retrying = match is_artel {
        true => artel_retried(url, &noted_again).await?,
        false => bullmq::retried(url, &noted_again).await?,
    };
    Ok(Row {
        delayed_per_s: COUNT as f64 / sending.as_secs_f64(),
        delayed_us,
        late: noted.percentiles(),
        retried_per_s: COUNT as f64 / retrying.as_secs_f64(),
        retried_us: each(gauge, before)?,
    })
}

async fn artel_delayed(url: &str, noted: &Noted) -> Result<Duration> {
    let began = Instant::now();
    let fleet = Fleet::connect(url, FLEET).await?;
    for _ in 0..COUNT / 500 {
        let batch: Vec<NewMessage> =
            (0..500).map(|_| NewMessage::from(noted.due()).after(DELAY)).collect();
        fleet.sender().send_all(&batch).await?;
    }
    let sent = began.elapsed();
    let own = noted.clone();
    let handle = move |message: Message, _: Context| {
        own.begins(&message.text());
        own.done.fetch_add(1, Ordering::Relaxed);
        async { Outcome::done() }
    };
    let mut config = Config::default();
    config.concurrency = LOOPS;
    let worker = Fleet::open(url, FLEET)?.join().config(config).handle(handle).start().await?;
    tokio::time::sleep(DELAY.saturating_sub(began.elapsed())).await;
    let took = noted.until_done(COUNT).await?;
    worker.shutdown().await;
    Ok(sent + took)
}

async fn artel_retried(url: &str, noted: &Noted) -> Result<Duration> {
    let fleet = Fleet::connect(url, FLEET).await?;
    let batch: Vec<NewMessage> = (0..1000).map(|n| NewMessage::from(n.to_string())).collect();
    for _ in 0..COUNT / 1000 {
        fleet.sender().send_all(&batch).await?;
    }
    let own = noted.clone();
    let handle = move |message: Message, _: Context| {
        let again = message.retry() == 0;
        own.done.fetch_add(usize::from(!again), Ordering::Relaxed);
        async move { if again { Outcome::retry("once").after(BACKOFF) } else { Outcome::done() } }
    };
    let mut config = Config::default();
    config.concurrency = LOOPS;
    let worker = Fleet::open(url, FLEET)?.join().config(config).handle(handle).start().await?;
    let took = noted.until_done(COUNT).await?;
    worker.shutdown().await;
    Ok(took)
}
