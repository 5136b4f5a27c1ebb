//! Events and locks: how long a wake-up takes in another process, what those who wait cost, and how a
//! lock is taken and handed over.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use artel::Fleet;
use artel_rig::Server;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind};
use tokio::task::JoinSet;

use crate::report::{Goal, Series, Table};
use artel_bench::load::{Result, percentiles};

const WAKE_UPS: usize = 300;
const WAITERS: usize = 10_000;
const EVENTS: usize = 1_000;
const TURNS: usize = 2_000;
const CONTENDERS: usize = 100;
const HAND_OVERS: usize = 1_000;

/// Both sides of what can be compared, a value per round each.
#[derive(Default)]
pub(crate) struct Signals {
    raw_wake: Series,
    wake: Series,
    raw_turn: Series,
    turn: Series,
    raw_trip: Series,
    hand_over: Series,
    waiter_bytes: Series,
    all_awake: Series,
    connections: Series,
    measured_memory: bool,
}

impl Signals {
    pub(crate) async fn measure(&mut self, server: &Server) -> Result<()> {
        let url = server.url();
        self.raw_wake.push(wake_up(&url, "raw").await?);
        self.wake.push(wake_up(&url, "artel").await?);
        self.waiters(server).await?;
        self.raw_turn.push(raw_turn(&url).await?);
        self.turn.push(turn(&url).await?);
        self.raw_trip.push(raw_trip(&url).await?);
        self.hand_over.push(hand_over(&url).await?);
        Ok(())
    }

    pub(crate) fn add_to(&self, table: &mut Table) {
        let wake = Goal::RatioAtMost(1.5);
        table.compare("wake-up in another process, us", &self.raw_wake, &self.wake, wake);
        table.alone("memory of one who waits, bytes", &self.waiter_bytes, Goal::AtMost(1024.0));
        table.alone("10,000 who wait awake, ms", &self.all_awake, Goal::AtMost(50.0));
        table.alone("connections that listen", &self.connections, Goal::AtMost(1.0));
        let turn = Goal::RatioAtMost(1.3);
        table.compare("lock and release, us", &self.raw_turn, &self.turn, turn);
        let trips = Goal::RatioAtMost(3.0);
        table.compare("hand-over of 100, / round trip, us", &self.raw_trip, &self.hand_over, trips);
    }

    /// Ten thousand who wait for one event, then a thousand events at once.
    async fn waiters(&mut self, server: &Server) -> Result<()> {
        let redis = Fleet::open(server.url(), "waiters")?;
        let event = redis.event("one")?;
        // What is there for the first is not there for each.
        event.wait_timeout(Duration::from_millis(50)).await?;
        let before = resident()?;
        let mut all = JoinSet::new();
        for _ in 0..WAITERS {
            let event = event.clone();
            all.spawn(async move { event.wait().await.map(|_| Instant::now()) });
        }
        // Whoever comes behind them all is answered after them all.
        event.wait_timeout(Duration::from_millis(300)).await?;
        let bytes = (resident()? - before) / WAITERS as f64;
        if !self.measured_memory {
            // Later rounds use again what this one has taken from the system.
            self.waiter_bytes.push(bytes);
            self.measured_memory = true;
        }
        let set = Instant::now();
        event.set().await?;
        let mut last = set;
        while let Some(woken) = all.join_next().await {
            last = last.max(woken??);
        }
        self.all_awake.push((last - set).as_secs_f64() * 1e3);
        event.clear().await?;

        for at in 0..EVENTS {
            let event = redis.event(&format!("e{at}"))?;
            all.spawn(async move { event.wait().await.map(|_| Instant::now()) });
        }
        let last = redis.event(&format!("e{}", EVENTS - 1))?;
        last.wait_timeout(Duration::from_millis(500)).await?;
        let mut connection = server.connect();
        let list: String =
            redis::cmd("CLIENT").arg(&["LIST", "TYPE", "pubsub"]).query(&mut connection)?;
        self.connections.push(list.lines().count() as f64);
        all.shutdown().await;
        Ok(())
    }
}

fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kb: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kb * 1024.0)
}

fn micros_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64() * 1e6)
}

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Another process that waits: a line for every wake-up, with the time.
struct Waiter {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Waiter {
    fn start(url: &str, how: &str) -> Result<Waiter> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--as-waiter", url, how])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("piped")?).lines();
        Ok(Waiter { child, lines })
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().ok_or("the process ended")??)
    }

    fn again(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().ok_or("piped")?.write_all(b"again\n")?)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The median time from setting to waking up in another process, in microseconds.
async fn wake_up(url: &str, how: &str) -> Result<f64> {
    let redis = Fleet::open(url, "wake")?;
    let event = redis.event("wake")?;
    let mut raw = connect(url).await?;
    let mut waiter = Waiter::start(url, how)?;
    let mut took = Vec::new();
    for _ in 0..WAKE_UPS {
        assert_eq!(waiter.line()?, "waiting");
        // Long enough that it sleeps.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let sent = micros_now();
        match how {
            "raw" => {
                redis::cmd("SPUBLISH").arg("raw:wake-up").arg("1").exec_async(&mut raw).await?
            }
            _ => event.set().await?,
        }
        let woken: f64 = waiter.line()?.parse()?;
        took.push(Duration::from_secs_f64((woken - sent).max(0.0) / 1e6));
        if how != "raw" {
            event.clear().await?;
        }
        waiter.again()?;
    }
    Ok(percentiles(&took).0 * 1e3)
}

/// The other process.
pub(crate) fn be_waiter() -> Result<()> {
    let (url, how) = (std::env::args().nth(2).ok_or("url")?, std::env::args().nth(3).ok_or("how")?);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let redis = Fleet::open(url.as_str(), "wake")?;
        let event = redis.event("wake")?;
        let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::SMessage {
                let _ = heard.send(());
            }
            Ok::<(), redis::aio::SendError>(())
        });
        let separator = if url.contains('?') { '&' } else { '?' };
        let client = redis::Client::open(format!("{url}{separator}protocol=resp3"))?;
        let mut raw = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("SSUBSCRIBE").arg("raw:wake-up").exec_async(&mut raw).await?;
        let mut lines = std::io::stdin().lines();
        loop {
            println!("waiting");
            match how.as_str() {
                "raw" => hears.recv().await.ok_or("closed")?,
                _ => drop(event.wait().await?),
            }
            println!("{}", micros_now());
            if lines.next().is_none() {
                return Ok(());
            }
        }
    })
}

/// The median of two script calls that take and free a key, in microseconds.
async fn raw_turn(url: &str) -> Result<f64> {
    let mut connection = connect(url).await?;
    let take = redis::Script::new("return redis.call('SET', KEYS[1], ARGV[1], 'NX')");
    let free = redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end",
    );
    let mut took = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        take.key("raw:lock").arg("me").invoke_async::<Option<String>>(&mut connection).await?;
        free.key("raw:lock").arg("me").invoke_async::<Option<u32>>(&mut connection).await?;
        took.push(began.elapsed());
    }
    Ok(percentiles(&took).0 * 1e3)
}

/// The median of taking and releasing a lock that nobody else wants.
async fn turn(url: &str) -> Result<f64> {
    let fleet = Fleet::open(url, "turn")?.join().start().await?;
    let lock = fleet.lock("turn")?;
    let mut took = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        lock.acquire().await?.release().await?;
        took.push(began.elapsed());
    }
    fleet.stop();
    fleet.stopped().await;
    Ok(percentiles(&took).0 * 1e3)
}

async fn raw_trip(url: &str) -> Result<f64> {
    let mut connection = connect(url).await?;
    let mut took = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        redis::cmd("PING").exec_async(&mut connection).await?;
        took.push(began.elapsed());
    }
    Ok(percentiles(&took).0 * 1e3)
}

/// The median time from a release to the next holder, with a hundred sessions that want the lock.
async fn hand_over(url: &str) -> Result<f64> {
    let mut fleets = Vec::new();
    for _ in 0..CONTENDERS {
        fleets.push(Fleet::open(url, "hand-over")?.join().start().await?);
    }
    let released = Arc::new(Mutex::new(None::<Instant>));
    let took = Arc::new(Mutex::new(Vec::new()));
    let mut all = JoinSet::new();
    for fleet in &fleets {
        let (lock, released, took) = (fleet.lock("hand-over")?, released.clone(), took.clone());
        all.spawn(async move {
            loop {
                let guard = lock.acquire().await?;
                let now = Instant::now();
                {
                    let mut took = took.lock().expect("never poisoned");
                    if let Some(released) = *released.lock().expect("never poisoned") {
                        took.push(now - released);
                    }
                    if took.len() >= HAND_OVERS {
                        return Ok::<(), artel::Error>(());
                    }
                }
                // Long enough that the others sleep.
                tokio::time::sleep(Duration::from_millis(1)).await;
                *released.lock().expect("never poisoned") = Some(Instant::now());
                guard.release().await?;
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    for fleet in fleets {
        fleet.stop();
        fleet.stopped().await;
    }
    let took = took.lock().expect("never poisoned");
    Ok(percentiles(&took).0 * 1e3)
}
