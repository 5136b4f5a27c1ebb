//! [`Live`]: what changes in a fleet, as it happens, for every page that is open.
//!
//! **Invariant:** Redis is asked by one task for all pages, and by none while no page is open. A page gets every entry of the
//! common log behind the one it names, once and in order, also from another process; the status it gets is the latest, at
//! most four times a second. A page that is slow holds up nobody.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use artel::{Fleet, History, LogEntry};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::super::answer::{Answer, Problem, unnamed};
use super::super::connections::Endless;
use super::ask::Ask;
use super::log;
use crate::times::since_1970_ms;

/// How often the log is read, and a page told.
const BEAT: Duration = Duration::from_millis(250);
/// The status is read every so many beats, and when something has happened.
const STATUS_BEATS: u32 = 4;
/// How long Redis may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// A page hears something at least this often.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Entries that are kept for pages that are a little behind.
const KEPT: usize = 1000;
/// How far an entry may be ahead of the clock of Redis.
const CLOCK_MS: u64 = 1000;
/// Entries that a page gets at once.
const PIECE: usize = 200;

/// The id of an entry of the log, as numbers.
type Position = (u64, u64);

fn position(id: &str) -> Position {
    let (ms, seq) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), seq.parse().unwrap_or(0))
}

/// What pages are told.
#[derive(Default)]
struct News {
    /// The latest status or what is wrong, as an event, and how often there was a new one.
    status: (u64, Arc<str>),
    log: VecDeque<(Position, Arc<str>)>,
    /// All entries behind this one are kept.
    since: Option<Position>,
    reads: bool,
}

/// The news of one fleet.
#[derive(Clone)]
pub(super) struct Live {
    fleet: Fleet,
    news: Arc<Mutex<News>>,
    beat: watch::Sender<()>,
    over: CancellationToken,
}

impl Live {
    pub(super) fn new(fleet: Fleet, over: CancellationToken) -> Live {
        Live { fleet, news: Arc::default(), beat: watch::Sender::new(()), over }
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens. The first one has somebody read.
    fn listen(&self) -> watch::Receiver<()> {
        let listener = self.beat.subscribe();
        if !std::mem::replace(&mut self.news().reads, true) {
            tokio::spawn(self.clone().read());
        }
        listener
    }

    /// Reads as long as a page is open.
    async fn read(self) {
        let (mut beats, mut history) = (0, None);
        let mut ticks = tokio::time::interval(BEAT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.over.cancelled() => return,
            }
            {
                let mut news = self.news();
                if self.beat.receiver_count() == 0 {
                    *news = News::default();
                    return;
                }
            }
            let happened = self.read_log(&mut history).await;
            if happened || beats % STATUS_BEATS == 0 {
                self.read_status().await;
            }
            beats += 1;
            self.beat.send_replace(());
        }
    }

    /// Has something happened?
    async fn read_log(&self, history: &mut Option<History>) -> bool {
        let reading = async {
            if history.is_none() {
                // From the end on: what was before is for each page to read.
                let mut end = self.fleet.history();
                let last = end.page_back().await?.into_iter().next();
                let id = last.map_or_else(|| "0-0".to_owned(), |last| last.id);
                self.news().since = Some(position(&id));
                *history = Some(self.fleet.history().after(&id)?);
            }
            match history {
                Some(history) => history.page().await,
                None => Ok(Vec::new()),
            }
        };
        let Ok(Ok(page)) = tokio::time::timeout(PATIENCE, reading).await else { return false };
        let mut news = self.news();
        for entry in &page {
            news.log.push_back((position(&entry.id), event(entry)));
            if news.log.len() > KEPT {
                news.since = news.log.pop_front().map(|(position, _)| position);
            }
        }
        !page.is_empty()
    }

    async fn read_status(&self) {
        let status = tokio::time::timeout(PATIENCE, self.fleet.status()).await;
        let text = match status {
            Ok(Ok(status)) => {
                let answer = Answer::of(Ok(status));
                answer.document().map_or_else(String::new, |text| frame("status", text))
            }
            Ok(Err(error)) => trouble(&unnamed(&error)),
            Err(_) => trouble("Redis does not answer"),
        };
        let mut news = self.news();
        news.status = (news.status.0 + 1, text.into());
    }
}

/// One event, as it is written.
fn frame(kind: &str, document: &str) -> String {
    format!("event: {kind}\ndata: {}\n\n", document.trim_end().replace('\n', " "))
}

fn trouble(why: &str) -> String {
    frame("trouble", &json!({ "v": 1, "error": why }).to_string())
}

fn event(entry: &LogEntry) -> Arc<str> {
    let answer = Answer::of(Ok(log::document(entry)));
    let text = answer.document().map_or_else(String::new, |text| frame("log", text));
    format!("id: {}\n{text}", entry.id).into()
}

/// One page that is open.
struct Listener {
    live: Live,
    beat: watch::Receiver<()>,
    /// The last entry it got; `None`: it wants new ones only.
    last: Option<Position>,
    /// What is older than the news is read from here, up to the entry behind which the news begin.
    behind: Option<(History, Position)>,
    status: u64,
    heard: Instant,
    greeted: bool,
    _place: OwnedSemaphorePermit,
    _endless: Option<Endless>,
}

impl Listener {
    /// What it gets next. It ends with this process.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Listener)> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Some((Ok("retry: 1000\n\n".into()), self));
        }
        let over = self.live.over.clone();
        loop {
            let text = match self.catch_up().await {
                Some(text) => text,
                None => self.new_ones(),
            };
            if !text.is_empty() {
                self.heard = Instant::now();
                return Some((Ok(text.into()), self));
            }
            let quiet = HEARTBEAT.saturating_sub(self.heard.elapsed());
            tokio::select! {
                _ = self.beat.changed() => {}
                () = tokio::time::sleep(quiet) => {
                    self.heard = Instant::now();
                    return Some((Ok(": still here\n\n".into()), self));
                }
                () = over.cancelled() => return None,
            }
        }
    }

    /// Entries that are older than the news; `None` if there are none.
    async fn catch_up(&mut self) -> Option<String> {
        let (history, upto) = self.behind.as_mut()?;
        let page = match history.page().await {
            Ok(page) if page.is_empty() => {
                // Between the last entry and the news there is nothing, or nothing any more.
                self.last = self.last.max(Some(*upto));
                self.behind = None;
                return None;
            }
            Ok(page) => page,
            // Later: a beat comes also while Redis is away.
            Err(_) => return Some(String::new()),
        };
        self.last = page.last().map(|entry| position(&entry.id));
        Some(page.iter().map(|entry| event(entry).as_ref().to_owned()).collect())
    }

    fn new_ones(&mut self) -> String {
        let live = self.live.clone();
        let news = live.news();
        let mut text = String::new();
        let Some(since) = news.since else { return self.new_status(&news) };
        let last = *self.last.get_or_insert(since);
        if last < since {
            // It was slow, or what it asked for is older.
            let id = format!("{}-{}", last.0, last.1);
            let history = live.fleet.history().after(&id);
            self.behind = history.ok().map(|history| (history, since));
            // At once, not with the next beat.
            self.beat.mark_changed();
            return text;
        }
        let new = news.log.iter().skip_while(|(position, _)| *position <= last);
        for (position, event) in new.take(PIECE) {
            self.last = Some(*position);
            text.push_str(event);
        }
        text + &self.new_status(&news)
    }

    fn new_status(&mut self, news: &News) -> String {
        let (number, text) = &news.status;
        if std::mem::replace(&mut self.status, *number) == *number {
            return String::new();
        }
        text.as_ref().to_owned()
    }
}

/// The last entry that a page got, as it says: in the header that browsers send, or in a parameter.
fn last_seen(headers: &HeaderMap, ask: &Ask) -> Result<Option<Position>, Problem> {
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let Some(id) = header.filter(|id| !id.is_empty()).or(ask.params.text("after")) else {
        return Ok(None);
    };
    ask.fleet().history().after(id)?;
    Ok(Some(position(id)))
}

pub(super) async fn stream(ask: Ask, mut request: Request) -> Result<Response, Problem> {
    ask.params.only(&["after"])?;
    let mut last = last_seen(request.headers(), &ask)?;
    // What is still to come was never seen: the clock was set, or this is no entry of this fleet.
    if let Some((ms, _)) = last
        && let Ok(now) = ask.fleet().now().await
    {
        last = last.filter(|_| ms <= since_1970_ms(now) + CLOCK_MS);
    }
    let Ok(place) = ask.api().streams.clone().try_acquire_owned() else {
        let full = "too many pages are open";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, full));
    };
    let live = ask.served().live.clone();
    let listener = Listener {
        beat: live.listen(),
        last,
        behind: None,
        status: 0,
        heard: Instant::now(),
        greeted: false,
        _place: place,
        _endless: request.extensions_mut().remove::<Endless>(),
        live,
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let body = Body::from_stream(stream::unfold(listener, Listener::next));
    Ok((headers, [("x-accel-buffering", "no")], body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        assert_eq!(frame("status", "{\"a\":1}\n"), "event: status\ndata: {\"a\":1}\n\n");
        assert!(trouble("x").ends_with("}\n\n"));
        assert!(position("9-1") < position("10-0") && position("10-2") < position("10-10"));
    }
}
