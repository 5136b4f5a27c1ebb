//! Artel, used through its public library as in its own benchmark.

use std::time::Duration;

use artel::{Config, Context, Fleet, Message, Outcome};

use crate::load::{Ear, LOOPS, Ran, Result};

const FLEET: &str = "queue-peers";
/// Messages in one call.
const BATCH: usize = 1000;

pub(crate) async fn fill(url: &str, count: usize) -> Result<Duration> {
    artel_measure::send(url, FLEET, count, BATCH).await
}

pub(crate) async fn work(url: &str, count: usize) -> Result<Ran> {
    let took = artel_measure::drain(url, FLEET, count, 0).await?;
    let books = Fleet::connect(url, FLEET).await?.status().await?.messages;
    if !books.is_settled() || books.failed > 0 || books.returned > 0 {
        return Err(format!("the books do not say that all is done once: {books:?}").into());
    }
    Ok(Ran::here(took, usize::try_from(books.done)?))
}

pub(crate) async fn latency(url: &str) -> Result<Vec<Duration>> {
    let (ear, heard) = Ear::open();
    let mut config = Config::default();
    config.concurrency = LOOPS;
    let listener = ear.clone();
    let handle = move |message: Message, _: Context| {
        listener.hear(message.payload());
        async { Outcome::done() }
    };
    let worker = Fleet::open(url, FLEET)?.join().config(config).handle(handle).start().await?;
    let sender = Fleet::connect(url, FLEET).await?.sender();
    let send = move |payload: String| {
        let sender = sender.clone();
        async move {
            sender.send(payload.into_bytes()).await?;
            Ok(())
        }
    };
    let latencies = ear.listen(heard, send).await;
    worker.shutdown().await;
    latencies
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use artel_measure::payloads;
    use artel_rig::{Kind, Server};

    use super::*;

    /// The benchmark trusts the books of Artel; here a handler counts every payload itself.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_payload_reaches_a_handler_as_often_as_it_was_sent() {
        let (server, count) = (Server::with(Kind::Redis, &["--appendonly", "no"]), 200_000);
        fill(&server.url(), count).await.unwrap();
        let seen = Arc::new(Mutex::new((0, HashMap::<Vec<u8>, usize>::new())));
        let noted = seen.clone();
        let handle = move |message: Message, _: Context| {
            let mut seen = noted.lock().unwrap();
            seen.0 += 1;
            *seen.1.entry(message.payload().to_vec()).or_default() += 1;
            async { Outcome::done() }
        };
        let fleet = Fleet::open(server.url(), FLEET).unwrap();
        let worker = fleet.join().handle(handle).start().await.unwrap();
        while seen.lock().unwrap().0 < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        worker.shutdown().await;
        let seen = seen.lock().unwrap();
        let mut sent = HashMap::<Vec<u8>, usize>::new();
        for payload in payloads().take(count / LOOPS) {
            *sent.entry(payload.to_vec()).or_default() += LOOPS;
        }
        assert_eq!(seen.0, count);
        assert!(seen.1 == sent, "some payload came more or less often than it was sent");
    }
}
