//! Messages that wait or are claimed, page by page, and one message wherever it is.

use artel::{Fleet, ListCursor, Listed, WaitingIn};
use axum::extract::Path;
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::{Problem, document};
use super::ask::Ask;
use super::shown::{download, show};
use crate::commands::show::document as state_of;
use crate::times::since_1970_ms;

/// Messages that one request looks at.
const LOOK_MAX: usize = 5000;
const USUAL: usize = 50;
const MOST: usize = 200;
/// Messages that are read at once while something is searched for.
const PIECE: usize = 200;

/// A list of messages.
enum List {
    Waiting(WaitingIn),
    Claimed,
}

impl List {
    fn asked_for(ask: &Ask) -> Result<List, Problem> {
        let lane = ask.params.text("lane");
        match (ask.params.text("state"), lane) {
            (Some("claimed"), None) => Ok(List::Claimed),
            (Some("claimed"), Some(_)) => {
                Err(Problem::bad("what is claimed is in no lane: leave out `lane`"))
            }
            (Some("waiting"), Some("returned")) => Ok(List::Waiting(WaitingIn::Returned)),
            (Some("waiting"), Some(lane)) => match lane.parse() {
                Ok(lane) => Ok(List::Waiting(WaitingIn::Lane(lane))),
                Err(_) => Err(Problem::bad("the parameter `lane` must name a lane")
                    .hint("there are returned, high, generated, normal and low")),
            },
            (Some("waiting"), None) => Err(Problem::bad("which lane? Add `lane`")
                .hint("there are returned, high, generated, normal and low")),
            _ => Err(Problem::bad("the parameter `state` must be waiting or claimed")
                .hint("others are at /api/v1/scheduled and /api/v1/errors")),
        }
    }

    async fn page(
        &self,
        fleet: &Fleet,
        cursor: &mut ListCursor,
        count: usize,
    ) -> Result<Vec<Listed>, artel::Error> {
        match self {
            List::Waiting(line) => fleet.waiting(line, cursor, count).await,
            List::Claimed => fleet.claimed(cursor, count).await,
        }
    }
}

fn row(one: &Listed) -> Value {
    let mut row = json!({
        "id": one.id.as_str(),
        "at": one.at.to_string(),
        "kind": one.kind,
        "lane": one.lane.name(),
        "attempt": one.attempt,
        "retries": one.retry,
        "generated_ms": since_1970_ms(one.generated_at),
        "member": one.claim.as_ref().map(|(member, _)| member),
        "claimed_ms": one.claim.as_ref().map(|(_, since)| since_1970_ms(*since)),
    });
    show(&mut row, &one.payload, one.payload_bytes);
    row
}

/// Does a text or a payload contain these words? They are in small letters.
pub(super) fn contains(words: &str, payload: &[u8], texts: &[&str]) -> bool {
    let holds = |text: &str| text.to_lowercase().contains(words);
    texts.iter().any(|text| holds(text)) || holds(&String::from_utf8_lossy(payload))
}

pub(super) async fn messages(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&["state", "lane", "kind", "q", "limit", "cursor"])?;
    let (list, limit) = (List::asked_for(&ask)?, ask.params.limit(USUAL, MOST)?);
    let mut cursor: ListCursor = ask.params.get("cursor")?.unwrap_or_default();
    let kind = ask.params.text("kind");
    let words = ask.params.text("q").map(str::to_lowercase);
    let fits = |one: &Listed| {
        kind.is_none_or(|kind| one.kind.as_deref() == Some(kind))
            && words.as_ref().is_none_or(|words| {
                let kind = one.kind.as_deref().unwrap_or_default();
                contains(words, &one.payload, &[one.id.as_str(), kind])
            })
    };
    let searches = kind.is_some() || words.is_some();
    let (mut rows, mut looked) = (Vec::new(), 0);
    while rows.len() < limit && looked < LOOK_MAX && !cursor.is_over() {
        let room = limit - rows.len();
        let count = if searches { PIECE } else { room };
        let before = cursor.clone();
        let page = list.page(ask.fleet(), &mut cursor, count).await?;
        looked += page.len().max(1);
        let found: Vec<&Listed> = page.iter().filter(|one| fits(one)).collect();
        if found.len() > room {
            // Go on behind the last one that there is room for.
            let passed = page.iter().position(|one| one.at == found[room].at).unwrap_or(0);
            cursor = before;
            list.page(ask.fleet(), &mut cursor, passed.max(1)).await?;
        }
        rows.extend(found.into_iter().take(room).map(row));
    }
    let next = (!cursor.is_over()).then(|| cursor.to_string());
    Ok(document(&json!({ "v": 1, "messages": rows, "cursor": next, "looked": looked })))
}

/// Where a message is, and what is known of its runs.
pub(super) async fn message(Path(id): Path<String>, ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let state = ask.fleet().find(&id).await?;
    if state == artel::MessageState::Unknown {
        return Err(Problem::missing(format!("message {id} is not found")));
    }
    let mut document_of_it = state_of(&id, &state);
    if let artel::MessageState::Failed { record, .. } = &state {
        document_of_it["record"] = super::errors::row(record);
    }
    Ok(document(&document_of_it))
}

/// The whole payload of a message in a list.
pub(super) async fn payload(Path(id): Path<String>, ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&["state", "lane", "at"])?;
    let list = List::asked_for(&ask)?;
    let Some(at) = ask.params.get::<ListCursor>("at")? else {
        return Err(Problem::bad("where is it? Add the `at` of its row"));
    };
    let line = match &list {
        List::Waiting(line) => line,
        List::Claimed => &WaitingIn::Returned,
    };
    let payload = ask.fleet().whole_payload(line, &id, &at).await?;
    let moved = || Problem::missing(format!("message {id} has moved on: load the list again"));
    payload.map(|payload| download(&id, payload)).ok_or_else(moved)
}
