//! Many messages, in and out, with ordinary members, used as anybody would, measured from outside.
//!
//! **Invariant:** a run is timed from the first call of the closure, because joining and the election are not what
//! is measured, to the moment when the books say that everything is accounted for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Member, Message, MessageCounts, NewMessage, Outcome, Tick};
use tokio::task::JoinSet;

use crate::Result;
use crate::load::payloads;

/// Messages per call of the generator. With a tick of a millisecond that is twenty million a second,
/// so the pace never is the limit; the library splits them into pushes of its own size.
const PER_TICK: usize = 20_000;
/// How often the books are read towards the end. A run takes at most this much longer than it seems.
const LOOK: Duration = Duration::from_millis(2);
/// The same before that: reading them costs Redis something, too.
const LOOK_FAR: Duration = Duration::from_millis(25);
/// After this long a run has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Handlers that run side by side, and tasks that send.
pub const SLOTS: usize = 4;

/// When a closure was first called.
#[derive(Clone, Default)]
struct Start(Arc<OnceLock<Instant>>);

impl Start {
    fn note(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Waits until the books say this many; says how long that took since the first call.
    async fn run(
        &self,
        fleet: &Fleet,
        all: usize,
        count: impl Fn(&MessageCounts) -> u64,
    ) -> Result<Duration> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let books = fleet.status().await?.messages;
            let (end, count) = (Instant::now(), count(&books));
            let start = self.0.get().copied();
            if count >= all as u64 {
                if books.balance != 0 {
                    return Err(format!("the books do not balance: {books:?}").into());
                }
                return Ok(end - start.ok_or("nothing was counted")?);
            }
            if end > patience {
                return Err(format!("no end after {PATIENCE:?}: {books:?}").into());
            }
            let so_far = start.map_or(Duration::ZERO, |start| end - start);
            let left = so_far.mul_f64(all as f64 / count.max(1) as f64 - 1.0);
            tokio::time::sleep((left / 2).clamp(LOOK, LOOK_FAR)).await;
        }
    }
}

fn batch_of(payloads: &mut impl Iterator<Item = &'static [u8]>, count: usize) -> Vec<NewMessage> {
    payloads.by_ref().take(count).map(|payload| NewMessage::from(payload.to_vec())).collect()
}

/// Generates `count` messages with a member that does nothing else; says how long that took.
pub async fn generate(url: &str, fleet: &str, count: usize, batch: usize) -> Result<Duration> {
    let mut config = Config::default();
    config.interval = Duration::from_millis(1);
    config.messages_max = Some(count as u64);
    config.backlog_max = Some((10 * count).max(1_000_000));
    config.batch_max = batch;
    let start = Start::default();
    let made = start.clone();
    let mut payloads = payloads();
    let generate = move |_: Tick| {
        made.note();
        let batch = batch_of(&mut payloads, PER_TICK);
        async { batch }
    };
    let member = Fleet::open(url, fleet)?.join().config(config).generate(generate).start().await?;
    let took = start.run(member.fleet(), count, |books| books.generated).await?;
    member.shutdown().await;
    Ok(took)
}

/// Sends `count` messages in batches, from [`SLOTS`] tasks; says how long that took.
pub async fn send(url: &str, fleet: &str, count: usize, batch: usize) -> Result<Duration> {
    let sender = Fleet::connect(url, fleet).await?.sender();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..SLOTS {
        let sender = sender.clone();
        tasks.spawn(async move {
            let mut payloads = payloads();
            for _ in 0..count / SLOTS / batch {
                sender.send_all(&batch_of(&mut payloads, batch)).await?;
            }
            Ok::<_, artel::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

/// Handles `count` waiting messages with a member that does nothing else; says how long that took. If `fails` is not 0, one
/// message of that many fails.
pub async fn drain(url: &str, fleet: &str, count: usize, fails: usize) -> Result<Duration> {
    let mut config = Config::default();
    config.concurrency = SLOTS;
    let start = Start::default();
    let (seen, handled) = (start.clone(), AtomicUsize::new(1));
    let handle = move |_: Message, _: Context| {
        seen.note();
        let failed = fails > 0 && handled.fetch_add(1, Ordering::Relaxed).is_multiple_of(fails);
        async move { if failed { Outcome::failed("one of them") } else { Outcome::done() } }
    };
    let member = join(url, fleet, config, handle).await?;
    let took = start.run(member.fleet(), count, |books| books.done + books.failed).await?;
    member.shutdown().await;
    Ok(took)
}

/// A worker over connections of its own.
pub(crate) async fn join(
    url: &str,
    fleet: &str,
    config: Config,
    handler: impl artel::Handle,
) -> Result<Member> {
    Ok(Fleet::open(url, fleet)?.join().config(config).handle(handler).start().await?)
}
