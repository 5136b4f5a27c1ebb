//! Measures a fleet on a private server, or on a given one: throughput, latency, failover, recovery, wake-ups, memory, and
//! what all of it costs client and server.
//!
//! **Invariant:** a server that is in use is not touched unless the caller insists. What is measured goes through the
//! public library and real processes, as anybody would use them.

mod failover;
mod flow;
mod latency;
mod load;
mod plot;
mod report;
mod signals;

use std::path::PathBuf;
use std::time::Duration;

use artel::Fleet;
use artel_rig::PrivateServer;
pub use artel_rig::Target;

pub use failover::{Cause, Role, play};
pub use flow::{SLOTS, drain, generate, send};
pub use load::{BYTES, Clock, Gauge, own_cpu, payloads};
pub use plot::svg;
pub use report::{Failover, Latency, Point, Report, Spread, Throughput, Times, Way};

/// What anything here may fail with.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How a private server writes to disk, and the options for it.
const DISK: [(&str, [&str; 4]); 3] = [
    ("off", ["--appendonly", "no", "--appendfsync", "no"]),
    ("everysec", ["--appendonly", "yes", "--appendfsync", "everysec"]),
    ("always", ["--appendonly", "yes", "--appendfsync", "always"]),
];
/// Messages in one batch.
const BATCHES: [usize; 2] = [1000, 100];
/// Messages that wait while the memory is read.
const WAITING: usize = 100_000;
const RATES: [u32; 2] = [200, 5_000];

/// What to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// Messages in and out.
    Throughput,
    /// Bytes per waiting message.
    Memory,
    /// From send to handler start.
    Latency,
    /// The generator ends.
    Failover,
    /// A worker dies.
    Recovery,
    /// Events and locks.
    Signals,
}

impl Part {
    /// All of them, in their order.
    pub const ALL: [Part; 6] = [
        Part::Throughput,
        Part::Memory,
        Part::Latency,
        Part::Failover,
        Part::Recovery,
        Part::Signals,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Throughput => "throughput",
            Part::Memory => "memory",
            Part::Latency => "latency",
            Part::Failover => "failover",
            Part::Recovery => "recovery",
            Part::Signals => "signals",
        }
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that plays members: `artel` itself.
    pub program: PathBuf,
    /// Where.
    pub target: Target,
    /// A folder for private servers.
    pub dir: PathBuf,
    /// What.
    pub parts: Vec<Part>,
    /// How often each figure is measured.
    pub rounds: usize,
    /// Messages per round of throughput.
    pub messages: usize,
    /// How long messages are sent at each rate.
    pub time: Duration,
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum Trouble {
    /// The server holds data.
    InUse {
        /// How many keys.
        keys: u64,
    },
    /// A step failed.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Trouble {
    fn from(error: E) -> Trouble {
        Trouble::Failed(error.into())
    }
}

/// Measures everything. `tell` is told before each step what it is, and which of how many.
pub async fn run(
    options: &Options,
    mut tell: impl FnMut(&str, usize, usize),
) -> std::result::Result<Report, Trouble> {
    let servers = Servers::start(options)?;
    let mut gauge = Gauge::open(&servers.url)?;
    let keys = gauge.keys()?;
    if keys > 0 && !matches!(&options.target, Target::Given { anyway: true, .. }) {
        return Err(Trouble::InUse { keys });
    }
    let mut run = Run {
        options,
        url: servers.url.clone(),
        fleets: Vec::new(),
        report: Report {
            v: 1,
            server: gauge.server()?,
            cores: std::thread::available_parallelism()?.get(),
            rounds: options.rounds,
            payload_bytes: BYTES,
            throughput: Vec::new(),
            latency: Vec::new(),
            failover: Vec::new(),
            recovery: None,
            wake_up: None,
            lock: None,
            memory: None,
        },
    };
    for (index, part) in options.parts.iter().enumerate() {
        tell(part.name(), index, options.parts.len());
        let measured = run.measure(*part, &servers, &mut gauge).await;
        // Nothing stays behind on a server of somebody else.
        let cleaned = run.clean().await;
        measured?;
        cleaned?;
    }
    Ok(run.report)
}

/// The servers to measure on: one of each way of writing to disk, or the given one.
struct Servers {
    url: String,
    by_disk: Vec<(String, String)>,
    _private: Vec<PrivateServer>,
}

impl Servers {
    fn start(options: &Options) -> Result<Servers> {
        let program = match &options.target {
            Target::Given { url, .. } => {
                let disk = Gauge::open(url)?.append_only().unwrap_or_else(|_| "unknown".into());
                let by_disk = vec![(disk, url.clone())];
                return Ok(Servers { url: url.clone(), by_disk, _private: Vec::new() });
            }
            Target::Private(program) => program,
        };
        let (mut servers, mut by_disk) = (Vec::new(), Vec::new());
        for (name, args) in DISK {
            let dir = options.dir.join(name);
            std::fs::create_dir_all(&dir)?;
            let server = PrivateServer::start_with(program, &dir, &args, None, true)?;
            by_disk.push((name.to_owned(), server.url()));
            servers.push(server);
        }
        Ok(Servers { url: servers[0].url(), by_disk, _private: servers })
    }
}

/// One run.
struct Run<'a> {
    options: &'a Options,
    url: String,
    /// The fleets of this step, each with the server it is on.
    fleets: Vec<(String, String)>,
    report: Report,
}

impl Run<'_> {
    async fn measure(&mut self, part: Part, servers: &Servers, gauge: &mut Gauge) -> Result<()> {
        let (url, rounds) = (self.url.clone(), self.options.rounds);
        match part {
            Part::Throughput => {
                for (disk, url) in &servers.by_disk {
                    for batch in BATCHES {
                        let measured = self.throughput(disk, url, batch).await?;
                        self.report.throughput.push(measured);
                    }
                }
            }
            Part::Memory => {
                let mut bytes = Vec::new();
                for _ in 0..rounds {
                    let fleet = self.fleet(&url, "memory");
                    let before = gauge.memory()?;
                    generate(&url, &fleet, WAITING, BATCHES[0]).await?;
                    let each = (gauge.memory()? - before) / WAITING as f64;
                    bytes.push(each - BYTES as f64);
                    self.clean().await?;
                }
                self.report.memory = Some(Spread::of(bytes));
            }
            Part::Latency => {
                for rate in RATES {
                    let fleet = self.fleet(&url, &format!("latency-{rate}"));
                    let time = self.options.time;
                    self.report.latency.push(latency::latency(&url, &fleet, rate, time).await?);
                }
            }
            Part::Failover => {
                for cause in Cause::ALL {
                    let fleet = self.fleet(&url, &format!("failover-{cause:?}"));
                    let program = &self.options.program;
                    let times =
                        failover::failover(program, &url, &fleet, cause, rounds + 2).await?;
                    self.report.failover.push(Failover { cause, times });
                }
            }
            Part::Recovery => {
                let fleet = self.fleet(&url, "recovery");
                let program = &self.options.program;
                let times = failover::recovery(program, &url, &fleet, rounds + 2).await?;
                self.report.recovery = Some(times);
            }
            Part::Signals => {
                let fleet = self.fleet(&url, "signals");
                let times = 100 * rounds;
                self.report.wake_up = Some(signals::wake_up(&url, &fleet, times).await?);
                self.report.lock = Some(signals::hand_over(&url, &fleet, times).await?);
            }
        }
        Ok(())
    }

    async fn throughput(&mut self, disk: &str, url: &str, batch: usize) -> Result<Throughput> {
        let mut gauge = Gauge::open(url)?;
        let messages = self.options.messages;
        let (mut sent, mut handled) = (Ways::default(), Ways::default());
        // The first round only fills caches.
        for round in 0..=self.options.rounds {
            let fleet = self.fleet(url, "throughput");
            let into = Ways::measure(&mut gauge, messages, send(url, &fleet, messages, batch));
            let into = into.await?;
            let out = Ways::measure(&mut gauge, messages, drain(url, &fleet, messages, 0)).await?;
            if round > 0 {
                sent.0.push(into);
                handled.0.push(out);
            }
            self.clean().await?;
        }
        let append_only = disk.to_owned();
        Ok(Throughput { append_only, batch, sent: sent.way(), handled: handled.way() })
    }

    /// The name of a fleet that nobody else has. It is removed after the step.
    fn fleet(&mut self, url: &str, what: &str) -> String {
        let name = format!("artel-bench-{}-{}", std::process::id(), what.to_lowercase());
        self.fleets.push((url.to_owned(), name.clone()));
        name
    }

    async fn clean(&mut self) -> Result<()> {
        for (url, name) in std::mem::take(&mut self.fleets) {
            remove(&url, &name).await?;
        }
        Ok(())
    }
}

/// Removes a fleet. A member that was killed is in it until it is judged dead.
async fn remove(url: &str, name: &str) -> Result<()> {
    let fleet = Fleet::open(url, name)?;
    let end = std::time::Instant::now() + flow::PATIENCE;
    loop {
        match fleet.remove().await {
            Ok(_) => return Ok(()),
            Err(artel::Error::InUse { .. }) if std::time::Instant::now() < end => {
                // An observer judges the dead, and leaves.
                let observer = fleet.join().start().await?;
                tokio::time::sleep(Duration::from_millis(200)).await;
                observer.shutdown().await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Rate, CPU of the server, own CPU and commands, a row per round.
#[derive(Default)]
struct Ways(Vec<[f64; 4]>);

impl Ways {
    /// What this many messages one way cost both processes. A member's coming and going is in the CPU times, not in the
    /// rate.
    async fn measure(
        gauge: &mut Gauge,
        messages: usize,
        run: impl Future<Output = Result<Duration>>,
    ) -> Result<[f64; 4]> {
        let (server, own, commands) = (gauge.cpu()?, own_cpu(), gauge.commands()?);
        let took = run.await?;
        let count = messages as f64;
        let commands = (gauge.commands()? - commands) as f64;
        let server = gauge.cpu()?.saturating_sub(server).as_secs_f64() * 1e6;
        let own = own_cpu().saturating_sub(own).as_secs_f64() * 1e6;
        Ok([count / took.as_secs_f64(), server / count, own / count, commands / count])
    }

    fn way(&self) -> Way {
        let column = |at: usize| Spread::of(self.0.iter().map(|row| row[at]).collect());
        Way {
            per_s: column(0),
            server_cpu_us: column(1),
            own_cpu_us: column(2),
            commands: column(3),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
