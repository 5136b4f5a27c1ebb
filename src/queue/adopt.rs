//! Putting back the messages of dead members.
//!
//! **Invariant:** an orphan's blocks are emptied from the tail, in chunks bounded by number and by
//! bytes. However many members do this at once, every message is put back once, in order, one attempt
//! on.

use crate::id::MemberId;
use crate::membership::{AskError, Patience, Session};
use crate::store::{Call, Reply, Script, Store, StoreError};

static ADOPT: Script = Script::new("adopt", include_str!("adopt.lua"));
static DISOWN: Script = Script::new("disown", include_str!("disown.lua"));

/// How many messages, blocks and bytes one call may move: a bound on how long Redis is busy with it.
const CHUNK: usize = 100;
const CHUNK_BYTES: usize = 1 << 20;

/// What happened to the messages of dead members.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let put_back = member.clean().await?;
/// assert_eq!((put_back.returned, put_back.failed), (0, 0));
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PutBack {
    /// They will be handled again.
    pub returned: u64,
    /// They had used up their attempts and went to the error store.
    pub failed: u64,
}

/// What one call has put back.
#[derive(Debug)]
struct Chunk {
    put_back: PutBack,
    /// How many of the named blocks are empty now, from the front.
    emptied: usize,
    /// Another member was faster: this member is no longer an orphan.
    is_over: bool,
}

/// Puts back the messages that were in the blocks of a dead member when this began, and counts them.
pub(crate) async fn adopt_messages(
    store: &Store,
    session: &Session,
    orphan: &MemberId,
    total: &mut PutBack,
) -> Result<(), AskError> {
    let open = Call::plain("HKEYS").arg(store.keys.blocks(orphan)).reading(Reply::into_texts);
    let open = store.work.call(&open, session.trust.call_timeout()).await;
    let open = open.map_err(AskError::Failed)?;
    // `hi` and other fields that are not the number of a block are skipped.
    let mut open: Vec<u64> = open.iter().filter_map(|n| n.parse().ok()).collect();
    open.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = &open[..];
    while !rest.is_empty() {
        // A chunk that was put back is no longer in the block: a repeat takes the next chunk.
        let call = adopt_call(store, session, orphan, &rest[..rest.len().min(CHUNK)]);
        let chunk = session.ask(&store.work, Patience::UNTIL_ANSWERED, call).await?;
        total.returned += chunk.put_back.returned;
        total.failed += chunk.put_back.failed;
        rest = &rest[chunk.emptied.min(rest.len())..];
        if chunk.is_over {
            break;
        }
    }
    Ok(())
}

fn adopt_call(store: &Store, session: &Session, orphan: &MemberId, blocks: &[u64]) -> Call<Chunk> {
    let keys = &store.keys;
    let mut all = keys.jobs();
    all.extend([keys.orphans(), keys.blocks(orphan), keys.errors()]);
    all.extend([keys.ledger(), keys.config(), keys.unread(), keys.notices()]);
    all.extend(blocks.iter().flat_map(|n| [keys.block(orphan, *n), keys.pack(orphan, *n)]));
    let mut call =
        ADOPT.call(&all).arg(session.id.as_str()).arg(orphan.as_str()).arg(CHUNK).arg(CHUNK_BYTES);
    for n in blocks {
        call.push_arg(n);
    }
    call.reading(chunk)
}

fn chunk(reply: Reply) -> Result<Chunk, StoreError> {
    match reply.tag() {
        "ok" => {
            let (returned, failed) = (reply.number(0)? as u64, reply.number(1)? as u64);
            let put_back = PutBack { returned, failed };
            Ok(Chunk { put_back, emptied: reply.number(2)? as usize, is_over: false })
        }
        "already" => Ok(Chunk { put_back: PutBack::default(), emptied: 0, is_over: true }),
        _ => Err(reply.unexpected()),
    }
}

/// Finds blocks whose owner is neither a member nor an orphan, and makes the owner an orphan. Such
/// blocks exist only if somebody deleted keys by hand or Redis lost data.
pub(crate) async fn disown_strays(store: &Store, session: &Session) -> Result<u64, AskError> {
    let keys = &store.keys;
    let prefix = keys.all_blocks();
    let mut disowned = 0;
    for key in store.scan(&prefix).await.map_err(AskError::Failed)? {
        let Some(id) = MemberId::from_redis(&key[prefix.len()..]) else { continue };
        let call = DISOWN
            .call(&[keys.members(), keys.orphans(), keys.blocks(&id)])
            .arg(session.id.as_str())
            .arg(id.as_str());
        let reply = session.ask(&store.work, Patience::ONCE, call).await?;
        disowned += u64::from(reply.tag() == "ok");
    }
    Ok(disowned)
}
