//! What delays and retries cost Redis, how late they are, and how long Redis is busy when a million messages are due at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use artel::{Config, Context, Fleet, Member, Message, NewMessage, Outcome};
use artel_rig::{Kind, Server};

use artel_bench::load::{BYTES, Gauge, LOOPS, Result};
use artel_bench::member::stop;

use crate::growth::Calls;
use crate::report::{Goal, Series, Table};

/// Messages at one point.
const MESSAGES: usize = 50_000;
/// Messages that are due at the same moment.
const MANY: usize = 1_000_000;
/// Messages in one call.
const BATCH: usize = 500;
/// How long messages wait while their lateness is measured, how many come a second, and for how long.
const DELAY: Duration = Duration::from_secs(2);
const PER_SECOND: usize = 1_000;
const SECONDS: usize = 5;
/// After this long a step has failed.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is measured, a value per round each.
#[derive(Default)]
struct Figures {
    post_us: Series,
    promote_us: Series,
    delayed_us: Series,
    retry_us: Series,
    memory: Series,
    late_p50: Series,
    late_p99: Series,
    longest: Series,
    together: Series,
}

/// Measures all of it, and prints it. Are all goals met?
pub(crate) async fn run(rounds: usize) -> Result<bool> {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut bench = Bench { url: server.url(), gauge: Gauge::open(&server.url())? };
    let mut figures = Figures::default();
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        let mut now = Figures::default();
        bench.delayed(&mut now).await?;
        bench.retried(&mut now).await?;
        bench.lateness(&mut now).await?;
        if round > 0 {
            bench.together(&mut now).await?;
            figures.add(now);
        }
        // Round 0 only fills caches and loads scripts.
    }
    let cores = std::thread::available_parallelism()?;
    println!(
        "{}, {cores} cores, rounds: {rounds}, payloads of {BYTES} bytes, {BATCH} messages a call",
        bench.gauge.server()?
    );
    println!(
        "CPU of Redis per message beside fetch and settle, unless it says otherwise; median (min..max)\n"
    );
    let mut table = Table::new(["", "", "artel", "", "goal"]);
    table.alone("delayed: sending it, us", &figures.post_us, Goal::None);
    table.alone("delayed: letting it go, us", &figures.promote_us, Goal::None);
    table.alone("delayed, both, us", &figures.delayed_us, Goal::AtMost(8.0));
    table.alone("retried, with the second fetch, us", &figures.retry_us, Goal::AtMost(10.0));
    table.alone(
        "memory of a scheduled message beside its payload, bytes",
        &figures.memory,
        Goal::AtMost(300.0),
    );
    table.alone(
        &format!("late with {PER_SECOND} due a second, p50 ms"),
        &figures.late_p50,
        Goal::None,
    );
    table.alone(
        &format!("late with {PER_SECOND} due a second, p99 ms"),
        &figures.late_p99,
        Goal::AtMost(100.0),
    );
    table.alone(
        &format!("longest call while {MANY} are due at once, ms"),
        &figures.longest,
        Goal::AtMost(10.0),
    );
    table.alone("handled a second then", &figures.together, Goal::None);
    print!("{}", table.show());
    Ok(table.met())
}

impl Figures {
    fn add(&mut self, now: Figures) {
        for (all, one) in [
            (&mut self.post_us, now.post_us),
            (&mut self.promote_us, now.promote_us),
            (&mut self.delayed_us, now.delayed_us),
            (&mut self.retry_us, now.retry_us),
            (&mut self.memory, now.memory),
            (&mut self.late_p50, now.late_p50),
            (&mut self.late_p99, now.late_p99),
            (&mut self.longest, now.longest),
            (&mut self.together, now.together),
        ] {
            all.push(one.median());
        }
    }
}

struct Bench {
    url: String,
    gauge: Gauge,
}

fn payload(number: usize) -> NewMessage {
    let mut payload = number.to_string().into_bytes();
    payload.resize(BYTES, b'.');
    NewMessage::from(payload)
}

/// Sends this many messages, each as `make` wants it.
async fn send(fleet: &Fleet, count: usize, make: impl Fn(usize) -> NewMessage) -> Result<()> {
    for first in (0..count).step_by(BATCH) {
        let batch: Vec<NewMessage> = (first..count.min(first + BATCH)).map(&make).collect();
        fleet.sender().send_all(&batch).await?;
    }
    Ok(())
}

fn config() -> Config {
    let mut config = Config::default();
    config.concurrency = LOOPS;
    config.backlog_max = Some(2 * MANY);
    config
}

/// Waits until this is so.
async fn until(mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        if began.elapsed() > PATIENCE {
            return Err("it takes too long".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

impl Bench {
    /// The CPU time of Redis since `before`, in microseconds.
    fn spent(&mut self, before: Duration) -> Result<f64> {
        Ok((self.gauge.cpu()?.saturating_sub(before)).as_secs_f64() * 1e6)
    }

    /// A worker that runs this for every message, and how often it was called.
    async fn worker<O>(
        &self,
        fleet: &str,
        run: impl Fn(&Message) -> O + Clone + Send + Sync + 'static,
    ) -> Result<(Member, Arc<AtomicU64>)>
    where
        O: Into<Outcome> + Send,
    {
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let handle = move |message: Message, _: Context| {
            counted.fetch_add(1, Ordering::Relaxed);
            let outcome: Outcome = run(&message).into();
            async move { outcome }
        };
        let joining = Fleet::open(&*self.url, fleet)?.join().config(config());
        Ok((joining.handle(handle).start().await?, calls))
    }

    /// Sent for later, and let go by a member that does nothing else.
    async fn delayed(&mut self, now: &mut Figures) -> Result<()> {
        self.gauge.flush()?;
        let observer = Fleet::open(&*self.url, "delayed")?.join().config(config());
        let fleet = Fleet::connect(&*self.url, "delayed").await?;
        let empty = self.gauge.memory()?;
        let before = self.gauge.cpu()?;
        let due = SystemTime::now() + Duration::from_secs(5);
        send(&fleet, MESSAGES, |number| payload(number).at(due)).await?;
        let post = self.spent(before)? / MESSAGES as f64;
        now.post_us.push(post);
        now.memory.push((self.gauge.memory()? - empty) / MESSAGES as f64 - BYTES as f64);
        let left = due.duration_since(SystemTime::now()).map_err(|_| "sending took too long")?;
        tokio::time::sleep(left).await;
        let before = self.gauge.cpu()?;
        let observer = observer.start().await?;
        until(async || Ok(fleet.status().await?.messages.scheduled == 0)).await?;
        let promote = self.spent(before)? / MESSAGES as f64;
        now.promote_us.push(promote);
        now.delayed_us.push(post + promote);
        stop([observer]).await;
        Ok(())
    }

    /// Each message is retried once; beside that, the same messages that are done at once.
    async fn retried(&mut self, now: &mut Figures) -> Result<()> {
        let mut each = Vec::new();
        for retries in [false, true] {
            self.gauge.flush()?;
            let fleet = Fleet::connect(&*self.url, "retried").await?;
            send(&fleet, MESSAGES, payload).await?;
            let before = self.gauge.cpu()?;
            let (worker, calls) = self
                .worker("retried", move |message| match retries && message.retry() == 0 {
                    true => Outcome::retry("once").after(Duration::from_millis(100)),
                    false => Outcome::done(),
                })
                .await?;
            let wanted = MESSAGES as u64 * (1 + u64::from(retries));
            until(async || Ok(calls.load(Ordering::Relaxed) >= wanted)).await?;
            until(async || Ok(fleet.status().await?.messages.is_settled())).await?;
            each.push(self.spent(before)? / MESSAGES as f64);
            stop([worker]).await;
        }
        now.retry_us.push(each[1] - each[0]);
        Ok(())
    }

    /// Some are due at every moment: how late does the handler start?
    async fn lateness(&mut self, now: &mut Figures) -> Result<()> {
        self.gauge.flush()?;
        let (began, late) = (Instant::now(), Arc::new(std::sync::Mutex::new(Vec::new())));
        let noted = late.clone();
        let (worker, _) = self
            .worker("late", move |message| {
                let due = message.text().parse::<u64>().unwrap_or(0);
                let now = began.elapsed().as_micros() as u64;
                noted.lock().expect("ours").push(now.saturating_sub(due) as f64 / 1e3);
                Outcome::done()
            })
            .await?;
        let fleet = Fleet::connect(&*self.url, "late").await?;
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..SECONDS * 100 {
            ticks.tick().await;
            let due = (began.elapsed() + DELAY).as_micros();
            let batch: Vec<NewMessage> = (0..PER_SECOND / 100)
                .map(|_| NewMessage::from(due.to_string()).after(DELAY))
                .collect();
            fleet.sender().send_all(&batch).await?;
        }
        let count = SECONDS * PER_SECOND;
        until(async || Ok(late.lock().expect("ours").len() >= count)).await?;
        let mut late = late.lock().expect("ours").clone();
        late.sort_by(f64::total_cmp);
        now.late_p50.push(late[count / 2]);
        now.late_p99.push(late[count * 99 / 100]);
        stop([worker]).await;
        Ok(())
    }

    /// All of them at once: how long is Redis busy with one call?
    async fn together(&mut self, now: &mut Figures) -> Result<()> {
        self.gauge.flush()?;
        // The first member sets how many may wait.
        stop([Fleet::open(&*self.url, "together")?.join().config(config()).start().await?]).await;
        let fleet = Fleet::connect(&*self.url, "together").await?;
        let due = SystemTime::now() + Duration::from_secs(20);
        send(&fleet, MANY, |number| payload(number).at(due)).await?;
        let left = due.duration_since(SystemTime::now()).map_err(|_| "sending took too long")?;
        let (worker, calls) = self.worker("together", |_| Outcome::done()).await?;
        tokio::time::sleep(left.saturating_sub(Duration::from_millis(500))).await;
        let watched = Calls::watch(&self.url).await?;
        tokio::time::sleep(due.duration_since(SystemTime::now()).unwrap_or_default()).await;
        let began = Instant::now();
        until(async || Ok(calls.load(Ordering::Relaxed) >= MANY as u64)).await?;
        now.together.push(MANY as f64 / began.elapsed().as_secs_f64());
        now.longest.push(watched.longest_ms().await?);
        stop([worker]).await;
        Ok(())
    }
}
