//! Every key name, built here and nowhere else.
//!
//! **Invariant:** all keys of a fleet carry the hash tag `{fleet}`, so they live in one slot and
//! every script may touch them together.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `artel:{f}:config` | hash | lease, grace, attempts limit: fleet-wide, written by the first member; `born`, its id |
//! | `artel:{f}:members` | zset | member → session deadline, Redis ms. **In this set = may lead, claim, settle** |
//! | `artel:{f}:member:<id>` | hash, TTL | label, host, pid, counters: display only |
//! | `artel:{f}:watch` | hash | `run_id`, `looked`, `calm`: when the fleet was last looked over |
//! | `artel:{f}:suspects` | hash | member → since when its presence is missing |
//! | `artel:{f}:blind` | set | members whose presence cannot be seen: judged by deadline only |
//! | `artel:{f}:orphans` | set | dead members whose blocks are still to be put back |
//! | `artel:{f}:lease` | string | `member\|term`; valid while that member is in `members` |
//! | `artel:{f}:term`, `…:last` | string | highest term granted; last `term-seq` accepted |
//! | `artel:{f}:lock:<name>` | string | `member\|token`; valid while that member is in `members` |
//! | `artel:{f}:token` | string | highest token granted, of all locks |
//! | `artel:{f}:locks:<member>` | hash | name → `token:attempt` of the locks it holds |
//! | `artel:{f}:waiters:<name>` | zset | member → its place in the queue for that lock |
//! | `artel:{f}:event:<name>` | hash, and channel | `flag`, `gen`, `until`, `by` of an event |
//! | `artel:{f}:lane:<name>` | list | waiting messages |
//! | `artel:{f}:blocks:<member>` | hash | `n → left:stamp` of open blocks, and `hi`, the highest number opened |
//! | `artel:{f}:block:<member>:<n>` | list | messages of that block; settled = blank, given back = `-` |
//! | `artel:{f}:wake` | list | at most one token |
//! | `artel:{f}:errors` | stream | failed messages: `m` the envelope, `e` the reason (JSON), `t` when it failed if it was put back |
//! | `artel:{f}:drains` | hash | drain token → `owner\|deadline`; `…:drain:<token>` holds the records |
//! | `artel:{f}:sent:<sender>` | string, 1 h | last number accepted from that sender |
//! | `artel:{f}:dedup:<key>` | string, TTL | id of the message that was sent under that key |
//! | `artel:{f}:semaphore:<name>`, `…:latch:<name>`, `…:barrier:<name>` | hash, and channel | who holds, counted, arrived |
//! | `artel:{f}:gather` | hash, and channel | the event that asks everybody for numbers |
//! | `artel:{f}:stats:<round>` | hash, TTL | member → its numbers, in the round of that generation |
//! | `artel:{f}:counts` | hash | generated, sent, claimed, done, failed, lost, returned, taken, pushed_ms |
//! | `artel:{f}:ledger` | stream | one entry per settled message, off by default |
//! | `artel:{f}:data:<name>` | any | what effects write (see [`Context`](crate::Context)) |
//! | `artel:{f}:ctl`, `…:alive`, `…:alive:<id>` | sharded channels | hints; presence |

use crate::membership::MemberId;

/// The names of one fleet's keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

macro_rules! plain {
    ($($name:ident = $text:literal),* $(,)?) => {
        $(pub(crate) fn $name(&self) -> String { format!(concat!("{}", $text), self.prefix) })*
    };
}

impl Keys {
    pub(crate) fn new(fleet: &str) -> Keys {
        Keys { prefix: format!("artel:{{{fleet}}}:") }
    }

    plain! {
        config = "config", members = "members", watch = "watch", suspects = "suspects",
        blind = "blind", orphans = "orphans", lease = "lease", term = "term", last = "last", token = "token", gather = "gather",
        wake = "wake", errors = "errors", drains = "drains", counts = "counts",
        ledger = "ledger", ctl = "ctl", alive = "alive", returned = "lane:returned",
        all_blocks = "blocks:",
    }

    pub(crate) fn member(&self, id: &MemberId) -> String {
        format!("{}member:{id}", self.prefix)
    }

    pub(crate) fn alive_of(&self, id: &MemberId) -> String {
        format!("{}alive:{id}", self.prefix)
    }

    pub(crate) fn blocks(&self, id: &MemberId) -> String {
        format!("{}blocks:{id}", self.prefix)
    }

    pub(crate) fn block(&self, id: &MemberId, n: u64) -> String {
        format!("{}block:{id}:{n}", self.prefix)
    }

    /// A lane by its name.
    pub(crate) fn lane(&self, name: &str) -> String {
        format!("{}lane:{name}", self.prefix)
    }

    pub(crate) fn sent(&self, sender: &str) -> String {
        format!("{}sent:{sender}", self.prefix)
    }

    pub(crate) fn dedup(&self, key: &str) -> String {
        format!("{}dedup:{key}", self.prefix)
    }

    pub(crate) fn drain(&self, token: &str) -> String {
        format!("{}drain:{token}", self.prefix)
    }

    /// A lock: `member|token`.
    pub(crate) fn lock(&self, name: &str) -> String {
        format!("{}lock:{name}", self.prefix)
    }

    /// The locks of one member.
    pub(crate) fn locks(&self, id: &MemberId) -> String {
        format!("{}locks:{id}", self.prefix)
    }

    /// Who waits for a lock.
    pub(crate) fn waiters(&self, name: &str) -> String {
        format!("{}waiters:{name}", self.prefix)
    }

    pub(crate) fn semaphore(&self, name: &str) -> String {
        format!("{}semaphore:{name}", self.prefix)
    }

    pub(crate) fn latch(&self, name: &str) -> String {
        format!("{}latch:{name}", self.prefix)
    }

    pub(crate) fn barrier(&self, name: &str) -> String {
        format!("{}barrier:{name}", self.prefix)
    }

    /// The answers to one question for everybody's numbers.
    pub(crate) fn stats(&self, round: u64) -> String {
        format!("{}stats:{round}", self.prefix)
    }

    /// An event: its hash, and its channel.
    pub(crate) fn event(&self, name: &str) -> String {
        format!("{}event:{name}", self.prefix)
    }

    pub(crate) fn data(&self, name: &str) -> String {
        format!("{}data:{name}", self.prefix)
    }

    /// The keys that exist once per fleet, with the type Redis must report for each.
    pub(crate) fn typed(&self) -> Vec<(String, &'static str)> {
        vec![
            (self.config(), "hash"),
            (self.members(), "zset"),
            (self.watch(), "hash"),
            (self.suspects(), "hash"),
            (self.blind(), "set"),
            (self.orphans(), "set"),
            (self.lease(), "string"),
            (self.term(), "string"),
            (self.last(), "string"),
            (self.token(), "string"),
            (self.gather(), "hash"),
            (self.returned(), "list"),
            (self.lane("high"), "list"),
            (self.lane("generated"), "list"),
            (self.lane("normal"), "list"),
            (self.lane("low"), "list"),
            (self.wake(), "list"),
            (self.errors(), "stream"),
            (self.drains(), "hash"),
            (self.counts(), "hash"),
            (self.ledger(), "stream"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_carries_the_hash_tag() {
        let keys = Keys::new("demo");
        let id = MemberId::random();
        let mut all: Vec<String> = keys.typed().into_iter().map(|(key, _)| key).collect();
        all.extend([keys.member(&id), keys.alive_of(&id), keys.blocks(&id), keys.block(&id, 7)]);
        all.extend([
            keys.drain("t"),
            keys.event("e"),
            keys.lock("l"),
            keys.locks(&id),
            keys.waiters("l"),
            keys.stats(7),
            keys.semaphore("s"),
            keys.latch("l"),
            keys.barrier("b"),
            keys.data("x"),
            keys.sent("s"),
            keys.dedup("}k"),
            keys.ctl(),
            keys.alive(),
            keys.all_blocks(),
        ]);
        for key in all {
            assert!(key.starts_with("artel:{demo}:"), "{key}");
        }
    }
}
