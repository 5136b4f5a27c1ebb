//! The archive of a member: what it did with each message, and its notices, on its disk.
//!
//! **Invariant:** it never holds up a stage: records that the disk cannot follow are dropped, and the log says how many.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use artel::Notice;
use artel::hub::{AnyEvent, EventHub, History, JsonLinesArchive, Keys, Subscription};
use artel_hub::SqliteArchive;
use tokio::task::JoinHandle;

use crate::args::ArchiveArgs;
use crate::exit::{FAILURE, Failure};

/// The name of the archive among the subscribers of the hub.
pub(crate) const NAME: &str = "archive";
/// Lines of JSON are kept in so many files.
const FILES: u64 = 10;
/// How often drops are told.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long the end of a process waits for the disk.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Where an archive is: `sqlite:FILE` or `jsonl:FOLDER`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ArchivePlace {
    Sqlite(PathBuf),
    JsonLines(PathBuf),
}

impl FromStr for ArchivePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<ArchivePlace, String> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(ArchivePlace::Sqlite(path.into())),
            Some(("jsonl", path)) if !path.is_empty() => Ok(ArchivePlace::JsonLines(path.into())),
            _ => Err("must be sqlite:FILE or jsonl:FOLDER, such as `sqlite:artel.db`".to_owned()),
        }
    }
}

impl ArchivePlace {
    /// Opens it to write.
    fn open(&self, args: &ArchiveArgs) -> Result<History, Failure> {
        let (age, bytes) = (args.archive_age, args.archive_size);
        let opened = match self {
            ArchivePlace::Sqlite(file) => SqliteArchive::open(file)
                .map(|archive| History::new(archive.keep_for(age).keep_bytes(bytes))),
            ArchivePlace::JsonLines(folder) => {
                JsonLinesArchive::rotating(folder, bytes / FILES, FILES as usize - 1)
                    .map(|archive| History::new(archive.keep_for(age)))
            }
        };
        opened.map_err(|error| {
            Failure::new(FAILURE, format!("the archive cannot be opened: {error}"))
                .hint("each process needs an --archive of its own, where this user may write")
        })
    }

    /// Opens it to read.
    pub(crate) fn read(&self) -> Result<History, Failure> {
        let opened = match self {
            ArchivePlace::Sqlite(file) => SqliteArchive::open_to_read(file).map(History::new),
            ArchivePlace::JsonLines(folder) => {
                JsonLinesArchive::open_to_read(folder).map(History::new)
            }
        };
        opened.map_err(|error| {
            Failure::new(FAILURE, format!("the archive cannot be read: {error}"))
                .hint("name it as `artel run --archive` did: sqlite:FILE or jsonl:FOLDER")
        })
    }
}

/// An archive that is being filled.
pub(crate) struct Archive {
    subscription: Subscription,
    hub: EventHub,
    /// Logs how many records were dropped.
    teller: JoinHandle<()>,
}

impl Archive {
    /// Fills an archive with what a member of this fleet publishes on the hub, from now on.
    pub(crate) fn open(
        args: &ArchiveArgs,
        hub: &EventHub,
        fleet: &str,
    ) -> Result<Option<Archive>, Failure> {
        let Some(place) = &args.archive else { return Ok(None) };
        let history = place.open(args)?;
        let failed = |error: String| Failure::new(FAILURE, format!("no archive: {error}"));
        let keys = [format!("artel/{fleet}/messages"), format!("artel/{fleet}/notices")];
        let keys = Keys::any(keys.iter().map(String::as_str));
        let keys = keys.map_err(|error| failed(error.to_string()))?;
        let subscription = hub.subscribe(keys).name(NAME).filter(is_news).archive(&history);
        let subscription = subscription.map_err(|error| failed(error.to_string()))?;
        let teller = tokio::spawn(tell_drops(hub.clone()));
        Ok(Some(Archive { subscription, hub: hub.clone(), teller }))
    }

    /// Writes what waits, and ends.
    pub(crate) async fn end(self) {
        self.teller.abort();
        let before = dropped(&self.hub);
        let missing = match self.subscription.stop(END_WITHIN).await {
            Ok(stopped) => stopped.dropped + stopped.leftovers,
            Err(error) => {
                tracing::warn!(%error, "the archive was not written to its end");
                before
            }
        };
        if missing > 0 {
            tracing::warn!(records = missing, "records are missing in the archive");
        }
    }
}

/// Is it not told by the record of a message already?
fn is_news(event: &AnyEvent) -> bool {
    use Notice::{MessageFailed, Retried, Snoozed};
    let notice = event.payload::<Notice>();
    !matches!(notice, Some(MessageFailed { .. } | Retried { .. } | Snoozed { .. }))
}

async fn tell_drops(hub: EventHub) {
    let mut told = 0;
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let dropped = dropped(&hub);
        if dropped > told {
            tracing::warn!(
                records = dropped - told,
                "the disk does not follow: records are missing in the archive"
            );
            told = dropped;
        }
    }
}

fn dropped(hub: &EventHub) -> u64 {
    let stats = hub.stats();
    stats.subscribers.iter().find(|one| one.name == NAME).map_or(0, |one| one.dropped)
}
