//! Random histories: subscribers come and go, publishers publish at the same time, handlers panic,
//! fail, dawdle and hang, letters are delivered again and stops are short. Every event must be
//! handled once, or be a letter once, or be dropped or discarded and counted; and each subscriber
//! sees the events of its keys in order.
//!
//! A seed that fails is printed; it belongs into `seeds.txt`, and is tried first from then on.
//! `HUB_SEED` tries one seed alone, `HUB_SEEDS` prints each before it is tried.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use artel_hub::{
    Backoff, Context, Delivery, EventHub, HandlerError, Keys, LetterFilter, Overflow, Priority,
    Queue, Restart, State, Subscription, Topic,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::{Gate, LONG, eventually, runtime, soaks};

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

/// More than a history has.
const PLENTY: usize = 100_000;

/// How a guest treats some of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangs {
    Never,
    /// And is replaced then.
    InTime,
    /// And stays there until the end.
    ForEver,
}

/// What the handlers of one guest did.
#[derive(Default)]
struct Deeds {
    seen: Vec<Mark>,
    /// Where it hung, and what it came back with after that.
    hung: Vec<Mark>,
    came_back: Vec<Mark>,
}

/// What one subscriber is like, and what became of it.
struct Guest {
    name: String,
    subscription: Option<Subscription>,
    /// Sorted, as the hub keys groups.
    patterns: Vec<&'static str>,
    lossless: bool,
    group: bool,
    /// It may end before its time, and nobody knows when.
    mortal: bool,
    hangs: Hangs,
    /// Letters were delivered to it again, so that it saw them late.
    again: bool,
    deeds: Arc<Mutex<Deeds>>,
    /// What it should have had, and how many it lost.
    expected: HashSet<Mark>,
    dropped: u64,
}

impl Guest {
    fn asks_for(&self, mark: Mark) -> bool {
        let key = KEYS[usize::from(mark.key)];
        self.patterns.iter().any(|pattern| matches(pattern, key))
    }

    fn describe(&self) -> String {
        let Guest { name, patterns, lossless, group, mortal, hangs, again, .. } = self;
        format!("{name} {patterns:?} {lossless} {group} {mortal} {hangs:?} {again}")
    }

    /// What it lost so far: only publishers change that, and none is there now.
    fn count_dropped(&mut self) {
        self.dropped = self.subscription.as_ref().map_or(0, |one| one.stats().dropped);
    }
}

/// How an event fares with a guest: decided by numbers alone, so that every attempt agrees.
fn fate(seed: u64, guest: u64, mark: Mark) -> u64 {
    let mixed = [u64::from(mark.publisher), u64::from(mark.key), u64::from(mark.number), guest];
    mixed
        .iter()
        .fold(seed, |hash, part| (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
        % 1000
}

fn subscribe(
    hub: &EventHub,
    rng: &mut StdRng,
    seed: u64,
    number: u64,
    end: Option<&Gate>,
) -> Guest {
    let mut patterns: Vec<&'static str> = (0..rng.random_range(1..=2))
        .map(|_| PATTERNS[rng.random_range(0..PATTERNS.len())])
        .collect();
    patterns.sort_unstable();
    patterns.dedup();
    let group = rng.random_ratio(1, 4);
    let hangs = match (rng.random_range(0..6), end) {
        (0, Some(_)) => Hangs::InTime,
        (1, Some(_)) => Hangs::ForEver,
        _ => Hangs::Never,
    };
    let overflow = match rng.random_range(0..12) {
        0 => Overflow::DropNewest,
        1 => Overflow::DropOldest,
        2 => Overflow::BlockFor(Duration::from_micros(50)),
        3 if !group => Overflow::KeepLatest,
        4 if !group => Overflow::Detach, // a group that ends in the middle cannot be reckoned with
        _ => Overflow::Block,
    };
    let mut bound = rng.random_range(1..40);
    if hangs == Hangs::ForEver && overflow == Overflow::Block {
        bound = PLENTY; // else its publishers would wait until the end
    }
    let mortal = !group && (overflow == Overflow::Detach || rng.random_ratio(1, 8));
    let name = format!("guest-{number}");
    let deeds: Arc<Mutex<Deeds>> = Arc::default();
    let (does, trouble, end) = (deeds.clone(), rng.random_ratio(1, 2), end.cloned());
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
            62..72 if hangs != Hangs::Never => {
                does.lock().expect("not poisoned").hung.push(mark);
                end.iter().for_each(Gate::pass);
                does.lock().expect("not poisoned").came_back.push(mark);
                return Ok(());
            }
            _ => {}
        }
        does.lock().expect("not poisoned").seen.push(mark);
        Ok(())
    };
    let contexts = [Context::Task, Context::Task, Context::Pool, Context::Thread];
    // One that hangs would take the others' threads with it.
    let context = match hangs {
        Hangs::Never => contexts[rng.random_range(0..contexts.len())],
        _ => Context::Thread,
    };
    let restarts = if mortal { 1 } else { 100_000 };
    let quick = Backoff::exponential(Duration::from_micros(10), Duration::from_micros(50));
    let mut subscribe = hub
        .subscribe(Keys::<Mark>::new(&patterns).expect("patterns"))
        .name(&name)
        .on(context)
        .attempts(3)
        .restart(Restart::times(restarts).backoff(quick));
    let inline = !group && hangs == Hangs::Never && rng.random_ratio(1, 10);
    if !inline {
        subscribe = subscribe.queue(Queue::bounded(bound).on_full(overflow));
    }
    if hangs == Hangs::InTime {
        subscribe = subscribe.handler_timeout(Duration::from_millis(20));
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
        hangs,
        again: false,
        deeds,
        expected: HashSet::new(),
        dropped: 0,
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

/// One guest leaves: it is stopped, with little or much time, or dropped.
fn leave(rng: &mut StdRng, guest: &mut Guest) {
    guest.count_dropped();
    let subscription = guest.subscription.take().expect("there");
    // What a mortal one leaves is not reckoned with, and what another was given again after it hung
    // could be discarded or come back: those are stopped, so that they leave letters.
    let stops = guest.mortal || (guest.again && guest.hangs == Hangs::InTime);
    if !stops && rng.random_ratio(1, 3) {
        return drop(subscription);
    }
    let long = guest.hangs == Hangs::Never && rng.random_ratio(1, 2);
    let time = if long { LONG } else { Duration::from_micros(rng.random_range(0..2000)) };
    match subscription.blocking_stop(time) {
        Ok(stopped) if long && !guest.mortal && !guest.group => {
            assert_eq!(stopped.leftovers, 0, "{}", guest.describe());
        }
        Ok(_) => {}
        Err(error) => assert!(guest.hangs != Hangs::Never || !long, "{error}"),
    }
}

/// What became of every event of these guests: each at most once, of those they asked for, in order.
/// How many are missing?
fn missing(hub: &EventHub, guests: &[&Guest], expected: &HashSet<Mark>) -> u64 {
    let mut times: HashMap<Mark, u32> = HashMap::new();
    let mut came_back: Vec<(Mark, Hangs)> = Vec::new();
    let what = || guests.iter().map(|guest| guest.describe()).collect::<Vec<_>>().join("; ");
    for guest in guests {
        let deeds = guest.deeds.lock().expect("not poisoned");
        let filter = LetterFilter::all().subscriber(&guest.name);
        let letters = hub.dead_letters().list(&filter).expect("letters").into_iter();
        let letters = letters
            .map(|letter| serde_json::from_value(letter.payload.expect("json")).expect("a mark"));
        for mark in deeds.seen.iter().copied().chain(letters) {
            assert!(guest.asks_for(mark), "{} had {mark:?}", guest.name);
            *times.entry(mark).or_default() += 1;
        }
        came_back.extend(deeds.came_back.iter().map(|mark| (*mark, guest.hangs)));
        let mut last = Streams::new();
        for mark in deeds.seen.iter().filter(|_| !guest.group && !guest.again) {
            let stream = (mark.publisher, mark.key, mark.lane);
            let before = last.insert(stream, mark.number).unwrap_or(0);
            assert!(before < mark.number, "{}: {mark:?} after {before}", guest.describe());
        }
    }
    for (mark, hangs) in came_back {
        // One that was replaced is a letter, and what it comes back with is ignored.
        let known = times.entry(mark).or_default();
        if hangs == Hangs::ForEver || *known == 0 {
            *known += 1;
        }
    }
    for (mark, times) in &times {
        assert_eq!(*times, 1, "{mark:?} of {}", what());
        assert!(expected.contains(mark), "{mark:?} was not for {}", what());
    }
    (expected.len() - times.len()) as u64
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
    // Histories in which nobody hangs are over sooner, so that there are more of them.
    let (end, hung) = (Gate::default(), rng.random_ratio(1, 4));
    let (mut gone, mut here, mut streams) = (Vec::new(), Vec::new(), Streams::new());
    let mut groups: HashMap<Vec<&'static str>, HashSet<Mark>> = HashMap::new();
    for _ in 0..rng.random_range(2..8) {
        for _ in 0..rng.random_range(0..4) {
            let number = (gone.len() + here.len()) as u64;
            here.push(subscribe(&hub, &mut rng, seed, number, hung.then_some(&end)));
        }
        let plan = plan(&mut rng, &mut streams);
        for mark in plan.iter().flatten() {
            let asked = |guest: &&mut Guest| guest.asks_for(*mark);
            for guest in here.iter_mut().filter(asked) {
                match guest.group {
                    true => groups.entry(guest.patterns.clone()).or_default().insert(*mark),
                    false => guest.expected.insert(*mark),
                };
            }
        }
        publish(&hub, &runtime, rng.next_u64(), plan);
        for guest in &mut here {
            if rng.random_ratio(1, 8) {
                let filter = LetterFilter::all().subscriber(&guest.name);
                hub.dead_letters().redeliver(&filter).expect("delivered");
                guest.again = true;
            }
        }
        for place in (0..here.len()).rev() {
            if rng.random_ratio(1, 4) {
                let mut guest: Guest = here.swap_remove(place);
                leave(&mut rng, &mut guest);
                gone.push(guest);
            }
        }
    }
    // Those that hang in time are replaced, and then all that hang come back.
    let done = |guest: &Guest| {
        let stats = guest.subscription.as_ref().expect("there").stats();
        stats.lag == 0 || stats.state == State::Failed // it is inside, and is nobody's any more
    };
    for guest in here.iter().filter(|guest| guest.hangs != Hangs::ForEver) {
        let what = format!("all to be handled by {}", guest.describe());
        eventually(&what, || done(guest));
    }
    end.open();
    let deeds = |guest: &Guest| {
        let deeds = guest.deeds.lock().expect("not poisoned");
        (deeds.hung.len(), deeds.came_back.len())
    };
    for guest in gone.iter().chain(&here) {
        eventually("those that hang to come back", || deeds(guest).0 == deeds(guest).1);
    }
    for guest in &gone {
        let known = || hub.stats().subscribers.iter().any(|one| one.name == guest.name);
        eventually("those that left to be gone", || !known());
    }
    runtime.block_on(hub.idle());
    here.iter_mut().for_each(Guest::count_dropped);
    gone.extend(here);
    let (mut lost, mut counted) = (0, hub.stats().discarded);
    for guest in gone.iter().filter(|guest| !guest.group) {
        let missing = missing(&hub, &[guest], &guest.expected);
        assert!(!guest.lossless || guest.dropped == 0, "{} lost some", guest.describe());
        if !guest.mortal {
            lost += missing;
            counted += guest.dropped;
        }
    }
    for (patterns, expected) in &groups {
        let members: Vec<&Guest> =
            gone.iter().filter(|guest| guest.group && guest.patterns == *patterns).collect();
        lost += missing(&hub, &members, expected);
        counted += members.iter().map(|guest| guest.dropped).sum::<u64>();
    }
    assert_eq!(lost, counted, "what is missing is dropped or discarded, and counted");
    assert_eq!(hub.stats().letters_lost, 0);
    let report = hub.blocking_shutdown(LONG);
    assert_eq!(report.stuck, Vec::<String>::new());
}

#[test]
fn every_event_is_handled_once_or_a_letter_once_or_counted() {
    // Panics are part of the play; only ours are worth a line.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if !text.contains("that is meant") {
            usual(info);
        }
    }));
    if let Some(seed) = std::env::var("HUB_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed);
    }
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
