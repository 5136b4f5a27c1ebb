//! The names of all keys and channels. They are built here and nowhere else.
//!
//! **Invariant:** all keys and channels of a fleet carry the hash tag `{fleet}`, so they live in one
//! slot and every script may touch them together. A channel also names the database: Redis publishes
//! across databases, and a fleet of the same name in another database must not receive it.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `artel:{f}:config` | hash | `protocol`; `lease_ms`, `grace_ms`, `attempts_max`, `ledger`, `backlog_max`, `errors_max`: fleet-wide; `born`, the id of the first member; `removing`, the name of a removal that is under way |
//! | `artel:{f}:members` | zset | member → session deadline, Redis ms. **In this set = may lead, claim, settle** |
//! | `artel:{f}:member:<id>` | hash, TTL | label, host, pid, counters: display only |
//! | `artel:{f}:watch` | hash | `run_id`, `looked`, `calm`: when the fleet was last looked over; `led`: since when nobody leads, and why; `odd`: how often in a row presence and members did not agree and nobody was found dead |
//! | `artel:{f}:suspects` | hash | member → since when its presence is missing |
//! | `artel:{f}:blind` | set | members whose presence cannot be seen: judged by deadline only |
//! | `artel:{f}:orphans` | set | dead members whose messages or locks are still to be put back |
//! | `artel:{f}:lease` | string | `member\|term`; valid while that member is in `members` |
//! | `artel:{f}:term`, `…:last` | string | highest term granted; last `term-seq` accepted |
//! | `artel:{f}:state` | hash | `state` of the generator, and `at`: under which term and number it was kept |
//! | `artel:{f}:lock:<name>` | string | `member\|token`; valid while that member is in `members` |
//! | `artel:{f}:token` | string | highest token granted, of all locks |
//! | `artel:{f}:locks:<member>` | hash | name → `token:attempt` of the locks it holds |
//! | `artel:{f}:waiters:<name>` | zset | member → its place in the queue for that lock |
//! | `artel:{f}:event:<name>` | hash | `flag`, `gen`, `until`, `by` of an event, and `taken`: which generation was taken by whom |
//! | `artel:{f}:lane:<name>` | list | waiting messages: envelopes, and references to chunks, `#<first id>\|<count>\|<bytes>\|<ms>\|<taken>\|<at>` |
//! | `artel:{f}:chunk:<first id>` | string | a pack that waits: many messages under one head, `<head>\|<first id>\|1\|<ms>\|` and `<length>:<body>` for each |
//! | `artel:{f}:stage:<caller>` | string | a pack that is being added: exists only inside one `MULTI` |
//! | `artel:{f}:blocks:<member>` | hash | `n → left:stamp` of open blocks, and `hi`, the highest number opened |
//! | `artel:{f}:block:<member>:<n>` | list | messages of that block; settled = blank, given back = `-` |
//! | `artel:{f}:pack:<member>:<n>` | string | the same block as a pack, until a script looks at single messages; never both |
//! | `artel:{f}:wake` | list | at most one token |
//! | `artel:{f}:errors` | stream | failed messages: `m` the envelope, `e` the reason (JSON), `t` when it failed if it was put back |
//! | `artel:{f}:drains` | hash | drain token → `owner\|deadline`; `…:drain:<token>` holds the records; an empty one says for a minute that all of them were confirmed |
//! | `artel:{f}:sent:<sender>` | string, 1 h; 1 d if its name belongs to a key | last number accepted from that sender; `…:request`: what is sent under that key, in short, and its first number |
//! | `artel:{f}:dedup:<key>` | string, TTL | id of the message that was sent under that key |
//! | `artel:{f}:unread` | hash | message id → members that could not read it in time |
//! | `artel:{f}:semaphore:<name>`, `…:latch:<name>`, `…:barrier:<name>` | hash | who holds, counted, arrived |
//! | `artel:{f}:gather` | hash | the event that asks everybody for numbers |
//! | `artel:{f}:stats:<round>` | hash, TTL | member → its numbers, in the round of that generation |
//! | `artel:{f}:counts` | hash | generated, sent, claimed, done, failed, lost, returned, taken, requeued, dropped, duplicates, retried, snoozed, followed, fired, skipped, forgotten, cancelled, pushed_ms; `extra:<lane>`: messages in its chunks beyond one per reference |
//! | `artel:{f}:ledger` | stream | one entry per settled message, off by default |
//! | `artel:{f}:notices` | stream | the common log: what happened to the fleet, for people; a week, and about 10,000 entries |
//! | `artel:{f}:servers` | list | `run_id\|steps\|ms`: the last 100 server processes, and how many steps they had when the first process came |
//! | `artel:{f}:losses` | hash | `from>to`, two of them → `steps\|ms`: at least so many steps were forgotten between them; at most 100 |
//! | `artel:{f}:mark` | string, 60 s | any number: written before replicas are waited for |
//! | `artel:{f}:alerts` | hash | who judges the alerts; of each rule since when it holds and what was told, of each sink what it was told |
//! | `artel:{f}:scheduled` | zset | message id → when it is due, Redis ms; `inf`: it waits for its children |
//! | `artel:{f}:later` | hash | message id → envelope, of all in `scheduled` and `parked` |
//! | `artel:{f}:crons` | hash | periodic entry → `rev\|JSON`; an empty JSON: it was removed |
//! | `artel:{f}:fired` | hash | periodic entry → the due time for which it fired last, or which passed; `<entry>!`: the last one with a message, for people |
//! | `artel:{f}:control` | hash | `all`, `lane:<name>`: paused since, ms; `step-down`: `member\|term`; `drain:<member>`: since, ms; `crons`: the latest revision of an entry |
//! | `artel:{f}:unique` | hash | unique name → id of the open message; used by periodic entries that must not overlap |
//! | `artel:{f}:parked`, `…:slots`, `…:limits`, `…:resting`, `…:joins` | zset, hash, hash, zset, hash | messages in line for a key, and parents of others: nothing uses them yet |
//! | `artel:{f}:data:<name>` | any | what effects write (see [`Context`](crate::Context)) |
//!
//! | sharded channel | carries |
//! |---|---|
//! | `artel:{f}:@<db>:ctl` | hints |
//! | `artel:{f}:@<db>:alive`, `…:alive:<id>` | presence |
//! | `artel:{f}:@<db>:event:<name>`, and so for semaphores, latches, barriers and `gather` | the new generation |

use crate::id::MemberId;
use crate::lane::Lane;
use crate::mutant::{Rule, disabled};

/// The names of one fleet's keys and channels.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// The prefix of all channels.
    channels: String,
}

/// A key whose changes are published.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    pub(crate) key: String,
    pub(crate) channel: String,
}

impl Signal {
    /// The key and the channel, in the order that scripts expect.
    pub(crate) fn pair(&self) -> [String; 2] {
        [self.key.clone(), self.channel.clone()]
    }
}

macro_rules! plain {
    ($($name:ident = $text:literal),* $(,)?) => {
        $(pub(crate) fn $name(&self) -> String { format!(concat!("{}", $text), self.prefix) })*
    };
}

impl Keys {
    pub(crate) fn new(fleet: &str, database: i64) -> Keys {
        let prefix = format!("artel:{{{fleet}}}:");
        let channels = match disabled(Rule::ChannelNamesDatabase) {
            true => prefix.clone(),
            false => format!("{prefix}@{database}:"),
        };
        Keys { channels, prefix }
    }

    fn signal(&self, name: impl std::fmt::Display) -> Signal {
        Signal {
            key: format!("{}{name}", self.prefix),
            channel: format!("{}{name}", self.channels),
        }
    }

    /// The prefix of all keys of the fleet.
    pub(crate) fn of_fleet(&self) -> String {
        self.prefix.clone()
    }

    /// The slot of all of them in a cluster: CRC16 of what stands between the braces.
    pub(crate) fn slot(&self) -> u16 {
        let tag = self.prefix.split(['{', '}']).nth(1).unwrap_or_default();
        let crc = tag.bytes().fold(0u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
                0 => crc << 1,
                _ => (crc << 1) ^ 0x1021,
            })
        });
        crc % 16384
    }

    /// The channel of hints.
    pub(crate) fn ctl(&self) -> String {
        format!("{}ctl", self.channels)
    }

    /// The channel on which all members are present.
    pub(crate) fn alive(&self) -> String {
        format!("{}alive", self.channels)
    }

    /// The channel on which one member is present.
    pub(crate) fn alive_of(&self, id: &MemberId) -> String {
        format!("{}alive:{id}", self.channels)
    }

    plain! {
        config = "config", members = "members", watch = "watch", suspects = "suspects",
        blind = "blind", orphans = "orphans", lease = "lease", term = "term", last = "last", token = "token",
        wake = "wake", errors = "errors", drains = "drains", counts = "counts",
        ledger = "ledger", state = "state", returned = "lane:returned", unread = "unread",
        all_blocks = "blocks:", chunks = "chunk:",
        scheduled = "scheduled", later = "later", crons = "crons", fired = "fired", control = "control",
        parked = "parked", slots = "slots", limits = "limits", resting = "resting", unique = "unique",
        joins = "joins", notices = "notices", servers = "servers", losses = "losses", alerts = "alerts",
    }

    /// The keys of `jobs.lua`, in its order.
    pub(crate) fn jobs(&self) -> Vec<String> {
        let events = self.event("");
        let mut all = vec![self.members(), self.counts(), self.wake(), self.returned()];
        all.extend(Lane::ALL.map(|lane| self.lane(lane.name())));
        all.extend([self.scheduled(), self.later(), self.parked(), self.slots(), self.limits()]);
        all.extend([self.resting(), self.unique(), self.joins(), events.key, events.channel]);
        all
    }

    pub(crate) fn member(&self, id: &MemberId) -> String {
        format!("{}member:{id}", self.prefix)
    }

    pub(crate) fn blocks(&self, id: &MemberId) -> String {
        format!("{}blocks:{id}", self.prefix)
    }

    pub(crate) fn block(&self, id: &MemberId, n: u64) -> String {
        format!("{}block:{id}:{n}", self.prefix)
    }

    /// What is written before replicas are waited for.
    pub(crate) fn mark(&self) -> String {
        format!("{}mark", self.prefix)
    }

    /// Where a pack is put before it is added. One for each call under way.
    pub(crate) fn stage(&self, caller: &str) -> String {
        format!("{}stage:{caller}", self.prefix)
    }

    /// A block while it is packed.
    pub(crate) fn pack(&self, id: &MemberId, n: u64) -> String {
        format!("{}pack:{id}:{n}", self.prefix)
    }

    /// A lane by its name.
    pub(crate) fn lane(&self, name: &str) -> String {
        format!("{}lane:{name}", self.prefix)
    }

    /// A lane that is always empty: it stands in for one that is paused.
    pub(crate) fn no_lane(&self) -> String {
        self.lane("none")
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

    /// The members that wait for a lock.
    pub(crate) fn waiters(&self, name: &str) -> String {
        format!("{}waiters:{name}", self.prefix)
    }

    pub(crate) fn semaphore(&self, name: &str) -> Signal {
        self.signal(format_args!("semaphore:{name}"))
    }

    pub(crate) fn latch(&self, name: &str) -> Signal {
        self.signal(format_args!("latch:{name}"))
    }

    pub(crate) fn barrier(&self, name: &str) -> Signal {
        self.signal(format_args!("barrier:{name}"))
    }

    pub(crate) fn event(&self, name: &str) -> Signal {
        self.signal(format_args!("event:{name}"))
    }

    /// The event that asks every member for its numbers.
    pub(crate) fn gather(&self) -> Signal {
        self.signal("gather")
    }

    /// The members' answers in one round of that event.
    pub(crate) fn stats(&self, round: u64) -> String {
        format!("{}stats:{round}", self.prefix)
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
            (self.state(), "hash"),
            (self.gather().key, "hash"),
            (self.mark(), "string"),
            (self.unread(), "hash"),
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
            (self.notices(), "stream"),
            (self.servers(), "list"),
            (self.losses(), "hash"),
            (self.alerts(), "hash"),
            (self.scheduled(), "zset"),
            (self.later(), "hash"),
            (self.crons(), "hash"),
            (self.fired(), "hash"),
            (self.control(), "hash"),
            (self.parked(), "zset"),
            (self.slots(), "hash"),
            (self.limits(), "hash"),
            (self.resting(), "zset"),
            (self.unique(), "hash"),
            (self.joins(), "hash"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_carries_the_hash_tag() {
        let keys = Keys::new("demo", 0);
        let id = MemberId::random();
        let mut all: Vec<String> = keys.typed().into_iter().map(|(key, _)| key).collect();
        all.extend([keys.member(&id), keys.alive_of(&id), keys.blocks(&id), keys.block(&id, 7)]);
        all.extend([
            keys.drain("t"),
            keys.event("e").key,
            keys.lock("l"),
            keys.locks(&id),
            keys.waiters("l"),
            keys.stats(7),
            keys.semaphore("s").key,
            keys.latch("l").key,
            keys.barrier("b").channel,
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

    #[test]
    fn the_slot_is_that_of_the_tag() {
        // As `CLUSTER KEYSLOT` says.
        for (fleet, slot) in [("orders", 105), ("123456789", 12739)] {
            assert_eq!(Keys::new(fleet, 0).slot(), slot, "{fleet}");
        }
    }

    #[test]
    fn every_channel_names_its_database() {
        let (keys, id) = (Keys::new("demo", 3), MemberId::random());
        for channel in [keys.ctl(), keys.alive(), keys.alive_of(&id), keys.event("e").channel] {
            assert!(channel.starts_with("artel:{demo}:@3:"), "{channel}");
        }
        assert_eq!(Keys::new("demo", 0).ctl(), "artel:{demo}:@0:ctl");
    }
}
