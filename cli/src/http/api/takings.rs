//! [`Takings`]: failed messages that somebody is about to get.
//!
//! **Invariant:** a failed message is removed only when the client that was sent it says that it has it. If it does not say
//! so in time, or this process dies, the message is put back. So a taking never loses one, and removes exactly what it
//! showed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use artel::{Cursor, ErrorRecord, Fleet, Taker};
use axum::extract::Path;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::super::answer::{Problem, document};
use super::act::{Nothing, note};
use super::ask::{Ask, Body};
use super::errors::{Change, Meant, row};
use crate::commands::errors::before;

/// How long a client may take to say that it has them.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a taking is kept alive.
const ALIVE: Duration = Duration::from_secs(1);
/// Takings at the same time.
const TAKINGS_MAX: usize = 64;

/// What becomes of a taking, and who wants to know how many were removed.
struct End {
    removes: bool,
    tell: oneshot::Sender<Result<usize, artel::Error>>,
}

/// The takings of one fleet, by their names.
#[derive(Clone, Default)]
pub(super) struct Takings {
    open: Arc<Mutex<HashMap<String, oneshot::Sender<End>>>>,
    /// How many messages the last ones removed, for those who did not get the answer and ask again.
    confirmed: Arc<Mutex<VecDeque<(String, usize)>>>,
}

/// How many ends are remembered.
const CONFIRMED_MAX: usize = 256;

impl Takings {
    fn add(&self, end: oneshot::Sender<End>) -> String {
        let name = format!("{:032x}", rand::random::<u128>());
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), end);
        name
    }

    fn remove(&self, name: &str) -> Option<oneshot::Sender<End>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn note_end(&self, name: &str, removed: usize) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.truncate(CONFIRMED_MAX - 1);
        confirmed.push_front((name.to_owned(), removed));
    }

    fn removed_before(&self, name: &str) -> Option<usize> {
        let confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.iter().find(|(known, _)| known == name).map(|(_, removed)| *removed)
    }

    fn is_full(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len() >= TAKINGS_MAX
    }
}

/// Keeps the records until it is said what becomes of them.
async fn hold(
    mut taker: Taker,
    page: Vec<ErrorRecord>,
    fleet: Fleet,
    mut end: oneshot::Receiver<End>,
) {
    let late = tokio::time::sleep(PATIENCE);
    let mut late = std::pin::pin!(late);
    let mut ticks = tokio::time::interval(ALIVE);
    let end = loop {
        tokio::select! {
            end = &mut end => break end.ok(),
            () = &mut late => break None,
            _ = ticks.tick() => {
                let _ = taker.keep_alive().await;
            }
        }
    };
    let removes = end.as_ref().is_some_and(|end| end.removes);
    let done = match removes {
        true => taker.confirm(&page).await.map(|held| if held { page.len() } else { 0 }),
        false => Ok(0),
    };
    if let Ok(count @ 1..) = done {
        note(&fleet, &format!("took {count} failed messages")).await;
    }
    // What is left goes back; if that fails, somebody else finds it when this taking is overdue.
    let released = taker.release().await;
    if let Some(end) = end {
        let _ = end.tell.send(released.and(done));
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
            !before(&until, record.position()) && filter.fits(record)
        }),
    };
    let page = taker.page().await?;
    if page.is_empty() {
        taker.release().await?;
        return Ok(document(&json!({ "v": 1, "taking": Value::Null, "errors": [] })));
    }
    let rows: Vec<Value> = page.iter().map(whole_row).collect();
    let (end, ended) = oneshot::channel();
    let name = takings.add(end);
    let (over, held) = (takings.clone(), name.clone());
    tokio::spawn(async move {
        hold(taker, page, fleet, ended).await;
        over.remove(&held);
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
    let gone = || {
        Problem::missing("there is no such taking: it was ended, or it was not confirmed in time")
            .hint("what was not confirmed is among the failed messages again")
    };
    let takings = &ask.served().takings;
    let answer = |removed: usize| Ok(document(&json!({ "v": 1, "removed": removed })));
    if removes && let Some(removed) = takings.removed_before(name) {
        return answer(removed);
    }
    let (tell, told) = oneshot::channel();
    let taking = takings.remove(name).ok_or_else(gone)?;
    taking.send(End { removes, tell }).map_err(|_| gone())?;
    let removed = told.await.map_err(|_| gone())??;
    if removes && removed == 0 {
        return Err(Problem::conflict("they were put back before this: nothing was removed"));
    }
    if removes {
        takings.note_end(name, removed);
    }
    answer(removed)
}

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
