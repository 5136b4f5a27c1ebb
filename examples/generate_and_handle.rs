//! One elected copy makes orders, all others share them. Start it several times, and kill one.
//!
//! `cargo run --example generate_and_handle -- redis://127.0.0.1:6379`

use artel::{Context, Fleet, Message, Outcome, Tick};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let fleet = Fleet::connect(redis, "orders").await?;
    let member = fleet
        .join()
        .generate(|tick: Tick| async move { format!("order {}", tick.seq) })
        .handle(|order: Message, context: Context| async move {
            tracing::info!(id = %context.id, attempt = context.attempt, "{}", order.text());
            if order.payload().ends_with(b"7") {
                Outcome::failed("sevens are sold out")
            } else {
                Outcome::done()
            }
        })
        .start()
        .await?;
    member.run_until(tokio::signal::ctrl_c()).await?;
    Ok(())
}
