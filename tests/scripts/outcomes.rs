use crate::lab::{Lab, NOBODY, on_each_server, proves};

/// ⚑ Every script first asks whether its sender is a member.
#[test]
fn the_late_outcome_of_a_dead_worker_is_refused() {
    let rule = "if not deadline_of(KEYS[1], me) then return 'gone' end";
    proves("settle", rule, "", |lab| {
        let stamp = claimed(lab, &["1"]);
        lab.reap("w");
        // Frozen in the middle of its handler, it wakes before anybody has adopted its block.
        lab.settle("w", 1, &stamp, "1", &[]) == "gone" && lab.ledger_ids().is_empty()
    });
}

#[test]
fn a_block_is_settled_once() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1", "2", "3"]);
        let settle = lab.settle_call("w", 1, &stamp, "2", &[(1, "f")], &[]);
        assert_eq!(lab.send(&settle), "ok");
        assert_eq!(lab.send(&settle), "already");
        assert_eq!((lab.count("done"), lab.count("failed"), lab.count("claimed")), (2, 1, 0));
        lab.assert_clean();
    });
}

/// ⚑ A blank position is settled already and not counted again.
#[test]
fn a_position_is_settled_once() {
    proves("settle", "elseif message ~= '' and not named", "elseif not named", |lab| {
        let stamp = claimed(lab, &["1", "2"]);
        let part = lab.settle_call("w", 1, &stamp, "-", &[(0, "d")], &[]);
        lab.send(&part);
        lab.send(&part);
        lab.count("done") == 1
    });
}

/// ⚑ What was given back is somebody else's: `lost`.
#[test]
fn an_outcome_of_what_was_given_back_is_lost() {
    let rule = "if message == '-' then\n    reply[#reply + 1] = ARGV[i]\n  elseif";
    proves("settle", rule, "if", |lab| {
        let stamp = claimed(lab, &["1", "2"]);
        let back = lab.give_back_call("w", 1, &stamp, &[1]);
        lab.send(&back);
        let answer = lab.settle("w", 1, &stamp, "-", &[(1, "d")]);
        answer.0 == ["ok", "1"] && lab.count("done") == 0
    });
}

/// ⚑ A closing settle says how many it believes are left.
#[test]
fn a_rest_that_does_not_fit_settles_nothing() {
    proves(
        "settle",
        "if closing and tonumber(ARGV[5]) ~= left - settled then return 'gap' end",
        "",
        |lab| {
            let stamp = claimed(lab, &["1", "2", "3"]);
            lab.settle("w", 1, &stamp, "2", &[]) == "gap" && lab.count("done") == 0
        },
    );
}

/// ⚑ The stamp tells a block from its namesake in a Redis that was restored to an older state.
#[test]
fn a_block_of_another_history_is_not_settled() {
    proves("settle", "if stamp ~= ARGV[3] then return 'gap' end", "", |lab| {
        let stamp = claimed(lab, &["1", "2"]);
        // Redis forgot the block and the worker's number, and handed the number out again.
        let (blocks, block) = (lab.key("blocks:w"), lab.key("block:w:1"));
        let saved: Vec<String> = lab.redis(&["LRANGE", &block, "0", "-1"]);
        let () = lab.redis(&["DEL", &blocks, &block]);
        let (lane, counts) = (lab.key("lane:generated"), lab.key("counts"));
        let () = lab.redis(&["RPUSH", &lane, &saved[1], &saved[0]]);
        let () = lab.redis(&["HSET", &counts, "claimed", "0"]);
        lab.fetch("w", 1, 10, NOBODY);
        lab.settle("w", 1, &stamp, "2", &[]) == "gap"
    });
}

#[test]
fn failed_messages_are_kept_with_their_envelope() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["bad"]);
        lab.settle("w", 1, &stamp, "0", &[(0, "f")]);
        let errors = lab.key("errors");
        let stored: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &errors, "-", "+"]);
        assert_eq!(stored.len(), 1);
        assert!(stored[0].1[1].ends_with("|bad"));
        lab.assert_clean();
    });
}

#[test]
fn effects_happen_exactly_once_with_their_outcome() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1", "2"]);
        let effects = [
            (0, "INCRBY", "sum", "5", ""),
            (1, "INCRBY", "sum", "-2", ""),
            (0, "HINCRBY", "by", "x", "7"),
            (0, "HSET", "seen", "last", "1"),
            (1, "SADD", "ids", "two", ""),
            (1, "RPUSH", "log", "two", ""),
            (0, "SET", "name", "n", ""),
        ];
        let settle = lab.settle_call("w", 1, &stamp, "0", &[(0, "d"), (1, "d")], &effects);
        assert_eq!(lab.send(&settle), "ok");
        assert_eq!(lab.send(&settle), "already");
        let (sum, log) = (lab.key("data:sum"), lab.key("data:log"));
        let sum: i64 = lab.redis(&["GET", &sum]);
        let log: Vec<String> = lab.redis(&["LRANGE", &log, "0", "-1"]);
        assert_eq!((sum, log), (3, vec!["two".to_owned()]));
        lab.assert_clean();
    });
}

#[test]
fn an_effect_of_a_position_that_is_settled_already_is_not_repeated() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1", "2"]);
        let part =
            lab.settle_call("w", 1, &stamp, "-", &[(0, "d")], &[(0, "INCRBY", "n", "1", "")]);
        lab.send(&part);
        lab.send(&part);
        let n = lab.key("data:n");
        let n: i64 = lab.redis(&["GET", &n]);
        assert_eq!(n, 1);
    });
}

/// Everything is checked before the first write: one effect that cannot be applied, and nothing of
/// the whole call happens.
#[test]
fn an_impossible_effect_leaves_no_trace() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1", "2"]);
        let (list, text, near) = (lab.key("data:list"), lab.key("data:text"), lab.key("data:near"));
        let () = lab.redis(&["RPUSH", &list, "x"]);
        let () = lab.redis(&["SET", &text, "no number"]);
        let () = lab.redis(&["SET", &near, "9007199254740992"]);
        let (padded, minus) = (lab.key("data:padded"), lab.key("data:minus"));
        let () = lab.redis(&["SET", &padded, "007"]); // Redis reads neither as a number
        let () = lab.redis(&["HSET", &minus, "f", "-0"]);
        let bad = [
            ("INCRBY", "list", "1", ""),
            ("HSET", "list", "f", "v"),
            ("SADD", "text", "m", ""),
            ("INCRBY", "text", "1", ""),
            ("INCRBY", "near", "1", ""),
            ("INCRBY", "fresh", "1.5", ""),
            ("INCRBY", "padded", "1", ""),
            ("HINCRBY", "minus", "f", "1"),
            ("FLUSHALL", "fresh", "", ""),
        ];
        for (op, name, first, second) in bad {
            let effects = [(0, "INCRBY", "good", "1", ""), (1, op, name, first, second)];
            let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d"), (1, "d")], &effects);
            let answer = lab.send(&call);
            assert_eq!(answer.tag(), "effect", "{op} {name}");
            assert_eq!(answer.at(1), "1", "names the position");
            let good = lab.key("data:good");
            let good: Option<i64> = lab.redis(&["GET", &good]);
            assert_eq!((good, lab.count("done")), (None, 0));
        }
        lab.assert_clean();
    });
}

/// Several effects on one key in one call are judged one after the other.
#[test]
fn effects_see_the_ones_before_them() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1"]);
        let effects = [(0, "SET", "k", "9007199254740990", ""), (0, "INCRBY", "k", "9", "")];
        let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d")], &effects);
        assert_eq!(lab.send(&call).tag(), "effect");
        let effects = [(0, "SET", "k", "5", ""), (0, "INCRBY", "k", "2", "")];
        let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d")], &effects);
        assert_eq!(lab.send(&call).tag(), "ok");
        let k = lab.key("data:k");
        let k: i64 = lab.redis(&["GET", &k]);
        assert_eq!(k, 7);
    });
}

/// ⚑ Names and fields that meet when they are joined by some sign are still two.
#[test]
fn effects_on_different_keys_and_fields_never_meet() {
    let rule = "local known, slot = numbers[key], rule[1] == 'hash' and a or 1";
    let joined = "numbers.all = numbers.all or {}
    local known, slot = numbers.all, rule[1] == 'hash' and key .. '\\0' .. a or key";
    proves("settle", rule, joined, |lab| {
        let stamp = claimed(lab, &["1"]);
        // As text, `k\0a` + `b` and `k` + `a\0b` are the same.
        let text = lab.key("data:k\0a");
        let () = lab.redis(&["HSET", &text, "b", "no number"]);
        let effects = [
            (0, "INCRBY", "n", "1", ""),
            (0, "HSET", "k", "a\0b", "5"),
            (0, "HINCRBY", "k\0a", "b", "1"),
        ];
        let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d")], &effects);
        lab.send(&call).tag() == "effect"
    });
}

/// ⚑ Should an effect fail after all, the call is not refused: it would be repeated, and what came before
/// the failure would happen again. The message fails instead, once.
#[test]
fn a_half_done_call_is_never_repeated() {
    let check = "if kind ~= 'none' and kind ~= rule[1] and op ~= 'SET' then";
    on_each_server(|lab| {
        lab.rules = crate::rules::Rules::all().without("settle", check, "if false then");
        let stamp = claimed(lab, &["1", "2"]);
        let text = lab.key("data:text");
        let () = lab.redis(&["SET", &text, "x"]);
        let effects = [
            (0, "INCRBY", "n", "1", ""),
            (0, "RPUSH", "text", "y", ""),
            (0, "INCRBY", "n", "1", ""),
            (1, "INCRBY", "n", "10", ""),
        ];
        let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d"), (1, "d")], &effects);
        assert_eq!(lab.send(&call), "ok");
        assert_eq!(lab.send(&call), "already");
        let n = lab.key("data:n");
        assert_eq!(lab.redis::<i64>(&["GET", &n]), 11, "what came after it did not happen");
        assert_eq!((lab.count("done"), lab.count("failed")), (1, 1));
        lab.assert_clean();
    });
}

#[test]
fn an_effect_without_the_right_to_it_leaves_no_trace() {
    on_each_server(|lab| {
        let stamp = claimed(lab, &["1"]);
        let user = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-sadd"];
        let () = lab.redis(&user);
        let () = lab.redis(&["AUTH", "limited", "secret"]);
        let call = lab.settle_call("w", 1, &stamp, "0", &[(0, "d")], &[(0, "SADD", "s", "m", "")]);
        let answer = lab.send(&call);
        assert_eq!(answer.tag(), "effect");
        assert!(answer.at(2).contains("no right to SADD"));
        assert_eq!(lab.count("done"), 0);
    });
}

/// A generator `gen`, a worker `w` that holds these messages as its block 1; the block's stamp.
fn claimed(lab: &mut Lab, payloads: &[&str]) -> String {
    lab.leader_with("gen", payloads);
    lab.join("w");
    let block = lab.fetch("w", 1, 100, NOBODY);
    assert_eq!(block.messages().len(), payloads.len());
    block.at(1).to_owned()
}
