use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use artel::{Context, Fleet, Member, Message, NewMessage};
use artel_rig::Server;
use tokio::sync::Semaphore;

use crate::{NAME, audit, config, member, settled, stop, until};

/// One slow message among many quick ones: the others go to whoever is idle, and a status tells what runs
/// from what only waits.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_behind_a_slow_message_goes_to_an_idle_worker() {
    let server = Server::any();
    let gate = Arc::new(Semaphore::new(0));
    let start = async |gate: Option<Arc<Semaphore>>| {
        let mut config = config();
        config.concurrency = 1;
        let handle = move |message: Message, _: Context| {
            let gate = gate.clone().filter(|_| message.payload() == b"slow");
            async move {
                if let Some(gate) = gate {
                    gate.acquire().await.expect("never closed").forget();
                }
            }
        };
        member(&server).config(config).handle(handle).start().await.expect("joins")
    };
    let slow = start(Some(gate.clone())).await;
    let sender = Fleet::connect(server.url(), NAME).await.expect("reachable").sender();
    // It learns that messages are quick, so that it takes many at once.
    for _ in 0..20 {
        sender.send_all(&vec![NewMessage::from("quick"); 50]).await.expect("sent");
    }
    settled(&slow, 1000).await;
    let mut batch = vec![NewMessage::from("quick"); 500];
    batch[0] = NewMessage::from("slow");
    sender.send_all(&batch).await.expect("sent");
    until("many to be claimed behind one", async || {
        let status = slow.fleet().status().await.expect("answers");
        let me = &status.members[0];
        me.in_flight == 1 && me.claimed > 100
    })
    .await;
    let idle = start(None).await;
    settled(&idle, 1499).await; // all but the slow one, which still runs
    let books = idle.fleet().status().await.expect("answers").messages;
    assert_eq!((books.claimed, books.returned), (1, 0), "no attempt was counted");
    gate.add_permits(1);
    settled(&idle, 1500).await;
    audit(&server);
    stop([slow, idle]).await;
}

/// A worker died with 10,000 messages: each comes back in a block of its own, and those who live have them
/// at once.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_returned_messages_are_claimed_by_those_who_have_room() {
    const MANY: usize = 10_000;
    let server = Server::any();
    let mut connection = server.connect();
    let fill = "for n = 1, tonumber(ARGV[1]) do
        redis.call('RPUSH', KEYS[1], '1n-|s0-' .. n .. '|2|9|x')
      end
      redis.call('HSET', KEYS[2], 'sent', ARGV[1])";
    let key = |name: &str| format!("artel:{{{NAME}}}:{name}");
    let () = redis::cmd("EVAL")
        .arg(fill)
        .arg(2)
        .arg(key("lane:returned"))
        .arg(key("counts"))
        .arg(MANY)
        .query(&mut connection)
        .expect("answers");
    let (gate, running) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers: Vec<Member> = Vec::new();
    let began = Instant::now();
    for _ in 0..2 {
        let mut config = config();
        config.concurrency = MANY / 2;
        let (gate, running) = (gate.clone(), running.clone());
        let handle = move |_: Message, _: Context| {
            let (gate, running) = (gate.clone(), running.clone());
            async move {
                running.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.expect("never closed").forget();
            }
        };
        workers.push(member(&server).config(config).handle(handle).start().await.expect("joins"));
    }
    // How long somebody else waits meanwhile.
    let mut slowest = Duration::ZERO;
    while running.load(Ordering::Relaxed) < MANY {
        assert!(began.elapsed() < crate::DEADLINE, "{} run", running.load(Ordering::Relaxed));
        let asked = Instant::now();
        let () = redis::cmd("PING").query(&mut connection).expect("answers");
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    println!(
        "{MANY} returned messages claimed in {took:?}; the slowest call beside it {slowest:?}"
    );
    if artel_rig::soak() {
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(slowest < Duration::from_millis(50), "{slowest:?}");
    }
    let blocks: Vec<u64> = workers
        .iter()
        .map(|worker| {
            let id = worker.id().expect("a session");
            let key = key(&format!("blocks:{id}"));
            redis::cmd("HLEN").arg(key).query::<u64>(&mut connection).expect("answers") - 1
        })
        .collect();
    assert_eq!(blocks, [MANY as u64 / 2; 2], "each in a block of its own");
    // One dies with all of its 5,000 blocks, and the other one puts them back.
    gate.add_permits(MANY * 2);
    settled(&workers[0], MANY as u64).await;
    audit(&server);
    stop(workers).await;
}
