//! Apalis on Redis, tuned: locks and events of tasks are off, 100 tasks in one call and in one fetch, one tokio task each.

use std::time::Duration;

use apalis::prelude::{BackendExt, BoxDynError, ParallelizeExt, TaskSink, WorkerBuilder};
use apalis_redis::{Config, ConnectionManager, RedisStorage};

use artel_bench::raw::connect;

use crate::load::{Ear, Ran, Result, Tally, slots, texts};

const QUEUE: &str = "peers";
const WORKER: &str = "worker";
/// Tasks in one call, and in one fetch.
const BATCH: usize = 100;
/// How often an idle worker looks for tasks while latency is measured.
const POLL: Duration = Duration::from_millis(10);

type Storage = RedisStorage<String, ConnectionManager>;

async fn open(url: &str) -> Result<Storage> {
    Ok(RedisStorage::new(apalis_redis::connect(url).await?).with_config(config()))
}

fn config() -> Config {
    Config::default().queue(QUEUE).batch_size(BATCH).lock_tasks(false).emit_events(false)
}

pub(crate) async fn fill(url: &str, count: usize) -> Result<Duration> {
    let storage = open(url).await?;
    slots(count, BATCH, |batches| push(storage.clone(), batches)).await
}

async fn push(mut storage: Storage, batches: usize) -> Result<()> {
    let mut texts = texts();
    for _ in 0..batches {
        storage.push_bulk(texts.by_ref().take(BATCH).collect()).await?;
    }
    Ok(())
}

pub(crate) async fn work(url: &str, count: usize) -> Result<Ran> {
    let connection = connect(url).await?;
    let tally = Tally::default();
    let noted = tally.clone();
    let handle = move |_: String| {
        noted.note(1);
        async { Ok::<(), BoxDynError>(()) }
    };
    let worker = WorkerBuilder::new(WORKER)
        .backend(open(url).await?)
        .parallelize(tokio::spawn)
        .build(handle);
    // What is acknowledged is in a set of its own.
    let left = || {
        let mut connection = connection.clone();
        async move {
            let done: usize = redis::cmd("SCARD")
                .arg(config().done_jobs_set())
                .query_async(&mut connection)
                .await?;
            Ok(count.saturating_sub(done))
        }
    };
    // The worker runs in the main task, as in its documentation, and ends with this block.
    let took = tokio::select! {
        took = tally.end(count, left) => took?,
        ended = worker.run() => return Err(format!("the worker ended: {ended:?}").into()),
    };
    Ok(Ran::here(took, tally.handled()))
}

pub(crate) async fn latency(url: &str) -> Result<Vec<Duration>> {
    let (ear, heard) = Ear::open();
    let listener = ear.clone();
    let handle = move |payload: String| {
        listener.hear(payload.as_bytes());
        async { Ok::<(), BoxDynError>(()) }
    };
    let worker = WorkerBuilder::new(WORKER)
        .backend(open(url).await?.poll_with_interval(POLL))
        .parallelize(tokio::spawn)
        .build(handle);
    let storage = open(url).await?;
    let send = move |payload: String| {
        let mut storage = storage.clone();
        async move { Ok(storage.push(payload).await?) }
    };
    let latencies = tokio::select! {
        latencies = ear.listen(heard, send) => latencies?,
        ended = worker.run() => return Err(format!("the worker ended: {ended:?}").into()),
    };
    Ok(latencies)
}
