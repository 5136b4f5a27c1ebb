//! The common log of a fleet: what happened to it, from all its members.
//!
//! **Invariant:** what a script decides is written by that script, once: who joined, left, died and was elected, whose
//! messages were put back, what an operator ordered. What only a process saw, that process writes ([`Note`]). Nothing depends
//! on the log, and a log that cannot be written delays nobody.

mod entry;
mod note;

use std::collections::HashMap;
use std::time::SystemTime;

pub use entry::LogEntry;
pub(crate) use note::{Author, Burst, Note, Thrift};

use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::since_1970_ms;
use crate::store::{Call, Reply, StoreError, nonce};

/// Entries that are read at once.
const PAGE: usize = 500;
/// Labels that are remembered.
const LABELS_MAX: usize = 20_000;

/// Reads the common log of a fleet, from its oldest entry on. Made by [`Fleet::history`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.join().start().await?.shutdown().await;
/// fleet.pause(artel::Lane::Low).await?;
/// let mut history = fleet.history();
/// for entry in history.page().await? {
///     println!("{}", entry.text());
/// }
/// assert!(history.page().await?.is_empty(), "nothing new");
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct History {
    fleet: Fleet,
    /// The id of the last entry that was read.
    after: String,
    /// The id of the oldest entry that was read backwards; empty if none was.
    before: String,
    /// The labels of members, as their entries say.
    labels: HashMap<String, String>,
    /// A label could not be asked for: this page does without others.
    is_deaf: bool,
}

impl Fleet {
    /// The common log: a week, and about 10,000 entries.
    pub fn history(&self) -> History {
        History::from(self, "0-0")
    }

    /// Writes to the common log what somebody did that changes no message by itself, such as setting an event: scripts
    /// write the rest. The entry says who it was ([`Fleet::acting_as`]).
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let fleet = artel::Fleet::connect(url, "orders").await?;
    /// fleet.acting_as("anna").log_action("set the event `open`").await?;
    /// let entry = fleet.history().page().await?.pop().expect("an entry");
    /// assert_eq!((&*entry.kind, &*entry.text()), ("acted", "set the event `open`, by anna"));
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the entry may have been written or not.
    pub async fn log_action(&self, what: &str) -> Result<(), Error> {
        self.compare().await?;
        let what: String = what.chars().take(200).collect();
        let note = Note { kind: "acted", text: format!("{what}, by {}", self.who()) };
        self.store.repeat(&note.call(&self.store, &nonce(), &Author::default())).await
    }
}

impl History {
    /// The entries behind this one.
    pub(crate) fn from(fleet: &Fleet, after: &str) -> History {
        let (after, before) = (after.to_owned(), String::new());
        History { fleet: fleet.clone(), after, before, labels: HashMap::new(), is_deaf: false }
    }

    /// Leaves out this entry and everything before it.
    ///
    /// # Errors
    ///
    /// If this is not the id of an entry.
    pub fn after(mut self, id: &str) -> Result<History, Error> {
        self.after = position(id)?;
        Ok(self)
    }

    /// Pages back from this entry, which is left out.
    ///
    /// # Errors
    ///
    /// If this is not the id of an entry.
    pub fn before(mut self, id: &str) -> Result<History, Error> {
        self.before = position(id)?;
        Ok(self)
    }

    /// Entries before those that were paged back through, the newest first. Empty if there are none.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: a page that was not returned comes again.
    pub async fn page_back(&mut self) -> Result<Vec<LogEntry>, Error> {
        let store = &self.fleet.store;
        let from =
            if self.before.is_empty() { "+".to_owned() } else { format!("({}", self.before) };
        let call = Call::plain("XREVRANGE").arg(store.keys.notices()).arg(from);
        let call = call.arg(format!("({}", self.after)).arg("COUNT").arg(PAGE);
        let mut page = store.once(&call.reading(entries)).await?;
        self.is_deaf = false;
        // Names are learned from the older entries: from their joining.
        for entry in page.iter_mut().rev() {
            self.name(entry).await;
        }
        if let Some(last) = page.last() {
            self.before.clone_from(&last.id);
        }
        Ok(page)
    }

    /// Leaves out entries that are older than this, Redis time.
    pub fn since(mut self, time: SystemTime) -> History {
        self.after = format!("{}-0", since_1970_ms(time).saturating_sub(1));
        self
    }

    /// The next entries, the oldest first. Nothing if there is no newer one: ask again to follow the log.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn page(&mut self) -> Result<Vec<LogEntry>, Error> {
        let store = &self.fleet.store;
        let call = Call::plain("XRANGE").arg(store.keys.notices());
        let call = call.arg(format!("({}", self.after)).arg("+").arg("COUNT").arg(PAGE);
        let mut entries = store.once(&call.reading(entries)).await?;
        self.is_deaf = false;
        for entry in &mut entries {
            self.name(entry).await;
        }
        // Last: whoever stops waiting for the names gets this page again.
        if let Some(last) = entries.last() {
            self.after.clone_from(&last.id);
        }
        Ok(entries)
    }

    /// Adds the label of its member. It is for people: if it cannot be found, the entry does without.
    async fn name(&mut self, entry: &mut LogEntry) {
        if self.labels.len() > LABELS_MAX {
            self.labels.clear();
        }
        let own = entry.fields.remove("label").filter(|label| !label.is_empty());
        if let (Some(id), Some(label)) = (&entry.member, own) {
            self.labels.insert(id.as_str().to_owned(), label);
        }
        if let Some(id) = entry.member.clone() {
            entry.label = self.label_of(&id).await;
        }
        for (other, name) in [("from", "from_label"), ("whose", "whose_label")] {
            let id = entry.fields.get(other).and_then(|id| MemberId::from_redis(id));
            if let Some(id) = id
                && let Some(label) = self.label_of(&id).await
            {
                entry.fields.insert(name.to_owned(), label);
            }
        }
    }

    async fn label_of(&mut self, id: &MemberId) -> Option<String> {
        let known = self.labels.get(id.as_str()).cloned();
        let label = match known {
            Some(label) => label,
            None if self.is_deaf => return None,
            None => match self.fleet.store.member_info(id).await {
                Ok(info) => {
                    self.labels.insert(id.as_str().to_owned(), info.label.clone());
                    info.label
                }
                // Redis does not answer: one name after the other would take long.
                Err(_) => {
                    self.is_deaf = true;
                    return None;
                }
            },
        };
        Some(label).filter(|label| !label.is_empty())
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("after", &self.after).finish_non_exhaustive()
    }
}

/// The id of an entry, as Redis writes it.
fn position(id: &str) -> Result<String, Error> {
    let number = |text: &str| text.len() <= 20 && text.parse::<u64>().is_ok();
    match id.split_once('-') {
        Some((ms, seq)) if number(ms) && number(seq) => Ok(id.to_owned()),
        _ => {
            let problem = "must be the id of an entry, such as 1794710083950-0".to_owned();
            Err(Error::Config { field: "entry", problem })
        }
    }
}

fn entries(reply: Reply) -> Result<Vec<LogEntry>, StoreError> {
    let mut all = Vec::new();
    for entry in reply.into_list()? {
        let mut parts = entry.into_list()?.into_iter();
        let (Some(id), Some(fields)) = (parts.next(), parts.next()) else { continue };
        let mut texts = Vec::new();
        for part in fields.into_list()? {
            texts.push(String::from_utf8_lossy(&part.into_bytes()?).into_owned());
        }
        let pairs = texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        all.extend(LogEntry::read(&id.into_text()?, pairs.collect()));
    }
    Ok(all)
}
