//! [`Taker`]: takes records out of the error store, page by page.
//!
//! **Invariant:** a record is deleted only after its taker has written out its bytes. Two takers that
//! refresh their drains never share a record. When a taker dies, its heir may print its last page
//! again. Nothing is ever lost.
//!
//! A taker moves all records, or those it chooses, to a *drain* of its own. It prints page by page, and
//! confirms each page. A taker that stops puts the rest back. If a taker dies, the next taker that
//! takes everything inherits its drain. A reader, or a taker that chooses, puts that drain back.

use std::time::Duration;

use super::error_store::{CHUNK_BYTES_MAX, Cursor, ErrorStore, PAGE, Span, drains, read_page};
use super::record::ErrorRecord;
use crate::Error;
use crate::fleet::Fleet;
use crate::store::{Call, Script, Store, nonce};

static TAKE: Script = Script::new("take", include_str!("take.lua"));
static PICK: Script = Script::new("pick", include_str!("pick.lua"));
static RESTORE: Script = Script::new("restore", include_str!("restore.lua")).lasting(&["ok"]);
static CONFIRM: Script = Script::new("confirm", include_str!("confirm.lua")).lasting(&["ok"]);

/// A drain that is not refreshed for this long may be inherited.
const DRAIN_LIFE: Duration = Duration::from_secs(5);

/// Chooses among the stored records.
type Choice = Box<dyn FnMut(&ErrorRecord) -> bool + Send>;

/// Puts back the records held by takers that have died.
pub(super) async fn restore_dead(store: &Store) -> Result<(), Error> {
    for token in drains(store).await? {
        restore(store, &token, false).await?;
    }
    Ok(())
}

/// Puts a drain back into the error store, unless another taker is alive and refreshes it.
async fn restore(store: &Store, token: &str, own: bool) -> Result<(), Error> {
    let keys = &store.keys;
    let call = RESTORE
        .call(&[keys.errors(), keys.drains(), keys.drain(token)])
        .arg(token)
        .arg(if own { "1" } else { "0" })
        .arg(PAGE)
        .arg(DRAIN_LIFE.as_millis() as u64)
        .arg(CHUNK_BYTES_MAX);
    loop {
        let reply = store.repeat(&call).await?;
        let left = reply.number(0).unwrap_or(0);
        if reply.tag() != "ok" || left == 0 {
            return Ok(());
        }
    }
}

/// Moves records by their positions into a drain, as many as one script moves.
fn pick_call(store: &Store, token: &str, owner: &str, positions: &[String]) -> Call {
    let keys = &store.keys;
    let mut call = PICK
        .call(&[keys.errors(), keys.drains(), keys.drain(token)])
        .arg(token)
        .arg(owner)
        .arg(DRAIN_LIFE.as_millis() as u64)
        .arg(CHUNK_BYTES_MAX);
    for position in positions {
        call.push_arg(position);
    }
    call
}

/// Keeps a drain alive with this call, until it is dropped. The call counts as soon as Redis has it;
/// its answer may wait behind the page.
async fn stay_alive(store: Store, call: Call) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(DRAIN_LIFE / 4).await;
        let _ = store.work.call(&call, DRAIN_LIFE / 4).await;
    }
}

fn owner() -> String {
    format!("pid {}", std::process::id())
}

/// Takes records page by page. If it is dropped without [`release`](Taker::release), the next taker
/// inherits the records that were not confirmed, a few seconds later.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// let mut taker = fleet.errors().take();
/// loop {
///     let page = taker.page().await?;
///     if page.is_empty() {
///         break;
///     }
///     for record in &page {
///         println!("{}: {}", record.id, record.reason);
///     }
///     // Only now are they removed.
///     assert!(taker.confirm(&page).await?);
/// }
/// assert_eq!(fleet.errors().count().await?, 0);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Taker {
    fleet: Fleet,
    token: Option<String>,
    /// Drains of other takers that were alive when we asked.
    tried: Vec<String>,
    owner: String,
    /// Which records to take, if not all, and how far the store was searched.
    choice: Option<(Choice, Cursor)>,
    /// The drain that is being filled with the chosen records, and the positions that are still to move
    /// there.
    pending: Option<(String, Vec<String>)>,
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").field("drain", &self.token).finish_non_exhaustive()
    }
}

impl Taker {
    pub(super) fn new(fleet: &Fleet, choice: Option<(Choice, Cursor)>) -> Taker {
        let fleet = fleet.clone();
        let (token, pending, tried) = (None, None, Vec::new());
        Taker { fleet, token, tried, owner: owner(), choice, pending }
    }

    /// The next page, up to 100 records. Empty if no record is left to take.
    ///
    /// # Cancel safety
    ///
    /// Safe: records are only deleted by [`confirm`](Taker::confirm).
    pub async fn page(&mut self) -> Result<Vec<ErrorRecord>, Error> {
        self.fleet.compare().await?;
        loop {
            let token = match &self.token {
                Some(token) => token.clone(),
                None => match self.next_drain().await? {
                    Some(token) => {
                        self.token = Some(token.clone());
                        // After this call Redis has loaded the script that keeps the drain alive.
                        if !self.keep_alive().await? {
                            continue;
                        }
                        token
                    }
                    None => return Ok(Vec::new()),
                },
            };
            let drain = self.fleet.store.keys.drain(&token);
            let reading = read_page(&self.fleet.store, drain, Span::everything(), PAGE);
            let alive = stay_alive(self.fleet.store.clone(), self.confirm_call(&token, &[]));
            // Over a slow link a page may take longer than a drain lives. So the drain is kept alive
            // meanwhile.
            let records = tokio::select! {
                records = reading => records?,
                never = alive => match never {},
            };
            if !records.is_empty() {
                return Ok(records);
            }
            self.token = None;
        }
    }

    /// Deletes a page whose bytes were written out. Returns false if another taker has inherited the
    /// rest.
    ///
    /// # Cancel safety
    ///
    /// Safe to repeat: deleting twice deletes once.
    pub async fn confirm(&mut self, page: &[ErrorRecord]) -> Result<bool, Error> {
        let ids: Vec<&str> = page.iter().map(|record| record.position.as_str()).collect();
        self.touch(&ids).await
    }

    /// Keeps the drain alive while writing a page takes long. Returns false if another taker has
    /// inherited it.
    ///
    /// # Cancel safety
    ///
    /// Safe to repeat.
    pub async fn keep_alive(&mut self) -> Result<bool, Error> {
        self.touch(&[]).await
    }

    /// Stops early, and puts the remaining records back into the error store.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, some records are still in the drain, as if the taker had
    /// died.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.token.take().or(self.pending.take().map(|(token, _)| token)) {
            Some(token) => restore(&self.fleet.store, &token, true).await,
            None => Ok(()),
        }
    }

    /// How many drains other living takers hold.
    pub fn held_by_others(&self) -> usize {
        self.tried.len()
    }

    async fn touch(&mut self, ids: &[&str]) -> Result<bool, Error> {
        // Without a drain there is nothing to keep alive. The records of an earlier page are another
        // taker's now.
        let Some(token) = self.token.clone() else { return Ok(ids.is_empty()) };
        let call = self.confirm_call(&token, ids);
        let gone = self.fleet.store.repeat(&call).await?.tag() == "gone";
        if gone {
            self.token = None;
        }
        Ok(!gone)
    }

    fn confirm_call(&self, token: &str, ids: &[&str]) -> Call {
        let keys = &self.fleet.store.keys;
        let mut call = CONFIRM
            .call(&[keys.drains(), keys.drain(token), keys.counts()])
            .arg(token)
            .arg(&self.owner)
            .arg(DRAIN_LIFE.as_millis() as u64);
        for id in ids {
            call.push_arg(id);
        }
        call
    }

    /// A drain of our own: from the stored errors, or else from a taker that died.
    async fn next_drain(&mut self) -> Result<Option<String>, Error> {
        if self.choice.is_some() {
            return self.chosen_drain().await;
        }
        let fresh = self.drain_from("").await?;
        if fresh.is_some() {
            return Ok(fresh);
        }
        self.tried.clear();
        for from in drains(&self.fleet.store).await? {
            if let Some(token) = self.drain_from(&from).await? {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// A drain with the next page of chosen records.
    async fn chosen_drain(&mut self) -> Result<Option<String>, Error> {
        // A call that was not answered, or that was dropped before its answer, comes first.
        while self.pending.is_none() {
            let Some((choice, cursor)) = &mut self.choice else { return Ok(None) };
            let mut ahead = cursor.clone();
            let store = ErrorStore { fleet: self.fleet.clone() };
            let page = store.page(&mut ahead, PAGE).await?;
            if page.is_empty() {
                self.tried = drains(&self.fleet.store).await?;
                return Ok(None);
            }
            let (mut positions, mut bytes) = (Vec::new(), 0);
            for record in page {
                // `choice` has not seen this record yet: it is the first of the next page.
                if !positions.is_empty() && bytes + record.payload.len() > CHUNK_BYTES_MAX {
                    break;
                }
                cursor.pass(&record);
                if choice(&record) {
                    bytes += record.payload.len();
                    positions.push(record.position);
                }
            }
            if !positions.is_empty() {
                self.pending = Some((nonce(), positions));
            }
        }
        while let Some((token, positions)) = &mut self.pending {
            if positions.is_empty() {
                break;
            }
            let call = pick_call(&self.fleet.store, token, &self.owner, positions);
            let reply = self.fleet.store.repeat(&call).await?;
            let looked = reply.number(1).map_err(|error| self.fleet.store.explain(error))? as usize;
            positions.drain(..looked.clamp(1, positions.len()));
        }
        Ok(self.pending.take().map(|(token, _)| token))
    }

    async fn drain_from(&mut self, from: &str) -> Result<Option<String>, Error> {
        let token = nonce();
        let keys = &self.fleet.store.keys;
        let mut all = vec![keys.errors(), keys.drains(), keys.drain(&token)];
        if !from.is_empty() {
            all.push(keys.drain(from));
        }
        let call = TAKE
            .call(&all)
            .arg(&token)
            .arg(&self.owner)
            .arg(DRAIN_LIFE.as_millis() as u64)
            .arg(from);
        match self.fleet.store.repeat(&call).await?.tag() {
            "ok" | "same" => Ok(Some(token)),
            "alive" => {
                self.tried.push(from.to_owned());
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}
