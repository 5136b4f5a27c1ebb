//! Artel's side of the latency: ordinary members, used as anybody would, measured from outside.

use std::time::Duration;

use artel::{Config, Context, Fleet, Member, Message, NewMessage, Outcome, Tick};

use crate::load::{Clock, LOOPS, PACE, Result, SAMPLES, WARM_UP};

/// After this long a run has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// From inside the generator's closure to the start of the handler, in another member.
pub async fn latency(url: &str, fleet: &str) -> Result<Vec<Duration>> {
    let clock = Clock::start();
    let (heard, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let mut config = Config::default();
    config.concurrency = LOOPS;
    config.interval = PACE;
    config.messages_max = Some((WARM_UP + SAMPLES) as u64);
    // Each over connections of its own, as in processes of their own.
    let builder = || Ok::<_, artel::Error>(Fleet::open(url, fleet)?.join().config(config.clone()));
    let handle = move |message: Message, _: Context| {
        let _ = heard.send(clock.since(message.payload()));
        async { Outcome::done() }
    };
    let worker = builder()?.handle(handle).start().await?;
    let generate = move |_: Tick| async move { NewMessage::from(clock.stamp()) };
    let generator = builder()?.generate(generate).start().await?;
    let mut latencies = Vec::with_capacity(WARM_UP + SAMPLES);
    while latencies.len() < WARM_UP + SAMPLES {
        let next = tokio::time::timeout(PATIENCE, hear.recv()).await?;
        latencies.push(next.ok_or("the worker is gone")??);
    }
    stop([generator, worker]).await;
    Ok(latencies)
}

/// Ends members in this order, and waits until they have left.
pub async fn stop(members: impl IntoIterator<Item = Member>) {
    for member in members {
        member.stop();
        member.stopped().await;
    }
}
