//! No wake-up is lost, whatever happens to the connection; one connection serves all who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use artel::{DistributedEvent, Fleet};
use artel_rig::{DEADLINE, Fault, Kind, Proxy, Server, eventually};
use tokio::task::JoinSet;

use crate::{NAME, member, stop, until};

const HOUR: Duration = Duration::from_secs(3600);

fn event(url: &str, name: &str) -> DistributedEvent {
    let redis = Fleet::open(url, NAME).expect("an address");
    redis.event(name).expect("a name")
}

fn servers() -> impl Iterator<Item = Server> {
    let kinds = [Kind::Redis, Kind::Valkey].into_iter();
    kinds.filter(|kind| kind.program().is_some()).map(Server::start)
}

fn info(server: &Server, section: &str, field: &str) -> u64 {
    let info: String =
        redis::cmd("INFO").arg(section).query(&mut server.connect()).expect("answers");
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(['=', ':']));
    value.and_then(|value| value.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// How many scripts were called: each wait reads once before it waits.
fn reads(server: &Server) -> u64 {
    info(server, "commandstats", "cmdstat_evalsha:calls")
}

fn subscribers(server: &Server) -> usize {
    let list: String = redis::cmd("CLIENT")
        .arg(&["LIST", "TYPE", "pubsub"])
        .query(&mut server.connect())
        .expect("answers");
    list.lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_returns_when_the_event_is_set_and_not_for_what_was_before() {
    for server in servers() {
        let (here, there) = (event(&server.url(), "e"), event(&server.url(), "e"));
        assert!(!here.is_set().await.expect("reads"));
        let waiting = tokio::spawn(async move { here.wait().await });
        there.set().await.expect("sets");
        assert!(waiting.await.expect("no panic").expect("waits"));
        let here = event(&server.url(), "e");
        assert!(here.wait().await.expect("it is set"), "at once");
        assert!(here.wait_timeout(Duration::ZERO).await.expect("it is set"));
        there.clear().await.expect("clears");
        assert!(!here.wait_timeout(Duration::ZERO).await.expect("looks"));
        // A pulse that was over before the wait began is not waited for.
        there.set().await.expect("sets");
        there.clear().await.expect("clears");
        assert!(!here.wait_timeout(Duration::from_millis(200)).await.expect("waits"));
        let century = Duration::from_secs(100 * 365 * 86_400);
        there.set_for(century).await.expect("sets");
        assert!(here.wait_timeout(century).await.expect("waits"));
        assert!(here.state().await.expect("reads").clears_in > Some(century / 2));
    }
}

/// Set at random moments around the wait, over a link that is cut, held up and made deaf.
#[tokio::test(flavor = "multi_thread")]
async fn no_wake_up_is_lost_over_a_bad_link() {
    let rounds = if artel_rig::soak() { 200 } else { 20 };
    let mut faults = 0;
    for server in servers() {
        let proxy = Proxy::start(server.port()).expect("a free port");
        let over = Arc::new(AtomicBool::new(false));
        let (url, port) = (proxy.url(), server.port());
        let chaos = std::thread::spawn({
            let over = over.clone();
            move || break_things(&proxy, port, &over)
        });
        rounds_of_a_hundred(&url, &server.url(), rounds, Duration::from_millis(200)).await;
        over.store(true, Ordering::Release);
        faults += chaos.join().expect("no panic");
    }
    println!("the link was broken {faults} times");
    assert!(faults > rounds / 2, "the link was hardly ever broken");
}

/// Cuts, stalls and delays the link, and kills the subscription, until told to stop.
fn break_things(proxy: &Proxy, port: u16, over: &AtomicBool) -> u32 {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
    let mut connection = client.get_connection().expect("connects");
    let (mut faults, ms) = (0, Duration::from_millis);
    while !over.load(Ordering::Acquire) {
        match rand::random_range(0..5) {
            0 => proxy.set(Fault::Cut),
            1 => proxy.set(Fault::Stall),
            2 => proxy.set(Fault::Delay(ms(rand::random_range(1..10)))),
            3 => {
                // What was swallowed can never follow, so this ends with a cut.
                proxy.set(Fault::DropReplies);
                std::thread::sleep(ms(20));
                proxy.set(Fault::Cut);
            }
            _ => {
                let mut kill = redis::cmd("CLIENT");
                let _: Result<u32, _> =
                    kill.arg(&["KILL", "TYPE", "pubsub"]).query(&mut connection);
            }
        }
        faults += 1;
        std::thread::sleep(ms(rand::random_range(5..40)));
        proxy.set(Fault::Pass);
        std::thread::sleep(ms(rand::random_range(5..60)));
    }
    faults
}

/// A hundred events at a time, each waited for here and set there; the longest wait after its set.
async fn rounds_of_a_hundred(
    waiting_at: &str,
    setting_at: &str,
    rounds: u32,
    consumer_timeout: Duration,
) -> Duration {
    let waiting = Fleet::open(waiting_at, NAME).expect("an address");
    let setting = Fleet::open(setting_at, NAME).expect("an address");
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let mut all = JoinSet::new();
        for at in 0..100 {
            let name = format!("lost-{at}");
            let here = waiting.event(&name).expect("a name");
            let here = here.reread_every(consumer_timeout).expect("a time");
            let there = setting.event(&name).expect("a name");
            all.spawn(async move {
                let moment = || Duration::from_micros(rand::random_range(0..30_000));
                let set = async {
                    tokio::time::sleep(moment()).await;
                    there.set().await.expect("sets");
                    Instant::now()
                };
                let wait = async {
                    tokio::time::sleep(moment()).await;
                    let began = Instant::now();
                    let waited = tokio::time::timeout(DEADLINE, here.wait()).await;
                    let waited = waited.unwrap_or_else(|_| panic!("round {round}: lost"));
                    assert!(waited.expect("waits"));
                    (began, Instant::now())
                };
                let (set, (began, woken)) = tokio::join!(set, wait);
                there.clear().await.expect("clears");
                woken.saturating_duration_since(set.max(began))
            });
        }
        while let Some(late) = all.join_next().await {
            longest = longest.max(late.expect("no panic"));
        }
    }
    println!("{rounds} rounds of 100: the longest wait outlived its set by {longest:?}");
    longest
}

/// Without faults it is the message that wakes, not the timer.
#[tokio::test(flavor = "multi_thread")]
async fn without_faults_the_message_wakes() {
    for server in servers() {
        let rounds = if artel_rig::soak() { 200 } else { 3 };
        let longest = rounds_of_a_hundred(&server.url(), &server.url(), rounds, HOUR).await;
        if artel_rig::soak() {
            assert!(longest < Duration::from_millis(100), "{longest:?}");
        }
    }
}

/// What other programs write need not look as ours does.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_somebody_else_wrote_oddly_can_be_set() {
    let server = Server::any();
    let key = format!("artel:{{{NAME}}}:event:e");
    for (generation, until) in [("07", "0"), ("1.0", "00"), ("word", "word"), ("", "")] {
        let fields = ["flag", "0", "gen", generation, "until", until];
        let () =
            redis::cmd("HSET").arg(&key).arg(&fields).query(&mut server.connect()).expect("sets");
        let event = event(&server.url(), "e");
        event.set().await.expect("sets");
        assert!(event.is_set().await.expect("reads"), "{generation:?}");
        event.clear().await.expect("clears");
        assert!(!event.is_set().await.expect("reads"), "{generation:?}");
    }
}

/// The timer is out of the way: only hearing of the break can bring these back.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_goes_on_after_a_restart_a_kill_and_a_flush() {
    for mut server in servers() {
        let (here, there) = (event(&server.url(), "e"), event(&server.url(), "e"));
        let here = here.reread_every(HOUR).expect("a time");
        for fault in ["restart", "kill", "flush"] {
            let before = reads(&server);
            let waiter = here.clone();
            let waiting = tokio::spawn(async move { waiter.wait().await });
            eventually("the first read", || reads(&server) > before);
            let mut connection = server.connect();
            match fault {
                "restart" => server.restart(),
                "kill" => {
                    let kill = ["KILL", "TYPE", "pubsub"];
                    let killed: u32 =
                        redis::cmd("CLIENT").arg(&kill).query(&mut connection).expect("kills");
                    assert_eq!(killed, 1);
                }
                _ => redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).expect("flushes"),
            }
            there.set().await.expect("sets");
            let waited = tokio::time::timeout(DEADLINE, waiting).await.expect("in time");
            assert!(waited.expect("no panic").expect("waits"), "after a {fault}");
            there.clear().await.expect("clears");
        }
    }
}

/// A member, its events and its locks: one connection listens.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_listens_for_all() {
    let server = Server::any();
    let fleet = member(&server).start().await.expect("joins");
    let before = reads(&server);
    let mut all = JoinSet::new();
    for at in 0..1000 {
        let event = fleet.fleet().event(&format!("e{}", at % 200)).expect("a name");
        let event = event.reread_every(HOUR).expect("a time");
        all.spawn(async move { event.wait().await });
    }
    let lock = fleet.lock("l").expect("a name");
    let guard = lock.acquire().await.expect("free");
    all.spawn(async move { lock.acquire().await.map(|_| true) });
    eventually("everybody to wait", || reads(&server) >= before + 202);
    assert_eq!(subscribers(&server), 1);
    for at in 0..200 {
        fleet.fleet().event(&format!("e{at}")).expect("a name").set().await.expect("sets");
    }
    drop(guard);
    while let Some(waited) = all.join_next().await {
        assert!(waited.expect("no panic").expect("waits"));
    }
    stop([fleet]).await;
}

/// However many wait for one event, one read serves those who asked before it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_wait_share_one_read() {
    let server = Server::any();
    let event = event(&server.url(), "e").reread_every(HOUR).expect("a time");
    let before = reads(&server);
    let mut all = JoinSet::new();
    for _ in 0..10_000 {
        let event = event.clone();
        all.spawn(async move { event.wait().await });
    }
    until("all to wait", async || {
        // Those who come last are served by a read of their own.
        reads(&server) > before && !event.wait_timeout(Duration::from_millis(1)).await.expect("no")
    })
    .await;
    let served = reads(&server) - before;
    println!("{served} reads for 10,000 who wait");
    assert!(served < 5_000, "{served} reads");
    event.set().await.expect("sets");
    while let Some(waited) = all.join_next().await {
        assert!(waited.expect("no panic").expect("waits"));
    }
}

/// The subscription outlives the last who waited for a while, and is dropped then; whoever comes
/// later gets a new one.
/// Whoever comes while another's wait is only beginning is answered with it, and has its own timer all the
/// same.
#[tokio::test(flavor = "multi_thread")]
async fn the_shortest_timer_of_those_who_wait_counts() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let patient = event(&proxy.url(), "e");
    let other = patient.clone().reread_every(Duration::from_millis(50)).expect("a time");
    let patient = patient.reread_every(HOUR).expect("a time");
    assert!(!patient.is_set().await.expect("reads"), "connected");
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let first = tokio::spawn(async move { patient.wait().await });
    until("it subscribes", async || subscribers(&server) > 0).await;
    let second = tokio::spawn(async move { other.wait().await });
    let read = reads(&server);
    until("both are answered", async || reads(&server) > read).await;
    // Set without a word to anybody, as if the message were lost.
    let mut set = redis::cmd("HSET");
    set.arg(format!("artel:{{{NAME}}}:event:e")).arg(&["flag", "1", "gen", "1", "until", "0"]);
    let () = set.query(&mut server.connect()).expect("set");
    for waiting in [second, first] {
        let woken = tokio::time::timeout(DEADLINE, waiting).await.expect("in time");
        assert!(woken.expect("no panic").expect("waits"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_dropped_when_nobody_waits_any_more() {
    let server = Server::any();
    let redis = Fleet::open(server.url(), NAME).expect("an address");
    let event = redis.event("e").expect("a name");
    let event = event.reread_every(Duration::from_millis(100)).expect("a time");
    let channels = || -> Vec<String> {
        redis::cmd("PUBSUB").arg("SHARDCHANNELS").query(&mut server.connect()).expect("answers")
    };
    let waits = event.clone();
    let waiting = tokio::spawn(async move { waits.wait().await });
    eventually("a subscription", || channels() == [format!("artel:{{{NAME}}}:@0:event:e")]);
    waiting.abort();
    eventually("it to be dropped", || channels().is_empty());
    let waits = event.clone();
    let waiting = tokio::spawn(async move { waits.wait().await });
    event.set().await.expect("sets");
    assert!(crate::soon(waiting).await.expect("no panic").expect("waits"));
}

/// An event that went back was lost by Redis; what is set after that counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_data_does_not_hold_anybody_up() {
    let server = Server::any();
    let (here, there) = (event(&server.url(), "e"), event(&server.url(), "e"));
    there.set().await.expect("sets");
    there.clear().await.expect("clears");
    let here = here.reread_every(Duration::from_millis(20)).expect("a time");
    let before = reads(&server);
    let waiting = tokio::spawn(async move { here.wait().await });
    eventually("the first read", || reads(&server) > before);
    let () = redis::cmd("FLUSHALL").query(&mut server.connect()).expect("flushes");
    there.set().await.expect("sets");
    assert!(waiting.await.expect("no panic").expect("waits"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_names_times_and_keys_are_refused() {
    let server = Server::any();
    let redis = Fleet::open(server.url(), NAME).expect("an address");
    for name in ["", "a{b}", &"x".repeat(201), "two\nlines"] {
        let error = redis.event(name).expect_err("refused");
        assert!(matches!(error, artel::Error::Config { field: "event", .. }), "{error}");
    }
    let event = redis.event("e").expect("a name");
    for time in [Duration::ZERO, HOUR * 24 * 365 * 100] {
        let error = event.clone().reread_every(time).expect_err("refused");
        assert!(error.to_string().contains("reread_every must be between"), "{error}");
    }
    assert!(event.set_for(Duration::ZERO).await.is_err());
    let key = format!("artel:{{{NAME}}}:event:e");
    let () = redis::cmd("SET").arg(&key).arg("x").query(&mut server.connect()).expect("sets");
    for error in [
        event.set().await.expect_err("refused"),
        event.clear().await.expect_err("refused"),
        event.is_set().await.expect_err("refused"),
        event.wait().await.expect_err("refused"),
    ] {
        assert!(error.to_string().contains(&format!("key {key} holds something else")), "{error}");
    }
    let () = redis::cmd("DEL").arg(&key).query(&mut server.connect()).expect("deletes");
    event.set().await.expect("sets");
}
