//! Handlers that take longer than they may.

use artel_hub::{Cause, HubNotice, NOTICES, StopError};

use super::stuck::payloads;
use super::*;

const SHORT: Duration = Duration::from_millis(50);

/// A thread that hangs at 7 keeps nothing but its event: the subscriber gets a new handler and goes
/// on, and what the old one comes back with is ignored.
#[test]
fn a_handler_that_blocks_too_long_is_replaced() {
    let runtime = crate::runtime(2);
    for context in [Context::Thread, Context::Pool, Context::Task] {
        for queue in [Queue::bounded(4), Queue::bounded(100).on_full(Overflow::DropNewest)] {
            let hub = EventHub::builder().runtime(runtime.handle().clone()).pool_threads(2);
            let hub = hub.build().expect("a hub");
            let (gate, seen) = (Gate::default(), Seen::<u64>::new());
            let (hold, see) = (gate.clone(), seen.clone());
            let subscription = hub
                .subscribe(&N)
                .name("hangs")
                .on(context)
                .queue(queue)
                .handler_timeout(SHORT)
                .restart(Restart::times(5).backoff(quick()))
                .filter(|number: &u64| *number != 3)
                .spawn(move |event: Delivery<'_, u64>| {
                    if *event == 7 {
                        hold.pass();
                    }
                    see.push(*event);
                })
                .expect("subscribed");
            let publisher = hub.clone();
            in_time(move || {
                for number in 0..50 {
                    publisher.blocking_publish(&N, number).expect("published");
                }
            });
            eventually("all others to be handled", || subscription.stats().lag == 0);
            let without: Vec<u64> = (0..50).filter(|number| ![3, 7].contains(number)).collect();
            assert_eq!(seen.all(), without, "{context:?} {queue:?}");
            let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
            assert_eq!(letters.len(), 1);
            assert_eq!((letters[0].sequence, letters[0].cause), (8, Cause::Timeout));
            assert!(letters[0].reason.starts_with("timeout: "), "{}", letters[0].reason);
            let before = subscription.stats();
            assert_eq!((before.processed, before.filtered, before.restarts), (48, 1, 1));
            gate.open();
            eventually("it to come back", || seen.len() == 49);
            hub.blocking_publish(&N, 50).expect("published");
            eventually("the next one", || seen.len() == 50);
            let stopped = subscription.blocking_stop(LONG).expect("stopped");
            assert_eq!((stopped.processed, stopped.leftovers), (49, 0));
            assert_eq!(payloads(&hub), [7]);
            assert_eq!(hub.blocking_shutdown(LONG).stuck, Vec::<String>::new());
        }
    }
}

/// A handler that awaits for ever is dropped, and does not keep what waits behind it.
#[tokio::test]
async fn a_handler_that_awaits_too_long_is_dropped() {
    let (hub, notices) = (EventHub::new(), Seen::<HubNotice>::new());
    let _hears = hub.subscribe(&NOTICES).spawn(notices.handler()).expect("subscribed");
    let subscription = hub
        .subscribe(&N)
        .name("never")
        .handler_timeout(SHORT)
        .restart(Restart::times(2).backoff(quick()))
        .spawn(Never)
        .expect("subscribed");
    hub.publish_batch(&N, 0..5).await.expect("published");
    eventually_async(|| subscription.is_over()).await;
    assert_eq!(subscription.stats().state, State::Failed);
    let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
    let causes: Vec<_> = letters.iter().map(|letter| letter.cause).collect();
    let (timeout, left) = (Cause::Timeout, Cause::Left);
    assert_eq!(causes, [timeout, timeout, timeout, left, left], "two restarts, and the end");
    let stats = subscription.stats();
    assert_eq!((stats.restarts, stats.letters, stats.abandoned), (2, 3, 2));
    hub.idle().await;
    let said =
        |check: fn(&HubNotice) -> bool| notices.all().iter().filter(|one| check(one)).count();
    assert_eq!(said(|one| matches!(one, HubNotice::Restarting { .. })), 2);
    assert_eq!(said(|one| matches!(one, HubNotice::Stopped { .. })), 1);
}

async fn eventually_async(mut check: impl FnMut() -> bool) {
    let due = Instant::now() + LONG;
    while !check() {
        assert!(Instant::now() < due, "waited in vain");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Its budget spent by handlers that block: it ends, and what waited is kept.
#[test]
fn a_budget_is_spent_by_handlers_that_block_too_long() {
    for queue in [Queue::default(), Queue::bounded(100).on_full(Overflow::DropNewest)] {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let hold = gate.clone();
        let subscription = hub
            .subscribe(&N)
            .on(Context::Thread)
            .queue(queue)
            .handler_timeout(SHORT)
            .restart(Restart::times(1).backoff(quick()))
            .spawn(move |_: Delivery<'_, u64>| hold.pass())
            .expect("subscribed");
        for number in 0..6 {
            hub.blocking_publish(&N, number).expect("published");
        }
        eventually("its end", || subscription.is_over());
        assert_eq!(payloads(&hub), (0..6).collect::<Vec<_>>());
        let letters = hub.dead_letters().list(&LetterFilter::all()).expect("letters");
        let late = letters.iter().filter(|one| one.cause == Cause::Timeout).count();
        assert_eq!((late, subscription.stats().state, hub.stats().failed), (2, State::Failed, 1));
        gate.open();
        drop(subscription);
        assert_eq!(payloads(&hub), (0..6).collect::<Vec<_>>());
    }
}

/// Commits never.
#[derive(Clone)]
struct Hoards(Gate);

impl Handler<u64> for Hoards {
    async fn handle(&mut self, _: Delivery<'_, u64>) -> Result<(), HandlerError> {
        Ok(())
    }

    fn collects(&self) -> usize {
        3
    }

    async fn commit(&mut self) -> Result<(), HandlerError> {
        self.0.pass();
        Ok(())
    }
}

/// What a handler was about to commit is in doubt, so it becomes letters and does not come again.
#[test]
fn a_commit_that_blocks_too_long_leaves_letters() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .handler_timeout(SHORT)
        .restart(Restart::times(1).backoff(quick()))
        .spawn(Hoards(gate.clone()))
        .expect("subscribed");
    hub.publisher(&N).expect("one").blocking_publish_batch(0..3).expect("published");
    eventually("three letters", || payloads(&hub).len() == 3);
    assert_eq!(subscription.stats().processed, 0);
    gate.open();
    hub.publisher(&N).expect("one").blocking_publish_batch(3..6).expect("published");
    eventually("the next three", || subscription.stats().processed == 3);
    assert_eq!(payloads(&hub), [0, 1, 2]);
}

/// The bytes of events that were handled just before the one that hung were forgotten, and the new
/// handler's queue was the smaller by them.
#[test]
fn the_bytes_of_a_queue_are_right_after_a_replacement() {
    let texts: Topic<Vec<u8>> = Topic::new("texts").weighed(Vec::len);
    let (hub, count) = (EventHub::new(), Arc::new(AtomicU64::new(0)));
    let (hangs, waits) = (Gate::default(), Gate::default());
    let (hang, wait, counter) = (hangs.clone(), waits.clone(), count.clone());
    let subscription = hub
        .subscribe(&texts)
        .on(Context::Thread)
        .queue(Queue::bounded(1024).bytes(1000))
        .handler_timeout(Duration::from_secs(1))
        .restart(Restart::times(5).backoff(quick()))
        .spawn(move |_: Delivery<'_, Vec<u8>>| {
            // Quick for long enough to be known as quick, then stuck in the middle of sixteen.
            match counter.fetch_add(1, Ordering::SeqCst) {
                605 => hang.pass(),
                610 => wait.pass(),
                _ => {}
            }
        })
        .expect("subscribed");
    for number in 0..610 {
        let text = vec![0; if number < 500 { 1 } else { 50 }];
        hub.blocking_publish(&texts, text).expect("published");
    }
    eventually("all others to be handled", || subscription.stats().lag == 0);
    assert_eq!(subscription.stats().letters, 1);
    hub.try_publish(&texts, vec![0; 10]).expect("there is room");
    waits.reached(1);
    hub.try_publish(&texts, vec![0; 990]).expect("there is room for this one, too");
    waits.open();
    hangs.open();
}

/// One that is not late is never replaced, however busy it is.
#[test]
fn a_handler_in_time_is_left_alone() {
    let (hub, count) = (EventHub::new(), Arc::new(AtomicU64::new(0)));
    let counter = count.clone();
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .handler_timeout(Duration::from_secs(3600))
        .spawn(move |event: Delivery<'_, u64>| {
            assert_eq!(counter.fetch_add(1, Ordering::SeqCst), *event);
        })
        .expect("subscribed");
    let publisher = hub.publisher(&N).expect("one");
    for number in 0..100_000 {
        publisher.blocking_publish(number).expect("published");
    }
    eventually("all", || count.load(Ordering::SeqCst) == 100_000);
    let stopped = subscription.blocking_stop(LONG).expect("stopped");
    assert_eq!((stopped.processed, stopped.leftovers), (100_000, 0));
}

/// By default nothing on a thread is ever late, and a stop says that it is inside.
#[test]
fn a_thread_may_take_as_long_as_it_likes() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let subscribe = hub.subscribe(&N).on(Context::Thread);
    let slow = subscribe.spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    gate.reached(1);
    eventually("it to be found stuck", || slow.stats().state == State::Stuck);
    let refused = slow.blocking_stop(Duration::ZERO).expect_err("it is inside");
    assert!(matches!(refused, StopError::StillRunning { .. }));
    assert_eq!(hub.dead_letters().count().expect("counted"), 0);
    gate.open();
}

/// Publishers waited for ever for one that hangs, and nobody said so.
#[test]
fn publishers_that_wait_for_long_are_told_of() {
    let (hub, gate, notices) = (EventHub::new(), Gate::default(), Seen::<HubNotice>::new());
    let listen = hub.subscribe(&NOTICES).on(Context::Thread);
    let _hears = listen.spawn(notices.handler()).expect("subscribed");
    let hold = gate.clone();
    let subscribe = hub.subscribe(&N).name("slow").on(Context::Thread).queue(Queue::bounded(1));
    let _slow = subscribe.spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3 {
                hub.blocking_publish(&N, number).expect("published");
            }
        });
        eventually("the notice", || {
            let waits = |one: &HubNotice| {
                matches!(one, HubNotice::PublishersWait { subscriber, publishers: 1, for_ms }
                    if subscriber == "slow" && *for_ms >= 1000)
            };
            notices.all().iter().any(waits)
        });
        gate.open();
    });
}

/// One that was dropped while its handler hung was nobody's: neither letter nor count, and `idle`
/// waited for it for ever.
#[test]
fn a_subscriber_that_is_dropped_while_it_hangs_ends_in_time() {
    for queue in [Queue::default(), Queue::bounded(8).on_full(Overflow::DropNewest)] {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let hold = gate.clone();
        let subscribe = hub.subscribe(&N).on(Context::Thread).queue(queue).handler_timeout(SHORT);
        let dropped = subscribe.spawn(move |_: Delivery<'_, u64>| hold.pass()).expect("subscribed");
        hub.blocking_publish(&N, 1).expect("published");
        gate.reached(1);
        drop(dropped);
        eventually("its end", || hub.stats().subscribers.is_empty());
        assert_eq!((payloads(&hub), hub.stats().discarded), (vec![1], 0));
        let inner = hub.clone();
        in_time(move || inner.blocking_idle());
        gate.open();
    }
}

/// Collects as many as it is told; its first commit hangs.
#[derive(Clone)]
struct Varies {
    collects: Arc<AtomicU64>,
    seen: Seen<u64>,
    handles: Gate,
    commits: Gate,
}

impl Handler<u64> for Varies {
    async fn handle(&mut self, event: Delivery<'_, u64>) -> Result<(), HandlerError> {
        self.seen.push(*event);
        match *event {
            3 => self.handles.pass(),
            9 if self.seen.len() == 1 => return Err(HandlerError::skip("not the first time")),
            _ => {}
        }
        Ok(())
    }

    fn collects(&self) -> usize {
        self.collects.load(Ordering::SeqCst) as usize
    }

    async fn commit(&mut self) -> Result<(), HandlerError> {
        self.commits.pass();
        Ok(())
    }
}

/// A letter that was delivered again waited in hand while others were committed. The commit hung,
/// and the letter was forgotten.
#[test]
fn a_commit_that_hangs_takes_no_other_event_with_it() {
    let (hub, seen, handles) = (EventHub::new(), Seen::new(), Gate::default());
    let (commits, collects) = (Gate::default(), Arc::new(AtomicU64::new(10)));
    let handler = Varies {
        collects: collects.clone(),
        seen: seen.clone(),
        handles: handles.clone(),
        commits: commits.clone(),
    };
    let subscription = hub
        .subscribe(&N)
        .name("varies")
        .on(Context::Thread)
        .handler_timeout(Duration::from_secs(1))
        .restart(Restart::times(5).backoff(quick()))
        .spawn(handler)
        .expect("subscribed");
    hub.blocking_publish(&N, 9).expect("published");
    eventually("a letter", || payloads(&hub) == [9]);
    hub.blocking_publish(&N, 3).expect("published");
    handles.reached(1);
    assert_eq!(hub.dead_letters().redeliver(&LetterFilter::all()).expect("delivered").delivered, 1);
    collects.store(1, Ordering::SeqCst);
    handles.open();
    commits.reached(1);
    eventually("what was to be committed", || payloads(&hub).contains(&3));
    commits.open();
    eventually("all to be handled", || subscription.stats().lag == 0);
    let again = seen.all().iter().filter(|number| **number == 9).count();
    assert!(again == 2 || payloads(&hub).contains(&9), "{:?} {:?}", seen.all(), payloads(&hub));
}

/// The thread that hung was one of few, and everybody there waited for it.
#[test]
fn a_handler_that_hangs_does_not_take_the_pool_with_it() {
    let hub = EventHub::builder().pool_threads(1).build().expect("a hub");
    let gate = Gate::default();
    let hold = gate.clone();
    let hangs = hub
        .subscribe(&N)
        .on(Context::Pool)
        .handler_timeout(SHORT)
        .restart(Restart::times(5).backoff(quick()))
        .spawn(move |number: Delivery<'_, u64>| {
            if *number == 1 {
                hold.pass()
            }
        })
        .expect("subscribed");
    let other = hub.subscribe(&N).on(Context::Pool).spawn(ignore).expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    gate.reached(1);
    hub.blocking_publish(&N, 2).expect("published");
    eventually("the others to be handled", || {
        (hangs.stats().processed, other.stats().processed) == (1, 2)
    });
    gate.open();
    assert_eq!(hub.blocking_shutdown(LONG).stuck, Vec::<String>::new());
}

/// With enough time between them, one handler after the other hung, without end.
#[test]
fn not_more_handlers_hang_than_may_be_made_anew() {
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .handler_timeout(Duration::from_millis(5))
        .restart(Restart::times(3).within(Duration::from_nanos(1)).backoff(quick()))
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    for number in 0..50 {
        hub.blocking_publish(&N, number).expect("published");
    }
    eventually("its end", || subscription.is_over());
    assert_eq!((subscription.stats().letters, payloads(&hub).len()), (4, 50));
    gate.open();
}

/// Nobody knew of the event between the moment it was taken and its letter.
#[test]
fn idle_waits_for_the_letter_of_a_handler_that_hangs() {
    for _ in 0..20 {
        let (hub, gate) = (EventHub::new(), Gate::default());
        let hold = gate.clone();
        let subscribe = hub.subscribe(&N).on(Context::Thread);
        let subscription = subscribe
            .handler_timeout(Duration::from_millis(5))
            .spawn(move |_: Delivery<'_, u64>| hold.pass())
            .expect("subscribed");
        hub.blocking_publish(&N, 1).expect("published");
        gate.reached(1);
        eventually("it to be taken", || subscription.stats().lag == 0);
        hub.blocking_idle();
        assert_eq!((payloads(&hub), subscription.stats().letters), (vec![1], 1));
        gate.open();
    }
}

/// A runner that was replaced changes nothing when it comes back, not even by a panic.
#[test]
fn a_panic_that_comes_too_late_counts_nothing() {
    let (hub, gate, back) = (EventHub::new(), Gate::default(), Seen::<()>::new());
    let (hold, came) = (gate.clone(), back.clone());
    struct Tells(Seen<()>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.push(());
        }
    }
    let subscription = hub
        .subscribe(&N)
        .on(Context::Thread)
        .handler_timeout(SHORT)
        .restart(Restart::times(5).backoff(quick()))
        .spawn_with(move || {
            // Dropped with its handler, when its runner is done with it.
            let (tells, hold) = (Tells(came.clone()), hold.clone());
            move |number: Delivery<'_, u64>| {
                let _with_it = &tells;
                if *number == 1 {
                    hold.pass();
                    panic!("too late");
                }
            }
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 1).expect("published");
    eventually("a letter", || payloads(&hub) == [1]);
    hub.blocking_publish(&N, 2).expect("published");
    eventually("the next one", || subscription.stats().processed == 1);
    gate.open();
    eventually("it to come back", || back.len() == 1);
    let stats = subscription.stats();
    assert_eq!((stats.panics, stats.errors, stats.processed, stats.letters), (0, 1, 1, 1));
}

/// How many were lost was told to the handler that hung, and then to nobody.
#[test]
fn a_lag_is_told_to_the_next_handler() {
    let (hub, first, gate) = (EventHub::new(), Gate::default(), Gate::default());
    let (begin, hold, seen) = (first.clone(), gate.clone(), Seen::<(u64, u64)>::new());
    let see = seen.clone();
    let _hangs = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(2).on_full(Overflow::DropOldest))
        .handler_timeout(Duration::from_secs(1))
        .restart(Restart::times(5).backoff(quick()))
        .spawn(move |number: Delivery<'_, u64>| match *number {
            0 => begin.pass(),
            8 => hold.pass(),
            _ => see.push((*number, number.lagged())),
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    first.reached(1);
    let lost: u64 = (1..10).map(|n| hub.blocking_publish(&N, n).expect("published").dropped).sum();
    first.open();
    eventually("the last one", || seen.len() == 1);
    assert_eq!(seen.all(), [(9, lost)]);
    gate.open();
}

/// A copy of a filter that hangs where the hub looks after all of them held up everybody's time.
#[test]
fn a_filter_that_hangs_when_it_is_cloned_holds_up_nobody() {
    struct Stubborn(Gate, Arc<AtomicU64>);
    impl Clone for Stubborn {
        fn clone(&self) -> Stubborn {
            if self.1.fetch_add(1, Ordering::SeqCst) > 0 {
                self.0.pass();
            }
            Stubborn(self.0.clone(), self.1.clone())
        }
    }
    let (hub, gate, clones) = (EventHub::new(), Gate::default(), Gate::default());
    let (hold, stubborn) = (gate.clone(), Stubborn(clones.clone(), Arc::default()));
    let hangs = |topic: &Topic<u64>| {
        let subscribe = hub.subscribe(topic).on(Context::Thread).handler_timeout(SHORT);
        subscribe.restart(Restart::times(5).backoff(quick()))
    };
    let _bad = hangs(&N)
        .filter(move |_: &u64| {
            let _with_it = &stubborn;
            true
        })
        .spawn(move |_: Delivery<'_, u64>| hold.pass())
        .expect("subscribed");
    let hold = gate.clone();
    let good = hangs(&M)
        .spawn(move |number: Delivery<'_, u64>| {
            if *number == 0 {
                hold.pass()
            }
        })
        .expect("subscribed");
    hub.blocking_publish(&N, 0).expect("published");
    clones.reached(1);
    for number in 0..2 {
        hub.blocking_publish(&M, number).expect("published");
    }
    eventually("the other one to be replaced", || good.stats().processed == 1);
    clones.open();
    gate.open();
}

/// What a runner that was replaced waits for was taken for what its subscriber waits for.
#[test]
fn a_runner_that_was_replaced_closes_no_circle() {
    let (hub, go, brief) = (EventHub::new(), Gate::default(), Gate::default());
    let (weak, pass, seen) = (hub.downgrade(), brief.clone(), Seen::new());
    let waits = hub
        .subscribe(&N)
        .on(Context::Thread)
        .queue(Queue::bounded(1))
        .handler_timeout(Duration::from_secs(1))
        .restart(Restart::times(5).backoff(quick()))
        .spawn(move |number: Delivery<'_, u64>| match *number {
            0 => drop(weak.upgrade().map(|hub| hub.blocking_publish(&M, 99))),
            1 => pass.pass(),
            _ => {}
        })
        .expect("subscribed");
    let (weak, pass, see) = (hub.downgrade(), go.clone(), seen.clone());
    let _other = hub
        .subscribe(&M)
        .on(Context::Thread)
        .queue(Queue::bounded(1))
        .spawn(move |number: Delivery<'_, u64>| {
            if *number == 0 {
                pass.pass();
                let hub = weak.upgrade().expect("still there");
                see.push(hub.blocking_publish(&N, 2).map(drop).map_err(|one| one.reason().clone()));
            }
        })
        .expect("subscribed");
    hub.blocking_publish(&M, 0).expect("published");
    go.reached(1);
    hub.blocking_publish(&N, 0).expect("published");
    eventually("it to be replaced", || waits.stats().letters == 1);
    hub.blocking_publish(&N, 1).expect("published");
    brief.reached(1);
    go.open();
    brief.open();
    eventually("an answer", || seen.len() == 1);
    assert_eq!(seen.all(), [Ok(())]);
}

/// All threads of the runtime that may block were taken, and the shutdown waited for one.
#[test]
fn a_shutdown_needs_no_thread_of_the_runtime() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).max_blocking_threads(1).build().expect("a runtime");
    let (hub, gate) = (EventHub::new(), Gate::default());
    let hold = gate.clone();
    runtime.spawn_blocking(move || hold.pass());
    gate.reached(1);
    let handle = runtime.handle().clone();
    in_time(move || handle.block_on(hub.shutdown(Duration::ZERO)));
    gate.open();
}
