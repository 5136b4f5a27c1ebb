//! Slots that work in groups: a slow handler holds up nobody else's message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use artel::{Config, Context, Fleet, Message, NewMessage, Outcome};
use artel_rig::{DEADLINE, Server};

use crate::{NAME, stop, until};

const MESSAGES: u64 = 3000;
/// Behind many that are quick, so that it is in the middle of a group.
const SLOW: u64 = 2400;

/// A fleet in which the numbers below [`MESSAGES`] wait, in packs.
async fn fleet_with_numbers(server: &Server) -> Fleet {
    let fleet = Fleet::connect(server.url(), NAME).await.expect("reachable");
    for batch in 0..MESSAGES / 1000 {
        let numbers = batch * 1000..(batch + 1) * 1000;
        let messages: Vec<NewMessage> = numbers.map(|n| n.to_string().into()).collect();
        fleet.sender().send_all(&messages).await.expect("sent");
    }
    fleet
}

/// A message that ends only when all others have ended: `wait` says how to pass the time.
async fn one_waits_for_all_others<W: Future<Output = ()> + Send>(
    wait: impl Fn() -> W + Clone + Send + Sync + 'static,
) {
    let server = Server::any();
    let fleet = fleet_with_numbers(&server).await;
    let ended = Arc::new(AtomicU64::new(0));
    let handler = {
        let ended = ended.clone();
        move |message: Message, _: Context| {
            let (ended, wait) = (ended.clone(), wait.clone());
            async move {
                let began = Instant::now();
                let is_slow = message.text().parse() == Ok(SLOW);
                while is_slow && ended.load(Ordering::SeqCst) < MESSAGES - 1 {
                    if began.elapsed() > DEADLINE {
                        return Outcome::failed("others wait for this one");
                    }
                    wait().await;
                }
                ended.fetch_add(1, Ordering::SeqCst);
                Outcome::done()
            }
        }
    };
    let mut config = Config::default();
    config.concurrency = 3;
    let worker = fleet.join().config(config).handle(handler).start().await.expect("joins");
    until("all of them to be settled", async || {
        let messages = fleet.status().await.expect("answers").messages;
        messages.done + messages.failed == MESSAGES
    })
    .await;
    assert_eq!(fleet.status().await.expect("answers").messages.failed, 0);
    stop([worker]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_waits_holds_up_nobody_else() {
    one_waits_for_all_others(|| tokio::time::sleep(Duration::from_millis(1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_holds_up_nobody_else() {
    one_waits_for_all_others(|| {
        std::thread::sleep(Duration::from_millis(1));
        std::future::ready(())
    })
    .await;
}

/// A handler does this first, and one of them then blocks its thread. This many others must be recorded meanwhile.
async fn recorded_while_one_blocks<W: Future<Output = ()> + Send>(
    concurrency: usize,
    others: u64,
    first: impl Fn(u64) -> W + Clone + Send + Sync + 'static,
) {
    let server = Server::any();
    let fleet = fleet_with_numbers(&server).await;
    let release = Arc::new(AtomicU64::new(0));
    let released = release.clone();
    let handler = move |message: Message, _: Context| {
        let (first, released) = (first.clone(), released.clone());
        async move {
            let number: u64 = message.text().parse().expect("a number");
            first(number).await;
            while number == SLOW && released.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Outcome::done()
        }
    };
    let mut config = Config::default();
    config.concurrency = concurrency;
    let worker = fleet.join().config(config).handle(handler).start().await.expect("joins");
    let done = async || fleet.status().await.expect("answers").messages.done;
    until("the others to be recorded", async || done().await == others).await;
    release.store(1, Ordering::SeqCst);
    until("all of them", async || done().await == MESSAGES).await;
    stop([worker]).await;
}

/// What was handled before a handler blocks its thread is recorded while it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_are_recorded_while_a_handler_blocks() {
    recorded_while_one_blocks(2, MESSAGES - 1, |_| async {}).await;
}

/// The result of a handler that waited wakes the worker. The next handler must not block the thread on which it is to run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_runs_before_the_next_handler_blocks() {
    recorded_while_one_blocks(1, SLOW, |number| async move {
        if number + 1 == SLOW {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    recorded_while_one_blocks(3, MESSAGES - 1, |number| async move {
        if number != SLOW {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A handler that yields lets others run before it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_yields_and_then_blocks_holds_up_nobody_else() {
    recorded_while_one_blocks(3, MESSAGES - 1, |number| async move {
        if number == SLOW {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
