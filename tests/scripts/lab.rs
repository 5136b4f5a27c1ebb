//! A server and one function per script.
//! Key names are spelled out here a second time on purpose: the library must not be its own witness.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use artel_rig::{Kind, Server};
use redis::{Connection, Value};

use crate::rules::Rules;

pub const LEASE: u64 = 60_000;
/// No block is held.
pub const NOBODY: &str = "0";
pub const PROTOCOL: &str = "5";
/// The lanes by urgency.
pub const LANES: [&str; 4] = ["lane:high", "lane:generated", "lane:normal", "lane:low"];
/// The keys of scripts that place or end messages with duties.
pub const JOBS: [&str; 18] = [
    "members",
    "counts",
    "wake",
    "lane:returned",
    "lane:high",
    "lane:generated",
    "lane:normal",
    "lane:low",
    "scheduled",
    "later",
    "parked",
    "slots",
    "limits",
    "resting",
    "unique",
    "joins",
    "event:",
    "@0:event:",
];

/// What a script answered: its tag and the rest, all as text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer(pub Vec<String>);

impl Answer {
    pub fn tag(&self) -> &str {
        &self.0[0]
    }

    pub fn at(&self, index: usize) -> &str {
        &self.0[index]
    }

    /// The messages that a fetch brought.
    pub fn messages(&self) -> &[String] {
        &self.0[5..]
    }
}

impl PartialEq<&str> for Answer {
    fn eq(&self, other: &&str) -> bool {
        self.tag() == *other
    }
}

/// One call, ready to be repeated byte for byte.
#[derive(Clone, Debug)]
pub struct Late {
    pub script: &'static str,
    pub keys: Vec<String>,
    pub args: Vec<String>,
    /// A pack that is put into the stage before it, in the same `MULTI`.
    pub pack: Option<String>,
}

pub struct Lab {
    pub server: Server,
    pub connection: Connection,
    pub rules: Rules,
    pub prefix: String,
}

impl Lab {
    pub fn new(kind: Kind) -> Lab {
        let server = Server::with(kind, &["--appendonly", "no"]);
        let connection = server.connect();
        Lab { server, connection, rules: Rules::all(), prefix: "artel:{lab}:".to_owned() }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub fn call(&mut self, script: &'static str, keys: &[&str], args: &[&str]) -> Answer {
        let late = self.late(script, keys, args);
        self.send(&late)
    }

    pub fn late(&self, script: &'static str, keys: &[&str], args: &[&str]) -> Late {
        Late {
            script,
            keys: keys.iter().map(|key| self.key(key)).collect(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            pack: None,
        }
    }

    pub fn send(&mut self, late: &Late) -> Answer {
        self.try_send(late).unwrap_or_else(|error| panic!("{}: {error}", late.script))
    }

    pub fn try_send(&mut self, late: &Late) -> redis::RedisResult<Answer> {
        let script = redis::Script::new(self.rules.source(late.script));
        if let Some(pack) = &late.pack {
            return self.try_send_staged(late, &script, pack);
        }
        let mut call = script.prepare_invoke();
        for key in &late.keys {
            call.key(key);
        }
        for arg in &late.args {
            call.arg(arg);
        }
        call.invoke::<Value>(&mut self.connection).map(|value| Answer(flatten(value)))
    }

    pub fn redis<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        for word in &words[1..] {
            cmd.arg(*word);
        }
        cmd.query(&mut self.connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    // One function per script.

    pub fn join(&mut self, id: &str) -> Answer {
        let call = self.join_call(id);
        self.send(&call)
    }

    pub fn join_call(&self, id: &str) -> Late {
        self.join_wanting(id, &[], false)
    }

    /// Joins with these settings, as `(field, value)`.
    pub fn join_wanting(&self, id: &str, wanted: &[(&str, &str)], waited: bool) -> Late {
        let (member, alive) = (format!("member:{id}"), format!("@0:alive:{id}"));
        let (lease, waited) = (LEASE.to_string(), if waited { "1" } else { "0" });
        let mut keys = vec!["members", &member, "watch", "blind", "config", "term", "suspects"];
        keys.extend(["orphans", &alive, "@0:ctl", "control", "lease", "notices"]);
        let mut args = vec![id, "60000", PROTOCOL, waited, "5"];
        for (field, default) in [
            ("lease_ms", lease.as_str()),
            ("grace_ms", "300"),
            ("attempts_max", "3"),
            ("ledger", "-1"),
            ("backlog_max", "1000"),
        ] {
            let value = wanted.iter().find(|(name, _)| *name == field).map_or("", |(_, v)| v);
            args.extend([field, value, default]);
        }
        args.extend(["label", id]);
        self.late("join", &keys, &args)
    }

    /// At most this many messages may wait in a lane.
    pub fn limit_backlog(&mut self, backlog_max: &str) {
        let config = self.key("config");
        let set = ["HSET", &config, "protocol", PROTOCOL, "backlog_max", backlog_max];
        let () = self.redis(&set);
    }

    pub fn heartbeat(&mut self, me: &str, held: &str, hi: &str) -> Answer {
        let call = self.heartbeat_call(me, held, hi);
        self.send(&call)
    }

    pub fn heartbeat_call(&self, me: &str, held: &str, hi: &str) -> Late {
        self.heartbeat_of(me, held, hi, "0")
    }

    /// The heartbeat of a member that believes this of its presence.
    pub fn heartbeat_of(&self, me: &str, held: &str, hi: &str, presence: &str) -> Late {
        self.any_heartbeat(me, [held, hi, "60000", presence, "", "", "0", "0"])
    }

    /// Of a member that is connected to this server, and comes from another one, where it saw these numbers of steps, last and first.
    pub fn heartbeat_at(&self, me: &str, server: &str, came: (&str, &str, &str)) -> Late {
        let (from, last, first) = came;
        self.any_heartbeat(me, ["10000", "0", "60000", "0", server, from, last, first])
    }

    fn any_heartbeat(&self, me: &str, args: [&str; 8]) -> Late {
        let alive = format!("@0:alive:{me}");
        let (member, blocks) = (format!("member:{me}"), format!("blocks:{me}"));
        let (lease, locks) = (LEASE.to_string(), format!("locks:{me}"));
        self.late(
            "heartbeat",
            &[
                "members", "lease", "watch", "orphans", &member, &blocks, &locks, "term", "token",
                "config", "control", &alive, "blind", "counts", "servers", "losses", "notices",
            ],
            &[&[me, &*lease][..], &args].concat(),
        )
    }

    /// As if the fleet had come so far.
    pub fn count_steps(&mut self, steps: &str) {
        let key = self.key("counts");
        let () = self.redis(&["HSET", &key, "sent", steps]);
    }

    pub fn look(&mut self, me: &str, lease: u64, grace: u64) -> Answer {
        let (config, lease, grace) = (self.key("config"), lease.to_string(), grace.to_string());
        for (field, value) in [("lease_ms", lease), ("grace_ms", grace)] {
            let now: Option<String> = self.redis(&["HGET", &config, field]);
            if now.as_ref() != Some(&value) {
                let () = self.redis(&["HSET", &config, field, &value]);
            }
        }
        self.call(
            "look",
            &[
                "members",
                "watch",
                "suspects",
                "blind",
                "orphans",
                "@0:alive",
                "@0:ctl",
                "config",
                "scheduled",
                "resting",
                "control",
                "lease",
                "notices",
            ],
            &[me, "-1"],
        )
    }

    pub fn leave_call(&self, me: &str) -> Late {
        let (member, blocks) = (format!("member:{me}"), format!("blocks:{me}"));
        let (suspects, locks) = ("suspects", format!("locks:{me}"));
        let mut keys = vec!["members", suspects, "blind", "orphans", "lease", &member, &blocks];
        keys.extend(["@0:ctl", &locks, "control", "watch", "notices"]);
        self.late("leave", &keys, &[me])
    }

    pub fn acquire(&mut self, me: &str) -> Answer {
        let call = self.acquire_call(me);
        self.send(&call)
    }

    pub fn acquire_call(&self, me: &str) -> Late {
        let keys =
            ["members", "lease", "term", "last", "@0:ctl", "counts", "state", "watch", "notices"];
        self.late("acquire", &keys, &[me, &LEASE.to_string()])
    }

    /// By a member that has seen this term.
    pub fn acquire_from(&mut self, me: &str, seen: &str) -> Answer {
        let keys =
            ["members", "lease", "term", "last", "@0:ctl", "counts", "state", "watch", "notices"];
        self.call("acquire", &keys, &[me, &LEASE.to_string(), "", seen])
    }

    /// By a member that has seen this token.
    pub fn lock_from(&mut self, me: &str, name: &str, seen: &str) -> Answer {
        let (lock, locks, waiters) =
            (format!("lock:{name}"), format!("locks:{me}"), format!("waiters:{name}"));
        let keys = ["members", &lock, "token", &locks, &waiters];
        self.call("acquire", &keys, &[me, &LEASE.to_string(), name, "1", "-", seen])
    }

    pub fn resign_call(&self, me: &str, term: &str) -> Late {
        self.late("resign", &["members", "lease", "@0:ctl", "watch", "notices"], &[me, term])
    }

    pub fn push(&mut self, me: &str, term: &str, from: u64, payloads: &[&str]) -> Answer {
        let call = self.push_call(me, term, from, payloads);
        self.send(&call)
    }

    pub fn push_call(&self, me: &str, term: &str, from: u64, payloads: &[&str]) -> Late {
        self.push_with(me, term, from, payloads, ("", ""))
    }

    /// With a state: its number within the term, and itself.
    pub fn push_with(
        &self,
        me: &str,
        term: &str,
        from: u64,
        payloads: &[&str],
        (number, state): (&str, &str),
    ) -> Late {
        let envelopes: Vec<String> = (from..)
            .zip(payloads)
            .map(|(seq, payload)| format!("1g-|{term}-{seq}|1|1794710083950|{payload}"))
            .collect();
        let (from, lease) = (from.to_string(), LEASE.to_string());
        let chunk = format!("chunk:{term}-{from}");
        let mut args = vec![me, term, &from, &lease, PROTOCOL, number, state, "0", "0", "0"];
        args.extend(envelopes.iter().map(String::as_str));
        let mut keys =
            vec!["members", "lease", "last", "lane:generated", "counts", "wake", "config"];
        keys.extend(["errors", "state", "stage", &chunk]);
        self.late("push", &keys, &args)
    }

    pub fn now_ms(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.redis(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    pub fn fetch(&mut self, me: &str, n: u64, max: u64, held: &str) -> Answer {
        let call = self.fetch_call(me, n, max, held);
        self.send(&call)
    }

    pub fn fetch_call(&self, me: &str, n: u64, max: u64, held: &str) -> Late {
        self.fetch_many(me, n, max, held, 1)
    }

    /// As many returned messages may come, each in a block of its own.
    pub fn fetch_many(&self, me: &str, n: u64, max: u64, held: &str, blocks: u64) -> Late {
        self.fetch_from(&LANES, me, n, max, held, blocks)
    }

    pub fn fetch_from(
        &self,
        lanes: &[&str],
        me: &str,
        n: u64,
        max: u64,
        held: &str,
        blocks: u64,
    ) -> Late {
        let own: Vec<String> = (n..n + blocks).map(|n| format!("block:{me}:{n}")).collect();
        let (blocks, lease) = (format!("blocks:{me}"), LEASE.to_string());
        let (n, max) = (n.to_string(), max.to_string());
        let mut keys = vec!["members", &blocks, "counts", "wake", "lane:returned"];
        keys.extend(lanes);
        let pack = format!("pack:{me}:{n}");
        keys.push(&pack);
        keys.extend(own.iter().map(String::as_str));
        let packs: Vec<String> =
            own.iter().map(|block| block.replacen("block", "pack", 1)).collect();
        keys.extend(packs.iter().skip(1).map(String::as_str));
        let chunks = self.key("chunk:");
        self.late("fetch", &keys, &[me, &n, &max, &lease, "1048576", held, "2", "", &chunks])
    }

    /// As [`fetch_many`](Self::fetch_many), by a worker that names the blocks it knows of.
    pub fn fetch_known(&self, me: &str, n: u64, max: u64, known: &[u64], blocks: u64) -> Late {
        let mut call = self.fetch_many(me, n, max, &known.len().to_string(), blocks);
        let names = known.iter().map(|n| format!("{n},")).collect::<String>();
        call.args[7] = format!(",{names}");
        call
    }

    /// Gives back what a fetch of this many blocks brought and nobody could read.
    pub fn unread_call(&self, me: &str, n: u64, blocks: u64) -> Late {
        let own: Vec<String> = (n..n + blocks).map(|n| format!("block:{me}:{n}")).collect();
        let (blocks, n, lease) = (format!("blocks:{me}"), n.to_string(), LEASE.to_string());
        let mut keys = JOBS.to_vec();
        let pack = format!("pack:{me}:{n}");
        keys.extend([&blocks, "unread", "errors", "ledger", "config", &pack]);
        keys.extend(own.iter().map(String::as_str));
        let packs: Vec<String> =
            own.iter().map(|block| block.replacen("block", "pack", 1)).collect();
        keys.extend(packs.iter().skip(1).map(String::as_str));
        self.late("unread", &keys, &[me, &n, &lease, "3", "6"])
    }

    /// `rest` is `-` to keep the block open; `named` are `(position, 'd' | 'f')`.
    pub fn settle(
        &mut self,
        me: &str,
        n: u64,
        stamp: &str,
        rest: &str,
        named: &[(u64, &str)],
    ) -> Answer {
        let call = self.settle_call(me, n, stamp, rest, named, &[]);
        self.send(&call)
    }

    /// `effects` are `(position, op, name, first, second)`.
    pub fn settle_call(
        &self,
        me: &str,
        n: u64,
        stamp: &str,
        rest: &str,
        named: &[(u64, &str)],
        effects: &[(u64, &str, &str, &str, &str)],
    ) -> Late {
        let (blocks, block) = (format!("blocks:{me}"), format!("block:{me}:{n}"));
        let mut keys = vec!["members", "counts", &blocks, &block, "errors", "ledger"];
        let pack = format!("pack:{me}:{n}");
        keys.extend(["config", "unread", &pack]);
        let data: Vec<String> = effects.iter().map(|effect| format!("data:{}", effect.2)).collect();
        keys.extend(data.iter().map(String::as_str));
        let (n, lease, count) = (n.to_string(), LEASE.to_string(), named.len().to_string());
        let mut args: Vec<String> =
            [me, &n, stamp, &lease, rest, "", &count].map(str::to_owned).to_vec();
        for (position, word) in named {
            args.extend([position.to_string(), (*word).to_owned(), "{}".to_owned()]);
            args.extend([String::new(), String::new()]);
        }
        args.push(effects.len().to_string());
        for (index, effect) in effects.iter().enumerate() {
            args.extend([effect.0.to_string(), effect.1.to_owned(), (index + 1).to_string()]);
            args.extend([effect.3.to_owned(), effect.4.to_owned()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.late("settle", &keys, &args)
    }

    pub fn give_back_call(&self, me: &str, n: u64, stamp: &str, positions: &[u64]) -> Late {
        let (blocks, block) = (format!("blocks:{me}"), format!("block:{me}:{n}"));
        let mut keys = vec!["members", &blocks, "counts", "wake", "lane:returned"];
        keys.extend(LANES);
        let pack = format!("pack:{me}:{n}");
        keys.extend([block.as_str(), &pack]);
        let (n, lease) = (n.to_string(), LEASE.to_string());
        let positions: Vec<String> = positions.iter().map(u64::to_string).collect();
        let mut args = vec![me, &n, stamp, &lease, "hgnl"];
        args.extend(positions.iter().map(String::as_str));
        self.late("give_back", &keys, &args)
    }

    pub fn adopt_call(&self, me: &str, dead: &str, n: u64, chunk: u64) -> Late {
        self.adopt_all_call(me, dead, if n == 0 { &[] } else { std::slice::from_ref(&n) }, chunk)
    }

    /// `numbers` are blocks, falling.
    pub fn adopt_all_call(&self, me: &str, dead: &str, numbers: &[u64], chunk: u64) -> Late {
        let blocks = format!("blocks:{dead}");
        let own: Vec<String> = numbers
            .iter()
            .flat_map(|n| [format!("block:{dead}:{n}"), format!("pack:{dead}:{n}")])
            .collect();
        let mut keys = JOBS.to_vec();
        keys.extend(["orphans", &blocks, "errors", "ledger", "config", "unread", "notices"]);
        keys.extend(own.iter().map(String::as_str));
        let (chunk, numbers): (String, Vec<String>) =
            (chunk.to_string(), numbers.iter().map(u64::to_string).collect());
        let mut args = vec![me, dead, &chunk, "1048576"];
        args.extend(numbers.iter().map(String::as_str));
        self.late("adopt", &keys, &args)
    }

    pub fn forget_call(&self, me: &str, dead: &str) -> Late {
        let (blocks, locks) = (format!("blocks:{dead}"), format!("locks:{dead}"));
        self.late("forget", &["members", "orphans", &blocks, &locks], &[me, dead])
    }

    /// A copy of all there is, to be put back later.
    pub fn copy(&mut self) -> Vec<(String, Vec<u8>)> {
        let keys: Vec<String> = self.redis(&["KEYS", "*"]);
        let mut copy = Vec::new();
        for key in keys {
            let dump: Option<Vec<u8>> = self.redis(&["DUMP", &key]);
            copy.extend(dump.map(|dump| (key, dump)));
        }
        copy
    }

    /// Redis restored from an older state: acknowledged writes are lost.
    pub fn put_back(&mut self, copy: Vec<(String, Vec<u8>)>) {
        let () = self.redis(&["FLUSHALL"]);
        for (key, dump) in copy {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(key).arg(0).arg(dump);
            let () = restore.query(&mut self.connection).expect("restores");
        }
    }

    /// What `look` does to a member it judges dead, done by the adversary, rightly or wrongly.
    pub fn reap(&mut self, id: &str) {
        let reap = "#!lua flags=allow-oom\n\
            if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then redis.call('SADD', KEYS[2], ARGV[1]) end";
        let script = redis::Script::new(reap);
        let mut call = script.prepare_invoke();
        call.key(self.key("members")).key(self.key("orphans")).arg(id);
        let () = call.invoke(&mut self.connection).expect("reaps");
    }

    /// Joins, acquires and pushes: the shortest way to messages in the lane.
    pub fn leader_with(&mut self, id: &str, payloads: &[&str]) -> String {
        assert_eq!(self.join(id), "ok");
        let term = self.acquire(id).at(1).to_owned();
        assert_eq!(self.push(id, &term, 1, payloads), "ok");
        term
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Makes `id` present, as its session connection would; dropped, the presence ends.
    pub fn presence(&self, id: &str) -> Presence {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port())).expect("connects");
        let mut presence = Presence(BufReader::new(stream));
        for channel in [self.key("@0:alive"), self.key(&format!("@0:alive:{id}"))] {
            write!(presence.0.get_mut(), "SSUBSCRIBE {channel}\r\n").expect("writes");
            presence.lines(6); // *3, $10 ssubscribe, $n channel, :count
        }
        presence
    }

    /// Ends a presence, and waits until Redis has seen that.
    pub fn absent(&mut self, id: &str, presence: Presence) {
        drop(presence);
        let channel = self.key(&format!("@0:alive:{id}"));
        artel_rig::eventually("Redis to see that it is gone", || {
            let (_, present): (String, u64) = self.redis(&["PUBSUB", "SHARDNUMSUB", &channel]);
            present == 0
        });
    }

    pub fn lane(&mut self, name: &str) -> Vec<String> {
        let key = self.key(&format!("lane:{name}"));
        self.redis(&["LRANGE", &key, "0", "-1"])
    }

    pub fn count(&mut self, name: &str) -> i64 {
        let key = self.key("counts");
        let count: Option<i64> = self.redis(&["HGET", &key, name]);
        count.unwrap_or(0)
    }

    pub fn ledger_ids(&mut self) -> Vec<String> {
        let snapshot = artel_rig::Snapshot::read(&mut self.connection, "lab");
        snapshot.ledger.into_iter().map(|settled| settled.id).collect()
    }

    /// Nothing is in two places, nothing is missing, every counter is right.
    #[track_caller]
    pub fn assert_clean(&mut self) {
        let snapshot = artel_rig::Snapshot::read(&mut self.connection, "lab");
        artel_rig::Audit::of(&snapshot, artel_rig::Taken::Ids(&[])).assert_clean();
    }
}

pub struct Presence(BufReader<TcpStream>);

impl Presence {
    /// Reads this many lines; the last of them.
    fn lines(&mut self, count: usize) -> String {
        let mut line = String::new();
        for _ in 0..count {
            line.clear();
            self.0.read_line(&mut line).expect("a line");
        }
        line.trim_end().to_owned()
    }

    /// Waits for a message.
    pub fn hears(&mut self) -> String {
        self.0.get_ref().set_read_timeout(Some(artel_rig::DEADLINE)).expect("a time");
        self.lines(7) // *3, $8 smessage, $n channel, $n message
    }
}

pub(super) fn flatten(value: Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.into_iter().flat_map(flatten).collect(),
        Value::Nil => vec!["nil".to_owned()],
        Value::Int(n) => vec![n.to_string()],
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(&bytes).into_owned()],
        Value::SimpleString(text) => vec![text],
        other => vec![format!("{other:?}")],
    }
}

/// Runs a test on every kind of server there is.
pub fn on_each_server(test: impl Fn(&mut Lab)) {
    artel_rig::each_server(|kind| test(&mut Lab::new(kind)));
}

/// Proves a rule: with it `holds` is true, with it switched off the same schedule breaks it.
pub fn proves(script: &'static str, rule: &str, instead: &str, holds: impl Fn(&mut Lab) -> bool) {
    on_each_server(|lab| {
        assert!(holds(lab), "the rule is there and does not hold");
        let () = lab.redis(&["FLUSHALL"]);
        lab.rules = Rules::all().without(script, rule, instead);
        assert!(!holds(lab), "the schedule does not need the rule {rule:?} of {script}.lua");
    });
}
