//! A configuration reload that reaches every node, on the connection each member has anyway; and
//! only one of them, under a lock, tells the outside world about it.
//!
//! Start `cargo run --example reload -- redis://127.0.0.1:6379` several times, then:
//! `artel event set reload --ttl 1s`.
#![allow(clippy::print_stderr)]

use std::time::Duration;

use artel::{Context, Fleet, Message, Outcome, Tick};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let fleet = Fleet::connect(address, "artel").await?;
    let member = fleet
        .join()
        .generate(|tick: Tick| async move { format!("order {}", tick.seq) })
        .handle(|_: Message, _: Context| async { Outcome::done() })
        .start()
        .await?;
    let reload = fleet.event("reload")?;
    let tells = member.lock("tell-about-reload")?;
    let mut seen = reload.state().await?.generation;
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    eprintln!("running");
    loop {
        tokio::select! {
            generation = reload.wait_past(seen) => {
                seen = generation?;
                eprintln!("reloaded");
                // Whoever is first holds it for a moment; the others need not tell it again.
                if let Some(guard) = tells.try_acquire().await? {
                    eprintln!("told everybody else");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    guard.release().await?;
                }
            }
            _ = &mut stop => break,
        }
    }
    member.shutdown().await;
    Ok(())
}
