//! Random histories: subscribers come and go, publishers publish at the same time, handlers panic,
//! fail and dawdle; and each subscriber must have seen exactly the events of its keys since it
//! joined, in order, minus what its own counters say was dropped.
//!
//! A seed that fails is printed; it belongs into `seeds.txt`, and is tried first from then on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use artel_hub::{
    Backoff, Context, Delivery, EventHub, HandlerError, Keys, LetterFilter, Overflow, Priority,
    Queue, Restart, State, Subscription, Topic,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::{LONG, runtime, soaks};

/// Who published it, where, how urgent, and its number among those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
struct Mark {
    publisher: u8,
    key: u8,
    lane: u8,
    number: u32,
}

const KEYS: [&str; 6] = ["a", "b", "a/x", "a/y", "b/x", "b/x/y"];
const PATTERNS: [&str; 9] = ["a", "b", "a/x", "a/*", "b/**", "*/x", "**", "b/x/y", "c"];
const MARKS: Topic<Mark> = Topic::json("marks");

/// What one subscriber is like, and what became of it.
struct Guest {
    name: String,
    subscription: Option<Subscription>,
    patterns: Vec<&'static str>,
    lossless: bool,
    group: bool,
    /// Its budget may be spent before its time.
    mortal: bool,
    seen: Arc<Mutex<Vec<Mark>>>,
    /// Where every stream stood when it came; or, as what a member of a group leaves is handed on
    /// to those who came later, too, when the first of its group came.
    joined: Streams,
}

/// How an event fares with a guest: decided by numbers alone, so that every attempt agrees.
fn fate(seed: u64, guest: u64, mark: Mark) -> u64 {
    let mixed = [u64::from(mark.publisher), u64::from(mark.key), u64::from(mark.number), guest];
    mixed
        .iter()
        .fold(seed, |hash, part| (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
        % 1000
}

fn subscribe(hub: &EventHub, rng: &mut StdRng, seed: u64, number: u64) -> Guest {
    let mut patterns: Vec<&'static str> = (0..rng.random_range(1..=2))
        .map(|_| PATTERNS[rng.random_range(0..PATTERNS.len())])
        .collect();
    patterns.dedup();
    let (group, mortal) = (rng.random_ratio(1, 8), rng.random_ratio(1, 8));
    let overflow = match rng.random_range(0..10) {
        0 => Overflow::DropNewest,
        1 => Overflow::DropOldest,
        2 => Overflow::BlockFor(Duration::from_micros(50)),
        3 if !group => Overflow::KeepLatest,
        _ => Overflow::Block,
    };
    let name = format!("guest-{number}");
    let seen: Arc<Mutex<Vec<Mark>>> = Arc::default();
    let see = seen.clone();
    let trouble = rng.random_ratio(1, 2);
    let handler = move |event: Delivery<'_, Mark>| {
        let mark = *event;
        let first = event.attempt() == 1;
        match fate(seed, number, mark) {
            0..10 if trouble && first => panic!("a panic that is meant"),
            10..20 if trouble && first => return Err(HandlerError::retry("again")),
            20..30 if trouble && first => return Err(HandlerError::fatal("anew")),
            30..40 if trouble => return Err(HandlerError::skip("never")),
            40..43 if trouble => panic!("a panic that is meant, every time"),
            43..60 => std::thread::yield_now(),
            60..62 => std::thread::sleep(Duration::from_micros(100)),
            _ => {}
        }
        see.lock().expect("not poisoned").push(mark);
        Ok(())
    };
    let context = [Context::Task, Context::Task, Context::Pool, Context::Thread];
    let restarts = if mortal { 1 } else { 100_000 };
    let quick = Backoff::exponential(Duration::from_micros(10), Duration::from_micros(50));
    let mut subscribe = hub
        .subscribe(Keys::<Mark>::new(&patterns).expect("patterns"))
        .name(&name)
        .on(context[rng.random_range(0..context.len())])
        .attempts(3)
        .restart(Restart::times(restarts).backoff(quick));
    let queue = Queue::bounded(rng.random_range(1..40)).on_full(overflow);
    let inline = !group && rng.random_ratio(1, 10);
    if !inline {
        subscribe = subscribe.queue(queue);
    }
    if group {
        subscribe = subscribe.group("group", artel_hub::Share::round_robin());
    }
    let subscription = match inline {
        true => subscribe.inline(handler),
        false => subscribe.spawn(handler),
    };
    Guest {
        name,
        subscription: Some(subscription.expect("subscribed")),
        patterns,
        lossless: inline || overflow == Overflow::Block,
        group,
        mortal,
        seen,
        joined: HashMap::new(),
    }
}

fn matches(pattern: &str, key: &str) -> bool {
    let (mut left, mut right) = (pattern.split('/'), key.split('/'));
    loop {
        match (left.next(), right.next()) {
            (Some("**"), Some(_)) | (None, None) => return true,
            (Some(a), Some(b)) if a == "*" || a == b => {}
            _ => return false,
        }
    }
}

type Streams = HashMap<(u8, u8, u8), u32>;

/// What is published in one phase: by each publisher, in order.
fn plan(rng: &mut StdRng, streams: &mut Streams) -> Vec<Vec<Mark>> {
    (0..3u8)
        .map(|publisher| {
            (0..rng.random_range(0..120))
                .map(|_| {
                    let key = rng.random_range(0..KEYS.len()) as u8;
                    let lane = [1, 1, 1, 0, 2][rng.random_range(0..5)];
                    let next = streams.entry((publisher, key, lane)).or_insert(0);
                    *next += 1;
                    Mark { publisher, key, lane, number: *next }
                })
                .collect()
        })
        .collect()
}

fn publish(hub: &EventHub, runtime: &tokio::runtime::Runtime, seed: u64, plan: Vec<Vec<Mark>>) {
    std::thread::scope(|scope| {
        for marks in plan {
            let mut rng = StdRng::seed_from_u64(seed ^ marks.len() as u64);
            scope.spawn(move || {
                let of = |mark: Mark| {
                    let priority = [Priority::High, Priority::Normal, Priority::Low];
                    let publisher = hub.publisher(&MARKS.at(KEYS[usize::from(mark.key)]));
                    publisher.expect("one").with_priority(priority[usize::from(mark.lane)])
                };
                for mark in marks {
                    match rng.random_range(0..3) {
                        0 => drop(runtime.block_on(of(mark).publish(mark)).expect("published")),
                        1 => drop(of(mark).blocking_publish_batch([mark]).expect("published")),
                        _ => drop(of(mark).blocking_publish(mark).expect("published")),
                    }
                }
            });
        }
    });
}

/// Checks one guest that has left, or that was drained at the end.
fn check(hub: &EventHub, guest: &Guest, left: &Streams, dropped: Option<u64>) {
    let seen = guest.seen.lock().expect("not poisoned").clone();
    let filter = LetterFilter::all().subscriber(&guest.name);
    let letters: Vec<Mark> = hub
        .dead_letters()
        .list(&filter)
        .expect("letters")
        .into_iter()
        .map(|letter| serde_json::from_value(letter.payload.expect("json")).expect("a mark"))
        .collect();
    let mut streams: HashMap<(u8, u8, u8), Vec<u32>> = HashMap::new();
    for mark in &seen {
        streams.entry((mark.publisher, mark.key, mark.lane)).or_default().push(mark.number);
    }
    for (stream, numbers) in &streams {
        let key = KEYS[usize::from(stream.1)];
        assert!(guest.patterns.iter().any(|one| matches(one, key)), "{} saw {key}", guest.name);
        let sorted = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(sorted || guest.group, "{} saw {stream:?} as {numbers:?}", guest.name);
    }
    // Everything it saw or left, exactly once, from where it joined to where it left.
    for mark in &letters {
        streams.entry((mark.publisher, mark.key, mark.lane)).or_default().push(mark.number);
    }
    let mut missing = 0;
    for (stream, until) in left {
        let from = guest.joined.get(stream).copied().unwrap_or(0);
        let key = KEYS[usize::from(stream.1)];
        let asked = guest.patterns.iter().any(|one| matches(one, key));
        let mut numbers = streams.remove(stream).unwrap_or_default();
        numbers.sort_unstable();
        let twice: Vec<u32> =
            numbers.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        let of = |mark: &&Mark| {
            (mark.publisher, mark.key, mark.lane) == *stream && twice.contains(&mark.number)
        };
        let (saw, left): (Vec<_>, Vec<_>) =
            (seen.iter().filter(of).collect(), letters.iter().filter(of).collect());
        let kind = (&guest.name, guest.lossless, guest.group, guest.mortal);
        assert!(twice.is_empty(), "{kind:?} saw {saw:?} and left {left:?}");
        let inside = numbers.iter().all(|number| (from + 1..=*until).contains(number));
        assert!(inside, "{}: {stream:?} from {from} to {until}: {numbers:?}", guest.name);
        missing += if asked { u64::from(until - from) - numbers.len() as u64 } else { 0 };
    }
    assert!(streams.is_empty(), "{} saw what nobody published", guest.name);
    if let Some(dropped) = dropped.filter(|_| !guest.group) {
        assert_eq!(missing, dropped, "{}", guest.name);
        assert!(!guest.lossless || dropped == 0, "{} lost {dropped}", guest.name);
    }
}

/// All members of a group together: each event once.
fn check_group(guests: &[Guest]) {
    let mut all = HashMap::new();
    for guest in guests.iter().filter(|guest| guest.group) {
        for mark in guest.seen.lock().expect("not poisoned").iter() {
            // Groups of the same keys share; others see the same events again.
            *all.entry((guest.patterns.clone(), *mark)).or_insert(0) += 1;
        }
    }
    assert!(all.values().all(|times| *times == 1), "a group had an event twice");
}

fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let runtime = runtime(2);
    let hub = EventHub::builder()
        .runtime(runtime.handle().clone())
        .letters_max(1_000_000)
        .pool_threads(2)
        .build()
        .expect("a hub");
    let (mut guests, mut here, mut streams) = (Vec::new(), Vec::new(), Streams::new());
    let mut groups: HashMap<Vec<&'static str>, Streams> = HashMap::new();
    for phase in 0..rng.random_range(2..8) {
        for _ in 0..rng.random_range(0..4) {
            let mut guest =
                subscribe(&hub, &mut rng, seed, guests.len() as u64 + here.len() as u64);
            guest.joined = match guest.group {
                true => groups.entry(guest.patterns.clone()).or_insert(streams.clone()).clone(),
                false => streams.clone(),
            };
            here.push(guest);
        }
        let plan = plan(&mut rng, &mut streams);
        publish(&hub, &runtime, rng.next_u64(), plan);
        if rng.random_ratio(1, 3) {
            runtime.block_on(hub.idle());
        }
        for place in (0..here.len()).rev() {
            if !rng.random_ratio(1, 4) {
                continue;
            }
            let mut guest: Guest = here.swap_remove(place);
            let subscription = guest.subscription.take().expect("there");
            // A budget is spent at an event, so not any more once all are handled.
            if guest.mortal {
                runtime.block_on(hub.idle());
            }
            let failed = subscription.stats().state == State::Failed;
            if rng.random_ratio(1, 2) {
                let stopped = subscription.blocking_stop(LONG).expect("stopped");
                // One that died before its time has missed what came after that.
                let died = guest.mortal && failed;
                assert!(
                    stopped.leftovers == 0 || died || guest.group,
                    "phase {phase}: {stopped:?}"
                );
                check(&hub, &guest, &streams, (!died).then_some(stopped.dropped));
            } else {
                drop(subscription);
                check(&hub, &guest, &streams, None);
            }
            guests.push(guest);
        }
    }
    runtime.block_on(hub.idle());
    for guest in &here {
        let stats = guest.subscription.as_ref().expect("there").stats();
        check(&hub, guest, &streams, (stats.state != State::Failed).then_some(stats.dropped));
    }
    let report = hub.blocking_shutdown(LONG);
    assert_eq!(report.stuck, Vec::<String>::new());
    guests.extend(here);
    check_group(&guests);
}

#[test]
fn each_sees_its_events_once_and_in_order_minus_what_was_dropped() {
    // Panics are part of the play; only ours are worth a line.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if !text.contains("that is meant") {
            usual(info);
        }
    }));
    for seed in include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        run(seed.trim().parse().expect("a seed"));
    }
    let time = if soaks() { Duration::from_secs(600) } else { Duration::from_secs(60) };
    let (begun, mut cases) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let seed = rand::random();
        if std::env::var_os("HUB_SEEDS").is_some() {
            println!("{seed}"); // for finding the one that hangs
        }
        let case = std::panic::catch_unwind(|| run(seed));
        assert!(case.is_ok(), "add this line to seeds.txt: {seed}");
        cases += 1;
    }
    println!("{cases} histories in {time:?}");
}
