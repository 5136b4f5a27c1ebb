//! How long Redis is busy with one call. The times themselves are noise on a busy machine; that they do not
//! grow is not: the quickest of several calls is compared, and what grew before did so a thousandfold.

use crate::lab::{Lab, Late, on_each_server};

/// How often a call is timed; the quickest counts.
const TIMES: usize = 30;
/// So much may the quickest call differ: a square of 80 times as many would be 6,400.
const NOISE: u64 = 20;

/// Microseconds of Redis for this call: of the quickest of several.
fn busy(lab: &mut Lab, call: &Late) -> u64 {
    let () = lab.redis(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    (0..TIMES)
        .map(|_| {
            let () = lab.redis(&["SLOWLOG", "RESET"]);
            lab.send(call);
            let log: Vec<(u64, u64, u64, Vec<String>)> = lab
                .redis::<Vec<(u64, u64, u64, Vec<String>, redis::Value, redis::Value)>>(&[
                    "SLOWLOG", "GET", "-1",
                ])
                .into_iter()
                .map(|(id, at, took, words, ..)| (id, at, took, words))
                .collect();
            let script = log.iter().filter(|(.., words)| words[0].starts_with("EVAL"));
            script.map(|(_, _, took, _)| *took).max().unwrap_or(0)
        })
        .min()
        .unwrap_or(0)
        .max(10)
}

/// A worker with so many open blocks.
fn with_blocks(lab: &mut Lab, count: u64) {
    let () = lab.redis(&["FLUSHALL"]);
    lab.join("w");
    let (blocks, prefix) = (lab.key("blocks:w"), lab.key("block:w:"));
    let fill = "for n = 1, tonumber(ARGV[1]) do
        redis.call('HSET', KEYS[1], n, '1:9')
        redis.call('RPUSH', KEYS[2] .. n, '1n-|s1-' .. n .. '|1|9|x')
      end
      redis.call('HSET', KEYS[1], 'hi', ARGV[1])";
    let () = lab.redis(&["EVAL", fill, "2", &blocks, &prefix, &count.to_string()]);
}

#[test]
fn a_fetch_and_a_heartbeat_cost_the_same_however_many_blocks_are_open() {
    on_each_server(|lab| {
        let mut took = Vec::new();
        for count in [100, 8_000] {
            with_blocks(lab, count);
            let fetch = lab.fetch_call("w", count + 1, 10, &count.to_string());
            let beat = lab.heartbeat_call("w", &count.to_string(), &count.to_string());
            assert_eq!(lab.send(&fetch), "empty");
            assert_eq!(lab.send(&beat).at(6), "0");
            took.push((busy(lab, &fetch), busy(lab, &beat)));
        }
        println!("µs of fetch and heartbeat with 100 and 8,000 blocks: {took:?}");
        assert!(took[1].0 <= took[0].0 * NOISE, "{took:?}");
        assert!(took[1].1 <= took[0].1 * NOISE, "{took:?}");
    });
}

/// What a dead worker held is put back by calls of a hundred blocks, not of one.
#[test]
fn many_small_blocks_are_put_back_in_few_calls() {
    on_each_server(|lab| {
        with_blocks(lab, 4_000);
        lab.join("heir");
        lab.reap("w");
        let mut rest: Vec<u64> = (1..=4_000).rev().collect();
        let mut calls = 0;
        while !rest.is_empty() {
            let call = lab.adopt_all_call("heir", "w", &rest[..rest.len().min(100)], 100);
            let answer = lab.send(&call);
            assert_eq!(answer.at(1), "100");
            rest.drain(..answer.at(3).parse::<usize>().expect("a number"));
            calls += 1;
        }
        assert_eq!(calls, 40);
        let lane = lab.lane("returned");
        assert_eq!(lane.len(), 4_000);
        assert!(lane[0].contains("|s1-1|2|") && lane[3_999].contains("|s1-4000|2|"));
    });
}

/// A record or a message of 1 MiB each: no call moves more than one of them, or 1 MiB of small ones.
#[test]
fn no_call_moves_more_than_a_mebibyte() {
    on_each_server(|lab| {
        let large = "x".repeat(700_000);
        let mut stored = Vec::new();
        let errors = lab.key("errors");
        for n in 0..5 {
            let message = format!("1n-|s1-{n}|1|9|{large}");
            stored.push(lab.redis::<String>(&["XADD", &errors, "*", "m", &message, "e", "{}"]));
        }
        let positions: Vec<&str> = stored.iter().map(String::as_str).collect();
        let pick = lab.pick_call("t", &positions);
        assert_eq!(lab.send(&pick).0, ["ok", "1", "1"]);
        // Into a store that is not empty, so that they are moved one by one.
        let restore = lab.restore_call("t", true, 100);
        assert_eq!(lab.send(&restore).0, ["ok", "0"]);
        let all = lab.stored();
        let pick = lab.pick_call("t", &all[..3].iter().map(String::as_str).collect::<Vec<_>>());
        lab.send(&pick);
        let rest = lab.pick_call("t", &all[1..3].iter().map(String::as_str).collect::<Vec<_>>());
        lab.send(&rest);
        assert_eq!(lab.send(&restore).0, ["ok", "1"], "two were there: one call moves one");
        let all = lab.stored();
        let positions: Vec<&str> = all.iter().map(String::as_str).collect();
        let requeue = lab.requeue_call("r", 1, "", &positions);
        let answer = lab.send(&requeue);
        assert_eq!(answer.0, ["ok", "1", "0", "1"]);
        assert_eq!(lab.send(&requeue).0, ["already", "1", "0", "1"]);
        // What a dead worker held.
        lab.join("heir");
        lab.join("w");
        let (block, blocks) = (lab.key("block:w:1"), lab.key("blocks:w"));
        for n in 0..3 {
            let message = format!("1n-|s2-{n}|1|9|{large}");
            let _: u64 = lab.redis(&["RPUSH", &block, &message]);
        }
        let () = lab.redis(&["HSET", &blocks, "1", "3:9", "hi", "1"]);
        lab.reap("w");
        let adopt = lab.adopt_call("heir", "w", 1, 100);
        assert_eq!(lab.send(&adopt).0, ["ok", "1", "0", "0"]);
        assert_eq!(lab.redis::<String>(&["HGET", &blocks, "1"]), "2:9");
    });
}
