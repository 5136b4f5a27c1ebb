//! `artel errors`: show failed messages, take them, put them back to work, drop them, copy them.
//!
//! **Invariant:** only `take`, `requeue` and `drop` remove anything. `take` removes only what it
//! printed; the others remove only what they counted in their question.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use artel::{Cursor, ErrorRecord, ErrorStore, Fleet, MemberId, MessageId};
use regex::bytes::Regex;

use crate::args::{DropArgs, ErrorsCommand, ExportArgs, FilterArgs, ListArgs, RequeueArgs};
use crate::commands::take;
use crate::exit::{FAILURE, Failure, OK, USAGE};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::signals::Signals;
use crate::{printer, table, times};

/// How many messages `list` shows by default.
const PAGE: u64 = 20;
/// How much of a reason is shown: its end, and a little of its beginning, which says how the
/// command ended.
const REASON_CHARS: usize = 200;
const REASON_BEGIN: usize = 60;
/// Records per request.
const CHUNK: usize = 100;

pub(crate) async fn errors(place: &Place, command: &ErrorsCommand) -> Result<u8, Failure> {
    match command {
        ErrorsCommand::Take(args) => take::take(place, args).await,
        ErrorsCommand::List(args) => list(place, args).await,
        ErrorsCommand::Requeue(args) => requeue(place, args).await,
        ErrorsCommand::Drop(args) => drop_them(place, args).await,
        ErrorsCommand::Export(args) => export(place, args).await,
    }
}

/// Selects records.
pub(crate) struct Filter {
    grep: Option<Regex>,
    cause: Option<artel::Cause>,
    kind: Option<String>,
    id: Option<String>,
    limit: u64,
    since: Option<Duration>,
    /// The same as a point in Redis time, once that is known.
    since_time: SystemTime,
}

impl Filter {
    pub(crate) fn new(args: &FilterArgs) -> Result<Filter, Failure> {
        let grep = args.grep.as_deref().map(Regex::new).transpose().map_err(not_a_regex)?;
        let limit = args.limit.unwrap_or(u64::MAX);
        let (cause, kind, since) = (args.cause, args.kind.clone(), args.since);
        Ok(Filter {
            grep,
            cause,
            kind,
            id: args.id.clone(),
            limit,
            since,
            since_time: SystemTime::UNIX_EPOCH,
        })
    }

    /// Does it select all records?
    pub(crate) fn is_everything(&self) -> bool {
        self.grep.is_none()
            && self.cause.is_none()
            && self.kind.is_none()
            && self.id.is_none()
            && self.since.is_none()
            && self.limit == u64::MAX
    }

    /// The position to begin at.
    pub(crate) async fn cursor(&mut self, fleet: &Fleet) -> Result<Cursor, Failure> {
        if let Some(since) = self.since {
            let time = fleet.now().await?.checked_sub(since);
            self.since_time = time.unwrap_or(SystemTime::UNIX_EPOCH);
        }
        Ok(Cursor::since(self.since_time))
    }

    /// Is this record selected? If so, it counts towards the limit.
    pub(crate) fn takes(&mut self, record: &ErrorRecord) -> bool {
        let fits = self.limit > 0
            && record.failed_at >= self.since_time
            && self.cause.is_none_or(|cause| cause == record.cause)
            && self.kind.as_ref().is_none_or(|kind| record.kind.as_ref() == Some(kind))
            && self.id.as_ref().is_none_or(|id| record.id.as_str() == *id)
            && self.grep.as_ref().is_none_or(|grep| {
                grep.is_match(&record.payload) || grep.is_match(record.reason.as_bytes())
            });
        self.limit -= u64::from(fits);
        fits
    }
}

/// What is wrong with the value of --grep.
pub(crate) fn not_a_regex(error: regex::Error) -> Failure {
    // The last line says what is wrong. The lines before it only show the place.
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
    Failure::new(USAGE, format!("--grep is not a regular expression: {reason}"))
        .hint("put a backslash before a character that stands for itself, such as `\\(`")
}

/// Visits the selected records page by page, until there are no more or `each` returns false.
async fn through(
    store: &ErrorStore,
    cursor: &mut Cursor,
    filter: &mut Filter,
    mut each: impl FnMut(Vec<ErrorRecord>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    loop {
        let mut page = store.page(cursor, CHUNK).await?;
        if page.is_empty() {
            return Ok(());
        }
        page.retain(|record| filter.takes(record));
        if !each(page)? || filter.limit == 0 {
            return Ok(());
        }
    }
}

async fn list(place: &Place, args: &ListArgs) -> Result<u8, Failure> {
    let mut filter = Filter::new(&args.filter)?;
    filter.limit = args.filter.limit.unwrap_or(PAGE);
    let asked = filter.limit;
    let given = args.cursor.as_deref().map(Cursor::after).transpose()?;
    let fleet = place.connect().await?;
    let store = fleet.errors();
    let mut cursor = match given {
        Some(cursor) => cursor,
        None => filter.cursor(&fleet).await?,
    };
    let now = fleet.now().await?;
    let (mut text, mut last, mut shown) = (String::new(), None, 0);
    loop {
        let page = store.page_back(&mut cursor, CHUNK).await?;
        let over = page.is_empty();
        for record in page.into_iter().filter(|record| filter.takes(record)) {
            if args.json {
                let mut line = serde_json::to_value(&record).unwrap_or_default();
                line["position"] = record.position().into();
                text.push_str(&table::json(&line)?);
            } else {
                entry(&mut text, &record, now);
            }
            shown += 1;
            last = Some(record.position().to_owned());
        }
        if over || filter.limit == 0 {
            break;
        }
    }
    printer::data(&text)?;
    let (stored, taken) = (store.count().await?, store.being_taken().await?);
    let taken = match taken {
        0 => String::new(),
        taken => format!(", {taken} of them are being taken now"),
    };
    match last {
        _ if stored == 0 && !fleet.info().await?.was_joined => printer::remark(&format!(
            "no failed message is stored: nobody ever joined fleet {:?} (`artel fleets` lists all fleets)",
            place.fleet
        )),
        _ if stored == 0 => printer::remark("no failed message is stored"),
        None => printer::remark(&format!("none matches; {stored} are stored{taken}")),
        Some(position) => {
            printer::remark(&format!("{shown} shown, {stored} stored{taken}"));
            if shown == asked && stored > shown {
                printer::remark(&format!("older ones: --cursor {position}"));
            }
        }
    }
    Ok(OK)
}

/// One record for people: a line about it, then its reason and its payload, cut if they are long.
pub(crate) fn entry(text: &mut String, record: &ErrorRecord, now: SystemTime) {
    let cut = |bytes: &[u8]| {
        // Without characters that a terminal would obey.
        let line = String::from_utf8_lossy(&take::escape(bytes)).into_owned();
        let line = harmless(&line);
        match line.char_indices().nth(200) {
            Some((at, _)) => format!("{}…", &line[..at]),
            None => line,
        }
    };
    let optional = |name: &str, value: Option<&str>| {
        value.map_or_else(String::new, |value| format!("{name} {}", harmless(value)))
    };
    let member = record.member.as_ref().map(MemberId::as_str);
    let by = Some(record.label.as_str()).filter(|label| !label.is_empty()).or(member);
    text.push_str(&printer::screen().flow(&[
        record.id.to_string(),
        times::point_ago(record.failed_at, now),
        record.cause.to_string(),
        format!("attempt {}", record.attempt),
        optional("by", by),
        optional("kind", record.kind.as_deref()),
        optional("was", record.origin.as_ref().map(MessageId::as_str)),
    ]));
    // The end of the reason usually says why.
    let reason = harmless(&String::from_utf8_lossy(&take::escape(record.reason.as_bytes())));
    let reason = match reason.char_indices().nth_back(REASON_CHARS - 1) {
        Some((at, _)) if at > 0 => {
            let begin: String = reason.chars().take(REASON_BEGIN).collect();
            format!("{begin}…{}", &reason[at..])
        }
        _ => reason,
    };
    let _ = writeln!(text, "  reason   {reason}");
    let _ = writeln!(text, "  payload  {}", cut(&record.payload));
}

/// The records that a question was about. Only these are changed; messages that fail meanwhile are
/// not.
struct Asked {
    begin: Cursor,
    last: String,
    count: u64,
}

/// Counts the selected records and asks for confirmation; `None` if there is nothing to do.
async fn ask(
    fleet: &Fleet,
    filter: &mut Filter,
    yes: bool,
    question: impl Fn(&str) -> String,
) -> Result<Option<Asked>, Failure> {
    let store = &fleet.errors();
    let mut cursor = filter.cursor(fleet).await?;
    let begin = cursor.clone();
    let limit = filter.limit;
    let (mut count, mut last) = (0u64, None);
    through(store, &mut cursor, filter, |page| {
        count += page.len() as u64;
        last = page.last().map(|record| record.position().to_owned()).or(last.take());
        Ok(true)
    })
    .await?;
    filter.limit = limit;
    let Some(last) = last else {
        printer::remark("no failed message matches");
        return Ok(None);
    };
    let noun = if count == 1 { "message" } else { "messages" };
    let asked = Asked { begin, last, count };
    match yes
        .then_some(true)
        .or_else(|| printer::confirm(&question(&format!("{count} failed {noun}"))))
    {
        Some(true) => Ok(Some(asked)),
        Some(false) => {
            printer::remark("nothing was changed");
            Ok(None)
        }
        None => Err(Failure::new(FAILURE, "nobody answers: nothing was changed")
            .hint("`--yes` does it without asking")),
    }
}

/// The pages of the records that the question was about, oldest first; `None` after the last.
struct Pages<'a> {
    store: &'a ErrorStore,
    filter: Filter,
    cursor: Cursor,
    last: String,
    over: bool,
}

impl<'a> Pages<'a> {
    fn of(store: &'a ErrorStore, filter: Filter, asked: &Asked) -> Pages<'a> {
        let (cursor, last) = (asked.begin.clone(), asked.last.clone());
        Pages { store, filter, cursor, last, over: false }
    }

    async fn next(&mut self) -> Result<Option<Vec<ErrorRecord>>, Failure> {
        if self.over || self.filter.limit == 0 {
            return Ok(None);
        }
        let mut page = self.store.page(&mut self.cursor, CHUNK).await?;
        let last = &self.last;
        self.over = page.is_empty() || page.iter().any(|record| !before(record.position(), last));
        page.retain(|record| !before(last, record.position()) && self.filter.takes(record));
        Ok(Some(page))
    }
}

async fn requeue(place: &Place, args: &RequeueArgs) -> Result<u8, Failure> {
    let fleet = place.connect().await?;
    let store = fleet.errors();
    let mut filter = Filter::new(&args.filter)?;
    let question = |what: &str| format!("put {what} back to work?");
    let Some(asked) = ask(&fleet, &mut filter, args.yes, question).await? else { return Ok(OK) };
    let count = asked.count;
    let mut requeuer = store.requeue(args.lane.map(Into::into));
    let (mut pages, mut done, mut unreadable) = (Pages::of(&store, filter, &asked), 0, 0);
    while let Some(page) = pages.next().await? {
        let moved = requeuer.put_back(&page).await.map_err(|error| {
            let failure = Failure::from(error);
            let error = format!("{done} of {count} were put back, then: {}", failure.error);
            Failure { error, ..failure }
        })?;
        done += moved.messages;
        unreadable += moved.unreadable;
    }
    printer::data(&format!("{done}\n"))?;
    let gone = count.saturating_sub(done + unreadable);
    if unreadable > 0 {
        printer::remark(&format!(
            "note: {unreadable} stay: this version cannot read them, or another message of the same periodic entry is \
             not over"
        ));
    }
    if gone > 0 {
        printer::remark(&format!("note: {gone} were taken or put back by somebody else meanwhile"));
    }
    Ok(OK)
}

async fn drop_them(place: &Place, args: &DropArgs) -> Result<u8, Failure> {
    let fleet = place.connect().await?;
    let store = fleet.errors();
    let mut filter = Filter::new(&args.filter)?;
    let question = |what: &str| format!("remove {what} for good?");
    let Some(asked) = ask(&fleet, &mut filter, args.yes, question).await? else { return Ok(OK) };
    let (mut pages, mut dropped) = (Pages::of(&store, filter, &asked), 0);
    while let Some(page) = pages.next().await? {
        dropped += store.drop_records(&page).await.map_err(|error| {
            let failure = Failure::from(error);
            let error =
                format!("{dropped} of {} were dropped, then: {}", asked.count, failure.error);
            Failure { error, ..failure }
        })?;
    }
    printer::data(&format!("{dropped}\n"))?;
    if dropped < asked.count {
        let gone = asked.count - dropped;
        printer::remark(&format!("note: {gone} were taken or put back by somebody else meanwhile"));
    }
    Ok(OK)
}

/// Is one position before another?
pub(crate) fn before(one: &str, other: &str) -> bool {
    let parse = |position: &str| -> (u64, u64) {
        let (ms, seq) = position.split_once('-').unwrap_or((position, "0"));
        (ms.parse().unwrap_or(0), seq.parse().unwrap_or(0))
    };
    parse(one) < parse(other)
}

/// Exports records. If a signal ends it, no partial file is left.
async fn export(place: &Place, args: &ExportArgs) -> Result<u8, Failure> {
    match Signals::catch()?.unless(copy(place, args)).await {
        Ok(done) => done,
        Err(code) => Ok(code),
    }
}

async fn copy(place: &Place, args: &ExportArgs) -> Result<u8, Failure> {
    let mut filter = Filter::new(&args.filter)?;
    let fleet = place.connect().await?;
    let store = fleet.errors();
    let mut cursor = filter.cursor(&fleet).await?;
    let mut count = 0u64;
    let lines = |page: &[ErrorRecord]| {
        let mut text = String::new();
        for record in page {
            text.push_str(&table::json(record).unwrap_or_default());
        }
        text
    };
    let mut there = true;
    match args.output.as_deref().filter(|path| *path != Path::new("-")) {
        None => {
            through(&store, &mut cursor, &mut filter, |page| {
                count += page.len() as u64;
                let written = printer::data_to_reader(&lines(&page));
                there = written?;
                Ok(there)
            })
            .await?;
        }
        Some(path) => {
            let failed = |error: std::io::Error| {
                Failure::new(FAILURE, format!("cannot write {}: {error}", path.display()))
                    .hint("nothing was removed; try another `--output`")
            };
            let mut target = Target::open(path).map_err(failed)?;
            through(&store, &mut cursor, &mut filter, |page| {
                count += page.len() as u64;
                target.file.write_all(lines(&page).as_bytes()).map_err(failed)?;
                Ok(true)
            })
            .await?;
            target.finish().map_err(failed)?;
        }
    }
    if there {
        printer::remark(&format!("exported {count}"));
    }
    Ok(OK)
}

/// A file that appears only when it is complete. A pipe or a device is written to directly.
struct Target {
    file: BufWriter<File>,
    part: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(path: &Path) -> std::io::Result<Target> {
        let special = path.starts_with("/dev") || path.starts_with("/proc");
        if special || (path.exists() && !path.is_file()) {
            let file = File::options().append(true).open(path)?;
            return Ok(Target { file: BufWriter::new(file), part: None });
        }
        // A link is followed: its target is replaced, not the link.
        let path = match std::fs::read_link(path) {
            Ok(to) => path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => path.to_owned(),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".part-{:08x}", rand::random::<u32>()));
        let part = path.with_file_name(name);
        let file = File::create_new(&part)?;
        if let Ok(old) = std::fs::metadata(&path) {
            file.set_permissions(old.permissions())?;
        }
        Ok(Target { file: BufWriter::new(file), part: Some((part, path)) })
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.file.flush()?;
        if let Some((part, path)) = &self.part {
            self.file.get_ref().sync_all()?;
            std::fs::rename(part, path)?;
            self.part = None;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.part {
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_numbers_not_texts() {
        assert!(before("9-1", "10-0") && before("10-2", "10-10") && !before("10-2", "10-2"));
    }
}
