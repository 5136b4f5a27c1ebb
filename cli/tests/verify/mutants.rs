//! The checker is checked: with a rule of the protocol switched off, `artel verify` must find out.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use artel_testkit::{Kind, clean_command};
use serde_json::Value;

use crate::ARTEL;

/// A rule that is switched off: edits of scripts or the names of rules in Rust, the faults that need it, and
/// which promises may be found broken.
struct Mutant {
    name: &'static str,
    rules: &'static [&'static str],
    edits: &'static [(&'static str, &'static str, &'static str)],
    faults: &'static str,
    /// Known to catch it; the others are for a machine so busy that the faults come at other moments.
    seeds: [u64; 3],
    time: &'static str,
    broken: &'static [&'static str],
}

const SESSION: (&str, &str, &str) =
    ("push", "if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end", "");
const FENCE: (&str, &str, &str) =
    ("push", "if redis.call('GET', KEYS[2]) ~= me .. '|' .. term then return 'fenced' end", "");
const NUMBERS: (&str, &str, &str) = (
    "push",
    "if last_term ~= term then return 'gap' end",
    "if last_term ~= term then last = from - 1 end",
);

const NO_KEY: (&str, &str, &str) =
    ("send", "local id = redis.call('GET', KEYS[5])", "local id = false");
const REFRESH: &str = "redis.call('ZADD', KEYS[1], 'XX', \
                       string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[4]), me)";

const MUTANTS: [Mutant; 37] = [
    Mutant {
        name: "a member whose time is up is not judged dead",
        rules: &[],
        edits: &[("look", "local reap = deadline < now", "local reap = false")],
        faults: "freeze-long",
        seeds: [1, 3, 2],
        time: "20s",
        broken: &["heals"],
    },
    Mutant {
        name: "what is simply done is not in the ledger",
        rules: &[],
        edits: &[(
            "settle",
            "if message ~= '' and message ~= '-' and not named[tostring(i - 1)] then ledger(message, 'done') end",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["nothing-lost", "books-balance"],
    },
    Mutant {
        name: "a failed message is counted as done",
        rules: &[],
        edits: &[(
            "settle",
            "if failed > 0 then redis.call('HINCRBY', KEYS[4], 'failed', failed) end",
            "if failed > 0 then redis.call('HINCRBY', KEYS[4], 'done', failed) end",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["books-balance"],
    },
    Mutant {
        name: "an outcome says another attempt than was made",
        rules: &[],
        edits: &[(
            "settle",
            "'member', me, 'attempt', attempt)",
            "'member', me, 'attempt', attempt + 1)",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["handled-first"],
    },
    Mutant {
        name: "what somebody who leaves had not begun is dropped",
        rules: &[],
        edits: &[("give_back", "redis.call('LPUSH', move[1], move[2])", "")],
        faults: "leave,redis-freeze",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance", "nothing-lost"],
    },
    Mutant {
        name: "trust counts from the answer",
        rules: &["TrustFromSending"],
        edits: &[],
        faults: "delay",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["trust-bounded"],
    },
    Mutant {
        name: "whoever waits reads before it subscribes",
        rules: &["SubscribeThenRead"],
        edits: &[],
        faults: "delay,jitter",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["no-wake-up-missed"],
    },
    Mutant {
        name: "whoever waits does not read again on a new connection",
        rules: &["ReadAfterReconnect"],
        edits: &[],
        faults: "client-kill",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["no-wake-up-missed"],
    },
    Mutant {
        name: "an event is set and nobody is told",
        rules: &[],
        edits: &[("event_set", "redis.call('SPUBLISH', KEYS[1], gen)", "")],
        faults: "kill-taker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["no-wake-up-missed"],
    },
    Mutant {
        name: "what a dead member held is recorded as done",
        rules: &[],
        edits: &[(
            "adopt",
            "redis.call('LPUSH', KEYS[5], string.format('%s|%s|%.0f', head, id, attempt + 1) .. rest)",
            "redis.call('XADD', KEYS[9], '*', 'id', id, 'outcome', 'done', 'member', dead, 'attempt', attempt) \
             redis.call('HINCRBY', KEYS[7], 'done', 1)",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["handled-first"],
    },
    Mutant {
        name: "a push that is repeated counts again",
        rules: &[],
        edits: &[("push", "if from + n - 1 <= last then return 'already' end", "last = from - 1")],
        faults: "reset",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["settled-once", "each-attempt-once"],
    },
    Mutant {
        name: "a stale generator is not fenced",
        rules: &[],
        edits: &[SESSION, FENCE, NUMBERS],
        faults: "one-way-out",
        seeds: [2, 4, 1],
        time: "20s",
        broken: &["one-generator", "settled-once"],
    },
    Mutant {
        name: "the lease can be taken from a living holder, and nobody is fenced",
        rules: &[],
        edits: &[
            FENCE,
            NUMBERS,
            (
                "acquire",
                "local deadline = holder and holder ~= me and redis.call('ZSCORE', KEYS[1], holder)",
                "local deadline = false",
            ),
        ],
        faults: "kill-generator",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["one-generator", "settled-once"],
    },
    Mutant {
        name: "a new generator gets the old term",
        rules: &[],
        edits: &[(
            "acquire",
            "local token = math.max((redis.call('GET', KEYS[3]) or 0) + 1, t[1] * 1000000 + t[2])",
            "local token = tonumber(redis.call('GET', KEYS[3]) or 1)",
        )],
        faults: "kill-generator",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["one-generator", "settled-once", "each-attempt-once"],
    },
    Mutant {
        name: "a new term does not begin its numbers anew",
        rules: &[],
        edits: &[("acquire", "redis.call('SET', KEYS[4], token .. '-0')", "")],
        faults: "kill-generator",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["heals", "no-loss-invented"],
    },
    Mutant {
        name: "a push drops its first message",
        rules: &[],
        edits: &[("push", "for i = 6, #ARGV, 1000 do", "for i = 7, #ARGV, 1000 do")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance", "nothing-lost"],
    },
    Mutant {
        name: "a push is not counted",
        rules: &[],
        edits: &[("push", "redis.call('HINCRBY', KEYS[5], 'generated', n)", "")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance"],
    },
    Mutant {
        name: "a fetch does not say what it took",
        rules: &[],
        edits: &[("fetch", "redis.call('HINCRBY', KEYS[4], 'claimed', count)", "")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance"],
    },
    Mutant {
        name: "a fetch keeps nothing for whoever comes after",
        rules: &[],
        edits: &[(
            "fetch",
            "redis.call('RPUSH', KEYS[3], unpack(reply, i, math.min(i + 999, #reply)))",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["no-loss-invented", "nothing-lost"],
    },
    Mutant {
        name: "what a dead member held is dropped",
        rules: &[],
        edits: &[(
            "adopt",
            "redis.call('LPUSH', KEYS[5], string.format('%s|%s|%.0f', head, id, attempt + 1) .. rest)",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["books-balance", "nothing-lost"],
    },
    Mutant {
        name: "what a dead member held is put back without counting the attempt",
        rules: &[],
        edits: &[("adopt", "head, id, attempt + 1)", "head, id, attempt)")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["each-attempt-once"],
    },
    Mutant {
        name: "a dead member is not remembered as an orphan",
        rules: &[],
        edits: &[("look", "redis.call('SADD', KEYS[5], id)", "")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["heals", "nothing-lost"],
    },
    Mutant {
        name: "an outcome that is repeated counts again",
        rules: &[],
        edits: &[("settle", "elseif message ~= '' and not named", "elseif not named")],
        faults: "reset",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance", "settled-once"],
    },
    Mutant {
        name: "an outcome is not counted",
        rules: &[],
        edits: &[(
            "settle",
            "if settled > failed then redis.call('HINCRBY', KEYS[4], 'done', settled - failed) end",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["books-balance"],
    },
    Mutant {
        name: "effects happen twice",
        rules: &[],
        edits: &[(
            "settle",
            "for _, call in ipairs(effects) do redis.call(unpack(call)) end",
            "for _, call in ipairs(effects) do redis.call(unpack(call)) redis.call(unpack(call)) end",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["effects-equal-outcomes"],
    },
    Mutant {
        name: "a failed message is recorded as done",
        rules: &[],
        edits: &[(
            "settle",
            "ledger(it[1], it[2] == 'f' and 'failed' or 'done')",
            "ledger(it[1], 'done')",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["nothing-invented"],
    },
    Mutant {
        name: "a failed message is not kept",
        rules: &[],
        edits: &[(
            "settle",
            "if it[2] == 'f' then redis.call('XADD', KEYS[5], '*', 'm', it[1], 'e', it[3]) end",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["errors-kept"],
    },
    Mutant {
        name: "a taker of errors deletes them first",
        rules: &[],
        edits: &[("take", "redis.call('RENAME', from, KEYS[3])", "redis.call('DEL', from)")],
        faults: "kill-taker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["errors-kept"],
    },
    Mutant {
        name: "a message is added although one was sent under its key before",
        rules: &[],
        edits: &[NO_KEY],
        faults: "kill-sender",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["added-once"],
    },
    Mutant {
        name: "a message that is sent again is added again",
        rules: &[],
        edits: &[
            NO_KEY,
            ("send", "if from + n - 1 <= last then", "if false then"),
            ("send", "if from ~= last + 1 then return 'gap' end", ""),
        ],
        faults: "reset",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["each-attempt-once", "settled-once", "answers-true"],
    },
    Mutant {
        name: "a message that is sent is not added",
        rules: &[],
        edits: &[(
            "send",
            "redis.call('RPUSH', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV)))",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["nothing-lost"],
    },
    Mutant {
        name: "a failed message that is put back is still there",
        rules: &[],
        edits: &[("requeue", "redis.call('XDEL', KEYS[1], move[1])", "")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["errors-kept", "added-once"],
    },
    Mutant {
        name: "a failed message that is put back is dropped",
        rules: &[],
        edits: &[("requeue", "redis.call('RPUSH', lanes[move[2]], move[3])", "")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["errors-kept"],
    },
    Mutant {
        name: "effects are tried before it is known whether all can be applied",
        rules: &[],
        edits: &[(
            "settle",
            "if kind ~= 'none' and kind ~= rule[1] and op ~= 'SET' then",
            "if false then",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["effects-equal-outcomes", "no-loss-invented"],
    },
    Mutant {
        name: "a message over which workers die is tried for ever",
        rules: &[],
        edits: &[("adopt", "tonumber(attempt) >= tonumber(ARGV[4])", "false")],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "20s",
        broken: &["each-attempt-once"],
    },
    Mutant {
        name: "what is too much for a block is dropped",
        rules: &[],
        edits: &[(
            "fetch",
            "for back = #got, i, -1 do redis.call('LPUSH', KEYS[lane], got[back]) end",
            "",
        )],
        faults: "kill-worker",
        seeds: [1, 2, 3],
        time: "8s",
        broken: &["nothing-lost"],
    },
    Mutant {
        name: "calls refresh no session",
        rules: &[],
        edits: &[
            (
                "heartbeat",
                "redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), me)",
                "",
            ),
            ("fetch", REFRESH, ""),
            ("settle", REFRESH, ""),
        ],
        faults: "kill-taker",
        seeds: [1, 2, 3],
        time: "4s",
        broken: &["well-are-spared"],
    },
];

/// Runs `verify` on the mutant. Which promises it found broken.
fn broken(mutant: &Mutant, seed: u64) -> HashSet<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let (report, keep) = (dir.path().join("report.json"), dir.path().join("history"));
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    let server = kind.program().expect("a server").display().to_string();
    let (seed, report_arg) = (seed.to_string(), report.display().to_string());
    let keep = keep.display().to_string();
    let mut command = clean_command(
        ARTEL,
        &[
            "verify",
            "--for",
            mutant.time,
            "--members",
            "4",
            "--lease",
            "1s",
            "--rate",
            "400/s",
            "--seed",
            &seed,
            "--faults",
            mutant.faults,
            "--server",
            &server,
            "--report",
            &report_arg,
            "--keep",
            &keep,
        ],
    );
    let edit = |(script, rule, instead): &(&str, &str, &str)| {
        format!("{script}\u{1f}{rule}\u{1f}{instead}")
    };
    let rules = mutant.rules.iter().map(|rule| (*rule).to_owned());
    let lines: Vec<String> = mutant.edits.iter().map(edit).chain(rules).collect();
    command.env("MUTANT_OF_ARTEL", lines.join("\n")).stdin(std::process::Stdio::null());
    let output = command.output().expect("it runs");
    let json = std::fs::read(&report).unwrap_or_default();
    let report: Value = serde_json::from_slice(&json).unwrap_or_default();
    let found = report["violations"].as_array().into_iter().flatten();
    let found = found.filter_map(|one| one["invariant"].as_str().map(str::to_owned)).collect();
    if output.status.code() != Some(1) {
        println!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    found
}

#[test]
fn every_mutant_is_caught() {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = |seed: &u64| {
                        let begun = Instant::now();
                        let found = broken(mutant, *seed);
                        let took = begun.elapsed().as_secs();
                        println!("{}, seed {seed}: {found:?}, {took} s", mutant.name);
                        mutant.broken.iter().any(|promise| found.contains(*promise))
                    };
                    if !mutant.seeds.iter().any(caught) {
                        missed.lock().expect("never poisoned").push(mutant.name);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("never poisoned");
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
