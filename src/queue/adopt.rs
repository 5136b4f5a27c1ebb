//! Putting back what dead members held.
//!
//! **Invariant:** an orphan's blocks are emptied from the tail, in chunks bounded by number and by bytes,
//! by whoever hears of them; however many do so at once, every message is put back once, in order, one
//! attempt on. Its locks are freed first: they ended with its session, and somebody may wait for them.

use std::time::Duration;

use crate::membership::{End, MemberId, Session, held_locks, release_call};
use crate::notice::{Board, Notice};
use crate::store::{Call, Reply, Script, Store, StoreError, list, number, text};

static ADOPT: Script = Script::new("adopt", include_str!("adopt.lua"));
static DISOWN: Script = Script::new("disown", include_str!("disown.lua"));

/// Messages, blocks and bytes per call: a bound on how long Redis is busy with one.
const CHUNK: usize = 100;
const CHUNK_BYTES: usize = 1 << 20;
/// Orphans per round.
const ROUND: usize = 16;

/// What became of messages that dead members held.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PutBack {
    /// They will be handled again.
    pub returned: u64,
    /// They had used up their attempts and went to the error store.
    pub failed: u64,
}

/// Adopts until no orphan is left, none can be got on with, or the session cannot go on. Nobody else
/// may get on with what is left, either: it is tried again with the next heartbeat, and no sooner.
pub(crate) async fn adopt_all(
    store: &Store,
    session: &Session,
    board: &Board,
) -> Result<PutBack, StoreError> {
    let timeout = session.call_timeout();
    let mut total = PutBack::default();
    loop {
        if !session.until_trusted().await {
            return Ok(total);
        }
        let call = Call::plain("SRANDMEMBER").arg(store.keys.orphans()).arg(ROUND);
        let orphans = list(store.work.call(&call, timeout).await?)?;
        if orphans.is_empty() {
            return Ok(total);
        }
        let mut got_on = false;
        for orphan in &orphans {
            let id = text(orphan).ok().and_then(|text| MemberId::from_redis(&text));
            let Some(id) = id else {
                // Nothing can belong to what is no id.
                let forget = Call::plain("SREM").arg(store.keys.orphans()).arg(bytes(orphan));
                store.work.call(&forget, timeout).await?;
                got_on = true;
                continue;
            };
            let (PutBack { returned, failed }, done) =
                adopt_one(store, session, &id, board, timeout).await?;
            total.returned += returned;
            total.failed += failed;
            got_on |= done || returned + failed > 0;
            if session.over.is_cancelled() {
                return Ok(total);
            }
        }
        if !got_on {
            return Ok(total);
        }
    }
}

fn bytes(value: &redis::Value) -> &[u8] {
    match value {
        redis::Value::BulkString(bytes) => bytes,
        _ => &[],
    }
}

/// What was put back, and whether the orphan is done with.
async fn adopt_one(
    store: &Store,
    session: &Session,
    orphan: &MemberId,
    board: &Board,
    timeout: Duration,
) -> Result<(PutBack, bool), StoreError> {
    let (mut returned, mut failed, mut done) = (0, 0, false);
    free_locks(store, session, orphan, timeout).await?;
    let open = Call::plain("HKEYS").arg(store.keys.blocks(orphan));
    let open = list(store.work.call(&open, timeout).await?)?;
    // `hi` is no number; a name that no worker of ours gives is 0 and stays.
    let mut open: Vec<u64> = open.iter().filter_map(|n| number(n).ok()).map(|n| n as u64).collect();
    open.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = &open[..];
    loop {
        let now = &rest[..rest.len().min(CHUNK)];
        let reply = loop {
            let call = adopt_call(store, session, orphan, now);
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
                let emptied = reply.number(2)? as usize;
                rest = &rest[emptied.min(rest.len())..];
                done = reply.number(3)? == 1;
                // The orphan is done with, or what is left was not there when we began: it is heard of.
                if done || rest.is_empty() {
                    break;
                }
            }
            "already" => {
                done = true;
                break;
            }
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
    Ok((PutBack { returned, failed }, done))
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

fn adopt_call(store: &Store, session: &Session, orphan: &MemberId, blocks: &[u64]) -> Call {
    let keys = &store.keys;
    let mut all = vec![
        keys.members(),
        keys.orphans(),
        keys.blocks(orphan),
        keys.returned(),
        keys.errors(),
        keys.counts(),
        keys.wake(),
        keys.ledger(),
        keys.locks(orphan),
        keys.config(),
        keys.unread(),
    ];
    all.extend(blocks.iter().map(|n| keys.block(orphan, *n)));
    let mut call =
        ADOPT.call(&all).arg(session.id.as_str()).arg(orphan.as_str()).arg(CHUNK).arg(CHUNK_BYTES);
    for n in blocks {
        call.push_arg(n);
    }
    call
}

/// Finds blocks that belong to neither a member nor an orphan, and makes them orphans. There are
/// none unless somebody deleted keys by hand or Redis lost data.
pub(crate) async fn disown_strays(store: &Store, session: &Session) -> Result<u64, StoreError> {
    let keys = &store.keys;
    let prefix = keys.all_blocks();
    let mut disowned = 0;
    for key in store.scan(&prefix).await? {
        let Some(id) = MemberId::from_redis(&key[prefix.len()..]) else { continue };
        let call = DISOWN
            .call(&[keys.members(), keys.orphans(), keys.blocks(&id)])
            .arg(session.id.as_str())
            .arg(id.as_str());
        let reply = Reply::parse(store.work.call(&call, session.call_timeout()).await?)?;
        disowned += u64::from(reply.tag == "ok");
    }
    Ok(disowned)
}
