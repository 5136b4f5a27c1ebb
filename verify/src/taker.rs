//! The process that takes errors, and puts some of them back to work.
//!
//! **Invariant:** an error is in the history before its removal is confirmed.

use std::time::Duration;

use artel::{Cursor, Error, ErrorRecord};

use crate::history::{Book, Entry, Id, id_of};
use crate::member::{Part, REST, RETRY};
use crate::sent::THEN;

/// How many errors are put back to work at once, and in which rounds that is done instead of taking
/// them.
const PUT_BACK: usize = 20;
const PUT_BACK_EVERY: u64 = 4;

/// Takes errors: prints them to the history, and only then confirms them. In some rounds it puts
/// errors back to work instead.
pub(crate) async fn take(part: &Part, book: &Book) -> Result<(), Error> {
    let rest = part.dir.join(REST);
    for round in 1_u64.. {
        let done = match round % PUT_BACK_EVERY == 0 && !rest.exists() {
            true => put_back(part, book).await,
            false => take_all(part, book).await,
        };
        if done.is_err() {
            tokio::time::sleep(RETRY).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn take_all(part: &Part, book: &Book) -> Result<(), Error> {
    let store = part.connect().await?.errors();
    let mut taker = store.take();
    loop {
        let page = taker.page().await?;
        if page.is_empty() {
            return Ok(());
        }
        note_origins(&page, book);
        let ids: Vec<Id> = page.iter().filter_map(|record| id_of(record.id.as_str())).collect();
        ids.iter().for_each(|id| book.put(&Entry::Took(*id)));
        tokio::time::sleep(Duration::from_millis(50)).await; // so that it can die while it holds them
        if taker.confirm(&page).await? {
            ids.iter().for_each(|id| book.put(&Entry::Removed(*id)));
        }
    }
}

/// Puts errors back to work. Each becomes a new message, with the id of the old one as its origin.
async fn put_back(part: &Part, book: &Book) -> Result<(), Error> {
    let store = part.connect().await?.errors();
    let page = store.page(&mut Cursor::default(), PUT_BACK).await?;
    note_origins(&page, book);
    store.requeue(None).put_back(&page).await?;
    Ok(())
}

/// Records the origins of these errors. If a requeued message was never begun, because its workers
/// died, its origin is recorded only here.
fn note_origins(page: &[ErrorRecord], book: &Book) {
    for record in page {
        let of = record.origin.as_ref().and_then(|id| id_of(id.as_str()));
        let Some(id) = id_of(record.id.as_str()) else { continue };
        if let Some(of) = of {
            book.put(&Entry::Came { id, of });
            continue;
        }
        // The same for one that followed an outcome.
        let text = String::from_utf8_lossy(&record.payload);
        let follows = text.strip_prefix(THEN).and_then(|rest| id_of(rest.split(' ').next()?));
        if let Some(of) = follows {
            book.put(&Entry::Follows { id, of });
        }
    }
}
