//! BullMQ's own Rust port: `add_bulk` of 1,000, concurrency 200, completed jobs are removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bullmq::options::RedisConnectionOptions;
use bullmq::types::{BackoffStrategy, RemoveOnFinish};
use bullmq::worker::CancellationToken;
use bullmq::{BulkJob, Job, Queue, QueueOptions, Worker, WorkerOptions};

use crate::jobs::{BACKOFF, COUNT, DELAY, Noted};
use crate::load::{Ear, Ran, Result, Tally, slots, texts};

const QUEUE: &str = "peers";
const JOB: &str = "job";
/// Jobs in one call.
const BATCH: usize = 1000;
/// Jobs that run side by side.
const CONCURRENCY: usize = 200;

pub(crate) async fn fill(url: &str, count: usize) -> Result<Duration> {
    let queue = open(url).await?;
    let took = slots(count, BATCH, |batches| add(queue.clone(), batches)).await;
    queue.close().await;
    took
}

async fn add(queue: Arc<Queue>, batches: usize) -> Result<()> {
    let mut texts = texts();
    for _ in 0..batches {
        let jobs = texts.by_ref().take(BATCH).map(|text| BulkJob::new(JOB, text)).collect();
        queue.add_bulk(jobs).await?;
    }
    Ok(())
}

pub(crate) async fn work(url: &str, count: usize) -> Result<Ran> {
    let queue = open(url).await?;
    let tally = Tally::default();
    let noted = tally.clone();
    let worker = start(url, move |_| noted.note(1)).await?;
    let took = tally.end(count, || left(queue.clone())).await;
    let closed = worker.close(0).await;
    let counts = queue.get_job_counts().await?;
    queue.close().await;
    closed?;
    if counts.failed > 0 || counts.completed > 0 {
        return Err(format!("jobs failed, or stayed after they were done: {counts:?}").into());
    }
    Ok(Ran::here(took?, tally.handled()))
}

async fn left(queue: Arc<Queue>) -> Result<usize> {
    let counts = queue.get_job_counts().await?;
    Ok(usize::try_from(counts.waiting + counts.active)?)
}

pub(crate) async fn latency(url: &str) -> Result<Vec<Duration>> {
    let (ear, heard) = Ear::open();
    let listener = ear.clone();
    let note = move |job: &Job| listener.hear(job.data().as_str().unwrap_or_default().as_bytes());
    let worker = start(url, note).await?;
    let queue = open(url).await?;
    let sender = queue.clone();
    let send = move |payload: String| {
        let queue = sender.clone();
        async move {
            queue.add(JOB, payload).await?;
            Ok(())
        }
    };
    let latencies = ear.listen(heard, send).await;
    worker.close(0).await?;
    queue.close().await;
    latencies
}

/// All jobs are sent for later. How long sending took, and handling once they were due.
pub(crate) async fn delayed(url: &str, noted: &Noted) -> Result<Duration> {
    let (queue, began) = (open(url).await?, Instant::now());
    for _ in 0..COUNT / BATCH {
        let jobs = (0..BATCH).map(|_| BulkJob::new(JOB, noted.due()).delay(DELAY)).collect();
        queue.add_bulk(jobs).await?;
    }
    let (sent, own) = (began.elapsed(), noted.clone());
    let worker = start(url, move |job| {
        own.begins(job.data().as_str().unwrap_or_default());
        own.done.fetch_add(1, Ordering::Relaxed);
    })
    .await?;
    tokio::time::sleep(DELAY.saturating_sub(began.elapsed())).await;
    let took = noted.until_done(COUNT).await?;
    worker.close(0).await?;
    queue.close().await;
    Ok(sent + took)
}

/// Every job fails once, and is retried after a while.
pub(crate) async fn retried(url: &str, noted: &Noted) -> Result<Duration> {
    let queue = open(url).await?;
    for _ in 0..COUNT / BATCH {
        let again = || BackoffStrategy::Fixed(BACKOFF.as_millis() as u64);
        let job = |n: usize| BulkJob::new(JOB, n.to_string()).attempts(2).backoff(again());
        queue.add_bulk((0..BATCH).map(job).collect()).await?;
    }
    let own = noted.clone();
    let options = WorkerOptions::new()
        .connection(RedisConnectionOptions::new().url(url))
        .concurrency(CONCURRENCY)
        .remove_on_complete(RemoveOnFinish::Bool(true));
    let handle = move |job: Job, _: CancellationToken| {
        let first = job.attempts_made() == 0;
        own.done.fetch_add(usize::from(!first), Ordering::Relaxed);
        async move {
            if first {
                return Err(bullmq::Error::InvalidConfig("once".to_owned()));
            }
            Ok(serde_json::Value::Null)
        }
    };
    let worker = Worker::with_options(QUEUE, handle, options).await?;
    let took = noted.until_done(COUNT).await?;
    worker.close(0).await?;
    queue.close().await;
    Ok(took)
}

async fn open(url: &str) -> Result<Arc<Queue>> {
    let options = QueueOptions::new().connection(RedisConnectionOptions::new().url(url));
    Ok(Arc::new(Queue::with_options(QUEUE, options).await?))
}

/// Starts a worker whose handler does nothing but note the job.
async fn start(url: &str, note: impl Fn(&Job) + Send + Sync + 'static) -> Result<Worker> {
    let options = WorkerOptions::new()
        .connection(RedisConnectionOptions::new().url(url))
        .concurrency(CONCURRENCY)
        .remove_on_complete(RemoveOnFinish::Bool(true));
    let handle = move |job: Job, _: CancellationToken| {
        note(&job);
        async { Ok(serde_json::Value::Null) }
    };
    Ok(Worker::with_options(QUEUE, handle, options).await?)
}
