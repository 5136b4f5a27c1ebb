//! A connection that ends, and answers that come behind its end.

use super::*;

fn link() -> Link {
    Link::new(
        "test",
        crate::store::Address::new("redis://127.0.0.1:1").client().expect("an address"),
    )
}

/// As if this connection had been made.
fn connected(link: &Link, generation: u64) {
    let mut state = link.shared.state();
    state.generation = generation;
    link.shared.epoch.send_replace(2 * generation);
}

#[test]
fn the_late_end_of_an_old_connection_changes_nothing() {
    let link = link();
    connected(&link, 2);
    assert!(!link.shared.over(1), "its successor is there");
    assert_eq!(link.epoch(), 4);
}

#[test]
fn an_attempt_that_hangs_is_given_up_soon() {
    let seconds = |failures| connect_timeout(false, failures).as_secs();
    assert_eq!([1, 2, 3, 20].map(seconds), [1, 1, 2, 2]);
    assert_eq!(connect_timeout(true, 1).as_secs(), 5);
}

/// A Redis that was down and is back has not judged any member yet. That holds until our presence
/// is back, not only until we are connected.
#[tokio::test]
async fn that_redis_was_away_is_remembered_when_it_is_back() {
    let link = link();
    assert!(link.call(&Call::plain("PING"), Duration::from_secs(1)).await.is_err());
    assert!(link.is_refused());
    connected(&link, 2);
    assert!(link.is_refused(), "connected, and not heard of yet");
}

#[tokio::test]
async fn a_dead_redis_is_said_to_all_who_wait_at_once() {
    let link = link();
    let (ping, second) = (Call::plain("PING"), Duration::from_secs(1));
    let (one, two) = tokio::join!(link.call(&ping, second), link.call(&ping, second));
    for answer in [one, two] {
        assert!(matches!(answer, Err(StoreError::Unconnected(_))), "{answer:?}");
    }
    assert_eq!(link.shared.state().attempts, 1, "one attempt for both");
    assert!(link.is_refused());
    assert_eq!(link.epoch(), 0);
}

/// A subscription ends unasked while calls are under way. The client takes that push for an answer: every answer behind it
/// belongs to another call. None of them is believed.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_that_of_another_call() {
    use std::sync::atomic::AtomicU32;

    artel_rig::each_server(|kind| {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let cluster = artel_rig::Cluster::start(kind, 1, 0);
                let keys = crate::store::Keys::new("f", 0);
                let client = crate::store::Address::new(cluster.nodes[0].url()).client();
                let client = client.expect("an address").of(&keys);
                let (router, _hints) = PushRouter::new(&keys);
                let link = Arc::new(Link::hearing("test", client, router));
                let (right, wrong) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
                let over = Arc::new(AtomicBool::new(false));
                let mut callers = Vec::new();
                for caller in 0..8 {
                    let (link, over) = (link.clone(), over.clone());
                    let (right, wrong) = (right.clone(), wrong.clone());
                    callers.push(tokio::spawn(async move {
                        for n in 0.. {
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                            let said = format!("{caller}-{n}");
                            let call = Call::plain("ECHO").arg(&said);
                            let heard = link.call(&call, Duration::from_secs(5)).await;
                            match heard.and_then(Reply::into_text) {
                                Ok(heard) if heard == said => right.fetch_add(1, Ordering::Relaxed),
                                Ok(_) | Err(StoreError::Odd(_)) => {
                                    wrong.fetch_add(1, Ordering::Relaxed)
                                }
                                Err(_) => 0,
                            };
                        }
                    }));
                }
                let (slot, seconds) = (keys.slot(), Duration::from_secs(5));
                for _ in 0..30 {
                    let epoch = link.subscribe(&keys.ctl(), seconds).await.unwrap_or(0);
                    let cluster = &cluster;
                    tokio::task::block_in_place(|| cluster.flip(slot));
                    if epoch == link.epoch() {
                        let past = tokio::time::timeout(seconds, link.past(epoch)).await;
                        assert!(past.is_ok(), "its end is heard");
                    }
                }
                over.store(true, Ordering::Relaxed);
                for caller in callers {
                    caller.await.expect("it ends");
                }
                let (right, wrong) = (right.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed));
                assert!(right > 0 && wrong == 0, "{wrong} of {right}");
            });
        });
    });
}
