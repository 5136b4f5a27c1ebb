use std::time::Duration;

use artel::{Fleet, Notice, Tick};
use artel_rig::Server;

use crate::{DEADLINE, NAME, config, stop, until};

/// A place in this database of the server.
fn place(server: &Server, database: u32) -> Fleet {
    Fleet::open(format!("{}/{database}", server.url()), NAME).expect("an address")
}

/// Waits until everything that was published to this process before has arrived: an event of its own comes
/// behind it on the same connection.
async fn all_heard(redis: &Fleet, name: &str) {
    let marker = redis.event(name).expect("a name");
    let waits = marker.clone().reread_every(Duration::from_secs(3600)).expect("a time");
    let waiting = tokio::spawn(async move { waits.wait().await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    marker.set().await.expect("sets");
    let woken = tokio::time::timeout(DEADLINE, waiting).await.expect("in time");
    assert!(woken.expect("no panic").expect("waits"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_and_a_latch_of_another_database_wake_nobody() {
    let server = Server::any();
    let (here, there) = (place(&server, 0), place(&server, 1));
    let (mine, theirs) = (here.event("e").expect("a name"), there.event("e").expect("a name"));
    let latch = here.latch("l", 3).expect("a name");
    assert!(latch.start().await.expect("begins"));
    let mine = mine.reread_every(Duration::from_secs(3600)).expect("a time");
    let (waits, opens) = (mine.clone(), latch.clone());
    let waiting = tokio::spawn(async move { waits.wait().await });
    let opening = tokio::spawn(async move { opens.wait().await });
    let channels = || -> Vec<String> {
        redis::cmd("PUBSUB").arg("SHARDCHANNELS").query(&mut server.connect()).expect("answers")
    };
    until("both to listen", async || channels().len() >= 2).await;
    theirs.set().await.expect("sets");
    let other = there.latch("l", 1).expect("a name");
    assert!(other.start().await.expect("begins"));
    assert_eq!(other.count_down().await.expect("counts"), 0);
    all_heard(&here, "marker").await;
    assert!(!waiting.is_finished() && !opening.is_finished(), "woken by another database");
    mine.set().await.expect("sets");
    let woken = tokio::time::timeout(DEADLINE, waiting).await.expect("in time");
    assert!(woken.expect("no panic").expect("waits"));
    opening.abort();
}

/// Each would hear of terms that are not its own, and take them for lost data.
#[tokio::test(flavor = "multi_thread")]
async fn two_fleets_of_one_name_in_two_databases_leave_each_other_alone() {
    let server = Server::any();
    let start = async |database: u32| {
        let fleet =
            Fleet::open(format!("{}/{database}", server.url()), NAME).expect("an address").join();
        let fleet = fleet.config(config()).generate(|_: Tick| async { "x" });
        fleet.start().await.expect("joins")
    };
    let mut first = start(0).await;
    let mut notices = first.notices();
    until("the first to lead", async || {
        first.fleet().status().await.expect("answers").generator.is_some()
    })
    .await;
    let second = start(1).await;
    until("the second to lead", async || {
        second.fleet().status().await.expect("answers").generator.is_some()
    })
    .await;
    let generated = first.fleet().status().await.expect("answers").messages.generated;
    // Long enough for several heartbeats of the first, which compare terms.
    until("the first to go on", async || {
        first.fleet().status().await.expect("answers").messages.generated > generated + 500
    })
    .await;
    stop([second]).await;
    let status = first.fleet().status().await.expect("answers");
    assert_eq!(status.members.len(), 1);
    first.stop();
    while let Some(notice) = notices.next().await {
        let wrong = matches!(
            notice,
            Notice::DataLossSeen { .. } | Notice::SessionLost { .. } | Notice::Fenced { .. }
        );
        assert!(!wrong, "{notice:?}");
        if matches!(notice, Notice::LeaseLost { .. }) {
            break;
        }
    }
    stop([first]).await;
}
