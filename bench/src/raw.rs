//! The raw limit: what the plain client does on this machine with the same payloads. It batches,
//! leases and fences like a queue that loses nothing while its workers live, and does nothing else:
//! no members, no election, no books, no recovery.

use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::load::{Clock, LOOPS, PACE, Result, SAMPLES, WARM_UP, payloads};

const QUEUE: &str = "raw:queue";
const LEASES: &str = "raw:leases";
const LEASE: &str = "raw:lease";
const WAKE: &str = "raw:wake";
/// Messages per claim while latency is measured.
const BATCH: usize = 100;
/// How long a batch would be leased; only its presence is checked.
const LEASE_MS: u64 = 30_000;

/// Acknowledges the last batch, fenced by its lease, and claims the next: one round trip a batch.
const TURN: &str = r"
if ARGV[1] ~= '' then
  if redis.call('ZREM', KEYS[2], ARGV[1]) ~= 1 then return redis.error_reply('LOST the lease') end
  redis.call('DEL', KEYS[3])
end
local batch = redis.call('LPOP', KEYS[1], ARGV[4])
if not batch then return {} end
redis.call('RPUSH', KEYS[4], unpack(batch))
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
return batch
";

/// Adds a batch, fenced by a lease: what any queue with an elected producer must at least do.
const FENCED: &str = r"
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return redis.error_reply('LOST the lease') end
redis.call('RPUSH', KEYS[1], unpack(ARGV, 2))
return 'ok'
";

/// Takes the token's turn: claims what waits as a batch of its own.
const CLAIM: &str = r"
local batch = redis.call('LPOP', KEYS[1], ARGV[1])
if not batch then return {} end
redis.call('RPUSH', KEYS[2], unpack(batch))
return batch
";

/// Is every push checked against a lease, or a bare list command?
#[derive(Clone, Copy, Eq, PartialEq)]
pub enum Push {
    Fenced,
    Bare,
}

/// Adds `count` messages in batches, with this many loops side by side; says how long that took.
pub async fn push(
    url: &str,
    count: usize,
    batch: usize,
    loops_count: usize,
    how: Push,
) -> Result<Duration> {
    let mut connection = connect(url).await?;
    let lease = "member|1794710083943807";
    redis::cmd("SET").arg(LEASE).arg(lease).exec_async(&mut connection).await?;
    let script = redis::Script::new(FENCED);
    let loaded: String = script.prepare_invoke().load_async(&mut connection).await?;
    let start = Instant::now();
    let mut loops = JoinSet::new();
    for _ in 0..loops_count {
        let (mut connection, loaded) = (connection.clone(), loaded.clone());
        loops.spawn(async move {
            let mut payloads = payloads();
            for _ in 0..count / loops_count / batch {
                let mut push = redis::cmd(if how == Push::Bare { "RPUSH" } else { "EVALSHA" });
                match how {
                    Push::Bare => push.arg(QUEUE),
                    Push::Fenced => push.arg(&loaded).arg(2).arg(QUEUE).arg(LEASE).arg(lease),
                };
                for payload in payloads.by_ref().take(batch) {
                    push.arg(payload);
                }
                push.exec_async(&mut connection).await?;
            }
            redis::RedisResult::Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    Ok(start.elapsed())
}

/// Takes everything that waits, in batches; says how long that took. Fenced, each batch is claimed and acknowledged; bare, it
/// is lost if its worker dies.
pub async fn drain(url: &str, count: usize, batch: usize, how: Push) -> Result<Duration> {
    let connection = connect(url).await?;
    let start = Instant::now();
    let mut loops = JoinSet::new();
    for number in 0..LOOPS {
        let connection = connection.clone();
        match how {
            Push::Fenced => loops.spawn(turns(connection, number, batch)),
            Push::Bare => loops.spawn(pops(connection, batch)),
        };
    }
    let mut taken = 0;
    while let Some(ended) = loops.join_next().await {
        taken += ended??;
    }
    let took = start.elapsed();
    if taken != count {
        return Err(format!("the raw loops took {taken} messages, not {count}").into());
    }
    Ok(took)
}

/// Pops until nothing is left.
async fn pops(mut connection: MultiplexedConnection, batch: usize) -> Result<usize> {
    let mut taken = 0;
    loop {
        let popped: Option<Vec<Vec<u8>>> =
            redis::cmd("LPOP").arg(QUEUE).arg(batch).query_async(&mut connection).await?;
        match popped {
            Some(messages) => taken += messages.len(),
            None => return Ok(taken),
        }
    }
}

async fn turns(mut connection: MultiplexedConnection, number: usize, size: usize) -> Result<usize> {
    let turn = redis::Script::new(TURN);
    let (mut last, mut taken) = (String::new(), 0);
    for batch in 0.. {
        let next = format!("{number}-{batch}");
        let claimed: redis::Value = turn
            .key(QUEUE)
            .key(LEASES)
            .key(format!("raw:batch:{last}"))
            .key(format!("raw:batch:{next}"))
            .arg(&last)
            .arg(&next)
            .arg(LEASE_MS)
            .arg(size)
            .invoke_async(&mut connection)
            .await?;
        let redis::Value::Array(messages) = claimed else {
            return Err("a claim that is no list".into());
        };
        if messages.is_empty() {
            break;
        }
        // The no-op handler: the payloads are here, and are dropped.
        taken += messages.len();
        last = next;
    }
    Ok(taken)
}

/// From just before a push to the claim of the message by a worker that a token woke.
pub async fn latency(url: &str) -> Result<Vec<Duration>> {
    let (mut sender, mut receiver) = (connect(url).await?, connect(url).await?);
    let mut claimer = connect(url).await?;
    let clock = Clock::start();
    let sending = tokio::spawn(async move {
        let mut pace = tokio::time::interval(PACE);
        for _ in 0..WARM_UP + SAMPLES {
            pace.tick().await;
            let mut push = redis::pipe();
            push.cmd("RPUSH").arg(QUEUE).arg(clock.stamp()).ignore();
            push.cmd("RPUSH").arg(WAKE).arg(1).ignore();
            push.exec_async(&mut sender).await?;
        }
        redis::RedisResult::Ok(())
    });
    let claim = redis::Script::new(CLAIM);
    let mut latencies = Vec::with_capacity(WARM_UP + SAMPLES);
    while latencies.len() < WARM_UP + SAMPLES {
        let token: Option<(String, String)> =
            redis::cmd("BLPOP").arg(WAKE).arg(10).query_async(&mut receiver).await?;
        token.ok_or("the raw sender is silent")?;
        let batch = format!("raw:batch:{}", latencies.len());
        let claimed: Vec<Vec<u8>> =
            claim.key(QUEUE).key(batch).arg(BATCH).invoke_async(&mut claimer).await?;
        for payload in claimed {
            latencies.push(clock.since(&payload)?);
        }
    }
    sending.await??;
    Ok(latencies)
}

/// From just before a push to the return of a bare blocking pop: no claim, so a worker that dies
/// loses the message.
pub async fn bare_latency(url: &str) -> Result<Vec<Duration>> {
    let (mut sender, mut receiver) = (connect(url).await?, connect(url).await?);
    let clock = Clock::start();
    let sending = tokio::spawn(async move {
        let mut pace = tokio::time::interval(PACE);
        for _ in 0..WARM_UP + SAMPLES {
            pace.tick().await;
            redis::cmd("RPUSH").arg(QUEUE).arg(clock.stamp()).exec_async(&mut sender).await?;
        }
        redis::RedisResult::Ok(())
    });
    let mut latencies = Vec::with_capacity(WARM_UP + SAMPLES);
    while latencies.len() < WARM_UP + SAMPLES {
        let popped: Option<(String, Vec<u8>)> =
            redis::cmd("BLPOP").arg(QUEUE).arg(10).query_async(&mut receiver).await?;
        let (_, payload) = popped.ok_or("the raw sender is silent")?;
        latencies.push(clock.since(&payload)?);
    }
    sending.await??;
    Ok(latencies)
}

/// One connection for all loops.
pub async fn connect(url: &str) -> Result<MultiplexedConnection> {
    // No response timeout: a blocking pop may wait.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
