//! Sidekiq for Rust: it has no call for many jobs, so 64 senders run side by side, and 64 workers. What is popped is lost
//! if its worker dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sidekiq::{Processor, ProcessorConfig, RedisConnectionManager, RedisPool, Worker};
use tokio::task::JoinSet;

use artel_bench::raw::connect;

use crate::load::{Ear, Ran, Result, Tally, texts};

/// Senders side by side, and workers.
const SIDE_BY_SIDE: usize = 64;
/// Connections: one per worker that waits for a job, and some for those that handle one.
const CONNECTIONS: u32 = 72;
const QUEUE: &str = "default";

type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// The no-op handler.
struct Noop(Note);

#[async_trait]
impl Worker<String> for Noop {
    async fn perform(&self, text: String) -> sidekiq::Result<()> {
        (self.0)(&text);
        Ok(())
    }
}

pub(crate) async fn fill(url: &str, count: usize) -> Result<Duration> {
    let pool = pool(url).await?;
    let sent = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..SIDE_BY_SIDE {
        let (pool, sent) = (pool.clone(), sent.clone());
        senders.spawn(async move {
            let mut texts = texts();
            while sent.fetch_add(1, Ordering::Relaxed) < count {
                let text = texts.next().ok_or("no payload")?;
                Noop::perform_async(&pool, text).await?;
            }
            Result::Ok(())
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

pub(crate) async fn work(url: &str, count: usize) -> Result<Ran> {
    let connection = connect(url).await?;
    let tally = Tally::default();
    let noted = tally.clone();
    let mut running = start(url, Arc::new(move |_: &str| noted.note(1))).await?;
    // A job that runs is in a hash named after its process, which is gone when it is empty.
    let left = || {
        let mut connection = connection.clone();
        async move {
            let mut ask = redis::pipe();
            ask.cmd("LLEN").arg(format!("queue:{QUEUE}")).cmd("KEYS").arg("*:work");
            let (waiting, busy): (usize, Vec<String>) = ask.query_async(&mut connection).await?;
            Ok(waiting + busy.len())
        }
    };
    let took = tally.end(count, left).await?;
    running.shutdown().await;
    Ok(Ran::here(took, tally.handled()))
}

pub(crate) async fn latency(url: &str) -> Result<Vec<Duration>> {
    let (ear, heard) = Ear::open();
    let listener = ear.clone();
    let mut running =
        start(url, Arc::new(move |text: &str| listener.hear(text.as_bytes()))).await?;
    let pool = pool(url).await?;
    let send = move |payload: String| {
        let pool = pool.clone();
        async move { Ok(Noop::perform_async(&pool, payload).await?) }
    };
    let latencies = ear.listen(heard, send).await;
    running.shutdown().await;
    latencies
}

/// A pool that does not ask every connection whether it lives before it is used.
async fn pool(url: &str) -> Result<RedisPool> {
    let manager = RedisConnectionManager::new(url)?;
    let pool = bb8::Pool::builder()
        .max_size(CONNECTIONS)
        .min_idle(CONNECTIONS)
        .test_on_check_out(false)
        .build(manager);
    Ok(pool.await?)
}

/// Starts the workers. They end when what this returns is dropped.
async fn start(url: &str, note: Note) -> Result<JoinSet<()>> {
    let config = ProcessorConfig::default().num_workers(SIDE_BY_SIDE);
    let mut processor =
        Processor::new(pool(url).await?, vec![QUEUE.to_owned()]).with_config(config);
    processor.register(Noop(note));
    let mut running = JoinSet::new();
    running.spawn(processor.run());
    Ok(running)
}
