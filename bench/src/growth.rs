//! The cost of growth: what one message costs Redis with more members, a longer backlog, larger payloads, more fleets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Member, Message, NewMessage, Outcome, Sender};
use artel_rig::{Kind, Server};

use artel_bench::load::{BYTES, FAILS, Gauge, LOOPS, Result};
use artel_bench::member::stop;
use artel_bench::raw::connect;
use redis::aio::MultiplexedConnection;

use crate::report::{Goal, Series, Table};

/// Messages at one point of a curve.
const MESSAGES: usize = 200_000;
/// The same with many members: each must have something to do.
const SHARED: usize = 1_000_000;
const MEMBERS: [usize; 5] = [1, 10, 50, 100, 300];
const BACKLOGS: [usize; 5] = [0, 1_000, 10_000, 100_000, 1_000_000];
const PAYLOADS: [usize; 6] = [10, 100, 1 << 10, 10 << 10, 100 << 10, 1 << 20];
/// From here on a byte costs the same.
const PAYLOAD_BASE: usize = 1 << 10;
const FLEETS: [usize; 4] = [1, 10, 100, 1_000];
/// Bytes at one point of the curve of payloads.
const VOLUME: usize = 64 << 20;
/// Messages that wait in each of the other fleets.
const BESIDE: usize = 100;
/// How long idle members are watched: what they cost is not charged to messages.
const WATCH: Duration = Duration::from_secs(3);
/// A point may cost this many times as much as the smallest.
const GOAL: Goal = Goal::RatioAtMost(1.5);
/// After this long a point has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A curve: the points, and what was measured at each, a value per round.
struct Curve<const N: usize> {
    points: [usize; N],
    values: [Series; N],
}

impl<const N: usize> Curve<N> {
    fn new(points: [usize; N]) -> Curve<N> {
        Curve { points, values: std::array::from_fn(|_| Series::default()) }
    }

    /// Rows that compare each point with this one, and those from there on with the goal.
    fn add_to(&self, table: &mut Table, name: &str, base: usize) {
        for (index, (point, value)) in self.points.iter().zip(&self.values).enumerate() {
            let goal = if index > base { GOAL } else { Goal::None };
            table.compare(&format!("{name}: {point}"), &self.values[base], value, goal);
        }
    }
}

/// Measures all curves, and prints them. Are all goals met?
pub(crate) async fn run(rounds: usize) -> Result<bool> {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut bench = Bench { url: server.url(), gauge: Gauge::open(&server.url())? };
    let (mut members, mut idle) = (Curve::new(MEMBERS), Curve::new(MEMBERS));
    let (mut into, mut out) = (Curve::new(BACKLOGS), Curve::new(BACKLOGS));
    let (mut payloads, mut fleets) = (Curve::new(PAYLOADS), Curve::new(FLEETS));
    let mut calls = Curve::new(PAYLOADS);
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for (index, count) in MEMBERS.into_iter().enumerate() {
            let (each, background) = bench.members(count).await?;
            members.values[index].push(each);
            idle.values[index].push(background);
        }
        for (index, backlog) in BACKLOGS.into_iter().enumerate() {
            let (in_us, out_us) = bench.backlog(backlog).await?;
            into.values[index].push(in_us);
            out.values[index].push(out_us);
        }
        for (index, bytes) in PAYLOADS.into_iter().enumerate() {
            payloads.values[index].push(bench.payload(bytes).await?);
            calls.values[index].push(bench.longest_call(bytes).await?);
        }
        for (index, count) in FLEETS.into_iter().enumerate() {
            fleets.values[index].push(bench.fleets(count).await?);
        }
        // Round 0 only fills caches and loads scripts.
        if round == 0 {
            (members, idle) = (Curve::new(MEMBERS), Curve::new(MEMBERS));
            (into, out) = (Curve::new(BACKLOGS), Curve::new(BACKLOGS));
            (payloads, fleets) = (Curve::new(PAYLOADS), Curve::new(FLEETS));
            calls = Curve::new(PAYLOADS);
        }
    }
    let cores = std::thread::available_parallelism()?;
    let name = bench.gauge.server()?;
    println!("{name}, {cores} cores, rounds: {rounds}, batches of at most 1,000 messages");
    println!("CPU of Redis, in + out unless it says otherwise; median (min..max)\n");
    let mut table = Table::new(["", "smallest point", "this point", "ratio", "goal"]);
    members.add_to(&mut table, "us per message, members", 0);
    for (point, value) in idle.points.iter().zip(&idle.values) {
        table.alone(&format!("the same members idle, ms per second: {point}"), value, Goal::None);
    }
    into.add_to(&mut table, "us per message in, backlog", 0);
    out.add_to(&mut table, "us per message out, backlog", 0);
    let base = PAYLOADS.iter().position(|&bytes| bytes == PAYLOAD_BASE).unwrap_or(0);
    payloads.add_to(&mut table, "us per KiB, bytes of payload", base);
    for (point, value) in calls.points.iter().zip(&calls.values) {
        let name = format!("longest call, 1 in 20 fails, ms, bytes of payload: {point}");
        table.alone(&name, value, Goal::AtMost(5.0));
    }
    fleets.add_to(&mut table, "us per message, fleets", 0);
    print!("{}", table.show());
    Ok(table.met())
}

struct Bench {
    url: String,
    gauge: Gauge,
}

/// Workers of one fleet, and how many messages they have handled.
struct Workers {
    members: Vec<Member>,
    handled: Arc<AtomicU64>,
}

impl Workers {
    async fn start(url: &str, fleet: &str, count: usize) -> Result<Workers> {
        Workers::start_failing(url, fleet, count, u64::MAX).await
    }

    /// One message of this many fails.
    async fn start_failing(url: &str, fleet: &str, count: usize, fails: u64) -> Result<Workers> {
        let handled = Arc::new(AtomicU64::new(0));
        let mut config = Config::default();
        config.concurrency = LOOPS;
        config.backlog_max = Some(2 * BACKLOGS[BACKLOGS.len() - 1]);
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let noted = handled.clone();
            let handle = move |_: Message, _: Context| {
                let is_done = !(noted.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(fails);
                async move { if is_done { Outcome::done() } else { Outcome::failed("one of many") } }
            };
            // Each over connections of its own, as in a process of its own.
            let builder = Fleet::open(url, fleet)?.join().config(config.clone()).handle(handle);
            members.push(builder.start().await?);
        }
        Ok(Workers { members, handled })
    }

    /// Waits until this many are handled.
    async fn handle(&self, count: usize) -> Result<()> {
        let began = Instant::now();
        while self.handled.load(Ordering::Relaxed) < count as u64 {
            if began.elapsed() > PATIENCE {
                let handled = self.handled.load(Ordering::Relaxed);
                return Err(format!("handled {handled} of {count}").into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}

/// Sends this many messages of this size, as many in a batch as fit.
async fn send(fleet: &Fleet, count: usize, bytes: usize) -> Result<()> {
    let batch = (Sender::BATCH_BYTES_MAX / bytes).clamp(1, Sender::BATCH_MAX);
    let (sender, mut sent) = (fleet.sender(), 0);
    while sent < count {
        let messages: Vec<NewMessage> = (sent..count.min(sent + batch))
            .map(|number| {
                let mut payload = number.to_string().into_bytes();
                payload.resize(bytes, b'.');
                NewMessage::from(payload)
            })
            .collect();
        sender.send_all(&messages).await?;
        sent += messages.len();
    }
    Ok(())
}

/// Reads which calls Redis was busy with for long.
pub(crate) struct Calls(MultiplexedConnection);

impl Calls {
    /// Those that take longer than this are noted, in microseconds.
    const NOTED: usize = 100;

    pub(crate) async fn watch(url: &str) -> Result<Calls> {
        let mut connection = connect(url).await?;
        let mut watch = redis::pipe();
        watch.cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(Calls::NOTED);
        watch.cmd("CONFIG").arg("SET").arg("slowlog-max-len").arg(100_000);
        watch.cmd("SLOWLOG").arg("RESET");
        watch.exec_async(&mut connection).await?;
        Ok(Calls(connection))
    }

    pub(crate) async fn longest_ms(mut self) -> Result<f64> {
        let calls: Vec<Vec<redis::Value>> =
            redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut self.0).await?;
        // Asking is not one of them: `SLOWLOG RESET` itself takes milliseconds.
        let times = calls.iter().filter_map(|call| match (call.get(2), call.get(3)) {
            (Some(redis::Value::Int(us)), Some(redis::Value::Array(words)))
                if words.first() != Some(&redis::Value::BulkString(b"SLOWLOG".to_vec())) =>
            {
                Some(*us)
            }
            _ => None,
        });
        Ok(times.max().unwrap_or(Calls::NOTED as i64) as f64 / 1e3)
    }
}

impl Bench {
    /// The CPU time of Redis since `before`, in microseconds.
    fn spent(&mut self, before: Duration) -> Result<f64> {
        Ok((self.gauge.cpu()?.saturating_sub(before)).as_secs_f64() * 1e6)
    }

    /// Messages flow through a fleet with this many workers. What a message costs beside what the members cost anyway, and
    /// that, in milliseconds per second.
    async fn members(&mut self, count: usize) -> Result<(f64, f64)> {
        self.gauge.flush()?;
        let workers = Workers::start(&self.url, "members", count).await?;
        let fleet = Fleet::connect(&*self.url, "members").await?;
        // A worker that knows nothing about its handler takes single messages. Every one of them has handled some.
        send(&fleet, MESSAGES, BYTES).await?;
        workers.handle(MESSAGES).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, began) = (self.gauge.cpu()?, Instant::now());
        tokio::time::sleep(WATCH).await;
        let idle_us_per_s = self.spent(before)? / began.elapsed().as_secs_f64();
        let (before, began) = (self.gauge.cpu()?, Instant::now());
        send(&fleet, SHARED, BYTES).await?;
        workers.handle(MESSAGES + SHARED).await?;
        let background = idle_us_per_s * began.elapsed().as_secs_f64();
        let each = (self.spent(before)? - background) / SHARED as f64;
        stop(workers.members).await;
        Ok((each, idle_us_per_s / 1e3))
    }

    /// What a message costs in and out, with this many waiting before it.
    async fn backlog(&mut self, waiting: usize) -> Result<(f64, f64)> {
        self.gauge.flush()?;
        // The first member sets how many may wait.
        stop(Workers::start(&self.url, "backlog", 1).await?.members).await;
        let fleet = Fleet::connect(&*self.url, "backlog").await?;
        send(&fleet, waiting, BYTES).await?;
        let before = self.gauge.cpu()?;
        send(&fleet, MESSAGES, BYTES).await?;
        let in_us = self.spent(before)? / MESSAGES as f64;
        let before = self.gauge.cpu()?;
        let workers = Workers::start(&self.url, "backlog", 1).await?;
        workers.handle(MESSAGES).await?;
        let out_us = self.spent(before)? / workers.handled.load(Ordering::Relaxed) as f64;
        stop(workers.members).await;
        Ok((in_us, out_us))
    }

    /// What a KiB costs, in messages of this size.
    async fn payload(&mut self, bytes: usize) -> Result<f64> {
        self.gauge.flush()?;
        let count = (VOLUME / bytes).min(MESSAGES);
        let fleet = Fleet::connect(&*self.url, "payload").await?;
        let before = self.gauge.cpu()?;
        send(&fleet, count, bytes).await?;
        let workers = Workers::start(&self.url, "payload", 1).await?;
        workers.handle(count).await?;
        let each = self.spent(before)? * 1024.0 / (count * bytes) as f64;
        stop(workers.members).await;
        Ok(each)
    }

    /// The longest time that Redis was busy with one call, in milliseconds, with messages of this size of which some fail.
    async fn longest_call(&mut self, bytes: usize) -> Result<f64> {
        self.gauge.flush()?;
        let fleet = Fleet::connect(&*self.url, "longest").await?;
        // A worker that knows its handler takes whole packs.
        let workers = Workers::start_failing(&self.url, "longest", 1, FAILS as u64).await?;
        send(&fleet, 1_000, bytes.min(1 << 10)).await?;
        workers.handle(1_000).await?;
        let calls = Calls::watch(&self.url).await?;
        let count = (VOLUME / 4 / bytes).min(MESSAGES);
        send(&fleet, count, bytes).await?;
        workers.handle(1_000 + count).await?;
        let longest = calls.longest_ms().await;
        stop(workers.members).await;
        longest
    }

    /// What a message costs in one of this many fleets. The others have messages, and no members: what those cost is
    /// measured apart.
    async fn fleets(&mut self, count: usize) -> Result<f64> {
        self.gauge.flush()?;
        for number in 1..count {
            send(&Fleet::connect(&*self.url, &format!("f{number}")).await?, BESIDE, BYTES).await?;
        }
        let fleet = Fleet::connect(&*self.url, "f0").await?;
        let before = self.gauge.cpu()?;
        send(&fleet, MESSAGES, BYTES).await?;
        let workers = Workers::start(&self.url, "f0", 1).await?;
        workers.handle(MESSAGES).await?;
        let each = self.spent(before)? / MESSAGES as f64;
        stop(workers.members).await;
        Ok(each)
    }
}
