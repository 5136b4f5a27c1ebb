//! A lock has one holder, ends with its holder's session, and leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use artel::{Error, Fleet, GuardedScript, Member, Role};
use artel_rig::{Fault, Kind, Proxy, Server, eventually};
use tokio::task::JoinSet;

use crate::{NAME, member, member_at, soon, stop};

fn key(name: &str) -> String {
    format!("artel:{{{NAME}}}:{name}")
}

fn ask<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query(&mut server.connect()).expect("answers")
}

async fn observer(server: &Server) -> Member {
    member(server).start().await.expect("joins")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_holder_at_a_time() {
    let server = Server::any();
    let fleets = [observer(&server).await, observer(&server).await, observer(&server).await];
    let inside = Arc::new(AtomicBool::new(false));
    let highest = Arc::new(AtomicU64::new(0));
    let mut all = JoinSet::new();
    for fleet in &fleets {
        for _ in 0..5 {
            let (lock, inside) = (fleet.lock("l").expect("a name"), inside.clone());
            let highest = highest.clone();
            all.spawn(async move {
                for round in 0..20 {
                    let guard = lock.acquire().await.expect("acquires");
                    assert!(!inside.swap(true, Ordering::AcqRel), "two inside");
                    let before = highest.swap(guard.token().get(), Ordering::AcqRel);
                    assert!(before < guard.token().get(), "tokens grow");
                    tokio::task::yield_now().await;
                    assert!(guard.is_held() && guard.deadline() > std::time::Instant::now());
                    inside.store(false, Ordering::Release);
                    match round % 2 {
                        0 => drop(guard),
                        _ => guard.release().await.expect("releases"),
                    }
                }
            });
        }
    }
    while let Some(done) = soon(all.join_next()).await {
        done.expect("no panic");
    }
    // Nothing is left of them but the highest token.
    eventually("the last release", || ask::<i64>(&server, &["EXISTS", &key("lock:l")]) == 0);
    assert_eq!(ask::<i64>(&server, &["EXISTS", &key("waiters:l")]), 0);
    for fleet in &fleets {
        let locks = key(&format!("locks:{}", fleet.id().expect("a session")));
        assert_eq!(ask::<i64>(&server, &["EXISTS", &locks]), 0);
        assert_eq!(fleet.role(), Role::Observer);
    }
    stop(fleets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_is_not_had_and_a_released_one_at_once() {
    let server = Server::any();
    let (one, two) = (observer(&server).await, observer(&server).await);
    let (mine, theirs) = (one.lock("l").expect("a name"), two.lock("l").expect("a name"));
    let guard = mine.acquire().await.expect("free");
    assert!(mine.try_acquire().await.expect("asks").is_none(), "not even for ourselves");
    assert!(theirs.try_acquire().await.expect("asks").is_none());
    assert!(theirs.acquire_timeout(Duration::ZERO).await.expect("asks").is_none());
    let short = Duration::from_millis(50);
    assert!(theirs.acquire_timeout(short).await.expect("asks").is_none());
    // Whoever gave up waiting has left the queue.
    eventually("an empty queue", || ask::<i64>(&server, &["EXISTS", &key("waiters:l")]) == 0);
    let waiting = tokio::spawn(async move { theirs.acquire().await });
    eventually("somebody to wait", || ask::<i64>(&server, &["ZCARD", &key("waiters:l")]) == 1);
    guard.release().await.expect("releases");
    let guard = soon(waiting).await.expect("no panic").expect("acquires");
    assert!(mine.try_acquire().await.expect("asks").is_none());
    // What this process is about to give back is waited for.
    for _ in 0..20 {
        let other = one.lock("other").expect("a name");
        drop(other.acquire().await.expect("free"));
        assert!(other.try_acquire().await.expect("asks").is_some());
    }
    // Leaving the fleet frees what is held.
    stop([two]).await;
    soon(mine.acquire()).await.expect("acquires").release().await.expect("releases");
    assert!(!guard.is_held());
    soon(guard.lost()).await;
    stop([one]).await;
}

/// Whoever is told that the lock is free and gives up at that moment passes it on.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up_holds_nobody_up() {
    let server = Server::any();
    let (one, two) = (observer(&server).await, observer(&server).await);
    let (mine, theirs) = (one.lock("l").expect("a name"), two.lock("l").expect("a name"));
    for _ in 0..100 {
        let guard = mine.acquire().await.expect("acquires");
        let micros = Duration::from_micros(rand::random_range(0..3000));
        let (gave_up, last) = (theirs.clone(), theirs.clone());
        let gives_up = tokio::spawn(async move { gave_up.acquire_timeout(micros).await });
        let waits = tokio::spawn(async move { last.acquire().await });
        tokio::time::sleep(micros).await;
        drop(guard);
        drop(soon(gives_up).await.expect("no panic").expect("asks"));
        drop(soon(waits).await.expect("no panic").expect("acquires"));
    }
    stop([one, two]).await;
}

/// A holder that is judged dead learns of it, writes nothing, and cannot free its successor's lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_judged_dead_is_told_and_refused() {
    let server = Server::any();
    let (one, two) = (observer(&server).await, observer(&server).await);
    let guard = one.lock("l").expect("a name").acquire().await.expect("free");
    let append = GuardedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])").expect("lua");
    let (list, token) = (key("data:list"), guard.token().to_string());
    assert_eq!(guard.run(&append, &[&list], &[&token]).await.expect("held"), 1);
    let dead = one.id().expect("a session").to_string();
    let theirs = two.lock("l").expect("a name");
    let waiting = tokio::spawn(async move { theirs.acquire().await });
    eventually("somebody to wait", || ask::<i64>(&server, &["ZCARD", &key("waiters:l")]) == 1);
    let () = ask(&server, &["ZREM", &key("members"), &dead]);
    let () = ask(&server, &["SADD", &key("orphans"), &dead]);
    let next = soon(waiting).await.expect("no panic").expect("acquires");
    assert!(next.token() > guard.token());
    let refused = guard.run(&append, &[&list], &[&token]).await.expect_err("refused");
    assert!(refused.is_not_held(), "{refused}");
    soon(guard.lost()).await;
    assert!(guard.release().await.expect_err("refused").is_not_held());
    assert_eq!(next.run(&append, &[&list], &[&token]).await.expect("held"), 2);
    // The process came back as somebody new, and may ask again.
    let again = one.lock("l").expect("a name");
    next.release().await.expect("releases");
    soon(again.acquire()).await.expect("acquires").release().await.expect("releases");
    stop([one, two]).await;
}

/// A Redis that forgot everything has forgotten who holds what.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_lost_with_the_data() {
    let server = Server::any();
    let fleet = observer(&server).await;
    let guard = fleet.lock("l").expect("a name").acquire().await.expect("free");
    let () = ask(&server, &["FLUSHALL"]);
    soon(guard.lost()).await;
    let again = soon(fleet.lock("other").expect("a name").acquire()).await.expect("acquires");
    assert!(again.token() > guard.token());
    stop([fleet]).await;
}

/// An attempt whose answer was lost leaves the lock with a session that does not know: it is given
/// back. A repeated attempt, a repeated release: once.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_leaves_no_lock_behind() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let fleet = member_at(proxy.url()).start().await.expect("joins");
    let lock = fleet.lock("l").expect("a name");
    proxy.set(Fault::DropReplyTo(key("lock:l").into_bytes()));
    let error = lock.try_acquire().await.expect_err("unheard");
    assert!(matches!(error, Error::Unreachable { .. } | Error::NoAnswer { .. }), "{error}");
    assert_eq!(proxy.swallowed(), 1);
    eventually("the lock to be given back", || {
        ask::<i64>(&server, &["EXISTS", &key("lock:l")]) == 0
    });
    proxy.set(Fault::DropReplyTo(key("lock:l").into_bytes()));
    let guard = soon(lock.acquire()).await.expect("acquires, the second time");
    assert_eq!(proxy.swallowed(), 2);
    let held: String = ask(&server, &["GET", &key("lock:l")]);
    assert!(held.ends_with(&format!("|{}", guard.token())), "{held}");
    proxy.set(Fault::DropReplyTo(key("lock:l").into_bytes()));
    guard.release().await.expect("releases, the second time");
    assert_eq!(ask::<i64>(&server, &["EXISTS", &key("lock:l")]), 0);
    stop([fleet]).await;
}

/// An attempt that is given up on its way leaves neither the lock taken nor a place in the queue. The
/// lease is so long that no heartbeat helps.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_given_up_on_its_way_leaves_nothing_behind() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let mut config = artel::Config::default();
    config.lease = Some(Duration::from_secs(3600));
    let build =
        |url: String| Fleet::open(url, NAME).expect("an address").join().config(config.clone());
    let slow = build(proxy.url()).start().await.expect("joins");
    let quick = build(server.url()).start().await.expect("joins");
    for name in ["free", "held"] {
        let (mine, theirs) = (slow.lock(name).expect("a name"), quick.lock(name).expect("a name"));
        let held = match name {
            "held" => Some(soon(theirs.acquire()).await.expect("free")),
            _ => None,
        };
        proxy.set(Fault::Delay(Duration::from_millis(20)));
        let gave_up = mine.acquire_timeout(Duration::from_millis(30)).await.expect("asks");
        assert!(gave_up.is_none(), "the answer was not here yet");
        proxy.set(Fault::Pass);
        let (waiters, lock) = (key(&format!("waiters:{name}")), key(&format!("lock:{name}")));
        eventually("an empty queue", || ask::<i64>(&server, &["EXISTS", &waiters]) == 0);
        if let Some(guard) = held {
            guard.release().await.expect("releases");
        }
        eventually("a free lock", || ask::<i64>(&server, &["EXISTS", &lock]) == 0);
        soon(theirs.acquire()).await.expect("acquires").release().await.expect("releases");
    }
    stop([slow, quick]).await;
}

/// Whoever waits in line behind a guard of its own process hears that the fleet stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_every_wait() {
    let server = Server::any();
    let fleet = observer(&server).await;
    let lock = fleet.lock("l").expect("a name");
    let guard = lock.acquire().await.expect("free");
    let (waits, late) = (lock.clone(), lock);
    let waiting = tokio::spawn(async move { waits.acquire().await });
    stop([fleet]).await;
    let stopped = soon(waiting).await.expect("no panic").expect_err("stopped");
    assert!(matches!(stopped, Error::Stopping), "{stopped}");
    soon(guard.lost()).await;
    drop(guard);
    assert!(matches!(late.try_acquire().await.expect_err("stopped"), Error::Stopping));
}

/// A holder whose connections are cut is told before somebody else can be granted the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_is_told() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let here = member_at(proxy.url()).start().await.expect("joins");
    let there = observer(&server).await;
    let guard = here.lock("l").expect("a name").acquire().await.expect("free");
    let theirs = there.lock("l").expect("a name");
    let waiting = tokio::spawn(async move {
        let guard = theirs.acquire().await.expect("acquires");
        (guard, std::time::Instant::now())
    });
    eventually("somebody to wait", || ask::<i64>(&server, &["ZCARD", &key("waiters:l")]) == 1);
    proxy.set(Fault::Cut);
    soon(guard.lost()).await;
    let lost = std::time::Instant::now();
    let (_next, granted) = soon(waiting).await.expect("no panic");
    println!("told {:?} before the next was granted it", granted.saturating_duration_since(lost));
    if artel_rig::soak() {
        assert!(lost < granted);
    }
    stop([here, there]).await;
}

/// A Redis that is down judges nobody: what is held is held when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_redis_costs_no_lock() {
    // All it acknowledged is there when it comes back: what Redis itself forgets is another matter.
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let mut server = Server::with(kind, &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut config = artel::Config::default();
    config.lease = Some(Duration::from_secs(60));
    config.presence_grace = Some(Duration::from_secs(3));
    let fleet = Fleet::open(server.url(), NAME).expect("an address").join().config(config);
    let fleet = fleet.start().await.expect("joins");
    let guard = Arc::new(fleet.lock("l").expect("a name").acquire().await.expect("free"));
    let watched = guard.clone();
    let lost = tokio::spawn(async move { watched.lost().await });
    server.kill();
    tokio::time::sleep(Duration::from_secs(3)).await; // the outage, longer than two thirds of the grace
    server.restart();
    let ping = GuardedScript::new("return 'held'").expect("lua");
    let none: [&str; 0] = [];
    crate::until("Redis to answer", async || match guard.run(&ping, &none, &none).await {
        Ok(answer) => answer == "held",
        Err(error) => {
            assert!(!error.is_not_held(), "{error}");
            false
        }
    })
    .await;
    assert!(!lost.is_finished() && guard.is_held());
    lost.abort();
    stop([fleet]).await;
}

/// A member whose session connection cannot be made anew lives on, refreshed over the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_its_session_connection_lives_on() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let here = member_at(proxy.url()).start().await.expect("joins");
    let there = observer(&server).await;
    let event = here.fleet().event("e").expect("a name");
    let event = event.reread_every(Duration::from_millis(20)).expect("a time");
    let waiting = tokio::spawn(async move { event.wait().await });
    let guard = here.lock("l").expect("a name").acquire().await.expect("free");
    let id = here.id().expect("a session");
    proxy.set(Fault::HoldNew);
    let () = ask(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    // It is heard of again and again, for far longer than an absent one may be silent.
    let mut seen = std::collections::BTreeSet::new();
    eventually("twenty refreshes", || {
        let deadline: String = ask(&server, &["ZSCORE", &key("members"), id.as_str()]);
        seen.insert(deadline);
        seen.len() > 20
    });
    assert!(guard.is_held());
    proxy.set(Fault::Pass);
    there.fleet().event("e").expect("a name").set().await.expect("sets");
    assert!(soon(waiting).await.expect("no panic").expect("waits"));
    assert_eq!(here.id(), Some(id));
    stop([here, there]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_names_scripts_and_keys_are_refused() {
    let server = Server::any();
    let fleet = observer(&server).await;
    for name in ["", "a{b}", &"x".repeat(201), "two\nlines"] {
        let error = fleet.lock(name).expect_err("refused");
        assert!(matches!(error, Error::Config { field: "lock", .. }), "{error}");
    }
    let () = ask(&server, &["RPUSH", &key("lock:list"), "x"]);
    let () = ask(&server, &["SET", &key("lock:text"), "somebody's"]);
    for name in ["list", "text"] {
        let error = fleet.lock(name).expect("a name").acquire().await.expect_err("refused");
        assert!(error.to_string().contains("holds something else"), "{error}");
    }
    let guard = fleet.lock("l").expect("a name").acquire().await.expect("free");
    let none: [&str; 0] = [];
    let wrong = GuardedScript::new("this is no Lua").expect("not looked at yet");
    let error = guard.run(&wrong, &none, &none).await.expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    stop([fleet]).await;
}
