//! Notices of the fleet on a hub.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use artel::hub::{AnyEvent, Delivery, EventHub, Handler, HandlerError, Keys, Queue};
use artel::{Context, Fleet, Message, Notice, Outcome, Tick};
use artel_rig::{Server, eventually};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

/// Never done with its first event.
#[derive(Clone)]
struct Stuck;

impl Handler<Notice> for Stuck {
    async fn handle(&mut self, _: Delivery<'_, Notice>) -> Result<(), HandlerError> {
        std::future::pending().await
    }
}

/// A hub that is given sees every notice from the first on, as an event and as JSON; a subscriber
/// there that is stuck, with a full lossless queue, holds up neither the fleet nor its end.
#[test]
fn notices_reach_the_hub_and_the_hub_slows_nobody() {
    let (server, runtime) = (Server::any(), runtime());
    let hub = EventHub::builder().runtime(runtime.handle().clone()).build().expect("a hub");
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let see = seen.clone();
    let listener = hub
        .subscribe(Keys::any(["artel/*/notices"]).expect("keys"))
        .spawn(move |event: Delivery<'_, AnyEvent>| {
            let kind = event.json().and_then(|json| json["notice"].as_str().map(str::to_owned));
            let mut seen = see.lock().expect("not poisoned");
            seen.push((event.key().to_owned(), kind.expect("a kind")));
        })
        .expect("subscribed");
    let start = |hub: Option<EventHub>| {
        let mut builder = Fleet::open(server.url(), "told")
            .expect("an address")
            .join()
            .config({
                let mut config = artel::Config::default();
                config.interval = Duration::from_millis(5);
                config
            })
            .generate(|tick: Tick| async move { tick.seq.to_string() })
            .handle(|_: Message, _: Context| async { Outcome::failed("as it is meant to") });
        if let Some(hub) = hub {
            builder = builder.hub(hub);
        }
        runtime.block_on(builder.start()).expect("joined")
    };
    let one = start(Some(hub.clone()));
    let two = start(None);
    let topic = one.notice_topic();
    assert_eq!(topic.key(), "artel/told/notices");
    let kinds = || {
        let seen = seen.lock().expect("not poisoned");
        assert!(seen.iter().all(|(key, _)| key == "artel/told/notices"));
        seen.iter().map(|(_, kind)| kind.clone()).collect::<Vec<_>>()
    };
    eventually("it to have joined", || kinds().contains(&"joined".to_owned()));
    assert_eq!(kinds()[0], "joined", "from the first on");

    let stuck = hub.subscribe(&topic).queue(Queue::bounded(1)).spawn(Stuck).expect("subscribed");
    // A hub of its own for the one that was given none.
    let count = Arc::new(Mutex::new(0));
    let counter = count.clone();
    let own = runtime.block_on(async {
        let handler = move |_: Delivery<'_, Notice>| *counter.lock().expect("not poisoned") += 1;
        two.hub().subscribe(two.notice_topic()).spawn(handler).expect("subscribed")
    });
    let failed = || runtime.block_on(one.fleet().status()).expect("read").messages.failed;
    let before = failed();
    eventually("work to go on", || failed() > before + 50);
    // One of the two works, and tells; the other one leads, and told so.
    eventually("one of them to tell of failures", || {
        *count.lock().expect("not poisoned") > 10 || kinds().contains(&"message_failed".to_owned())
    });
    for fleet in [one, two] {
        fleet.stop();
        runtime.block_on(fleet.stopped());
    }
    drop((stuck, own));
    runtime.block_on(async {
        hub.shutdown(Duration::from_secs(30)).await;
    });
    drop(listener);
}
