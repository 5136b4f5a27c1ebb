//! Failed messages: list, count, export, put back to work, drop.
//!
//! **Invariant:** a change is about the failed messages that were selected, or about those that match and that had failed
//! when they were counted: never about later ones. Listing and exporting remove nothing.

use std::time::{Duration, Instant};

use artel::{Cursor, ErrorRecord, ErrorStore, Lane, Requeuer};
use axum::body::{Body as Bytes, Bytes as Piece};
use axum::extract::{Path, Request};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::super::answer::{Problem, document};
use super::super::connections::Endless;
use super::act::note;
use super::ask::{Ask, Body, Params};
use super::bounded::Bounded;
use super::lists::contains;
use super::shown::{download, show};
use crate::commands::errors::before;
use crate::harmless::harmless_json;

/// Failed messages that one request looks at.
const LOOK_MAX: usize = 5000;
const USUAL: usize = 50;
const MOST: usize = 200;
/// Records per request to Redis.
const PIECE: usize = 100;
/// For how long one request counts or changes. Those who want more repeat it.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// How many may be selected.
const SELECTED_MAX: usize = 500;
/// How many of those are read at once.
const SELECTED_PIECE: usize = 20;

/// Which failed messages are meant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Filter {
    /// Words in the payload, the reason, the id, the kind or the label.
    q: Option<String>,
    kind: Option<String>,
    cause: Option<String>,
    /// The label or the beginning of the id of the member that failed it.
    member: Option<String>,
    since_ms: Option<u64>,
}

const FILTERS: [&str; 5] = ["q", "kind", "cause", "member", "since_ms"];
const POSITIONS: &str = "positions";
const UNTIL: &str = "until";

impl Filter {
    fn read(params: &Params) -> Result<Filter, Problem> {
        let text = |name| params.text(name).map(str::to_owned);
        let (q, kind, cause, member) = (text("q"), text("kind"), text("cause"), text("member"));
        Filter { q, kind, cause, member, since_ms: params.get("since_ms")? }.checked()
    }

    /// Makes it ready to compare, and refuses what can never match.
    pub(super) fn checked(mut self) -> Result<Filter, Problem> {
        self.q = self.q.filter(|words| !words.is_empty()).map(|words| words.to_lowercase());
        if let Some(cause) = &self.cause {
            let wrong = |why| Problem::bad(format!("`cause` {why}"));
            cause.parse::<artel::Cause>().map_err(wrong)?;
        }
        Ok(self)
    }

    pub(super) fn fits(&self, record: &ErrorRecord) -> bool {
        let kind = record.kind.as_deref().unwrap_or_default();
        let is_member = |wanted: &String| {
            record.label == *wanted
                || record.member.as_ref().is_some_and(|id| id.as_str().starts_with(&**wanted))
        };
        self.kind.as_ref().is_none_or(|wanted| wanted == kind)
            && self.cause.as_ref().is_none_or(|cause| record.cause.to_string() == *cause)
            && self.member.as_ref().is_none_or(is_member)
            && self
                .since_ms
                .is_none_or(|since| crate::times::since_1970_ms(record.failed_at) >= since)
            && self.q.as_ref().is_none_or(|words| {
                let texts = [record.id.as_str(), kind, &*record.reason, &*record.label];
                contains(words, &record.payload, &texts)
            })
    }
}

/// A record, and as much of its payload as a list shows.
pub(super) fn row(record: &ErrorRecord) -> Value {
    let mut row = serde_json::to_value(record).unwrap_or_default();
    if let Some(fields) = row.as_object_mut() {
        fields.remove("payload");
        fields.remove("payload_b64");
    }
    show(&mut row, &record.payload, record.payload.len());
    row["position"] = record.position().into();
    row
}

pub(super) async fn list(ask: Ask) -> Result<Response, Problem> {
    let mut known = vec!["limit", "cursor"];
    known.extend(FILTERS);
    ask.params.only(&known)?;
    let (filter, limit) = (Filter::read(&ask.params)?, ask.params.limit(USUAL, MOST)?);
    let mut cursor = match ask.params.text("cursor") {
        Some(position) => Cursor::after(position)?,
        None => Cursor::default(),
    };
    let store = ask.fleet().errors();
    let (mut rows, mut looked, mut next) = (Vec::new(), 0, None);
    'pages: loop {
        let page = store.page_back(&mut cursor, PIECE).await?;
        if page.is_empty() {
            next = None;
            break;
        }
        for record in &page {
            if rows.len() == limit || looked >= LOOK_MAX {
                break 'pages;
            }
            looked += 1;
            next = Some(record.position().to_owned());
            if filter.fits(record) {
                rows.push(row(record));
            }
        }
    }
    Ok(document(&json!({ "v": 1, "errors": rows, "cursor": next, "looked": looked })))
}

/// How many match, and up to which one was counted.
pub(super) async fn count(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&FILTERS)?;
    let (filter, store) = (Filter::read(&ask.params)?, ask.fleet().errors());
    let (mut cursor, mut count, mut until) = (Cursor::default(), 0u64, None);
    let begun = Instant::now();
    let is_all = loop {
        let page = store.page(&mut cursor, PIECE).await?;
        let Some(last) = page.last() else { break true };
        until = Some(last.position().to_owned());
        count += page.iter().filter(|record| filter.fits(record)).count() as u64;
        if begun.elapsed() > BUSY_MAX {
            break false;
        }
    };
    Ok(document(&json!({ "v": 1, "count": count, "until": until, "is_all": is_all })))
}

/// What a change is about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// The selected ones, by their positions.
    #[serde(default)]
    positions: Bounded<String, SELECTED_MAX>,
    /// Or all that match, up to the position `until`.
    filter: Option<Filter>,
    until: Option<String>,
    /// Go on behind this position.
    after: Option<String>,
    /// The lane to put them into; else each into its own.
    lane: Option<String>,
}

/// The failed messages that a change is about.
pub(super) enum Meant {
    Selected(Vec<String>),
    /// All that match, up to a position if one is given.
    Matching {
        filter: Filter,
        from: Cursor,
        until: Option<String>,
    },
}

impl Meant {
    /// Where to go on.
    fn place(&self) -> Option<&str> {
        match self {
            Meant::Selected(_) => None,
            Meant::Matching { from, .. } => from.position(),
        }
    }
}

fn too_many() -> Problem {
    Problem::bad(format!("at most {SELECTED_MAX} can be selected")).hint("use a filter for more")
}

/// Each selected one once, the oldest first.
fn selected(mut positions: Vec<String>) -> Result<Vec<String>, Problem> {
    for position in &positions {
        Cursor::after(position)?;
    }
    positions.sort_by(|one, other| before(other, one).cmp(&before(one, other)));
    positions.dedup();
    Ok(positions)
}

impl Change {
    pub(super) fn meant(&self) -> Result<Meant, Problem> {
        match (&self.filter, self.positions.items.is_empty()) {
            (None, false) => {
                if self.positions.is_too_long() {
                    return Err(too_many());
                }
                Ok(Meant::Selected(selected(self.positions.items.clone())?))
            }
            (Some(filter), true) => {
                let Some(until) = self.until.clone() else {
                    return Err(Problem::bad("up to which one? Add `until`")
                        .hint("GET /api/v1/errors/count returns it"));
                };
                Cursor::after(&until)?;
                let from = self.after.as_deref().map(Cursor::after).transpose()?;
                let (filter, from) = (filter.clone().checked()?, from.unwrap_or_default());
                Ok(Meant::Matching { filter, from, until: Some(until) })
            }
            _ => Err(Problem::bad("either `positions` or `filter` must be given")),
        }
    }
}

/// One piece of what a change is about: the records, and where to go on.
async fn next_piece(
    store: &ErrorStore,
    meant: &mut Meant,
) -> Result<Option<Vec<ErrorRecord>>, Problem> {
    match meant {
        Meant::Selected(selected) if selected.is_empty() => Ok(None),
        Meant::Selected(selected) => {
            // They may be large: not all of them at once.
            let mut piece = Vec::new();
            for position in selected.drain(..selected.len().min(SELECTED_PIECE)) {
                piece.extend(store.get(&position).await?);
            }
            Ok(Some(piece))
        }
        Meant::Matching { filter, from, until } => {
            let mut page = store.page(from, PIECE).await?;
            if let Some(until) = until {
                page.retain(|record| !before(until, record.position()));
            }
            if page.is_empty() {
                return Ok(None);
            }
            page.retain(|record| filter.fits(record));
            Ok(Some(page))
        }
    }
}

/// What is done to failed messages.
enum Act {
    Requeue(Box<Requeuer>),
    Drop,
}

impl Act {
    /// How many were changed.
    async fn apply(
        &mut self,
        store: &ErrorStore,
        piece: &[ErrorRecord],
    ) -> Result<u64, artel::Error> {
        match self {
            Act::Requeue(requeuer) => Ok(requeuer.put_back(piece).await?.messages),
            Act::Drop => store.drop_records(piece).await,
        }
    }
}

/// Does it to each piece until there is nothing more, or for [`BUSY_MAX`].
async fn each(store: &ErrorStore, mut meant: Meant, mut act: Act) -> Result<Response, Problem> {
    let (begun, mut done) = (Instant::now(), 0);
    while let Some(piece) = next_piece(store, &mut meant).await? {
        done += act.apply(store, &piece).await.map_err(|error| {
            let problem = Problem::from(error);
            problem.hint(format!("{done} were changed before"))
        })?;
        if begun.elapsed() > BUSY_MAX {
            return Ok(document(&json!({ "v": 1, "changed": done, "after": meant.place() })));
        }
    }
    Ok(document(&json!({ "v": 1, "changed": done, "after": Value::Null })))
}

pub(super) async fn requeue(ask: Ask, Body(change): Body<Change>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let lane: Option<Lane> = change.lane.as_deref().map(str::parse).transpose()?;
    let store = ask.acting().errors();
    let meant = change.meant()?;
    let act = Act::Requeue(Box::new(store.requeue(lane)));
    each(&store, meant, act).await
}

pub(super) async fn drop_them(ask: Ask, Body(change): Body<Change>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    if change.lane.is_some() {
        return Err(Problem::bad("what is dropped goes to no lane: leave out `lane`"));
    }
    let store = ask.acting().errors();
    let meant = change.meant()?;
    each(&store, meant, Act::Drop).await
}

pub(super) async fn payload(Path(position): Path<String>, ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let record = ask.fleet().errors().get(&position).await?;
    let gone = || Problem::missing("this failed message is no longer stored");
    record.map(|record| download(record.id.as_str(), record.payload)).ok_or_else(gone)
}

/// What an export is about.
fn to_export(params: &Params) -> Result<Meant, Problem> {
    let Some(positions) = params.text(POSITIONS) else {
        let until = params.text(UNTIL).map(str::to_owned);
        until.as_deref().map(Cursor::after).transpose()?;
        return Ok(Meant::Matching {
            filter: Filter::read(params)?,
            from: Cursor::default(),
            until,
        });
    };
    if let Some(other) = FILTERS.iter().chain(&[UNTIL]).find(|name| params.text(name).is_some()) {
        return Err(Problem::bad(format!("either `{POSITIONS}` or `{other}` may be given")));
    }
    let positions: Vec<String> = positions.split(',').map(str::to_owned).collect();
    if positions.len() > SELECTED_MAX {
        return Err(too_many());
    }
    Ok(Meant::Selected(selected(positions)?))
}

/// An export that is under way: its place, and its connection, are kept until its end.
struct Export {
    store: ErrorStore,
    meant: Meant,
    _place: OwnedSemaphorePermit,
    _endless: Option<Endless>,
}

impl Export {
    /// Some more lines. If Redis fails the answer ends in the middle, so that nobody takes it for whole.
    async fn next(mut self) -> Option<(Result<Piece, std::io::Error>, Export)> {
        match next_piece(&self.store, &mut self.meant).await {
            Ok(None) => None,
            Ok(Some(piece)) => {
                let lines = piece.iter().map(|record| {
                    harmless_json(&serde_json::to_string(record).unwrap_or_default()) + "\n"
                });
                Some((Ok(lines.collect::<String>().into()), self))
            }
            Err(problem) => Some((Err(std::io::Error::other(problem.text())), self)),
        }
    }
}

/// The selected ones, or all that match, the oldest first, a JSON document per line. Nothing is removed.
pub(super) async fn export(ask: Ask, mut request: Request) -> Result<Response, Problem> {
    let mut known = vec![POSITIONS, UNTIL];
    known.extend(FILTERS);
    ask.params.only(&known)?;
    let (meant, store) = (to_export(&ask.params)?, ask.fleet().errors());
    let Ok(place) = ask.api().exports.clone().try_acquire_owned() else {
        let full = "too many exports are under way";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, full));
    };
    // What can be known before the answer begins is known.
    store.count().await?;
    if *request.method() != Method::HEAD {
        note(&ask.acting(), "exported failed messages").await;
    }
    let endless = request.extensions_mut().remove::<Endless>();
    let export = Export { store, meant, _place: place, _endless: endless };
    let pieces = stream::unfold(export, Export::next);
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"errors.ndjson\""),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, Bytes::from_stream(pieces)).into_response())
}
