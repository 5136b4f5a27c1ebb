//! [`Sample`]: what `top` shows, as it was at one moment.
//!
//! **Invariant:** every text in it is harmless.

use std::time::{Duration, SystemTime};

use artel::{Cursor, ErrorRecord, ErrorsStatus, Fleet, History, LogEntry, Status};

use crate::commands::status::trouble_of;
use crate::harmless::harmless;
use crate::times;

/// Failed messages that are shown: the newest.
const ERRORS: usize = 30;
/// Notices that are shown: the newest.
const NOTICES: usize = 200;
/// How far back notices are read at the start.
const NOTICES_SINCE: Duration = Duration::from_secs(3600);
/// Bytes of a payload that are shown.
const PAYLOAD_BYTES: usize = 4096;

/// A fleet at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) time: Option<SystemTime>,
    pub(super) fleet: String,
    pub(super) server: String,
    pub(super) rtt: Duration,
    pub(super) generator: Option<Generator>,
    pub(super) trouble: Option<String>,
    pub(super) members: Vec<MemberRow>,
    pub(super) counts: Counts,
    /// Lanes by name, and how many wait in each.
    pub(super) lanes: Vec<(&'static str, u64)>,
    pub(super) oldest: Option<Duration>,
    pub(super) paused: Vec<String>,
    pub(super) stored: u64,
    pub(super) errors: Vec<ErrorRow>,
    pub(super) notices: Vec<NoticeRow>,
}

#[derive(Clone, Debug)]
pub(super) struct Generator {
    pub(super) label: String,
    pub(super) term: String,
    pub(super) left: Duration,
    /// How long it is when it is fresh.
    pub(super) lease: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) generated: u64,
    pub(super) sent: u64,
    pub(super) waiting: u64,
    pub(super) scheduled: u64,
    pub(super) claimed: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) balance: i64,
}

#[derive(Clone, Debug)]
pub(super) struct MemberRow {
    pub(super) id: String,
    pub(super) label: String,
    pub(super) role: String,
    pub(super) place: String,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) in_flight: u64,
    pub(super) seen: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct ErrorRow {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) who: String,
    pub(super) attempt: u32,
    pub(super) failed_at: SystemTime,
    pub(super) payload: String,
    /// To put it back to work. `None` only where there is no fleet behind it.
    pub(super) record: Option<ErrorRecord>,
}

#[derive(Clone, Debug)]
pub(super) struct NoticeRow {
    pub(super) time: SystemTime,
    pub(super) text: String,
}

/// Reads samples of a fleet.
pub(super) struct Reader {
    fleet: Fleet,
    history: History,
    notices: Vec<NoticeRow>,
    /// The errors as they were read, and the counts at that time: they are read again only if those have changed.
    errors: Vec<ErrorRow>,
    known: Option<ErrorsStatus>,
}

impl Reader {
    pub(super) fn new(fleet: Fleet) -> Reader {
        let since = SystemTime::now().checked_sub(NOTICES_SINCE);
        let history = fleet.history().since(since.unwrap_or(SystemTime::UNIX_EPOCH));
        Reader { fleet, history, notices: Vec::new(), errors: Vec::new(), known: None }
    }

    pub(super) async fn read(&mut self) -> Result<Sample, artel::Error> {
        let status = self.fleet.status().await?;
        if self.known != Some(status.errors) {
            let page = self.fleet.errors().page_back(&mut Cursor::default(), ERRORS).await?;
            self.errors = page.into_iter().map(error_row).collect();
            self.known = Some(status.errors);
        }
        loop {
            let page = self.history.page().await?;
            if page.is_empty() {
                break;
            }
            self.notices.extend(page.iter().map(notice_row));
            let much = self.notices.len().saturating_sub(NOTICES);
            self.notices.drain(..much);
        }
        let (errors, notices) = (self.errors.clone(), self.notices.clone());
        Ok(Sample { errors, notices, ..sample(&status) })
    }
}

fn sample(status: &Status) -> Sample {
    let (m, l) = (&status.messages, &status.lanes);
    Sample {
        time: Some(status.time),
        fleet: harmless(&status.fleet),
        server: harmless(&format!("{} {}", status.redis.server, status.redis.version)),
        rtt: status.redis.rtt,
        generator: status.generator.as_ref().map(|generator| Generator {
            label: harmless(&generator.label),
            term: generator.term.to_string(),
            left: generator.lease,
            lease: status.lease,
        }),
        trouble: trouble_of(status).map(|[what, hint]| match hint {
            "" => what.to_owned(),
            hint => format!("{what}: {hint}"),
        }),
        members: status
            .members
            .iter()
            .map(|member| MemberRow {
                id: member.id.to_string(),
                label: harmless(&member.label),
                role: match member.is_drained {
                    true => format!("{}, drained", member.role),
                    false => member.role.to_string(),
                },
                place: harmless(&format!("{}:{}", member.host, member.pid)),
                done: member.done,
                failed: member.failed,
                in_flight: member.in_flight,
                seen: member.seen,
            })
            .collect(),
        counts: Counts {
            generated: m.generated,
            sent: m.sent,
            waiting: m.waiting,
            scheduled: m.scheduled,
            claimed: m.claimed,
            done: m.done,
            failed: m.failed,
            balance: m.balance,
        },
        lanes: vec![
            ("returned", l.returned),
            ("high", l.high),
            ("generated", l.generated),
            ("normal", l.normal),
            ("low", l.low),
        ],
        oldest: status.oldest_waiting,
        paused: status.paused.clone(),
        stored: status.errors.stored,
        errors: Vec::new(),
        notices: Vec::new(),
    }
}

fn error_row(mut record: ErrorRecord) -> ErrorRow {
    let shown = &record.payload[..record.payload.len().min(PAYLOAD_BYTES)];
    let cut = if shown.len() < record.payload.len() { " …" } else { "" };
    let payload = harmless(&String::from_utf8_lossy(shown)) + cut;
    record.payload = Vec::new(); // putting it back needs only its place
    ErrorRow {
        id: record.id.to_string(),
        kind: harmless(record.kind.as_deref().unwrap_or_default()),
        reason: harmless(&record.reason),
        who: harmless(&record.label),
        attempt: record.attempt,
        failed_at: record.failed_at,
        payload,
        record: Some(record),
    }
}

fn notice_row(entry: &LogEntry) -> NoticeRow {
    let id = entry.member.as_ref().map(|id| id.as_str().chars().take(8).collect());
    let who: String = entry.label.clone().or(id).unwrap_or_default();
    let text = harmless(format!("{who} {}", entry.text()).trim());
    NoticeRow { time: entry.time, text }
}

impl NoticeRow {
    /// The time of day, as `times` writes it.
    pub(super) fn clock(&self) -> String {
        times::point(self.time).get(11..19).unwrap_or_default().to_owned()
    }
}
