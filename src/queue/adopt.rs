//! Putting back what dead members held.
//!
//! **Invariant:** an orphan's blocks are emptied from the tail, in chunks, by whoever hears of
//! them; however many do so at once, every message is put back once, in order, one attempt on. Its
//! locks are freed first: they ended with its session, and somebody may wait for them.

use std::time::Duration;

use crate::membership::{End, MemberId, Session, held_locks, release_call};
use crate::notice::{Board, Notice};
use crate::store::{Call, Reply, Script, Store, StoreError, list, number, text};

static ADOPT: Script = Script::new("adopt", include_str!("adopt.lua"));
static DISOWN: Script = Script::new("disown", include_str!("disown.lua"));

/// Messages per call: a bound on how long Redis is busy with one.
const CHUNK: usize = 100;
/// Orphans per round.
const ROUND: usize = 16;

/// Adopts until no orphan is left, or the session cannot go on.
pub(crate) async fn adopt_all(
    store: &Store,
    session: &Session,
    ledger: i64,
    board: &Board,
) -> Result<u64, StoreError> {
    let timeout = session.call_timeout();
    let mut total = 0;
    loop {
        if !session.until_trusted().await {
            return Ok(total);
        }
        let call = Call::plain("SRANDMEMBER").arg(store.keys.orphans()).arg(ROUND);
        let orphans = list(store.work.call(&call, timeout).await?)?;
        if orphans.is_empty() {
            return Ok(total);
        }
        for orphan in &orphans {
            let orphan = MemberId::from_redis(&text(orphan)?);
            total += adopt_one(store, session, &orphan, ledger, board, timeout).await?;
            if session.over.is_cancelled() {
                return Ok(total);
            }
        }
    }
}

async fn adopt_one(
    store: &Store,
    session: &Session,
    orphan: &MemberId,
    ledger: i64,
    board: &Board,
    timeout: Duration,
) -> Result<u64, StoreError> {
    let (mut returned, mut failed) = (0, 0);
    loop {
        free_locks(store, session, orphan, timeout).await?;
        let open = Call::plain("HKEYS").arg(store.keys.blocks(orphan));
        let highest = list(store.work.call(&open, timeout).await?)?
            .iter()
            .filter_map(|n| number(n).ok())
            .max();
        let reply = loop {
            let call = adopt_call(store, session, orphan, highest.unwrap_or(0) as u64, ledger);
            match store.work.call(&call, timeout).await {
                Ok(value) => break Reply::parse(value)?,
                // A chunk that was put back is gone from the block: a repeat takes the next one.
                Err(error @ StoreError::Server { .. }) => return Err(error),
                Err(_) if session.until_trusted().await => {}
                Err(error) => return Err(error),
            }
        };
        match reply.tag.as_str() {
            "ok" => {
                returned += reply.number(0)? as u64;
                failed += reply.number(1)? as u64;
                if reply.number(2)? == 1 {
                    break;
                }
            }
            "already" => break,
            "gone" => {
                session.end(End::Gone);
                break;
            }
            _ => return Err(reply.unexpected()),
        }
    }
    if returned + failed > 0 {
        board.publish(Notice::Adopted { member: orphan.clone(), returned, failed });
    }
    Ok(returned + failed)
}

/// Frees the locks it held, and tells the first who waits for each.
async fn free_locks(
    store: &Store,
    session: &Session,
    orphan: &MemberId,
    timeout: Duration,
) -> Result<(), StoreError> {
    let call = Call::plain("HGETALL").arg(store.keys.locks(orphan));
    for (name, token) in held_locks(&list(store.work.call(&call, timeout).await?)?)? {
        let call = release_call(store, &session.id, orphan, &name, token);
        store.work.call(&call, timeout).await?;
    }
    Ok(())
}

fn adopt_call(store: &Store, session: &Session, orphan: &MemberId, n: u64, ledger: i64) -> Call {
    let keys = &store.keys;
    ADOPT
        .call(&[
            keys.members(),
            keys.orphans(),
            keys.blocks(orphan),
            keys.block(orphan, n),
            keys.returned(),
            keys.errors(),
            keys.counts(),
            keys.wake(),
            keys.ledger(),
            keys.locks(orphan),
        ])
        .arg(session.id.as_str())
        .arg(orphan.as_str())
        .arg(n)
        .arg(session.attempts_max)
        .arg(CHUNK)
        .arg(ledger)
}

/// Finds blocks that belong to neither a member nor an orphan, and makes them orphans. There are
/// none unless somebody deleted keys by hand or Redis lost data.
pub(crate) async fn disown_strays(store: &Store, session: &Session) -> Result<u64, StoreError> {
    let keys = &store.keys;
    let prefix = keys.all_blocks();
    let mut disowned = 0;
    for key in store.scan(&prefix).await? {
        let id = MemberId::from_redis(&key[prefix.len()..]);
        let call = DISOWN
            .call(&[keys.members(), keys.orphans(), keys.blocks(&id)])
            .arg(session.id.as_str())
            .arg(id.as_str());
        let reply = Reply::parse(store.work.call(&call, session.call_timeout()).await?)?;
        disowned += u64::from(reply.tag == "ok");
    }
    Ok(disowned)
}
