//! What watching costs: log, metrics, archive and three rules, beside the same run without them; and one scrape.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use artel::{Fleet, NewMessage};
use artel_rig::{Kind, Program, Server};

use artel_bench::load::{Gauge, Result, payloads};

use crate::report::{Goal, Series, Table};

const FLEET: &str = "watched";
/// Scrapes that are measured.
const SCRAPES: u32 = 500;
/// After this long a run has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the members do, and how many messages make a measurement.
struct Load {
    name: &'static str,
    messages: usize,
    options: Vec<String>,
    goal: Goal,
    plain: Series,
    watched: Series,
    /// Without the archive.
    light: Series,
}

/// Measures all of it, and prints it. Are all goals met?
pub(crate) async fn run(rounds: usize) -> Result<bool> {
    let program = std::env::var("ARTEL_PROGRAM")
        .map_err(|_| "set ARTEL_PROGRAM to the program, as `./dev bench` does")?;
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut gauge = Gauge::open(&server.url())?;
    let own = std::env::current_exe()?.display().to_string();
    let load = |name, messages, options: &[&str], goal| Load {
        name,
        messages,
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        goal,
        plain: Series::default(),
        watched: Series::default(),
        light: Series::default(),
    };
    let handler = format!("{own} --as-handler");
    let lines = ["--handler", &handler, "--handler-mode", "lines"];
    let mut loads = [
        load(
            "handlers of 1 ms, 64 slots, /s",
            60_000,
            &["--work-time", "1ms", "--concurrency", "64"],
            Goal::RatioAtLeast(0.9),
        ),
        load("handler lines, compiled, /s", 100_000, &lines, Goal::RatioAtLeast(0.9)),
        load("built-in handler, flat out, /s", 900_000, &[], Goal::None),
    ];
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for load in &mut loads {
            for watch in [Watch::Nothing, Watch::Light, Watch::All] {
                gauge.flush()?;
                let rate = load.measure(&program, &server, watch).await?;
                match watch {
                    Watch::Nothing => load.plain.push(rate),
                    Watch::Light => load.light.push(rate),
                    Watch::All => load.watched.push(rate),
                }
            }
        }
    }
    gauge.flush()?;
    let (cpu, wall, calls) = scrapes(&program, &server, &mut gauge).await?;
    let cores = std::thread::available_parallelism()?;
    println!("{}, {cores} cores, rounds: {rounds}; median (min..max)\n", gauge.server()?);
    let mut table = Table::new(["", "plain", "watched", "watched / plain", "goal"]);
    for load in &loads {
        table.compare(load.name, &load.plain, &load.watched, load.goal);
        table.compare("  the same without the archive", &load.plain, &load.light, Goal::None);
    }
    table.alone("one scrape: CPU of the member, ms", &vec![cpu].into(), Goal::AtMost(2.0));
    table.alone("one scrape: until it is answered, ms", &vec![wall].into(), Goal::None);
    table.alone("one scrape: scripts of Redis", &vec![calls].into(), Goal::AtMost(1.0));
    print!("{}", table.show());
    Ok(table.met())
}

#[derive(Clone, Copy)]
enum Watch {
    Nothing,
    Light,
    All,
}

impl Load {
    /// Messages a second, from the first outcome to the last.
    async fn measure(&self, program: &str, server: &Server, watch: Watch) -> Result<f64> {
        let fleet = Fleet::connect(server.url(), FLEET).await?;
        let sender = fleet.sender();
        let all: Vec<NewMessage> =
            payloads().take(1000).map(|bytes| bytes.to_vec().into()).collect();
        for _ in 0..self.messages / 1000 {
            sender.send_all(&all).await?;
        }
        let dir = std::env::temp_dir().join(format!("artel-bench-watch-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        let (url, log, archive) = (
            server.url(),
            dir.join("log").display().to_string(),
            format!("sqlite:{}", dir.join("archive.db").display()),
        );
        let mut args = vec!["work", "--fleet", FLEET, "--redis", &url, "--error-rate", "0"];
        args.extend(self.options.iter().map(String::as_str));
        if !matches!(watch, Watch::Nothing) {
            args.extend(["--log-file", &log, "--http", "0", "--alert", "member_lost"]);
            args.extend(["--alert", "error_ratio > 0.5", "--alert", "backlog_age > 1h"]);
        }
        if matches!(watch, Watch::All) {
            args.extend(["--archive", &archive]);
        }
        let member = Program::start(program, &args);
        let begun = Instant::now();
        let mut first = None;
        let rate = loop {
            let done = fleet.status().await?.messages.done as usize;
            let now = Instant::now();
            if done > 0 && first.is_none() {
                first = Some((now, done));
            }
            if let Some((at, before)) = first.filter(|_| done >= self.messages) {
                break (self.messages - before) as f64 / now.duration_since(at).as_secs_f64();
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("no end after {PATIENCE:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        drop(member);
        let _ = std::fs::remove_dir_all(&dir);
        Ok(rate)
    }
}

/// What one scrape costs the member that tells the numbers of the fleet, how long it takes, and how many scripts it calls.
async fn scrapes(program: &str, server: &Server, gauge: &mut Gauge) -> Result<(f64, f64, f64)> {
    let url = server.url();
    let args = ["run", "--fleet", FLEET, "--redis", &url, "--http", "0", "--interval", "1h"];
    let member = Program::start(program, &args);
    let line = member.says("http://");
    let port = line.rsplit(':').next().map(|rest| rest.chars().take_while(char::is_ascii_digit));
    let port: u16 = port.map(String::from_iter).unwrap_or_default().parse()?;
    member.says("this process leads");
    scrape(port)?;
    let cpu = || cpu_of(member.id());
    let (idle_cpu, idle_calls, begun) = (cpu()?, gauge.commands()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = begun.elapsed().as_secs_f64();
    let (idle_cpu, idle_calls) =
        ((cpu()? - idle_cpu) / idle, (gauge.commands()? - idle_calls) as f64 / idle);
    let (cpu_before, calls_before, begun) = (cpu()?, gauge.commands()?, Instant::now());
    for _ in 0..SCRAPES {
        scrape(port)?;
    }
    let took = begun.elapsed().as_secs_f64();
    let each = |all: f64, idle: f64| ((all - idle * took) / f64::from(SCRAPES)).max(0.0);
    Ok((
        each(cpu()? - cpu_before, idle_cpu) * 1e3,
        took / f64::from(SCRAPES) * 1e3,
        each((gauge.commands()? - calls_before) as f64, idle_calls),
    ))
}

fn scrape(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    match page.contains("artel_fleet_waiting") {
        true => Ok(()),
        false => Err(format!("no numbers of the fleet: {page}").into()),
    }
}

/// Seconds of CPU that a process has used.
fn cpu_of(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / 100.0)
}
