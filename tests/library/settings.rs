use std::time::Duration;

use artel::{Config, Error, Fleet, Ledger, Role};
use artel_rig::Server;

use crate::{NAME, notice, stop, until};

fn builder(server: &Server, change: impl FnOnce(&mut Config)) -> artel::MemberBuilder {
    let mut config = Config::default();
    change(&mut config);
    let fleet = Fleet::open(server.url(), NAME).expect("an address").join().config(config);
    fleet.handle(|_: artel::Message, _: artel::Context| async {})
}

#[tokio::test(flavor = "multi_thread")]
async fn another_value_of_a_fleet_wide_setting_is_a_start_error() {
    let server = Server::any();
    let first = builder(&server, |config| {
        config.lease = Some(Duration::from_secs(5));
        config.attempts_max = Some(7);
        config.ledger = Some(Ledger::Last(10));
        config.backlog_max = Some(1234);
    });
    let first = first.start().await.expect("joins");
    type Change = fn(&mut Config);
    let changes: [(&str, Change); 4] = [
        ("lease_ms", |config| config.lease = Some(Duration::from_secs(6))),
        ("attempts_max", |config| config.attempts_max = Some(5)),
        ("ledger", |config| config.ledger = Some(Ledger::Off)),
        ("backlog_max", |config| config.backlog_max = Some(1_000_000)),
    ];
    for (name, change) in changes {
        let error = builder(&server, change).start().await.map(|_| ()).expect_err("another value");
        assert!(matches!(&error, Error::Conflict { field, .. } if field == name), "{error}");
    }
    let second = builder(&server, |_| {}).start().await.expect("takes the fleet's");
    assert_eq!(second.fleet().info().await.expect("answers").backlog_max, 1234);
    stop([first, second]).await;
}

/// A member that only looks on follows what the fleet has, also when it was there first.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_follows_the_lease_of_the_fleet() {
    let server = Server::any();
    let observer =
        Fleet::open(server.url(), NAME).expect("an address").join().start().await.expect("joins");
    let worker = builder(&server, |config| config.lease = Some(Duration::from_secs(20)));
    let worker = worker.start().await.expect("an observer pins nothing");
    until("the observer to have the new lease", async || {
        let status = worker.fleet().status().await.expect("answers");
        assert_eq!(status.lease, Duration::from_secs(20));
        status.members.iter().any(|member| {
            member.role == Role::Observer && member.left.as_duration() > Duration::from_secs(10)
        })
    })
    .await;
    stop([observer, worker]).await;
}

/// All were killed, and somebody starts anew with another lease: it waits for as long as one of them could
/// still be heard of, and then the fleet is its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_do_not_keep_their_settings_for_ever() {
    let server = Server::any();
    let mut connection = server.connect();
    let key = |name: &str| format!("artel:{{{NAME}}}:{name}");
    let first = builder(&server, |config| config.lease = Some(Duration::from_secs(1)));
    let first = first.start().await.expect("joins");
    stop([first]).await;
    // As if it had been killed.
    let () = redis::cmd("ZADD")
        .arg(key("members"))
        .arg(1)
        .arg("0123456789abcdef01234567")
        .query(&mut connection)
        .expect("answers");
    let second = builder(&server, |config| config.lease = Some(Duration::from_secs(2)));
    let mut second = second.start().await.expect("joins");
    let mut notices = second.notices();
    let status = second.fleet().status().await.expect("answers");
    assert_eq!((status.lease, status.members.len()), (Duration::from_secs(2), 1));
    notice(&mut notices, |notice| matches!(notice, artel::Notice::Joined { .. })).await;
    stop([second]).await;
}
