use std::time::Duration;

use artel::{Context, Fleet, Member, Message, Notice, Outcome};
use artel_rig::{Fault, Proxy, Server};

use crate::{NAME, audit, config, notice, settled, stop, until};

const KIB: usize = 1 << 10;

/// A worker behind this proxy, whose messages have at most so many bytes.
async fn worker(proxy: &Proxy, bytes: usize) -> Member {
    let mut config = config();
    config.block_bytes_max = bytes;
    config.payload_bytes_max = bytes;
    let fleet = Fleet::open(proxy.url(), NAME).expect("an address").join().config(config);
    let handle = |_: Message, _: Context| async { Outcome::done() };
    fleet.handle(handle).start().await.expect("joins")
}

async fn send(server: &Server, bytes: usize) {
    let sender = Fleet::connect(server.url(), NAME).await.expect("reachable").sender();
    sender.send(vec![b'x'; bytes]).await.expect("sent");
}

/// Asked directly: the answer to a member would wait behind what its slow link carries.
fn count(server: &Server, name: &str) -> u64 {
    let key = format!("artel:{{{NAME}}}:counts");
    let count: Option<u64> =
        redis::cmd("HGET").arg(key).arg(name).query(&mut server.connect()).expect("answers");
    count.unwrap_or(0)
}

/// 1 MiB at 512 KiB a second takes longer than a small call may.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_is_read_over_a_slow_link() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let worker = worker(&proxy, 1024 * KIB).await;
    proxy.set(Fault::Slow(512 * KIB as u64));
    send(&server, 1024 * KIB).await;
    until("it to be done", async || count(&server, "done") == 1).await;
    proxy.set(Fault::Pass);
    let books = worker.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.returned), (1, 0));
    audit(&server);
    stop([worker]).await;
}

/// What cannot be read at all is not kept from those who can read it.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_worker_cannot_read_another_one_gets() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    // It allows half a second for 128 KiB; the message takes ten seconds.
    let mut slow = worker(&proxy, 128 * KIB).await;
    let mut notices = slow.notices();
    proxy.set(Fault::Slow(64 * KIB as u64));
    send(&server, 640 * KIB).await;
    until("it to be claimed", async || count(&server, "claimed") == 1).await;
    let direct = Proxy::start(server.port()).expect("a free port");
    let quick = worker(&direct, 1024 * KIB).await;
    notice(&mut notices, |notice| matches!(notice, Notice::Unread { failed: false, .. })).await;
    settled(&quick, 1).await;
    let books = quick.fleet().status().await.expect("answers").messages;
    assert_eq!((books.done, books.returned, books.claimed), (1, 0, 0), "no attempt was counted");
    audit(&server);
    let unread: i64 = redis::cmd("EXISTS")
        .arg(format!("artel:{{{NAME}}}:unread"))
        .query(&mut server.connect())
        .expect("answers");
    assert_eq!(unread, 0, "nothing is remembered of it");
    proxy.set(Fault::Pass);
    stop([slow, quick]).await;
}

/// Many small messages at once are too much for a link that carries any one of them: they come one by one.
#[tokio::test(flavor = "multi_thread")]
async fn small_messages_come_through_a_link_that_is_too_slow_for_many() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let handle = |_: Message, _: Context| async { Outcome::done() };
    let mut config = config();
    config.concurrency = 500;
    config.block_bytes_max = 512 * KIB;
    config.payload_bytes_max = 4 * KIB;
    let fleet = Fleet::open(proxy.url(), NAME).expect("an address").join().config(config);
    let worker = fleet.handle(handle).start().await.expect("joins");
    let sender = Fleet::connect(server.url(), NAME).await.expect("reachable").sender();
    proxy.set(Fault::Slow(64 * KIB as u64));
    let kib = vec![b'x'; KIB];
    sender.send_all(&vec![artel::NewMessage::from(kib); 500]).await.expect("sent");
    until("some to be done", async || count(&server, "done") >= 20).await;
    assert_eq!(count(&server, "failed"), 0, "nothing is blamed");
    proxy.set(Fault::Pass);
    until("all to be done", async || count(&server, "done") == 500).await;
    audit(&server);
    stop([worker]).await;
}

/// A call that waits behind a large answer does not tear the connection on which it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_call_behind_a_large_answer_waits_for_it() {
    let server = Server::any();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let worker = worker(&proxy, 1024 * KIB).await;
    proxy.set(Fault::Slow(384 * KIB as u64));
    send(&server, 1024 * KIB).await;
    until("it to be done", async || {
        // On the same connection, again and again; some of these wait too long, and say so.
        let _ = tokio::time::timeout(Duration::from_millis(300), worker.fleet().status()).await;
        count(&server, "done") == 1
    })
    .await;
    stop([worker]).await;
}
