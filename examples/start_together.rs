//! Several servers prepare a data job, and all of them start it at the same moment.
//!
//! Start `cargo run --example start_together -- redis://127.0.0.1:6379` on each of them, then give
//! the sign from anywhere: the same with `go` behind it, or `artel event set start-job`.
#![allow(clippy::print_stderr)]

use std::time::{Duration, SystemTime};

use artel::Fleet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let start = Fleet::open(address, "artel")?.event("start-job")?;
    if std::env::args().nth(2).as_deref() == Some("go") {
        // The sign is for those who wait now; who comes a minute later waits for the next one.
        start.set_for(Duration::from_secs(60)).await?;
        return Ok(());
    }
    eprintln!("ready");
    start.wait().await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    eprintln!("started at {:.3}", now.as_secs_f64());
    Ok(())
}
