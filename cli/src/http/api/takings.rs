//! [`Takings`]: failed messages that somebody is about to get.
//!
//! **Invariant:** a failed message is removed only when the client that was sent it says that it has it. If it does not say
//! so in time, or this process dies, the message is put back. So a taking never loses one, and removes exactly what it
//! showed.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use artel::{Cursor, ErrorRecord, Fleet, Taker};
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::super::answer::{Problem, document, unnamed};
use super::act::{Nothing, note};
use super::ask::{Ask, Body};
use super::errors::{Change, Meant, row};
use crate::commands::errors::before;

/// How long a client may take to say that it has them.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a taking is kept alive.
const ALIVE: Duration = Duration::from_secs(1);
/// Takings at the same time, and those that are remembered.
const TAKINGS_MAX: usize = 64;
const REMEMBERED_MAX: usize = 320;

/// What became of a taking.
#[derive(Clone, Debug)]
enum End {
    Removed(usize),
    /// Nothing was removed: they are among the failed messages again.
    PutBack,
    /// Redis did not answer. Sooner or later what is left is put back.
    Unknown(String),
}

/// One taking.
struct Taking {
    /// Says what shall become of it: are they removed? Nothing if that was said.
    order: Option<oneshot::Sender<bool>>,
    end: watch::Receiver<Option<End>>,
}

/// The takings of one fleet, by their names. Those that ended are remembered for a while, for clients that did not get the
/// answer and ask again.
#[derive(Clone, Default)]
pub(super) struct Takings {
    all: Arc<Mutex<VecDeque<(String, Taking)>>>,
}

impl Takings {
    fn all(&self) -> MutexGuard<'_, VecDeque<(String, Taking)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, taking: Taking) -> String {
        let name = format!("{:032x}", rand::random::<u128>());
        let mut all = self.all();
        while all.len() >= REMEMBERED_MAX {
            let Some(at) = all.iter().position(|(_, taking)| taking.is_over()) else { break };
            all.remove(at);
        }
        all.push_back((name.clone(), taking));
        name
    }

    /// Says what shall become of a taking, unless that was said before. Where to see what became of it.
    fn order(&self, name: &str, removes: bool) -> Option<watch::Receiver<Option<End>>> {
        let mut all = self.all();
        let (_, taking) = all.iter_mut().find(|(known, _)| known == name)?;
        if let Some(order) = taking.order.take() {
            let _ = order.send(removes);
        }
        Some(taking.end.clone())
    }

    fn is_full(&self) -> bool {
        self.all().iter().filter(|(_, taking)| !taking.is_over()).count() >= TAKINGS_MAX
    }
}

impl Taking {
    fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }
}

/// Keeps the records until it is said what becomes of them.
async fn hold(
    mut taker: Taker,
    page: Vec<ErrorRecord>,
    fleet: Fleet,
    mut order: oneshot::Receiver<bool>,
) -> End {
    let late = tokio::time::sleep(PATIENCE);
    let mut late = std::pin::pin!(late);
    let mut ticks = tokio::time::interval(ALIVE);
    let removes = loop {
        tokio::select! {
            order = &mut order => break order.unwrap_or(false),
            () = &mut late => break false,
            _ = ticks.tick() => {
                let _ = taker.keep_alive().await;
            }
        }
    };
    let end = match removes {
        true => match taker.confirm(&page).await {
            Ok(true) => End::Removed(page.len()),
            Ok(false) => End::PutBack,
            Err(error) => End::Unknown(unnamed(&error)),
        },
        false => End::PutBack,
    };
    if let End::Removed(count) = end {
        note(&fleet, &format!("took {count} failed messages")).await;
    }
    // What is left goes back; if that fails, somebody else finds it when this taking is overdue.
    let released = taker.release().await;
    match (released, end) {
        (Err(error), End::PutBack) => End::Unknown(unnamed(&error)),
        (_, end) => end,
    }
}

/// Takes the selected ones, or some of those that match.
pub(super) async fn take(ask: Ask, Body(change): Body<Change>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let takings = ask.served().takings.clone();
    if takings.is_full() {
        return Err(Problem::conflict("too many takings wait to be confirmed"));
    }
    let fleet = ask.acting();
    let store = fleet.errors();
    let mut taker = match change.meant()? {
        Meant::Selected(selected) => {
            let from = selected.first().map_or_else(Cursor::default, |first| just_before(first));
            let wanted: HashSet<String> = selected.into_iter().collect();
            store.take_where(from, move |record| wanted.contains(record.position()))
        }
        Meant::Matching { filter, from, until } => store.take_where(from, move |record| {
            let is_later = until.as_ref().is_some_and(|until| before(until, record.position()));
            !is_later && filter.fits(record)
        }),
    };
    let page = taker.page().await?;
    if page.is_empty() {
        taker.release().await?;
        return Ok(document(&json!({ "v": 1, "taking": Value::Null, "errors": [] })));
    }
    let rows: Vec<Value> = page.iter().map(whole_row).collect();
    let (order, ordered) = oneshot::channel();
    let (tell, end) = watch::channel(None);
    let name = takings.add(Taking { order: Some(order), end });
    tokio::spawn(async move {
        let end = hold(taker, page, fleet, ordered).await;
        tell.send_replace(Some(end));
    });
    let within = PATIENCE.as_millis() as u64;
    Ok(document(&json!({ "v": 1, "taking": name, "confirm_within_ms": within, "errors": rows })))
}

/// A record with its whole payload: it is about to be removed.
fn whole_row(record: &ErrorRecord) -> Value {
    let whole = serde_json::to_value(record).unwrap_or_default();
    let mut row = row(record);
    let Some(fields) = row.as_object_mut() else { return row };
    for name in ["payload", "payload_b64"] {
        // The beginning may be text and the whole not.
        fields.remove(name);
        fields.extend(whole.get(name).map(|payload| (name.to_owned(), payload.clone())));
    }
    row["payload_cut"] = false.into();
    row
}

/// A cursor that begins with this position.
fn just_before(position: &str) -> Cursor {
    let ms = position.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
    Cursor::since(std::time::UNIX_EPOCH + Duration::from_millis(ms))
}

async fn end(ask: &Ask, name: &str, removes: bool) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let mut end = ask.served().takings.order(name, removes).ok_or_else(|| {
        Problem::missing("there is no such taking").hint(
            "what was not confirmed in time, or by another process, is among the failed messages again",
        )
    })?;
    // Whoever asks again waits for the same end. Its task always says one, unless the process ends.
    let end = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
    let answer = |removed: usize| Ok(document(&json!({ "v": 1, "removed": removed })));
    match (end, removes) {
        (Some(End::Removed(count)), true) => answer(count),
        (Some(End::PutBack), false) => answer(0),
        (Some(End::PutBack), true) => {
            Err(Problem::conflict("they were put back before this: nothing was removed"))
        }
        (Some(End::Removed(count)), false) => {
            Err(Problem::conflict(format!("{count} were removed before this")))
        }
        (Some(End::Unknown(why)), _) => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why).hint(DOUBT))
        }
        (None, _) => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "this process ends").hint(DOUBT))
        }
    }
}

/// When it is not known what became of a taking.
const DOUBT: &str = "keep what you have got: some of it may be removed. What is not is among the failed messages again";

pub(super) async fn confirm(
    Path(taking): Path<String>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    end(&ask, &taking, true).await
}

pub(super) async fn release(
    Path(taking): Path<String>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    end(&ask, &taking, false).await
}
