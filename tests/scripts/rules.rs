//! The scripts as they are, or with one rule switched off.

use std::collections::BTreeMap;

macro_rules! sources {
    ($($name:literal => $path:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../src/", $path)))),*]
    };
}

/// Every script of the library.
pub const SOURCES: [(&str, &str); 36] = sources! {
    "join" => "membership/join.lua",
    "heartbeat" => "membership/heartbeat.lua",
    "look" => "membership/look.lua",
    "leave" => "membership/leave.lua",
    "resign" => "membership/resign.lua",
    "acquire" => "election/acquire.lua",
    "push" => "queue/push.lua",
    "send" => "queue/send.lua",
    "enroll" => "queue/enroll.lua",
    "unread" => "queue/unread.lua",
    "open" => "store/open.lua",
    "fetch" => "queue/fetch.lua",
    "give_back" => "queue/give_back.lua",
    "adopt" => "queue/adopt.lua",
    "disown" => "queue/disown.lua",
    "settle" => "outcome/settle.lua",
    "take" => "outcome/take.lua",
    "pick" => "outcome/pick.lua",
    "restore" => "outcome/restore.lua",
    "confirm" => "outcome/confirm.lua",
    "requeue" => "outcome/requeue.lua",
    "drop" => "outcome/drop.lua",
    "remove" => "inspect/remove.lua",
    "find" => "inspect/find.lua",
    "event_take" => "sync/event_take.lua",
    "event_set" => "sync/event_set.lua",
    "event_clear" => "sync/event_clear.lua",
    "event_read" => "sync/event_read.lua",
    "guarded" => "sync/guarded.lua",
    "permit_take" => "sync/permit_take.lua",
    "permit_back" => "sync/permit_back.lua",
    "latch_set" => "sync/latch_set.lua",
    "latch_down" => "sync/latch_down.lua",
    "arrive" => "sync/arrive.lua",
    "withdraw" => "sync/withdraw.lua",
    "answer" => "stats/answer.lua",
};

/// The scripts, possibly with a rule switched off.
#[derive(Clone)]
pub struct Rules(BTreeMap<&'static str, String>);

impl Rules {
    pub fn all() -> Rules {
        let mut rules: BTreeMap<_, _> =
            SOURCES.iter().map(|(name, source)| (*name, (*source).to_owned())).collect();
        // It is only the beginning of a user's script.
        rules.entry("guarded").and_modify(|source| {
            source.push_str("return {'ok', redis.call('RPUSH', KEYS[1], ARGV[1])}");
        });
        Rules(rules)
    }

    pub fn source(&self, script: &str) -> &str {
        &self.0[script]
    }

    /// Switches a rule off: `rule` must stand in the script exactly once.
    pub fn without(mut self, script: &'static str, rule: &str, instead: &str) -> Rules {
        let source = &self.0[script];
        assert_eq!(source.matches(rule).count(), 1, "{script}.lua has the rule {rule:?} once");
        let source = source.replace(rule, instead);
        self.0.insert(script, source);
        self
    }
}
