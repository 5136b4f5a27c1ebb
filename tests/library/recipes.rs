//! Semaphores, latches and barriers: what is built from events and sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use artel::{Error, Fleet};
use artel_rig::{DEADLINE, Fault, Proxy, Server, eventually};
use tokio::task::JoinSet;

use crate::durability::Pair;
use crate::{NAME, member, member_at, soon, stop};

fn fields(server: &Server, key: &str) -> Vec<String> {
    let key = format!("artel:{{{NAME}}}:{key}");
    redis::cmd("HKEYS").arg(key).query(&mut server.connect()).expect("answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_permits_than_there_are() {
    let server = Server::any();
    let fleets = [
        member(&server).start().await.expect("joins"),
        member(&server).start().await.expect("joins"),
    ];
    let inside = Arc::new(AtomicU32::new(0));
    let mut all = JoinSet::new();
    for fleet in &fleets {
        for _ in 0..6 {
            let semaphore = fleet.semaphore("s", 3).expect("a name");
            let inside = inside.clone();
            all.spawn(async move {
                for round in 0..10 {
                    let permit = semaphore.acquire().await.expect("acquires");
                    assert!(inside.fetch_add(1, Ordering::AcqRel) < 3, "a fourth");
                    tokio::task::yield_now().await;
                    assert!(permit.is_held());
                    inside.fetch_sub(1, Ordering::AcqRel);
                    match round % 2 {
                        0 => drop(permit),
                        _ => permit.release().await.expect("releases"),
                    }
                }
            });
        }
    }
    while let Some(done) = soon(all.join_next()).await {
        done.expect("no panic");
    }
    eventually("all permits to be back", || {
        !fields(&server, "semaphore:s").iter().any(|field| field.starts_with("h:"))
    });
    let [one, two] = &fleets;
    let permits = soon(async {
        let semaphore = one.semaphore("s", 3).expect("a name");
        [semaphore.acquire().await, semaphore.acquire().await, semaphore.acquire().await]
    })
    .await
    .map(|permit| permit.expect("acquires"));
    let theirs = two.semaphore("s", 3).expect("a name");
    assert!(theirs.try_acquire().await.expect("asks").is_none());
    let short = Duration::from_millis(30);
    assert!(theirs.acquire_timeout(short).await.expect("asks").is_none());
    let other = two.semaphore("s", 4).expect("a name").acquire().await.expect_err("another size");
    assert!(matches!(other, Error::Conflict { .. }), "{other}");
    assert!(two.semaphore("s", 0).is_err() && two.semaphore("a{b}", 1).is_err());
    // A holder that dies gives its permits back.
    let dead = one.id().expect("a session").to_string();
    let members = format!("artel:{{{NAME}}}:members");
    let () = redis::cmd("ZREM").arg(members).arg(dead).query(&mut server.connect()).expect("dies");
    let permit = soon(theirs.acquire()).await.expect("acquires");
    assert!(permit.is_held());
    soon(permits[0].lost()).await;
    for permit in permits {
        assert!(permit.release().await.expect_err("lost").is_not_held());
    }
    drop(permit);
    stop(fleets).await;
}

/// What is dropped while Redis is away is given back when it is there again: nothing else would, as
/// long as the session lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_dropped_in_an_outage_is_given_back() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let mut config = artel::Config::default();
    config.lease = Some(Duration::from_secs(60));
    let fleet = Fleet::open(proxy.url(), NAME).expect("an address").join().config(config);
    let fleet = fleet.start().await.expect("joins");
    let semaphore = fleet.semaphore("s", 1).expect("a name");
    let permit = semaphore.acquire().await.expect("free");
    let id = fleet.id();
    proxy.set(Fault::Cut);
    drop(permit);
    let error = soon(semaphore.try_acquire()).await.expect_err("Redis is away");
    assert!(error.is_unreachable(), "{error}");
    tokio::time::sleep(Duration::from_secs(2)).await; // the outage
    proxy.set(Fault::Pass);
    drop(soon(semaphore.acquire()).await.expect("acquires"));
    assert_eq!(fleet.id(), id, "it was not the end of the session that freed it");
    stop([fleet]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_latch_opens_at_zero_and_counts_every_call_once() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let here = Fleet::open(server.url(), NAME).expect("an address");
    let there = Fleet::open(proxy.url(), NAME).expect("an address");
    let waits = here.latch("l", 3).expect("a name");
    let counts = there.latch("l", 7).expect("a name");
    for round in 0..3 {
        assert!(waits.start().await.expect("sets"), "round {round}");
        assert!(!counts.start().await.expect("asks"), "one round at a time");
        assert_eq!(counts.count_down().await.expect("counts"), 2);
        let waiting = waits.clone();
        let waiting = tokio::spawn(async move { waiting.wait().await });
        // Its reply is lost, so it is repeated: it counts once.
        proxy.set(Fault::DropReplyTo(b"latch:l".to_vec()));
        assert_eq!(counts.count_down().await.expect("counts"), 1);
        assert!(!waits.wait_timeout(Duration::from_millis(20)).await.expect("waits"));
        assert_eq!(waits.count_down().await.expect("counts"), 0);
        soon(waiting).await.expect("no panic").expect("opens");
        assert_eq!(counts.count_down().await.expect("counts"), 0, "it stays open");
        assert!(waits.wait_timeout(DEADLINE).await.expect("open"));
    }
    assert_eq!(waits.count().await.expect("reads"), 0);
    assert!(here.latch("l", 0).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_goes_through_before_all_are_there() {
    let server = Server::any();
    let fleets = [
        member(&server).start().await.expect("joins"),
        member(&server).start().await.expect("joins"),
        member(&server).start().await.expect("joins"),
    ];
    let rounds: Vec<_> = (0..20).map(|_| AtomicU32::new(0)).collect();
    let rounds = Arc::new(rounds);
    let mut all = JoinSet::new();
    for fleet in &fleets {
        for _ in 0..2 {
            let (barrier, rounds) = (fleet.barrier("b", 6).expect("a name"), rounds.clone());
            all.spawn(async move {
                for (number, round) in rounds.iter().enumerate() {
                    round.fetch_add(1, Ordering::AcqRel);
                    barrier.wait().await.expect("goes through");
                    assert_eq!(round.load(Ordering::Acquire), 6, "round {number}");
                }
            });
        }
    }
    while let Some(done) = soon(all.join_next()).await {
        done.expect("no panic");
    }
    // Whoever goes away does not count.
    let [one, two, _] = &fleets;
    let (mine, theirs) =
        (one.barrier("c", 2).expect("a name"), two.barrier("c", 2).expect("a name"));
    let gave_up = tokio::time::timeout(Duration::from_millis(30), mine.wait()).await;
    assert!(gave_up.is_err(), "nobody else was there");
    for round in 0..20 {
        let gave_up = tokio::time::timeout(Duration::from_millis(10), mine.wait()).await;
        assert!(gave_up.is_err(), "alone, in round {round}");
    }
    let arrived = |n: usize| {
        let here = || fields(&server, "barrier:c").iter().filter(|f| f.starts_with("a:")).count();
        eventually("arrivals", || here() == n);
    };
    arrived(0);
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.wait().await }
    });
    arrived(1);
    let wrong = format!("artel:{{{NAME}}}:barrier:wrong");
    let () = redis::cmd("SET").arg(wrong).arg("x").query(&mut server.connect()).expect("sets");
    let error = one.barrier("wrong", 2).expect("a name").wait().await.expect_err("refused");
    assert!(error.to_string().contains("holds something else"), "{error}");
    let other = one.barrier("c", 3).expect("a name").wait().await.expect_err("another size");
    assert!(matches!(other, Error::Conflict { .. }), "{other}");
    soon(mine.wait()).await.expect("goes through");
    soon(waiting).await.expect("no panic").expect("goes through");
    stop(fleets).await;
}

/// ⚑ A server takes over that does not know that permits were given back and taken. What was given back is free there, and a permit
/// that is not there is not relied on.
#[tokio::test(flavor = "multi_thread")]
async fn permits_are_right_after_a_failover() {
    let mut pair = Pair::start();
    let join = || member_at(pair.way.url()).start();
    let (one, two) = (join().await.expect("joins"), join().await.expect("joins"));
    let semaphore = one.semaphore("s", 3).expect("a name");
    let take = async || semaphore.acquire().await.expect("a permit");
    let (first, kept) = (take().await, take().await);
    pair.cut_replication();
    first.release().await.expect("given back");
    let forgotten = take().await;
    pair.take_over();
    pair.lead_on();
    soon(forgotten.lost()).await;
    assert!(!forgotten.is_held() && kept.is_held());
    // Two are free: the one that was given back, and the one that nobody got.
    let other = two.semaphore("s", 3).expect("a name");
    let (another, last) = (soon(other.acquire()).await, soon(other.acquire()).await);
    let (another, last) = (another.expect("a permit"), last.expect("a permit"));
    assert!(other.try_acquire().await.expect("answers").is_none(), "three are held");
    drop((forgotten, kept, another, last));
    stop([one, two]).await;
}
