//! The pieces of code that the pages under `docs/` show, in one program that runs.
//!
//! `cargo run --example pages -- redis://127.0.0.1:6379`
#![allow(clippy::print_stdout)]

use std::time::Duration;

use artel::hub::{Delivery, EventHub, HandlerError, LetterFilter, Topic};
use artel::{
    Batch, Config, Context, Effect, Error, Fleet, Message, NewMessage, Notice, Outcome, Sent, Tick,
    json,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let redis = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".into());
    send_once(&redis).await?;
    by_kind(&Fleet::connect(&*redis, "shop").await?).await?;
    with_state(&Fleet::connect(&*redis, "pages").await?).await?;
    without_redis().await;
    locks_and_events(&Fleet::connect(&*redis, "locks").await?).await?;
    notices(&Fleet::connect(&*redis, "notices").await?).await?;
    one_process().await
}

async fn send_once(redis: &str) -> Result<()> {
    let sender = Fleet::connect(redis, "orders").await?.sender(); // once per process; cloning is cheap
    let sent = answer(sender.send_once("order-7", "order 7").await); // at most 5 s; once per key
    assert_eq!(sent, 202);
    Ok(())
}

/// The status of the HTTP answer.
fn answer(sent: std::result::Result<Sent, Error>) -> u16 {
    match sent {
        Ok(_) => 202,
        Err(error) if error.is_retryable() => 503, // not added, or safe to repeat under its key
        Err(error) if error.is_in_doubt() => 504, // added once or not at all: `artel show ID` knows
        Err(_) => 400,
    }
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Mail {
    to: String,
}

async fn by_kind(fleet: &Fleet) -> Result<()> {
    let member = fleet
        .join()
        .on("mail", json(|mail: Mail, _: Context| async move { println!("to {}", mail.to) }))
        .on("report", |message: Message, _: Context| async move { println!("{}", message.text()) })
        .handle(|_: Message, _: Context| async { Outcome::failed("what is this?") })
        .start()
        .await?;
    let mail = NewMessage::json(&Mail { to: "ann".to_owned() })?.with_kind("mail");
    fleet.send(mail).await?;
    while fleet.status().await?.messages.done == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    member.shutdown().await;
    Ok(())
}

async fn with_state(fleet: &Fleet) -> Result<()> {
    let mut config = Config::default();
    config.interval = Duration::from_millis(10);
    let member = fleet
        .join()
        .config(config)
        .generate(|tick: Tick| async move {
            let page: u64 = String::from_utf8_lossy(tick.state()).parse().unwrap_or(0) + 1;
            Batch::new([format!("page {page}")]).with_state(page.to_string())
        })
        .start()
        .await?;
    while fleet.status().await?.messages.generated < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    member.shutdown().await;
    Ok(())
}

async fn order(message: Message, _: Context) -> Outcome {
    match message.text().parse() {
        Ok(amount) => Outcome::done().with(Effect::incr_by("sold", amount)),
        Err(_) => Outcome::failed("not a number"),
    }
}

async fn without_redis() {
    let outcome = artel::testing::handle(order, "3").await;
    assert_eq!(outcome.effects(), [Effect::incr_by("sold", 3)]);
    let outcome = artel::testing::handle(order, "three").await;
    assert_eq!(outcome.reason(), Some("not a number"));
}

async fn locks_and_events(fleet: &Fleet) -> Result<()> {
    let event = fleet.event("new-prices")?;
    event.set().await?;
    assert!(event.wait_timeout(Duration::from_secs(60)).await?);
    event.clear().await?;

    let member = fleet.join().start().await?; // an observer: it never leads and never works
    let guard = member.lock("nightly-report")?.acquire().await?;
    tokio::select! {
        () = guard.lost() => println!("stop: another process may hold the lock now"),
        () = async { println!("report under token {}", guard.token()) } => guard.release().await?,
    }
    member.shutdown().await;
    Ok(())
}

async fn notices(fleet: &Fleet) -> Result<()> {
    let hub = EventHub::new();
    let member = fleet.join().hub(hub.clone()).start().await?;
    let log = hub
        .subscribe(member.notice_topic())
        .name("log")
        .spawn(|notice: Delivery<'_, Notice>| println!("{:?}", notice.get()))?;
    member.shutdown().await;
    log.stop(Duration::from_secs(5)).await?;
    Ok(())
}

const LINES: Topic<String> = Topic::json("lines/en");

async fn one_process() -> Result<()> {
    let hub = EventHub::new();
    let counter = hub.subscribe(&LINES).name("counter").spawn(|line: Delivery<'_, String>| {
        match line.is_empty() {
            true => Err(HandlerError::skip("an empty line")),
            false => Ok(()),
        }
    })?;
    hub.publish(&LINES, "one".to_owned()).await?;
    hub.publish(&LINES, String::new()).await?;
    hub.idle().await;
    assert_eq!(counter.stats().processed, 1);
    assert_eq!(hub.dead_letters().list(&LetterFilter::all())?[0].reason, "an empty line");
    Ok(())
}
