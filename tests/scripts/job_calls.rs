//! Calls of the scripts that know times and duties.

use serde_json::Value as Json;

use crate::lab::{Answer, JOBS, LEASE, Lab, Late, PROTOCOL};

/// An envelope in its first run. Its flag is the one its headers need.
pub fn envelope(lane: char, id: &str, ms: u64, headers: &Json, payload: &str) -> String {
    let has = |name: &str| headers.get(name).is_some();
    let flag = match () {
        () if headers.is_null() => return format!("1{lane}-|{id}|1|{ms}|{payload}"),
        () if has("key") => 'k',
        () if ["unique", "parent", "children", "result"].into_iter().any(has) => 'j',
        () => 'h',
    };
    let json = headers.to_string();
    format!("1{lane}{flag}|{id}|1|{ms}|{}:{json}{payload}", json.len())
}

/// Parts of a settle: position, `value` or `then`, and two arguments.
pub type Parts<'a> = &'a [(u64, &'a str, String, String)];

impl Lab {
    /// `messages` are envelopes with their due times. Whoever begins to count is made known first.
    pub fn post_call(
        &mut self,
        sender: &str,
        from: u64,
        messages: &[(String, String)],
        key: Option<&str>,
    ) -> Late {
        if from == 1 {
            self.enroll(sender);
        }
        let (sent, dedup) = (format!("sent:{sender}"), key.map(|key| format!("dedup:{key}")));
        let mut keys = JOBS.to_vec();
        keys.extend([sent.as_str(), "config", "errors"]);
        keys.extend(dedup.as_deref());
        let from = from.to_string();
        let mut args = vec![sender, &from, PROTOCOL, "60000"];
        for (envelope, due) in messages {
            args.extend([envelope.as_str(), due]);
        }
        self.late("post", &keys, &args)
    }

    /// Posts one message, and returns its id.
    pub fn post_one(&mut self, sender: &str, from: u64, headers: &Json, due: &str) -> String {
        let (id, ms) = (format!("s{sender}-{from}"), self.now_ms());
        let message = (envelope('n', &id, ms, headers, "x"), due.to_owned());
        let call = self.post_call(sender, from, &[message], None);
        assert_eq!(self.send(&call), "ok");
        id
    }

    pub fn promote_call(&self, me: &str, max: u64, lines: u64) -> Late {
        let (lease, max, lines) = (LEASE.to_string(), max.to_string(), lines.to_string());
        self.late("promote", &JOBS, &[me, &lease, &max, "1048576", &lines])
    }

    pub fn promote(&mut self, me: &str) -> Answer {
        let call = self.promote_call(me, 500, 1);
        self.send(&call)
    }

    pub fn alter_call(&self, id: &str, known: &str, what: &str) -> Late {
        let mut keys = JOBS.to_vec();
        keys.extend(["ledger", "config", "notices"]);
        self.late("alter", &keys, &[id, known, what, "ops"])
    }

    /// `term` is empty for somebody who does not lead.
    pub fn fire_call(
        &self,
        (me, term): (&str, &str),
        (entry, rev): (&str, &str),
        last: &str,
        due: &str,
        envelope: &str,
    ) -> Late {
        let mut keys = JOBS.to_vec();
        keys.extend(["lease", "crons", "fired", "config"]);
        let lease = LEASE.to_string();
        let args = [me, term, entry, rev, last, due, &lease, PROTOCOL, envelope];
        self.late("fire", &keys, &args)
    }

    pub fn cron_set_call(&self, entry: &str, json: &str, rev: &str) -> Late {
        let keys = ["crons", "fired", "control", "@0:ctl", "notices"];
        self.late("cron_set", &keys, &[entry, json, rev, "3", "ops"])
    }

    /// A settle in the form that knows duties: `named` are `(position, word, info)`.
    pub fn settle_jobs_call(
        &self,
        me: &str,
        n: u64,
        stamp: &str,
        rest: &str,
        named: &[(u64, &str, String)],
        parts: Parts<'_>,
    ) -> Late {
        let (blocks, block) = (format!("blocks:{me}"), format!("block:{me}:{n}"));
        let pack = format!("pack:{me}:{n}");
        let mut keys = JOBS.to_vec();
        keys.extend([&blocks, &block, "errors", "ledger", "config", "unread", &pack]);
        let (n, lease, count) = (n.to_string(), LEASE.to_string(), named.len().to_string());
        let mut args: Vec<String> =
            [me, &n, stamp, &lease, rest, "", &count].map(str::to_owned).to_vec();
        for (position, word, info) in named {
            args.extend([position.to_string(), (*word).to_owned(), info.clone()]);
            args.extend([String::new(), String::new()]);
        }
        args.push("0".to_owned());
        for (position, what, a, b) in parts {
            args.extend([position.to_string(), (*what).to_owned(), a.clone(), b.clone()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.late("settle_jobs", &keys, &args)
    }

    /// The time of a scheduled message, as scripts read it.
    pub fn due(&mut self, id: &str) -> Option<String> {
        let scheduled = self.key("scheduled");
        let read = "return redis.call('ZSCORE', KEYS[1], ARGV[1])";
        self.redis(&["EVAL", read, "1", &scheduled, id])
    }
}
