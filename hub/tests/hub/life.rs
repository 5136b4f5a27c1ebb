use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use artel_hub::{
    Context, Delivery, EventHub, Handler, HandlerError, LetterFilter, Queue, Refusal, State,
    StopError, SubscribeError, Topic,
};

use crate::{Gate, LONG, Never, Seen, eventually, runtime};

const NUMBERS: Topic<u64> = Topic::json("numbers");

/// Works for a while on each event and says when it does.
#[derive(Clone)]
struct Busy {
    inside: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Handler<u64> for Busy {
    async fn handle(&mut self, _: Delivery<'_, u64>) -> Result<(), HandlerError> {
        self.inside.store(true, Ordering::SeqCst);
        for _ in 0..100 {
            std::hint::spin_loop();
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn after_stop_the_handler_never_runs_again() {
    let runtime = runtime(2);
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let publisher = hub.publisher(&NUMBERS).expect("a publisher");
    for round in 0..60 {
        let (inside, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let handler = Busy { inside: inside.clone(), done: done.clone() };
        let context = [Context::Task, Context::Thread, Context::Pool][round % 3];
        let subscribe = hub.subscribe(&NUMBERS).on(context).queue(Queue::bounded(64));
        let subscription = subscribe.spawn(handler).expect("subscribed");
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (publisher, flag) = (publisher.clone(), stop.clone());
            scope.spawn(move || {
                while !flag.load(Ordering::SeqCst) {
                    publisher.blocking_publish(1).expect("published");
                }
            });
            eventually("some work", || done.load(Ordering::SeqCst) > 20);
            let drain = if round % 2 == 0 { LONG } else { Duration::ZERO };
            let stopped = subscription.blocking_stop(drain).expect("stopped");
            let before = done.load(Ordering::SeqCst);
            assert!(!inside.load(Ordering::SeqCst));
            assert_eq!(stopped.processed, before);
            assert!(drain.is_zero() || stopped.leftovers == 0, "{stopped:?}");
            for _ in 0..10 {
                std::thread::yield_now();
            }
            assert_eq!(done.load(Ordering::SeqCst), before, "it ran again");
            stop.store(true, Ordering::SeqCst);
        });
    }
    assert_eq!(hub.subscriber_count("numbers"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_drains_what_was_published_before() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<u64>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let subscription = hub
        .subscribe(&NUMBERS)
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u64>| {
            hold.pass();
            see.push(*event);
        })
        .expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..500).await.expect("published");
    gate.reached(1);
    let stopping = tokio::spawn(subscription.stop(LONG));
    eventually("it to have left", || hub.subscriber_count("numbers") == 0);
    hub.publish(&NUMBERS, 999).await.expect("published to nobody");
    gate.open();
    let stopped = stopping.await.expect("no panic").expect("stopped");
    assert_eq!((stopped.processed, stopped.leftovers), (500, 0));
    assert_eq!(seen.all(), (0..500).collect::<Vec<_>>());
}

/// A handler that waits for ever is ended in the middle; its event and those behind are letters.
#[tokio::test]
async fn a_stop_that_takes_too_long_leaves_dead_letters() {
    let hub = EventHub::new();
    let subscription = hub.subscribe(&NUMBERS).name("never").spawn(Never).expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..5).await.expect("published");
    let stopped = subscription.stop(Duration::from_millis(20)).await.expect("stopped");
    assert_eq!((stopped.processed, stopped.leftovers), (0, 5));
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    assert_eq!(letters.len(), 5);
    assert_eq!(letters[0].reason, "it was stopped before it came to it");
}

/// A thread inside a handler cannot be ended, and this is said; it is not called again.
#[test]
fn a_thread_that_does_not_return_is_named() {
    let hub = EventHub::new();
    let (gate, seen) = (Gate::default(), Seen::<u64>::new());
    let (hold, see) = (gate.clone(), seen.clone());
    let subscription = hub
        .subscribe(&NUMBERS)
        .name("blocked")
        .on(Context::Thread)
        .spawn(move |event: Delivery<'_, u64>| {
            hold.pass();
            see.push(*event);
        })
        .expect("subscribed");
    hub.publisher(&NUMBERS).expect("one").blocking_publish_batch(0..3).expect("published");
    gate.reached(1);
    let refused = subscription.blocking_stop(Duration::from_millis(10)).expect_err("it is inside");
    assert!(matches!(refused, StopError::StillRunning { ref name, .. } if name == "blocked"));
    assert_eq!(hub.dead_letters().count().expect("counted"), 2, "the others are letters");
    gate.open();
    eventually("it to return", || seen.len() == 1);
    assert_eq!(seen.all(), [0]);
}

#[tokio::test]
async fn a_handler_cannot_wait_for_its_own_end() {
    let hub = EventHub::new();
    let seen = Seen::<String>::new();
    let own: Arc<std::sync::Mutex<Option<artel_hub::Subscription>>> = Arc::default();
    let (slot, see) = (own.clone(), seen.clone());
    let subscription = hub
        .subscribe(&NUMBERS)
        .on(Context::Thread)
        .spawn(move |_: Delivery<'_, u64>| {
            let me = slot.lock().expect("not poisoned").take().expect("itself");
            see.push(me.blocking_stop(LONG).expect_err("it would wait for itself").to_string());
        })
        .expect("subscribed");
    *own.lock().expect("not poisoned") = Some(subscription);
    hub.publish(&NUMBERS, 1).await.expect("published");
    eventually("an answer", || seen.len() == 1);
    assert!(seen.all()[0].contains("cannot wait for its own end"));
    eventually("its end", || hub.subscriber_count("numbers") == 0);
}

#[tokio::test]
async fn shutdown_drains_refuses_and_reports() {
    let hub = EventHub::new();
    let seen = Seen::<u64>::new();
    let _kept = hub.subscribe(&NUMBERS).name("good").spawn(seen.handler()).expect("subscribed");
    let lossless = Queue::bounded(4);
    let _never = hub.subscribe(NUMBERS.at("never")).queue(lossless).name("never");
    let _never = _never.spawn(Never).expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..500).await.expect("published");
    hub.publish_batch(&NUMBERS.at("never"), 0..4).await.expect("published");
    let waiting = tokio::spawn({
        let hub = hub.clone();
        async move { hub.publish(&NUMBERS.at("never"), 77).await }
    });
    tokio::task::yield_now().await;
    let report = hub.shutdown(Duration::from_millis(200)).await;
    assert_eq!((report.stopped, report.leftovers, report.stuck.len()), (2, 4, 0));
    assert_eq!(seen.all(), (0..500).collect::<Vec<_>>());
    let refused = waiting.await.expect("no panic").expect_err("the hub is closed");
    assert_eq!((refused.reason().clone(), refused.into_payload()), (Refusal::Closed, 77));
    let refused = hub.publish(&NUMBERS, 1).await.expect_err("closed");
    assert_eq!(*refused.reason(), Refusal::Closed);
    let refused = hub.subscribe(&NUMBERS).spawn(seen.handler()).expect_err("closed");
    assert_eq!(refused, SubscribeError::Closed);
    assert_eq!(hub.shutdown(LONG).await.stopped, 0, "twice is once");
    hub.idle().await;
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}

/// No thread and no task stays behind, neither after a shutdown nor after a plain drop. It has a
/// process of its own, because threads of other tests come and go.
#[test]
fn nothing_is_left_behind() {
    if std::env::var_os("HUB_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().expect("a path"));
        alone.args(["--exact", "life::nothing_is_left_behind", "--test-threads", "1"]);
        let run = alone.env("HUB_ALONE", "1").output().expect("it runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        return;
    }
    let runtime = runtime(2);
    let before = threads();
    for shut in [true, false] {
        let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
        let mut kept = Vec::new();
        for number in 0..12 {
            let context = [Context::Task, Context::Thread, Context::Pool][number % 3];
            let seen = Seen::<u64>::new();
            let subscribe = hub.subscribe(&NUMBERS).on(context);
            kept.push(subscribe.spawn(seen.handler()).expect("subscribed"));
        }
        let publisher = hub.publisher(&NUMBERS).expect("a publisher");
        publisher.blocking_publish_batch(0..1000).expect("published");
        assert!(threads() >= before + 5, "its threads are counted here");
        if shut {
            let report = hub.blocking_shutdown(LONG);
            assert_eq!((report.stopped, report.leftovers), (12, 0));
        } else {
            kept.into_iter().for_each(artel_hub::Subscription::detach);
        }
        drop((hub, publisher));
        eventually("its threads to end", || threads() <= before);
        eventually("its tasks to end", || runtime.metrics().num_alive_tasks() == 0);
    }
}

/// The runtime may go before the hub: what was waiting is kept, nobody waits for the dead.
#[test]
fn a_runtime_that_ends_takes_its_subscribers_and_nothing_else() {
    let hub = EventHub::new();
    let first = runtime(1);
    let subscribe =
        first.block_on(async { hub.subscribe(&NUMBERS).queue(Queue::bounded(3)).spawn(Never) });
    let subscription = subscribe.expect("subscribed");
    hub.publisher(&NUMBERS).expect("one").blocking_publish_batch(0..3).expect("published");
    drop(first);
    eventually("its end", || subscription.is_over());
    assert_eq!(subscription.stats().state, State::Stopped);
    hub.blocking_publish(&NUMBERS, 4).expect("nobody is in the way");
    assert_eq!(hub.dead_letters().count().expect("counted"), 3);
}

/// Statistics are a serde structure, for whoever shows them.
#[tokio::test]
async fn stats_tell_all_of_it() {
    let hub = EventHub::new();
    let slow = |_: Delivery<'_, u64>| std::thread::sleep(Duration::from_micros(200));
    let _kept = hub.subscribe(&NUMBERS).name("slow").spawn(slow).expect("subscribed");
    hub.publish_batch(&NUMBERS, 0..50).await.expect("published");
    hub.idle().await;
    let stats = serde_json::to_value(hub.stats()).expect("serde");
    let one = &stats["subscribers"][0];
    assert_eq!((one["name"].as_str(), one["state"].as_str()), (Some("slow"), Some("running")));
    assert_eq!((one["processed"].as_u64(), one["lag"].as_u64()), (Some(50), Some(0)));
    for figure in ["mean_ns", "p50_ns", "p99_ns"] {
        assert!(one["times"][figure].as_u64() >= Some(200_000), "{one}");
    }
    let topic = &stats["topics"][0];
    assert_eq!((topic["key"].as_str(), topic["published"].as_u64()), (Some("numbers"), Some(50)));
    assert_eq!(topic["subscribers"].as_u64(), Some(1));
}
