//! What many members cost: real ones at rest, a generator that is killed, a look at the fleet; and for a thousand and more the
//! side of Redis alone.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Member, Message, Notice, Outcome, Role, Tick};
use artel_bench::load::{Gauge, Result};
use artel_bench::member::stop;
use artel_rig::{Kind, Server, scripts};

use crate::report::{Goal, Series, Table};

const FLEET: &str = "members";
const MEMBERS: [usize; 3] = [10, 100, 300];
const CALLS: [usize; 5] = [10, 100, 300, 1_000, 3_000];
/// How long members are left alone, and then watched.
const CALM: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_secs(5);
/// Calls of each kind.
const BATCH: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one size of a fleet costs.
#[derive(Default)]
struct Size {
    cpu: Series,
    commands: Series,
    takeover: Series,
    status: Series,
}

/// Generates nothing, and says so when it leads. The benchmark kills it.
pub(crate) fn be_generator() -> Result<()> {
    let url = std::env::args().nth(2).ok_or("url")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let mut member = member(&url).await?;
        let mut notices = member.notices();
        while let Some(notice) = notices.next().await {
            if matches!(notice, Notice::BecameGenerator { .. }) {
                println!("leads");
            }
        }
        Ok(())
    })
}

async fn member(url: &str) -> Result<Member> {
    let mut config = Config::default();
    config.messages_max = Some(1);
    let joining = Fleet::open(url, FLEET)?.join().config(config);
    let joining = joining.generate(|_: Tick| async { "the only one" });
    Ok(joining.handle(|_: Message, _: Context| async { Outcome::done() }).start().await?)
}

/// Measures all of it, and prints it. Are all goals met?
pub(crate) async fn run(rounds: usize) -> Result<bool> {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = Server::with(kind, &["--appendonly", "no"]);
    let mut gauge = Gauge::open(&server.url())?;
    let mut sizes = MEMBERS.map(|_| Size::default());
    let mut calls = CALLS.map(|_| [Series::default(), Series::default(), Series::default()]);
    for round in 1..=rounds {
        for (size, count) in sizes.iter_mut().zip(MEMBERS) {
            eprintln!("round {round} of {rounds}, {count} members");
            gauge.flush()?;
            size.measure(&server, &mut gauge, count).await?;
        }
        for (series, count) in calls.iter_mut().zip(CALLS) {
            gauge.flush()?;
            for (series, us) in series.iter_mut().zip(calls_of(&server, &mut gauge, count)?) {
                series.push(us);
            }
        }
    }
    let cores = std::thread::available_parallelism()?;
    println!("{}, {cores} cores, rounds: {rounds}; median (min..max)\n", gauge.server()?);
    let mut table = Table::new(["", "", "", "", ""]);
    for (size, count) in sizes.iter().zip(MEMBERS) {
        table.alone(&format!("{count} at rest: CPU of Redis, ms per s"), &size.cpu, Goal::None);
        table.alone(&format!("{count} at rest: commands/s"), &size.commands, Goal::None);
        table.alone(
            &format!("{count}: generator killed, another leads after ms"),
            &size.takeover,
            Goal::None,
        );
        table.alone(&format!("{count}: status, ms"), &size.status, Goal::None);
    }
    for (series, count) in calls.iter().zip(CALLS) {
        for (series, what) in series.iter().zip(["heartbeat", "look", "look with a rank"]) {
            table.alone(&format!("{count}: {what}, us of Redis"), series, Goal::None);
        }
    }
    print!("{}", table.show());
    Ok(table.met())
}

impl Size {
    async fn measure(&mut self, server: &Server, gauge: &mut Gauge, count: usize) -> Result<()> {
        let url = server.url();
        let mut generator = Command::new(std::env::current_exe()?)
            .args(["--as-generator", &url])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = generator.stdout.take().ok_or("no stdout")?;
        BufReader::new(out).lines().next().ok_or("it ended")??;
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(member(&url).await?);
        }
        tokio::time::sleep(CALM).await;
        let (cpu, commands) = (gauge.cpu()?, commands(server)?);
        tokio::time::sleep(WINDOW).await;
        let seconds = WINDOW.as_secs_f64();
        self.cpu.push((gauge.cpu()? - cpu).as_secs_f64() * 1e3 / seconds);
        self.commands.push((self::commands(server)? - commands) as f64 / seconds);
        let begun = Instant::now();
        members[0].fleet().status().await?;
        self.status.push(begun.elapsed().as_secs_f64() * 1e3);
        let killed = Instant::now();
        generator.kill()?;
        generator.wait()?;
        while !members.iter().any(|member| member.role() == Role::Generator) {
            if killed.elapsed() > PATIENCE {
                return Err("nobody leads".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.takeover.push(killed.elapsed().as_secs_f64() * 1e3);
        stop(members).await;
        Ok(())
    }
}

/// How many calls have travelled: scripts, and waits for work.
fn commands(server: &Server) -> Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect())?;
    let of = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(["evalsha", "blpop", "brpop", "blmove", "blmpop"].map(of).iter().sum())
}

/// What a heartbeat, a look and a look that counts ranks cost Redis in a fleet of this size, µs. Nobody is present, as behind a
/// proxy that hides it: members are judged by their deadlines.
fn calls_of(server: &Server, gauge: &mut Gauge, count: usize) -> Result<[f64; 3]> {
    let mut connection = server.connect();
    let key = |name: &str| format!("artel:{{{FLEET}}}:{name}");
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg(key("config")).arg(&["lease_ms", "600000", "grace_ms", "300"]).ignore();
    for n in 0..count {
        let id = format!("{n:024x}");
        pipe.cmd("ZADD").arg(key("members")).arg("9999999999999").arg(&id).ignore();
        pipe.cmd("SADD").arg(key("blind")).arg(&id).ignore();
    }
    let () = pipe.query(&mut connection)?;
    let scripts = scripts();
    let mut load = |name: &str| -> Result<String> {
        Ok(redis::cmd("SCRIPT").arg("LOAD").arg(&scripts[name]).query(&mut connection)?)
    };
    let (heartbeat, look) = (load("heartbeat")?, load("look")?);
    let keys_of = |names: &[&str]| names.iter().map(|name| key(name)).collect::<Vec<String>>();
    let me = format!("{:024x}", count / 2);
    let own = ["member:", "blocks:", "locks:", "@0:alive:"].map(|part| format!("{part}{me}"));
    let beat_keys = keys_of(&[
        "members", "lease", "watch", "orphans", &own[0], &own[1], &own[2], "term", "token",
        "config", "control", &own[3], "blind", "counts", "servers", "losses", "notices",
    ]);
    let look_keys = keys_of(&[
        "members",
        "watch",
        "suspects",
        "blind",
        "orphans",
        "@0:alive",
        "@0:ctl",
        "config",
        "scheduled",
        "resting",
        "control",
        "lease",
        "notices",
    ]);
    let beat = |pipe: &mut redis::Pipeline| {
        pipe.cmd("EVALSHA").arg(&heartbeat).arg(beat_keys.len()).arg(&beat_keys);
        pipe.arg(&[&*me, "600000", "0", "0", "60000", "0", "", "", "0", "0", "done", "1"]).ignore();
    };
    let looks = |pipe: &mut redis::Pipeline, ranked: &str| {
        // As if the last look were long enough ago.
        pipe.cmd("HINCRBY").arg(key("watch")).arg(&["looked", "-100"]).ignore();
        pipe.cmd("EVALSHA")
            .arg(&look)
            .arg(look_keys.len())
            .arg(&look_keys)
            .arg(&[&*me, ranked])
            .ignore();
    };
    let (all, one) = (count.to_string(), "1".to_owned());
    let mut measure = |each: &dyn Fn(&mut redis::Pipeline)| -> Result<f64> {
        let mut pipe = redis::pipe();
        (0..BATCH).for_each(|_| each(&mut pipe));
        let before = gauge.cpu()?;
        let () = pipe.query(&mut server.connect())?;
        Ok((gauge.cpu()? - before).as_secs_f64() * 1e6 / BATCH as f64)
    };
    // The first look only begins to watch.
    measure(&|pipe| looks(pipe, &all))?;
    Ok([measure(&beat)?, measure(&|pipe| looks(pipe, &all))?, measure(&|pipe| looks(pipe, &one))?])
}
