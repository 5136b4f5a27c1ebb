//! `artel run`: join the fleet, until told to stop.

use std::sync::Arc;
use std::time::Duration;

use artel::{Context, Fleet, Message, Notice, Notices, Status, Tick};

use crate::args::RunArgs;
use crate::builtin::{Inspector, Text};
use crate::exit::{FAILURE, Failure, OK};
use crate::settings::{self, Place};
use crate::signals::Signals;
use crate::{commands, printer};

/// The share of messages the built-in handler finds in error.
const ERROR_RATE: f64 = 0.05;

pub(crate) async fn run(place: &Place, args: &RunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let config = settings::config(args);
    let mut text = Text::new(args.seed);
    let inspector = Arc::new(Inspector::new(
        args.seed,
        args.error_rate.unwrap_or(ERROR_RATE),
        args.work_time.unwrap_or_default(),
    ));
    let mut fleet = Fleet::builder()
        .redis(&place.redis)
        .name(&place.fleet)
        .config(config.clone())
        .generate(move |_: Tick| std::future::ready(text.next()))
        .handle(move |message: Message, context: Context| {
            let inspector = inspector.clone();
            async move { inspector.inspect(message, context).await }
        })
        .start()
        .await?;
    let label = config.label.clone();
    let teller = tokio::spawn(tell(fleet.notices(), label));
    let limit = args.duration.unwrap_or(Duration::MAX);
    tokio::select! {
        _ = signals.next() => tracing::info!("stopping: finishing what was started"),
        () = tokio::time::sleep(limit), if args.duration.is_some() => {}
    }
    fleet.stop();
    tokio::select! {
        () = fleet.stopped() => {}
        code = signals.next() => return Ok(code),
    }
    tracing::info!("left the fleet");
    // A handler that cannot be stopped may still hold the notices open.
    let _ = tokio::time::timeout(Duration::from_secs(1), teller).await;
    if args.duration.is_some() {
        let status = Status::read(&place.redis, &place.fleet).await?;
        printer::data(&commands::status::books(&status))
            .map_err(|error| Failure::new(FAILURE, error.to_string()))?;
    }
    Ok(OK)
}

/// Says what happens, in the words of the log.
async fn tell(mut notices: Notices, label: String) {
    let pid = std::process::id();
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Joined { member } => tracing::info!(%member, label, pid, "joined the fleet"),
            Notice::BecameGenerator { term } => {
                tracing::info!(%term, label, pid, "generator: this process leads")
            }
            Notice::LeaseLost { term, reason } => {
                tracing::info!(%term, reason, "no longer the generator")
            }
            Notice::Fenced { term } => {
                tracing::warn!(%term, "fenced: Redis refused a write of a stale term")
            }
            Notice::NoWorker => tracing::info!("no worker yet: start a second copy"),
            Notice::Full { reason } => tracing::warn!(reason, "generating waits"),
            Notice::Flowing => tracing::info!("generating goes on"),
            Notice::MemberDied { member } => tracing::warn!(%member, "member died"),
            Notice::Adopted { member, returned, failed } => {
                tracing::info!(%member, returned, failed, "put back what it held");
            }
            Notice::MessageFailed { id, reason } => tracing::debug!(%id, reason, "message failed"),
            Notice::ClaimLost { id } => {
                tracing::warn!(%id, "claim lost: its outcome is not recorded")
            }
            Notice::SessionLost { member } => tracing::warn!(%member, "session lost, joining anew"),
            Notice::Disconnected { reason } => {
                tracing::warn!(reason, "Redis does not answer: waiting for it");
            }
            Notice::Reconnected { after } => {
                tracing::info!(after_ms = after.as_millis() as u64, "Redis answers again");
            }
            Notice::DataLossSeen { what } => {
                tracing::error!(what, "data loss: Redis has lost acknowledged writes");
            }
            Notice::Unreplicated { replicas, wanted } => {
                tracing::warn!(replicas, wanted, "waiting for replicas");
            }
            Notice::GaveBack { messages } => tracing::info!(messages, "handed back unstarted"),
            Notice::GenerateFailed { reason } => tracing::error!(reason, "nothing generated"),
            Notice::Missed { notices } => {
                tracing::warn!(notices, "too many notices to tell them all")
            }
            other => tracing::info!(?other, "notice"),
        }
    }
}
