//! Plays one part in a test with real processes: `actor ROLE URL …`. It tells on stdout what it does,
//! a line each, and ends when its part is over or somebody kills it.
#![allow(missing_docs, clippy::print_stdout)]

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use artel::{Config, Error, Fleet, GuardedScript};

const FLEET: &str = "actors";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| words.get(at).map(String::as_str).unwrap_or_default();
    let number = |at: usize| word(at).parse::<u32>().expect("a number");
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match word(0) {
            "wait" => wait(word(1), number(2)).await,
            "lock" => lock(word(1), word(2), number(3)).await,
            "semaphore" => semaphore(word(1), word(2), number(3), number(4)).await,
            "latch" => latch(word(1), word(2)).await,
            "barrier" => barrier(word(1), word(2), number(3), number(4)).await,
            other => panic!("no role {other:?}"),
        }
    })?;
    Ok(())
}

async fn join(url: &str, lease: Duration) -> Result<artel::Member, Error> {
    let mut config = Config::default();
    config.lease = Some(lease);
    config.label = std::process::id().to_string();
    Fleet::open(url, FLEET).expect("an address").join().config(config).start().await
}

/// One write per line, so that lines of several processes never mix.
fn append(path: &str, line: &str) {
    let mut file = File::options().create(true).append(true).open(path).expect("a file");
    file.write_all(format!("{line}\n").as_bytes()).expect("writes");
}

/// Waits for the same event again and again.
async fn wait(url: &str, rounds: u32) -> Result<(), Error> {
    tracing::subscriber::set_global_default(Waiting).expect("the first");
    let redis = Fleet::open(url, FLEET)?;
    let event = redis.event("pulse")?;
    let event = event.reread_every(Duration::from_secs(3600))?;
    for round in 0..rounds {
        assert!(event.wait().await?);
        println!("woken {round}");
    }
    Ok(())
}

/// Takes the lock again and again, and writes its token to a list in Redis, guarded, and to a file.
async fn lock(url: &str, path: &str, lease_ms: u32) -> Result<(), Error> {
    let fleet = join(url, Duration::from_millis(lease_ms.into())).await?;
    let lock = fleet.lock("ledger")?;
    let write = GuardedScript::new(
        "local t = redis.call('TIME')
         return redis.call('RPUSH', KEYS[1], string.format('%s %.0f', ARGV[1], t[1] * 1000 + t[2] / 1000))",
    )?;
    println!("joined");
    loop {
        let guard = lock.acquire().await?;
        let token = guard.token().to_string();
        for _ in 0..5 {
            let list = format!("artel:{{{FLEET}}}:data:ledger");
            match guard.run(&write, &[list], &[&token]).await {
                Ok(_) if guard.is_held() => append(path, &token),
                Ok(_) => {}
                Err(error) if error.is_not_held() => {
                    println!("refused {token}");
                    break;
                }
                Err(_) => println!("unheard {token}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        match guard.release().await {
            Err(error) if error.is_not_held() => println!("lost {token}"),
            _ => {}
        }
    }
}

/// Goes in and out as often as it is told.
async fn semaphore(url: &str, path: &str, permits: u32, rounds: u32) -> Result<(), Error> {
    let fleet = join(url, Duration::from_secs(2)).await?;
    let semaphore = fleet.semaphore("exports", permits)?;
    for round in 0.. {
        let permit = semaphore.acquire().await?;
        append(path, "in");
        println!("in {round}");
        if round == rounds {
            // Until somebody kills it.
            std::future::pending::<()>().await;
        }
        append(path, "out");
        permit.release().await?;
    }
    Ok(())
}

async fn latch(url: &str, what: &str) -> Result<(), Error> {
    let latch = Fleet::open(url, FLEET)?.latch("imported", 3)?;
    match what {
        "wait" => {
            println!("waiting");
            latch.wait().await?;
            println!("open");
        }
        _ => println!("left {}", latch.count_down().await?),
    }
    Ok(())
}

/// Goes through the same barrier again and again.
async fn barrier(url: &str, path: &str, parties: u32, rounds: u32) -> Result<(), Error> {
    let fleet = join(url, Duration::from_secs(2)).await?;
    let barrier = fleet.barrier("start", parties)?;
    for round in 0..rounds {
        append(path, &format!("arrives {round}"));
        println!("arrives {round}");
        barrier.wait().await?;
        append(path, &format!("through {round}"));
    }
    Ok(())
}

/// Tells on stdout when the library says that it waits.
struct Waiting;

impl tracing::Subscriber for Waiting {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("artel") && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(bool);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "message" && format!("{value:?}") == "waiting";
            }
        }
        let mut message = Message(false);
        event.record(&mut message);
        if message.0 {
            println!("waiting");
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
