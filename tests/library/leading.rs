use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use artel::{
    Batch, Config, Context, Error, Fleet, LeaderWorks, Member, MemberBuilder, MemberStatus,
    Message, Notice, Outcome, Role, Tick, Trouble,
};
use artel_rig::Server;

use crate::durability::Pair;
use crate::{NAME, audit, config, member, member_at, notice, stop, until};

fn handles(builder: MemberBuilder) -> MemberBuilder {
    builder.handle(|_: Message, _: Context| async {})
}

fn labelled(server: &Server, label: &str, change: impl FnOnce(&mut Config)) -> MemberBuilder {
    let mut config = config();
    label.clone_into(&mut config.label);
    change(&mut config);
    member(server).config(config)
}

async fn seen(member: &Member, label: &str) -> MemberStatus {
    let status = member.fleet().status().await.expect("answers");
    let found = status.members.into_iter().find(|member| member.label == label);
    found.expect("a member of this label")
}

/// Alone it works; when another member joins that works, it finishes what it has and fetches no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_works_as_long_as_it_is_alone() {
    let server = Server::any();
    let first = labelled(&server, "first", |config| config.leader_works = LeaderWorks::Alone);
    let first = handles(first.generate(|_: Tick| async { "x" })).start().await.expect("joins");
    until("a leader that works", async || {
        let member = seen(&first, "first").await;
        member.role == Role::Generator && member.works && member.done >= 5
    })
    .await;
    // One that only uses locks is no worker, and neither is one that could only lead.
    let observer = labelled(&server, "observer", |_| {}).start().await.expect("joins");
    let standby = labelled(&server, "standby", |_| {}).generate(|_: Tick| async { "y" });
    let standby = standby.start().await.expect("joins");
    assert_eq!((observer.role(), standby.role()), (Role::Observer, Role::Standby));
    let done = seen(&first, "first").await.done;
    until("it to go on working", async || seen(&first, "first").await.done >= done + 200).await;
    assert!(seen(&first, "first").await.works);

    let second = handles(labelled(&server, "second", |_| {})).start().await.expect("joins");
    until("the leader to rest", async || {
        let member = seen(&first, "first").await;
        member.role == Role::Generator && !member.works && member.claimed + member.in_flight == 0
    })
    .await;
    let before = seen(&first, "first").await.done;
    let done = seen(&second, "second").await.done;
    until("the other one to work", async || seen(&second, "second").await.done >= done + 100).await;
    assert_eq!(seen(&first, "first").await.done, before, "it fetches no more");
    stop([second]).await;
    until("it to work again", async || seen(&first, "first").await.done > before + 5).await;
    stop([standby, observer, first]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_may_always_work_and_never_does_by_default() {
    let server = Server::any();
    let leads = |label: &str, works| {
        let builder = labelled(&server, label, |config| config.leader_works = works);
        handles(builder.generate(|_: Tick| async { "x" }))
    };
    let first = leads("first", LeaderWorks::Always).start().await.expect("joins");
    until("somebody to lead", async || first.role() == Role::Generator).await;
    let second = leads("second", LeaderWorks::Never).start().await.expect("joins");
    until("both to work", async || {
        let (one, two) = (seen(&first, "first").await, seen(&second, "second").await);
        assert!(one.works || one.role != Role::Generator, "{one:?}");
        one.done > 50 && two.done > 50
    })
    .await;
    // What it did until it was elected is counted; once it leads, it rests.
    stop([first]).await;
    until("the other to lead", async || {
        let member = seen(&second, "second").await;
        member.role == Role::Generator && !member.works && member.claimed + member.in_flight == 0
    })
    .await;
    let done = seen(&second, "second").await.done;
    until("messages to pile up", async || {
        second.fleet().status().await.expect("answers").messages.waiting > 50
    })
    .await;
    assert_eq!(seen(&second, "second").await.done, done);
    stop([second]).await;
}

/// An observer is no worker: the leader says that nobody works, also when it is not the only member.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_says_once_that_nobody_works() {
    let server = Server::any();
    let _observer = labelled(&server, "observer", |_| {}).start().await.expect("joins");
    let leader = handles(labelled(&server, "leader", |_| {}).generate(|_: Tick| async { "x" }));
    let mut leader = leader.start().await.expect("joins");
    let mut notices = leader.notices();
    notice(&mut notices, |notice| matches!(notice, Notice::NoWorker)).await;
    until("the trouble to be seen", async || {
        leader.fleet().status().await.expect("answers").trouble() == Some(Trouble::NoWorker)
    })
    .await;
    let _worker = handles(labelled(&server, "worker", |_| {})).start().await.expect("joins");
    until("no trouble", async || {
        leader.fleet().status().await.expect("answers").trouble().is_none()
    })
    .await;
    stop([leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_in_trouble_only_if_its_work_is_not_done() {
    let server = Server::any();
    let status = async || {
        Fleet::open(server.url(), NAME).expect("an address").status().await.expect("answers")
    };
    assert_eq!(status().await.trouble(), Some(Trouble::NoMember));
    // Just jobs: nobody can lead, nothing is generated, and all is well.
    let worker = handles(labelled(&server, "worker", |_| {})).start().await.expect("joins");
    let seen = status().await;
    assert_eq!(
        (seen.trouble(), seen.generator.is_none(), seen.members[0].can_lead),
        (None, true, false)
    );
    assert!(seen.members[0].works);
    worker.fleet().send("job").await.expect("sent");
    until("the job to be done", async || status().await.messages.done == 1).await;
    assert_eq!(status().await.trouble(), None);
    stop([worker]).await;
    // Messages wait, and whoever is here does not work.
    let sender = Fleet::connect(server.url(), NAME).await.expect("opens").sender();
    sender.send("job").await.expect("sent");
    let _observer = labelled(&server, "observer", |_| {}).start().await.expect("joins");
    assert_eq!(status().await.trouble(), Some(Trouble::NoWorker));
    // A member could lead, and nobody does: here because no term can be granted any more. That is the greater
    // trouble; for how long it has been so is told all the same.
    let term = format!("artel:{{{NAME}}}:term");
    let () =
        redis::cmd("SET").arg(&term).arg(1u64 << 52).query(&mut server.connect()).expect("answers");
    let standby = labelled(&server, "standby", |_| {}).generate(|_: Tick| async { "x" });
    let standby = standby.start().await.expect("joins");
    until("a lease without a leader", async || {
        let status = status().await;
        assert_eq!(status.trouble(), Some(Trouble::Exhausted));
        status.leaderless > status.lease
    })
    .await;
    let () = redis::cmd("DEL").arg(&term).query(&mut server.connect()).expect("answers");
    until("a leader", async || status().await.generator.is_some()).await;
    assert_eq!(status().await.leaderless, Duration::ZERO);
    stop([standby]).await;
}

/// A generator that counts, in what Redis keeps for it.
fn counts(server: &Server, label: &str, per_tick: u64) -> MemberBuilder {
    labelled(server, label, |_| {}).generate(move |tick: Tick| {
        let done = std::str::from_utf8(tick.state()).ok().and_then(|text| text.parse().ok());
        let done: u64 = done.unwrap_or(0);
        let next = done + per_tick;
        let numbers = (done + 1..=next).map(|number| number.to_string());
        std::future::ready(Batch::new(numbers).with_state(next.to_string()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_goes_on_where_its_predecessor_stopped() {
    let server = Server::any();
    let (sum, max) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (to_sum, to_max) = (sum.clone(), max.clone());
    let worker = labelled(&server, "worker", |_| {}).handle(move |message: Message, _: Context| {
        let number: u64 = message.text().parse().expect("a number");
        to_sum.fetch_add(number, Ordering::Relaxed);
        to_max.fetch_max(number, Ordering::Relaxed);
        async { Outcome::done() }
    });
    let worker = worker.start().await.expect("joins");
    for (round, per_tick) in [1, 3, 700, 2].into_iter().enumerate() {
        let leader = counts(&server, "leader", per_tick).start().await.expect("joins");
        let before = worker.fleet().status().await.expect("answers").messages.generated;
        until("some messages of this term", async || {
            worker.fleet().status().await.expect("answers").messages.generated
                >= before + 10 * per_tick
        })
        .await;
        // Gracefully or not: what was not accepted is not in the state, either.
        match round % 2 {
            0 => stop([leader]).await,
            _ => drop(leader),
        }
    }
    until("all of them to be done", async || {
        let books = worker.fleet().status().await.expect("answers").messages;
        books.is_settled() && worker.fleet().status().await.expect("answers").generator.is_none()
    })
    .await;
    let books = worker.fleet().status().await.expect("answers").messages;
    let count = books.generated;
    assert_eq!(max.load(Ordering::Relaxed), count, "none was left out");
    assert_eq!(sum.load(Ordering::Relaxed), count * (count + 1) / 2, "none came twice");
    stop([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_knows_its_number_its_time_and_its_state() {
    let server = Server::any();
    let (heard, mut ticks) = tokio::sync::mpsc::unbounded_channel();
    let leader = labelled(&server, "leader", |_| {}).generate(move |tick: Tick| {
        let batch = match tick.count {
            // Nothing but a state.
            1 => Batch::default().with_state("one"),
            // Nothing at all: the state stays.
            2 => Batch::default(),
            3 => Batch::new(["message"]),
            _ => Batch::default().with_state("two"),
        };
        heard.send(tick).expect("the test listens");
        std::future::ready(batch)
    });
    let leader = leader.start().await.expect("joins");
    let mut states = Vec::new();
    let mut time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for count in 1..=5 {
        let tick = ticks.recv().await.expect("a tick");
        assert_eq!((tick.count, tick.is_first()), (count, count == 1));
        assert!(tick.time >= time);
        time = tick.time;
        states.push(String::from_utf8_lossy(tick.state()).into_owned());
    }
    assert_eq!(states, ["", "one", "one", "one", "two"]);
    stop([leader]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_too_large_skips_its_tick() {
    let server = Server::any();
    let leader = labelled(&server, "leader", |_| {}).generate(|tick: Tick| {
        let batch = match tick.count {
            1 => Batch::new(["lost"]).with_state(vec![0; Batch::STATE_BYTES_MAX + 1]),
            2 => Batch::new(vec!["x"; Batch::STATED_MESSAGES_MAX + 1]).with_state("too many"),
            3 => Batch::new(["kept"]).with_state(vec![1; Batch::STATE_BYTES_MAX]),
            _ => Batch::default(),
        };
        std::future::ready(batch)
    });
    let mut leader = leader.start().await.expect("joins");
    let mut notices = leader.notices();
    for words in ["larger than 65536", "make fewer in each tick"] {
        notice(
            &mut notices,
            |notice| matches!(notice, Notice::GenerateFailed { reason } if reason.contains(words)),
        )
        .await;
    }
    until("the one that fits", async || {
        leader.fleet().status().await.expect("answers").messages.generated == 1
    })
    .await;
    stop([leader]).await;
}

/// The bound on stored errors holds up the generator and refuses what is sent; it is one value for the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_error_store_holds_up_new_messages() {
    let server = Server::any();
    let builder = labelled(&server, "fails", |config| {
        config.errors_max = Some(5);
        config.leader_works = LeaderWorks::Always;
        config.concurrency = 1;
    });
    let fleet = builder
        .generate(|_: Tick| async { "x" })
        .handle(|_: Message, _: Context| async { Outcome::failed("always") });
    let mut fleet = fleet.start().await.expect("joins");
    let mut notices = fleet.notices();
    let words = "5 failed messages are stored already";
    notice(&mut notices, |notice| matches!(notice, Notice::Full { reason } if reason == words))
        .await;
    let refused = fleet.fleet().send("y").await.expect_err("no room");
    assert!(matches!(&refused, Error::Full { reason } if reason == words), "{refused}");
    let store = Fleet::connect(server.url(), NAME).await.expect("opens").errors();
    let page = store.page(&mut artel::Cursor::default(), 100).await.expect("a page");
    assert!(page.len() >= 5);
    assert_eq!(store.drop_records(&page).await.expect("dropped"), page.len() as u64);
    notice(&mut notices, |notice| matches!(notice, Notice::Flowing)).await;
    let errors = fleet.fleet().status().await.expect("answers").errors;
    assert_eq!(errors.dropped, page.len() as u64);
    stop([fleet]).await;
}

/// Each has connections of its own, whoever comes first; and one that has left is not seen any more, although its
/// fleet is still used.
#[tokio::test(flavor = "multi_thread")]
async fn members_of_one_fleet_can_be_started_at_once_and_one_after_the_other() {
    let server = Server::any();
    let fleet = Fleet::connect(server.url(), NAME).await.expect("reachable");
    let present = || {
        let channel = format!("artel:{{{NAME}}}:@0:alive");
        let answer: (String, u64) = redis::cmd("PUBSUB")
            .arg("SHARDNUMSUB")
            .arg(channel)
            .query(&mut server.connect())
            .expect("answers");
        answer.1
    };
    for _ in 0..2 {
        let (one, two) = tokio::join!(fleet.join().start(), fleet.join().start());
        let members = [one.expect("joins"), two.expect("joins")];
        assert_eq!(present(), 2);
        stop(members).await;
        until("nobody to be present", async || present() == 0).await;
        fleet.send("still here").await.expect("sent");
    }
}

/// A server takes over that has forgotten the last numbers of a term: its generator leads under another one at once, and does not
/// wait for a part of its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_generator_whose_numbers_are_forgotten_leads_again() {
    let mut pair = Pair::start();
    let mut config = config();
    config.lease = Some(Duration::from_secs(120));
    let generate = |tick: Tick| std::future::ready(format!("message {}", tick.seq));
    let builder = member_at(pair.way.url()).config(config).generate(generate);
    let mut member = builder.start().await.expect("joins");
    let mut notices = member.notices();
    let made = async || member.fleet().status().await.expect("answers").messages.generated;
    until("a generator", async || made().await > 5).await;
    pair.cut_replication();
    let before = made().await;
    until("numbers that only the primary knows", async || made().await > before + 20).await;
    let leads = async || member.fleet().status().await.expect("answers").generator;
    let before = leads().await.expect("one").term;
    pair.take_over();
    pair.lead_on();
    notice(
        &mut notices,
        |notice| matches!(notice, Notice::BecameGenerator { term, .. } if *term > before),
    )
    .await;
    audit(pair.successor());
    member.shutdown().await;
}
