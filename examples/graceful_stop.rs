//! Notices tell what happens; one call stops everything in the written order.
//!
//! `cargo run --example graceful_stop -- redis://127.0.0.1:6379` runs for two seconds.

use std::time::Duration;

use artel::{Context, Effect, Fleet, Message, Notice, Outcome, Tick};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let fleet = Fleet::connect(redis, "graceful").await?;
    let member = || {
        fleet
            .join()
            .generate(|tick: Tick| async move { format!("{}", tick.seq) })
            // The sum is written together with the outcome, so it is exact whatever is killed.
            .handle(|message: Message, _: Context| async move {
                match message.text().parse() {
                    Ok(n) => Outcome::done().with(Effect::incr_by("sum", n)),
                    Err(_) => Outcome::failed("not a number"),
                }
            })
    };
    let mut one = member().start().await?;
    let two = member().start().await?;
    let mut notices = one.notices();
    let listener = tokio::spawn(async move {
        let mut terms = 0;
        while let Some(notice) = notices.next().await {
            terms += usize::from(matches!(notice, Notice::BecameGenerator { .. }));
        }
        terms
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    for member in [one, two] {
        member.shutdown().await;
    }
    let status = fleet.status().await?;
    assert_eq!(status.messages.balance, 0);
    assert!(status.members.is_empty());
    let _terms_led = listener.await?;
    Ok(())
}
