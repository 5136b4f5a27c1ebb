//! `artel event`: named events across the fleet.

use std::time::Duration;

use artel::{DistributedEvent, EventState};
use serde_json::{Value, json};

use crate::args::EventCommand;
use crate::exit::{Failure, NOT_FOUND, OK, TIMED_OUT};
use crate::settings::Place;
use crate::signals::Signals;
use crate::{printer, table, times};

/// With `--timeout 0`: how long it may take to clear an event that is set.
const TAKE_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn event(place: &Place, command: &EventCommand) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let event = |name: &str| fleet.event(name);
    match command {
        EventCommand::Set { name, ttl: None } => event(name)?.set().await?,
        EventCommand::Set { name, ttl: Some(ttl) } => event(name)?.set_for(*ttl).await?,
        EventCommand::Clear { name } => event(name)?.clear().await?,
        EventCommand::Status { name, json } => {
            let state = event(name)?.state().await?;
            let text = match json {
                true => table::json(&document(name, &state))?,
                false => format!("{}\n", words(&state)),
            };
            printer::data(&text)?;
            return Ok(if state.is_set { OK } else { NOT_FOUND });
        }
        EventCommand::Wait { name, timeout, clear, consumer_timeout } => {
            let event = event(name)?.reread_every(*consumer_timeout)?;
            return wait(&event, name, *timeout, *clear).await;
        }
        EventCommand::List { json } => {
            let events = fleet.events().await?;
            let text = match json {
                true => {
                    let events: Vec<Value> =
                        events.iter().map(|event| document(&event.name, &event.state)).collect();
                    table::json(&json!({ "v": 1, "events": events }))?
                }
                false if events.is_empty() => "no events\n".to_owned(),
                false => printer::screen().columns(
                    ["EVENT", "STATE"],
                    events.iter().map(|event| [event.name.clone(), words(&event.state)]),
                    &[],
                    |_| false,
                ),
            };
            printer::shown(&text)?;
        }
    }
    Ok(OK)
}

async fn wait(
    event: &DistributedEvent,
    name: &str,
    timeout: Option<Duration>,
    clear: bool,
) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let waiting = async {
        // If Redis is down at the start, that is an error. If it goes down later, this waits for
        // it.
        let is_set = event.is_set().await?;
        if clear {
            return event.take().await.map(|()| true);
        }
        Ok(is_set || event.wait().await?)
    };
    let waiting = async {
        match timeout {
            Some(Duration::ZERO) if !event.is_set().await? => Ok(false),
            Some(Duration::ZERO) if !clear => Ok(true),
            Some(Duration::ZERO) => {
                tokio::time::timeout(TAKE_MAX, waiting).await.unwrap_or(Ok(false))
            }
            Some(timeout) => tokio::time::timeout(timeout, waiting).await.unwrap_or(Ok(false)),
            None => waiting.await,
        }
    };
    match signals.unless(waiting).await {
        Err(code) => Ok(code),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(true)) => Ok(OK),
        Ok(Ok(false)) => {
            let timeout = times::span(timeout.unwrap_or_default());
            Err(Failure::new(TIMED_OUT, format!("event {name:?} was not set within {timeout}")))
        }
    }
}

pub(crate) fn document(name: &str, state: &EventState) -> Value {
    json!({
        "v": 1,
        "event": name,
        "set": state.is_set,
        "generation": state.generation,
        "clears_in_ms": state.clears_in.map(|left| left.as_millis() as u64),
    })
}

fn words(state: &EventState) -> String {
    match (state.is_set, state.clears_in) {
        (false, _) => "not set".to_owned(),
        (true, None) => "set".to_owned(),
        (true, Some(left)) => format!("set, for {} more", times::span(left)),
    }
}
