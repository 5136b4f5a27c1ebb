//! Every rule about times and duties is needed: switched off, the random schedule finds the fault.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use artel_rig::Kind;

use crate::lab::Lab;
use crate::rules::Rules;
use crate::schedule::world;

/// Worlds that are tried before a fault counts as not found: busy ones.
const WORLDS: u64 = 400;

/// What is switched off, in which script (`jobs` is in many), and what stands there instead.
const FAULTS: [(&str, &str, &str, &str); 28] = [
    (
        "a retry does not count the attempt",
        "jobs",
        "e = with_tries(e, id, a + 1, r, s, at, w)",
        "e = with_tries(e, id, a, r, s, at, w)",
    ),
    (
        "a retried message stays in its block",
        "settle_jobs",
        "if not closing then redis.call('LSET', BLOCK, at, '') end",
        "if not closing and word ~= 'r' then redis.call('LSET', BLOCK, at, '') end",
    ),
    (
        "a retried message counts as done",
        "settle_jobs",
        "local done = settled - failed - count.r - count.z",
        "local done = settled - failed",
    ),
    (
        "promote does not look at the time",
        "promote",
        "redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', now, 'LIMIT', 0, max)",
        "redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', '(inf', 'LIMIT', 0, max)",
    ),
    (
        "promote copies",
        "promote",
        "    redis.call('ZREM', SCHEDULED, unpack(gone, i, math.min(i + 999, #gone)))\n",
        "",
    ),
    (
        "promote puts a message over which workers died among the others",
        "promote",
        "lane and target_of(lane, dead) or KEYS[7]",
        "lane and LANES[lane] or KEYS[7]",
    ),
    (
        "retries count as dead workers",
        "adopt",
        "died + 1 >= tonumber(attempts_max)",
        "a >= tonumber(attempts_max)",
    ),
    (
        "what is given back counts retries as dead workers",
        "give_back",
        "deaths(tries) > 0",
        "tries ~= '1'",
    ),
    (
        "a slot is not handed on when workers died over its message",
        "adopt",
        "finish(message, 'failed', '')",
        "(string.sub(message, 3, 3) == 's' and with_flag(message, 'k') or message)",
    ),
    (
        "a slot that is handed on at a retry is kept, too",
        "jobs",
        "      e = with_flag(e, 'k')\n      hand_on(key)",
        "      hand_on(key)",
    ),
    (
        "a raised limit lets nobody in",
        "promote",
        "local then_taken = let_in(key, taken)",
        "local then_taken = taken",
    ),
    (
        "a unique name is freed only by success",
        "jobs",
        "if h.unique and redis.call('HGET', UNIQUE, h.unique) == id then",
        "if h.unique and outcome == 'done' then",
    ),
    (
        "a failed child does not count",
        "jobs",
        "  if h.parent then unsent, open, failed = join_of(h.parent) end\n  if unsent then\n    open, failed",
        "  if h.parent and outcome == 'done' then unsent, open, failed = join_of(h.parent) end\n  if unsent then\n    open, failed",
    ),
    (
        "a parent does not wait for children still to be sent",
        "jobs",
        "if unsent + open == 0 then",
        "if open == 0 then",
    ),
    (
        "a parent whose time is up is not told of its children",
        "promote",
        "    if unsent then\n      release_parent",
        "    if false then\n      release_parent",
    ),
    (
        "what follows a repeated outcome is sent again",
        "settle_jobs",
        "  local it = named[at]\n  -- Only",
        "  local it = named[at] or {'', 'd', '', 0}\n  -- Only",
    ),
    (
        "an entry fires twice for one time",
        "fire",
        "if tonumber(last) >= due then return 'already' end\nif last ~= ARGV[5] then return 'changed' end\n",
        "",
    ),
    ("an entry fires by its member's clock", "fire", "if due > NOW then return 'early' end\n", ""),
    ("a removed entry fires", "fire", "'^(%d+)|.') ~= ARGV[4]", "'^(%d+)|') ~= ARGV[4]"),
    (
        "a late alteration is believed",
        "alter",
        "if due ~= known then return {'moved', due} end\n",
        "",
    ),
    ("cancelling hands nothing on", "alter", "  finish(e, 'failed', 'cancelled')\n", ""),
    (
        "a result is kept only of success",
        "jobs",
        "  if h.result then\n",
        "  if h.result and outcome == 'done' then\n",
    ),
    (
        "an error keeps its slot",
        "jobs",
        "    if h.key then hand_on(h.key) end\n    e = with_flag(e, 'k')",
        "    if h.key then hand_on(h.key) end",
    ),
    ("a worker settles unnamed what has duties", "", "", ""),
    (
        "a failed message is put back beside an open one of its unique name",
        "requeue",
        " or h.unique and (names[h.unique] or redis.call('HEXISTS', UNIQUE, h.unique) == 1)",
        "",
    ),
    ("an entry made anew begins at nothing", "cron_set", "whole(math.max(last, now))", "'0'"),
    (
        "a removed entry leaves nothing",
        "cron_set",
        "redis.call('HSET', KEYS[1], name, rev .. '|' .. wanted)",
        "if wanted == '' then redis.call('HDEL', KEYS[1], name) else redis.call('HSET', KEYS[1], name, rev .. '|' .. wanted) end",
    ),
    (
        "a repeated post is added again",
        "post",
        "if from + n - 1 <= last then",
        "last = from - 1 if false then",
    ),
];

#[test]
fn the_random_schedule_finds_every_missing_rule_about_times_and_duties() {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let mut lab = Lab::new(kind);
    let mut missed = Vec::new();
    for (name, script, rule, instead) in FAULTS {
        lab.rules = match script {
            "" => Rules::all(),
            "jobs" => Rules::all().without_in_jobs(rule, instead),
            script => Rules::all().without(script, rule, instead),
        };
        let unnamed = script.is_empty();
        let found = (0..WORLDS).map(|world| 4 * world + 3).find_map(|seed| {
            let lab = AssertUnwindSafe(&mut lab);
            let tried = catch_unwind(move || world({ lab }.0, seed, unnamed, &mut BTreeMap::new()));
            // A script that was broken may also fail outright: that is a find, too.
            match tried {
                Ok(Ok(())) => None,
                Ok(Err(wrong)) => Some((seed, wrong)),
                Err(_) => Some((seed, "a script failed".to_owned())),
            }
        });
        match found {
            Some((seed, wrong)) => println!("{name}: in world {seed}: {wrong:.200}"),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "went unnoticed: {missed:?}");
}
