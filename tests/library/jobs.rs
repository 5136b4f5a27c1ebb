//! Retries, delays, periodic entries, follow-ups and orders, by the library alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use artel::{
    Backoff, CatchUp, Cause, Context, Cron, Effect, Error, Fleet, Kind, Lane, Message, NewMessage,
    Notice, Outcome, ScheduleCursor,
};
use artel_rig::Server;

use crate::{NAME, config, errors, member, notice, settled, soon, stop, until};

const QUICK: Backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_millis(200));

async fn fleet(server: &Server) -> Fleet {
    Fleet::connect(server.url(), NAME).await.expect("reachable")
}

/// Three accidents, then it works: one outcome, and everything was counted.
#[tokio::test(flavor = "multi_thread")]
async fn an_accident_is_retried_until_it_works() {
    let server = Server::any();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = seen.clone();
    let handler = move |_: Message, cx: Context| {
        tell.lock().expect("ours").push((cx.attempt, cx.retry, cx.retries_left, cx.snoozed));
        async move { if cx.retry < 3 { Err("not yet") } else { Ok(()) } }
    };
    let kind = Kind::<Message>::new("shaky").retries(5).backoff(QUICK);
    let mut member = member(&server).on(kind, handler).start().await.expect("joins");
    let mut notices = member.notices();
    let id = member.fleet().send(NewMessage::from("x").with_kind("shaky")).await.expect("sent").id;
    settled(&member, 1).await;
    assert_eq!(
        *seen.lock().expect("ours"),
        [(1, 0, 5, 0), (2, 1, 4, 0), (3, 2, 3, 0), (4, 3, 2, 0)]
    );
    for number in 1..=3 {
        soon(notice(&mut notices, |notice| match notice {
            Notice::Retried { id: of, retry, reason, after, .. } => {
                assert_eq!((of, *retry, reason.as_str()), (&id, number, "not yet"));
                assert!(*after >= Duration::from_millis(100));
                true
            }
            _ => false,
        }))
        .await;
    }
    let status = member.fleet().status().await.expect("answers");
    assert_eq!((status.messages.done, status.messages.retried, status.messages.balance), (1, 3, 0));
    assert!(errors(&server).await.is_empty());
    stop([member]).await;
}

/// When they are used up, the error says how often and the last reason.
#[tokio::test(flavor = "multi_thread")]
async fn retries_that_are_used_up_say_how_often_and_why() {
    let server = Server::any();
    let kind = Kind::<Message>::new("hopeless").retries(2).backoff(QUICK);
    let asks = Kind::<Message>::new("asks").backoff(QUICK);
    let member = member(&server)
        .on(kind, |_: Message, cx: Context| async move { Err::<(), _>(format!("{}", cx.attempt)) })
        .on(asks, |_: Message, _: Context| async { Outcome::retry("busy").after(Duration::ZERO) })
        .on("verdict", |_: Message, _: Context| async { Outcome::failed("never") })
        .start()
        .await
        .expect("joins");
    let sent = [
        NewMessage::from("a").with_kind("hopeless"),
        NewMessage::from("b").with_kind("asks").retries(1),
        NewMessage::from("c").with_kind("verdict").retries(9),
    ];
    member.fleet().sender().send_all(&sent).await.expect("sent");
    settled(&member, 3).await;
    let mut failed = errors(&server).await;
    failed.sort_by(|a, b| a.payload.cmp(&b.payload));
    let failed: Vec<_> =
        failed.iter().map(|it| (it.cause, it.reason.as_str(), it.attempt)).collect();
    assert_eq!(
        failed,
        [
            (Cause::Handler, "after 2 retries: 3", 3),
            (Cause::Retries, "after 1 retry: busy", 2),
            (Cause::Handler, "never", 1)
        ]
    );
    stop([member]).await;
}

/// A snooze is no error and no retry, and uses up nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_uses_up_nothing() {
    let server = Server::any();
    let kind = Kind::<Message>::new("later").retries(0);
    let handler = |_: Message, cx: Context| async move {
        match cx.snoozed {
            3 => Outcome::done(),
            _ => Outcome::snooze(Duration::from_millis(100)),
        }
    };
    let member = member(&server).on(kind, handler).start().await.expect("joins");
    member.fleet().send(NewMessage::from("x").with_kind("later")).await.expect("sent");
    settled(&member, 1).await;
    let messages = member.fleet().status().await.expect("answers").messages;
    assert_eq!((messages.done, messages.failed, messages.retried), (1, 0, 0));
    stop([member]).await;
}

/// It starts after its time by Redis's clock, and a batch keeps its order.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_starts_after_its_time() {
    let server = Server::any();
    let began = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = began.clone();
    let handler = move |message: Message, _: Context| {
        tell.lock().expect("ours").push((SystemTime::now(), message.text().into_owned()));
        async {}
    };
    let mut config = config();
    config.concurrency = 1;
    let member = member(&server).config(config).handle(handler).start().await.expect("joins");
    let sent = SystemTime::now();
    let delay = Duration::from_millis(700);
    let batch: Vec<NewMessage> =
        (0..12).map(|n| NewMessage::from(n.to_string()).after(delay)).collect();
    member.fleet().sender().send_all(&batch).await.expect("sent");
    let messages = member.fleet().status().await.expect("answers").messages;
    assert_eq!((messages.scheduled, messages.balance), (12, 0));
    settled(&member, 12).await;
    let began = began.lock().expect("ours").clone();
    let order: Vec<&str> = began.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(order, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]);
    for (at, text) in &began {
        let after = at.duration_since(sent).expect("later");
        assert!(after >= delay, "{text} began after {after:?}");
    }
    println!("the first began after {:?}", began[0].0.duration_since(sent));
    stop([member]).await;
}

/// Listed, run now, moved, cancelled; and then it does not wait any longer.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_scheduled_can_be_listed_run_moved_and_cancelled() {
    let server = Server::any();
    let member =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    let (fleet, hour) = (member.fleet(), Duration::from_secs(3600));
    let batch: Vec<NewMessage> =
        (0..5).map(|n| NewMessage::from(n.to_string()).with_kind("k").after(hour)).collect();
    let ids = fleet.sender().send_all(&batch).await.expect("sent");
    let schedule = fleet.schedule();
    let (mut cursor, mut listed) = (ScheduleCursor::default(), Vec::new());
    loop {
        let page = schedule.page(&mut cursor, 2).await.expect("answers");
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    let found: Vec<_> = listed.iter().map(|one| one.id.clone()).collect();
    assert_eq!(found, ids);
    assert!(listed.iter().all(|one| one.kind.as_deref() == Some("k") && one.left > Some(hour / 2)));
    assert!(schedule.cancel(&ids[0]).await.expect("answers"));
    assert!(schedule.run_now(&ids[1]).await.expect("answers"));
    assert!(schedule.move_by(&ids[2], 2 * hour).await.expect("answers"));
    assert!(schedule.move_by(&ids[2], 400 * 24 * hour).await.is_err());
    let soon_ms = SystemTime::now() + Duration::from_millis(300);
    assert!(schedule.move_to(&ids[3], soon_ms).await.expect("answers"));
    settled(&member, 3).await;
    for over in [0, 1, 3] {
        assert!(!schedule.cancel(&ids[over]).await.expect("answers"), "{over}");
        assert_eq!(schedule.get(&ids[over]).await.expect("answers"), None);
    }
    let moved = schedule.get(&ids[2]).await.expect("answers").expect("it waits");
    assert!(moved.left > Some(hour));
    let status = fleet.status().await.expect("answers");
    assert_eq!((status.messages.scheduled, status.messages.balance), (2, 0));
    assert_eq!((status.errors.forgotten, status.messages.failed), (1, 1));
    stop([member]).await;
}

/// What follows an outcome is sent with it, once; and a chain of steps comes to its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_follow_ups_comes_to_its_end() {
    let server = Server::any();
    let step = |message: Message, _: Context| async move {
        match message.text().parse::<u32>() {
            Ok(0) => Outcome::failed("the end").then(NewMessage::from("over").with_kind("end")),
            Ok(n) => Outcome::done().then(NewMessage::from((n - 1).to_string()).with_kind("step")),
            Err(_) => Outcome::failed("no number"),
        }
    };
    let ends = Arc::new(AtomicUsize::new(0));
    let count = ends.clone();
    let end = move |_: Message, _: Context| {
        count.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let member = member(&server).on("step", step).on("end", end).start().await.expect("joins");
    member.fleet().send(NewMessage::from("20").with_kind("step")).await.expect("sent");
    settled(&member, 22).await;
    let messages = member.fleet().status().await.expect("answers").messages;
    assert_eq!((messages.sent, messages.done, messages.failed), (22, 21, 1));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    stop([member]).await;
}

/// What cannot follow fails its message, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_cannot_be_recorded_fails_its_message() {
    let server = Server::any();
    let handler = |message: Message, _: Context| async move {
        match message.text().as_ref() {
            "many" => (0..101).fold(Outcome::done(), |outcome, _| outcome.then("x")),
            "large" => Outcome::done().then("x".repeat(2 << 20)),
            "lane" => Outcome::done().then_in(Lane::Generated, "x"),
            _ => Outcome::failed("no").then("y".repeat(700_000)).then("z".repeat(700_000)),
        }
    };
    let member = member(&server).handle(handler).start().await.expect("joins");
    for payload in ["many", "large", "lane", "again"] {
        member.fleet().send(payload).await.expect("sent");
    }
    settled(&member, 4).await;
    let reasons: Vec<String> = errors(&server).await.into_iter().map(|it| it.reason).collect();
    for part in ["101 messages", "2097152 bytes", "generated", "1400000 bytes"] {
        let found = reasons.iter().filter(|reason| reason.contains(part)).count();
        assert_eq!(found, 1, "{part}: {reasons:?}");
    }
    stop([member]).await;
}

/// Not kept, and told all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_may_forget_what_failed() {
    let server = Server::any();
    let kind = Kind::<Message>::new("noise").forget_failed();
    let mut member = member(&server)
        .on(kind, |_: Message, _: Context| async { Outcome::failed("no") })
        .start()
        .await
        .expect("joins");
    let mut notices = member.notices();
    member.fleet().send(NewMessage::from("x").with_kind("noise")).await.expect("sent");
    soon(notice(&mut notices, |it| matches!(it, Notice::MessageFailed { .. }))).await;
    let status = member.fleet().status().await.expect("answers");
    assert_eq!((status.messages.failed, status.errors.stored, status.errors.forgotten), (1, 0, 1));
    assert!(errors(&server).await.is_empty());
    stop([member]).await;
}

/// Also if it was its outcome that could not be recorded: too much follows, or an effect does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_forgets_keeps_no_outcome_that_cannot_be_recorded() {
    let server = Server::any();
    let handler = |message: Message, _: Context| async move {
        match message.text().as_ref() {
            "much" => (0..101).fold(Outcome::done(), |outcome, _| outcome.then("x")),
            "list" => Outcome::done().with(Effect::rpush("list", "x")),
            _ => Outcome::done().with(Effect::incr_by("list", 1)),
        }
    };
    let kind = Kind::<Message>::new("noise").forget_failed();
    let member = member(&server).on(kind, handler).handle(handler).start().await.expect("joins");
    let fleet = member.fleet();
    fleet.send(NewMessage::from("list").with_kind("noise")).await.expect("sent");
    settled(&member, 1).await;
    for text in ["much", "wrong"] {
        fleet.send(NewMessage::from(text).with_kind("noise")).await.expect("sent");
        fleet.send(text).await.expect("sent");
    }
    settled(&member, 5).await;
    let status = fleet.status().await.expect("answers");
    assert_eq!((status.messages.done, status.messages.failed, status.errors.forgotten), (1, 4, 2));
    assert_eq!(errors(&server).await.len(), 2, "those of other kinds are kept");
    stop([member]).await;
}

/// No more than so many of a kind run at once, and others are not held up while there are slots.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_runs_no_more_than_its_number_at_once() {
    let server = Server::any();
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (runs, peak) = (now.clone(), most.clone());
    let kind = Kind::<Message>::new("narrow").concurrency(2);
    let narrow = move |_: Message, _: Context| {
        let (runs, peak) = (runs.clone(), peak.clone());
        async move {
            peak.fetch_max(runs.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            runs.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let mut config = config();
    config.concurrency = 8;
    let member = member(&server).config(config).on(kind, narrow).start().await.expect("joins");
    let batch: Vec<NewMessage> =
        (0..30).map(|_| NewMessage::from("x").with_kind("narrow")).collect();
    member.fleet().sender().send_all(&batch).await.expect("sent");
    settled(&member, 30).await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
    stop([member]).await;
}

/// Nobody had started it in time: it fails, and its handler is not called.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_message_is_not_started() {
    let server = Server::any();
    let soon_over = NewMessage::from("x").expires_in(Duration::from_millis(1));
    let lasting = NewMessage::from("y").expires_in(Duration::from_secs(3600));
    let fleet = fleet(&server).await;
    fleet.sender().send_all(&[soon_over, lasting]).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let handler = |message: Message, _: Context| async move {
        assert_eq!(message.text(), "y", "it has expired");
    };
    let member = member(&server).handle(handler).start().await.expect("joins");
    settled(&member, 2).await;
    let failed = errors(&server).await;
    assert_eq!((failed.len(), failed[0].cause), (1, Cause::Expired));
    stop([member]).await;
}

/// Entries fire in a fleet without a generator; declared twice they are one; removed they are quiet.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_fires_in_a_fleet_without_a_generator() {
    let server = Server::any();
    let tick = || Cron::new("every 1s").catch_up(CatchUp::All).message("tick");
    let build = || member(&server).handle(|_: Message, _: Context| async {}).cron("tick", tick());
    let mut first = build().start().await.expect("joins");
    let second = build().start().await.expect("joins");
    let mut notices = first.notices();
    let fleet = first.fleet().clone();
    settled(&first, 2).await;
    drop(second);
    let _ = tokio::time::timeout(Duration::from_millis(1), notices.next()).await;
    settled(&first, 4).await;
    let entry = fleet.crons().list().await.expect("answers").remove(0);
    assert!(entry.fired_at.is_some() && entry.next_at > entry.fired_at && !entry.is_paused);
    assert!(fleet.crons().pause("tick").await.expect("answers"));
    // Its times pass without a message, and are not made up for.
    let passed = || -> u64 {
        let fired = format!("artel:{{{NAME}}}:fired");
        redis::cmd("HGET").arg(fired).arg("tick").query(&mut server.connect()).expect("a time")
    };
    let (paused, sent) = (passed(), fleet.status().await.expect("answers").messages.sent);
    until("three more times to pass", async || passed() >= paused + 3000).await;
    assert_eq!(fleet.status().await.expect("answers").messages.sent, sent);
    assert!(fleet.crons().run("tick").await.expect("answers").is_some());
    // Declared again it stays paused.
    let third = build().start().await.expect("joins");
    assert!(fleet.crons().list().await.expect("answers")[0].is_paused);
    let before = fleet.status().await.expect("answers").messages.sent;
    assert_eq!(before, sent + 1, "the one that was run by hand");
    assert!(fleet.crons().resume("tick").await.expect("answers"));
    let resumed = passed();
    settled(&first, before + 2).await;
    let (sent, times) =
        (fleet.status().await.expect("answers").messages.sent, (passed() - resumed) / 1000);
    assert!(sent - before <= times + 1, "{} messages for {times} times", sent - before);
    assert!(fleet.crons().remove("tick").await.expect("answers"));
    assert!(fleet.crons().list().await.expect("answers").is_empty());
    stop([first, third]).await;
}

/// Nobody was there at four times of each entry. Which of them are made up for is the entry's choice, and too many are cut, and
/// told.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_made_up_for_as_the_entry_says() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    // An interval whose last time is minutes ago, and whose next one is minutes ahead.
    let fits = |seconds: &u64| (600..seconds - 600).contains(&(now.as_secs() % seconds));
    let interval = (3600..7200).step_by(7).find(fits).expect("one of them");
    let last = now.as_secs() / interval * interval;
    let ago = |times: u64, interval: u64| ((last - times * interval) * 1000).to_string();
    for (name, catch_up) in
        [("once", CatchUp::Once), ("skip", CatchUp::Skip), ("all", CatchUp::All)]
    {
        let cron = Cron::new(format!("every {interval}s")).catch_up(catch_up).message(name);
        fleet.crons().set(name, &cron).await.expect("set");
    }
    let many = Cron::new("every 1s").catch_up(CatchUp::All).lane(Lane::Low).message("many");
    fleet.crons().set("many", &many).await.expect("set");
    let fired = format!("artel:{{{NAME}}}:fired");
    let mut redis = server.connect();
    let mut set = redis::cmd("HSET");
    for name in ["once", "skip", "all"] {
        set.arg(&fired).arg(name).arg(ago(4, interval)).exec(&mut redis).expect("set back");
        set = redis::cmd("HSET");
    }
    let since = ((now.as_secs() - 2000) * 1000).to_string();
    set.arg(&fired).arg("many").arg(since).exec(&mut redis).expect("set back");
    let seen = Arc::new(std::sync::Mutex::new(std::collections::HashMap::new()));
    let count = seen.clone();
    let handler = move |message: Message, _: Context| {
        *count.lock().expect("ours").entry(message.text().into_owned()).or_insert(0) += 1;
        std::future::ready(())
    };
    let mut member = member(&server).handle(handler).start().await.expect("joins");
    let mut notices = member.notices();
    let of = |name: &str| seen.lock().expect("ours").get(name).copied().unwrap_or(0);
    soon(notice(&mut notices, |it| {
        matches!(it, Notice::Skipped { entry, reason, .. } if entry == "many" && reason.contains("too many"))
    }))
    .await;
    until("all that is made up for", async || {
        of("all") == 4 && of("once") == 1 && of("many") >= 1000
    })
    .await;
    let skipped = fleet.crons().list().await.expect("answers");
    let skipped = skipped.iter().find(|entry| entry.name == "skip").expect("it is there");
    assert_eq!(skipped.fired_at, None, "what was missed passed without a message");
    assert_eq!((of("all"), of("once"), of("skip")), (4, 1, 0));
    stop([member]).await;
}

/// While the message of an earlier time is not over, times are skipped, and told.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_must_not_overlap_skips_its_times() {
    let server = Server::any();
    let (release, running) =
        (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (gate, count) = (release.clone(), running.clone());
    let handler = move |_: Message, _: Context| {
        let (gate, count) = (gate.clone(), count.clone());
        async move {
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            gate.acquire().await.expect("open").forget();
            count.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let cron = Cron::new("every 1s").no_overlap().message("slow");
    let mut member =
        member(&server).handle(handler).cron("slow", cron).start().await.expect("joins");
    let mut notices = member.notices();
    soon(notice(&mut notices, |it| matches!(it, Notice::Skipped { .. }))).await;
    release.add_permits(1);
    soon(notice(&mut notices, |it| matches!(it, Notice::Fired { .. }))).await;
    release.add_permits(100);
    member.fleet().crons().remove("slow").await.expect("answers");
    stop([member]).await;
}

/// A paused lane waits, everything else runs; what is due is let go, and waits in its lane.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_lane_waits_until_it_is_resumed() {
    let server = Server::any();
    let mut member =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    let mut notices = member.notices();
    let fleet = member.fleet();
    assert!(fleet.pause(Lane::Low).await.expect("answers"));
    assert!(!fleet.pause(Lane::Low).await.expect("answers"), "it is paused already");
    let joined = self::member(&server).handle(|_: Message, _: Context| async {}).start().await;
    let mut joined = joined.expect("joins");
    let mut its = joined.notices();
    let low = |it: &Notice| matches!(it, Notice::Paused { lanes, .. } if *lanes == [Lane::Low]);
    soon(notice(&mut notices, low)).await;
    soon(notice(&mut its, low)).await;
    let low = fleet.sender().lane(Lane::Low);
    low.send("1").await.expect("sent");
    low.send(NewMessage::from("2").after(Duration::from_millis(200))).await.expect("sent");
    fleet.send("3").await.expect("sent");
    until("the delayed one in its lane", async || {
        let status = fleet.status().await.expect("answers");
        assert_eq!(status.paused, ["low"]);
        status.lanes.low == 2 && status.messages.done == 1
    })
    .await;
    assert!(fleet.pause_all().await.expect("answers"));
    let all = |it: &Notice| matches!(it, Notice::Paused { lanes, .. } if lanes.len() == 4);
    soon(notice(&mut notices, all)).await;
    soon(notice(&mut its, all)).await;
    assert!(fleet.resume(Lane::Low).await.expect("answers"));
    assert_eq!(fleet.status().await.expect("answers").paused, ["all"]);
    assert_eq!(fleet.status().await.expect("answers").messages.done, 1);
    assert!(fleet.resume_all().await.expect("answers"));
    soon(notice(&mut notices, |it| matches!(it, Notice::Resumed))).await;
    settled(&member, 3).await;
    stop([member, joined]).await;
}

/// A drained member fetches nothing and does not lead; another one does. Stepping down is the same, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_member_neither_works_nor_leads() {
    let server = Server::any();
    let build = || {
        member(&server)
            .generate(|tick: artel::Tick| async move { format!("{}", tick.seq) })
            .handle(|_: Message, _: Context| async {})
    };
    let one = build().start().await.expect("joins");
    let two = build().start().await.expect("joins");
    let fleet = one.fleet().clone();
    let leader = async || {
        let mut found = None;
        until("a leader", async || {
            found = fleet.status().await.expect("answers").generator.map(|it| it.member);
            found.is_some()
        })
        .await;
        found.expect("found")
    };
    let first = leader().await;
    assert!(fleet.step_down().await.expect("answers"));
    until("another leader", async || leader().await != first).await;
    let second = leader().await;
    assert!(fleet.drain(&second).await.expect("answers"));
    until("the first again", async || leader().await == first).await;
    let status = fleet.status().await.expect("answers");
    let drained = status.members.iter().find(|it| it.id == second).expect("a member");
    assert!(drained.is_drained);
    assert!(fleet.end_drain(&second).await.expect("answers"));
    let nobody = artel::testing::message("x").id().as_str().to_owned();
    assert!(nobody.starts_with('s'));
    stop([one, two]).await;
}

/// Bad input is refused before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_range_is_named() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let far = NewMessage::from("x").after(Duration::from_secs(367 * 86_400));
    let error = fleet.send(far).await.expect_err("too far");
    assert!(error.to_string().contains("366 days"), "{error}");
    let far = NewMessage::from("x").at(SystemTime::now() + Duration::from_secs(367 * 86_400));
    assert!(fleet.send(far).await.is_err());
    let past = NewMessage::from("x").at(SystemTime::UNIX_EPOCH);
    fleet.send(past).await.expect("a time in the past is now");
    assert_eq!(fleet.status().await.expect("answers").messages.waiting, 1);
    let kind = Kind::<Message>::new("k").backoff(Backoff::fixed(Duration::ZERO));
    let bad = fleet.join().on(kind, |_: Message, _: Context| async {}).check();
    assert!(matches!(bad, Err(Error::Config { field: "backoff", .. })), "{bad:?}");
    for (spec, tz, part) in [
        ("0 0 30 2 *", "UTC", "never"),
        ("* * * *", "UTC", "five"),
        ("@daily", "Mars/Olympus", "Mars/Olympus"),
    ] {
        let error = fleet.crons().set("x", &Cron::new(spec).tz(tz)).await.expect_err("refused");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(fleet.crons().set("Bad Name", &Cron::new("@daily")).await.is_err());
    let second = Duration::from_secs(1);
    let never = NewMessage::from("x").after(2 * second).expires_in(second);
    assert!(matches!(fleet.send(never).await, Err(Error::Config { field: "expires", .. })));
}

/// A lane that is full holds up the entries of that lane, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_lane_holds_up_only_its_own_entries() {
    let server = Server::any();
    let mut config = config();
    config.backlog_max = Some(2);
    let member = member(&server).config(config).start().await.expect("joins");
    let fleet = member.fleet();
    fleet.pause(Lane::Low).await.expect("answers");
    fleet.sender().lane(Lane::Low).send_all(&["a".into(), "b".into()]).await.expect("sent");
    // By its name it comes first.
    let full = Cron::new("every 1s").lane(Lane::Low).message("full");
    fleet.crons().set("a-full", &full).await.expect("set");
    let free = Cron::new("every 1s").lane(Lane::High).message("free");
    fleet.crons().set("b-free", &free).await.expect("set");
    until("the other to fire", async || fleet.status().await.expect("answers").lanes.high == 2)
        .await;
    assert_eq!(fleet.status().await.expect("answers").lanes.low, 2);
    stop([member]).await;
}

/// The list goes on although the last one that was read is gone, and all others have the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_behind_one_that_is_gone() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let at = SystemTime::now() + Duration::from_secs(3600);
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(fleet.send(NewMessage::from(n.to_string()).at(at)).await.expect("sent").id);
    }
    let (mut cursor, mut listed) = (ScheduleCursor::default(), 0);
    loop {
        let page = fleet.schedule().page(&mut cursor, 10).await.expect("answers");
        let Some(last) = page.last() else { break };
        listed += page.len();
        fleet.schedule().cancel(&last.id).await.expect("answers");
    }
    assert_eq!(listed, 30);
}

/// What was put back to work does not expire: somebody wants it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_put_back_does_not_expire() {
    let server = Server::any();
    let failing = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let fails = failing.clone();
    let handler = move |_: Message, _: Context| {
        let fails = fails.load(Ordering::SeqCst);
        async move { if fails { Outcome::failed("not now") } else { Outcome::done() } }
    };
    let member = member(&server).handle(handler).start().await.expect("joins");
    let fleet = member.fleet();
    let message = NewMessage::from("x").with_kind("k").expires_in(Duration::from_millis(1500));
    fleet.send(message).await.expect("sent");
    settled(&member, 1).await;
    let page = fleet.errors().page(&mut artel::Cursor::default(), 10).await;
    let record = page.expect("answers").remove(0);
    assert_eq!(record.cause, Cause::Handler);
    let after = record.generated_at + Duration::from_millis(1600);
    until("its time to be over", async || fleet.now().await.expect("answers") > after).await;
    failing.store(false, Ordering::SeqCst);
    let back = fleet.errors().requeue(None).put_back(&[record]).await.expect("put back");
    assert_eq!(back.messages, 1);
    settled(&member, 2).await;
    let left = errors(&server).await;
    assert_eq!(fleet.status().await.expect("answers").messages.done, 1, "{left:?}");
    stop([member]).await;
}

/// Nobody leads, and a member has counted one that joined twice: once in a look, and once because it was told. Its rank is
/// too high only until it looks again, or nobody would fire.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_counted_twice_stops_no_entry() {
    let server = Server::any();
    let member =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    let fleet = member.fleet();
    fleet.crons().set("tick", &Cron::new("every 1s").message("x")).await.expect("set");
    settled(&member, 1).await;
    // It knows its rank. Now the hint of a member with a lower id comes, which is in no look or was in the one before it.
    for _ in 0..3 {
        let ctl = format!("artel:{{{NAME}}}:@0:ctl");
        let told =
            redis::cmd("SPUBLISH").arg(ctl).arg("joined|0-0").query::<u64>(&mut server.connect());
        assert_eq!(told.expect("answers"), 1);
    }
    settled(&member, 4).await;
    fleet.crons().remove("tick").await.expect("answers");
    stop([member]).await;
}

/// What an entry sent before is nobody's business in a log.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_replaced_does_not_show_its_payload() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    fleet.crons().set("nightly", &Cron::new("@daily").message("a secret")).await.expect("set");
    let replaced = fleet.crons().set("nightly", &Cron::new("@hourly").message("x")).await;
    match replaced.expect("set") {
        artel::CronSet::Replaced(before) => {
            assert!(before.contains("@daily") && !before.contains("secret"), "{before}");
        }
        other => panic!("{other:?}"),
    }
}

/// Two versions of a program declare an entry differently: the last one wins, and learns what was there before.
#[tokio::test(flavor = "multi_thread")]
async fn two_versions_that_declare_an_entry_differently_are_told() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let declares =
        |spec: &str| fleet.join().cron("nightly", Cron::new(spec).message("all")).start();
    let old = declares("@daily").await.expect("joined");
    let same = declares("@daily").await.expect("joined");
    let mut new = declares("@hourly").await.expect("joined");
    let mut notices = new.notices();
    let before = loop {
        let notice = tokio::time::timeout(Duration::from_secs(30), notices.next()).await;
        if let Notice::CronReplaced { entry, before } = notice.expect("in time").expect("a notice")
        {
            assert_eq!(entry, "nightly");
            break before;
        }
    };
    assert!(before.contains("@daily"), "{before}");
    let entries = fleet.crons().list().await.expect("listed");
    assert_eq!((entries.len(), entries[0].spec.as_str()), (1, "@hourly"));
    for member in [old, same, new] {
        member.shutdown().await;
    }
}

/// A message whose kind nobody handles: one can see why it waits.
#[tokio::test(flavor = "multi_thread")]
async fn one_can_see_that_nobody_handles_a_kind() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let handle = |_: Message, _: Context| async {};
    let member = fleet.join().on("known", handle).start().await.expect("joined");
    let sent = fleet.send(NewMessage::from("x").with_kind("unknown")).await.expect("sent");
    until("it to wait", async || {
        let state = fleet.find(sent.id.as_str()).await.expect("found");
        matches!(state, artel::MessageState::Scheduled { waits: 1, retry: 0, .. })
    })
    .await;
    let waiting = fleet.schedule().page(&mut ScheduleCursor::default(), 10).await.expect("listed");
    assert_eq!((waiting.len(), waiting[0].waits), (1, 1));
    member.shutdown().await;
}

/// Which kinds a member handles is on its card.
#[tokio::test(flavor = "multi_thread")]
async fn the_kinds_of_a_member_are_on_its_card() {
    let server = Server::any();
    let fleet = fleet(&server).await;
    let handle = |_: Message, _: Context| async {};
    let member = fleet.join().on("mail", handle).on("order", handle).start().await.expect("joined");
    let mut kinds = fleet.status().await.expect("a status").members[0].kinds.clone();
    kinds.sort();
    assert_eq!(kinds, ["mail", "order"]);
    member.shutdown().await;
}

/// More entries than are read at once, and large ones: all of them are listed, and all of them fire.
#[tokio::test(flavor = "multi_thread")]
async fn all_entries_are_read_however_many_there_are() {
    let server = Server::any();
    let seen = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let tell = seen.clone();
    let handler = move |message: Message, _: Context| {
        tell.lock().expect("ours").insert(message.payload()[..2].to_vec());
        async {}
    };
    let member = member(&server).handle(handler).start().await.expect("joins");
    let fleet = member.fleet();
    for n in 10..40 {
        let large = format!("{n}{}", "x".repeat(60_000));
        let cron = Cron::new("every 1s").message(large);
        fleet.crons().set(&format!("e{n}"), &cron).await.expect("set");
    }
    assert_eq!(fleet.crons().list().await.expect("answers").len(), 30);
    until("all of them have fired", async || seen.lock().expect("ours").len() == 30).await;
    for n in 10..40 {
        fleet.crons().remove(&format!("e{n}")).await.expect("answers");
    }
    stop([member]).await;
}

/// Another program, or a renamed one, that declares the same entry changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_declares_an_entry_is_no_difference() {
    let server = Server::any();
    let (fleet, cron) = (fleet(&server).await, Cron::new("@daily").message("x"));
    fleet.crons().declare("nightly", &cron, "one").await.expect("set");
    let again = fleet.crons().declare("nightly", &cron, "two").await.expect("set");
    assert_eq!(again, artel::CronSet::Same);
    assert_eq!(fleet.crons().list().await.expect("answers")[0].by, "one");
}

/// The only other worker is drained: a leader that works alone does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_beside_a_drained_worker_works() {
    let server = Server::any();
    let mut config = config();
    config.leader_works = artel::LeaderWorks::Alone;
    config.messages_max = Some(0);
    let leader = member(&server)
        .config(config)
        .generate(|_: artel::Tick| async { Vec::<NewMessage>::new() })
        .handle(|_: Message, _: Context| async {})
        .start()
        .await
        .expect("joins");
    let fleet = leader.fleet().clone();
    until("it leads", async || fleet.status().await.expect("answers").generator.is_some()).await;
    let worker =
        member(&server).handle(|_: Message, _: Context| async {}).start().await.expect("joins");
    fleet.drain(&worker.id().expect("joined")).await.expect("answers");
    until("it is known", async || {
        let status = fleet.status().await.expect("answers");
        status.members.iter().any(|it| it.is_drained && !it.works)
    })
    .await;
    fleet.send("x").await.expect("sent");
    settled(&leader, 1).await;
    stop([leader, worker]).await;
}
