//! The program of the README, word for word.

use artel::{Context, Effect, Fleet, Message, Outcome, Tick};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".into());
    let fleet = Fleet::connect(redis, "orders").await?;
    let member = fleet
        .join()
        // Called in one process of the fleet at a time, every 500 ms; numbers begin anew with a term.
        .generate(|tick: Tick| async move { format!("order {}-{}", tick.term, tick.seq) })
        // Called in all the others.
        .handle(|order: Message, context: Context| async move {
            match order.text().strip_prefix("order ") {
                // Written together with the outcome: exactly once, whatever is killed.
                Some(_) => Outcome::done().with(Effect::incr_by("orders", 1)),
                None => Outcome::failed(format!("{} is no order", context.id)),
            }
        })
        .start()
        .await?;
    let second = tokio::time::sleep(std::time::Duration::from_secs(1));
    member.run_until(second).await; // or tokio::signal::ctrl_c()
    Ok(())
}
