//! Retries, delays, periodic entries and follow-ups: the program of `docs/jobs.md`.
//!
//! `cargo run --example jobs -- redis://127.0.0.1:6379`
#![allow(clippy::print_stdout)]

use std::time::Duration;

use artel::{Backoff, Context, Cron, Fleet, Kind, Message, NewMessage, Outcome};

#[derive(serde::Deserialize, serde::Serialize)]
struct Mail {
    to: String,
}

const MAIL: Kind<Mail> = Kind::new("mail");

async fn mail(mail: Mail, context: Context) -> Result<Outcome, String> {
    println!("mail to {}, retry {}", mail.to, context.retry);
    match mail.to.contains('@') {
        false => Ok(Outcome::failed("no address")), // a verdict: never retried
        true if context.retry == 0 => Err("the server does not answer".to_owned()), // an accident: retried
        true if context.retry == 1 => Ok(Outcome::retry("busy").after(Duration::from_millis(200))),
        true => Ok(Outcome::done().then(NewMessage::from(mail.to).with_kind("log"))), // sent once, with the outcome
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".into());
    let fleet = Fleet::connect(redis, "mails").await?;
    let (told, mut out) = tokio::sync::mpsc::channel(8);
    let quick = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(60));
    let member = fleet
        .join()
        .on(MAIL.retries(8).backoff(quick), mail)
        .on("log", move |message: Message, _: Context| {
            let told = told.clone();
            async move {
                println!("{}", message.text());
                let _ = told.send(message.text().into_owned()).await;
            }
        })
        .cron(
            "nightly",
            Cron::new("0 2 * * *")
                .tz("Europe/Berlin")
                .message(NewMessage::from("all").with_kind("log")),
        )
        .start()
        .await?;
    let later =
        MAIL.message(&Mail { to: "ann@example.org".to_owned() })?.after(Duration::from_millis(300));
    fleet.send(later).await?;
    while out.recv().await.is_some_and(|mail| mail != "ann@example.org") {}
    member.shutdown().await;
    Ok(())
}
