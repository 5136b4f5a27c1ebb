use crate::lab::{Lab, NOBODY, on_each_server, proves};

#[test]
fn a_push_is_accepted_once() {
    proves(
        "push",
        "if from + math.max(n, 1) - 1 <= last then return 'already' end",
        "last = from - 1",
        |lab| {
            let term = lab.leader_with("a", &["x", "y"]);
            let push = lab.push_call("a", &term, 3, &["z"]);
            lab.send(&push);
            lab.send(&push);
            lab.lane("generated").len() == 3
        },
    );
}

/// ⚑ A number once sent is bound to its bytes: other bytes under it are not accepted, and whoever
/// sent them is told that the number is taken, so they would be lost without a word.
#[test]
fn a_number_with_other_bytes_is_never_accepted() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["x"]);
        assert_eq!(lab.push("a", &term, 1, &["other"]), "already");
        assert!(lab.lane("generated")[0].ends_with("|x"));
    });
}

#[test]
fn missing_numbers_are_noticed() {
    proves("push", "if from ~= last + 1 then return 'gap' end", "", |lab| {
        let term = lab.leader_with("a", &["x"]);
        lab.push("a", &term, 3, &["z"]) == "gap"
    });
}

#[test]
fn lost_numbers_are_noticed() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["x"]);
        let last = lab.key("last");
        let () = lab.redis(&["DEL", &last]);
        assert_eq!(lab.push("a", &term, 2, &["y"]), "gap");
    });
}

#[test]
fn a_full_backlog_takes_nothing_and_uses_no_number() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1", "2", "3"]);
        lab.limit_backlog("4");
        let push = lab.push_call("a", &term, 4, &["4", "5"]);
        assert_eq!(lab.send(&push), "full");
        assert_eq!(lab.lane("generated").len(), 3, "all or nothing");
        lab.join("w");
        lab.fetch("w", 1, 2, NOBODY);
        assert_eq!(lab.send(&push), "ok");
        lab.assert_clean();
    });
}

#[test]
fn messages_are_claimed_in_order_by_one_worker_each() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        lab.join("w1");
        lab.join("w2");
        let one = lab.fetch("w1", 1, 2, NOBODY);
        let two = lab.fetch("w2", 1, 2, NOBODY);
        assert!(one.messages()[0].ends_with("|1") && one.messages()[1].ends_with("|2"));
        assert!(two.messages()[0].ends_with("|3") && two.messages().len() == 1);
        assert_eq!(lab.fetch("w1", 2, 2, "1"), "empty");
        assert_eq!(lab.count("claimed"), 3);
        lab.assert_clean();
    });
}

#[test]
fn a_repeated_fetch_returns_the_same_block() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        lab.join("w");
        let fetch = lab.fetch_call("w", 1, 2, NOBODY);
        assert_eq!(lab.send(&fetch), lab.send(&fetch));
        assert_eq!(lab.count("claimed"), 2);
    });
}

/// ⚑ A late copy of a fetch whose block is closed takes nothing.
#[test]
fn a_late_fetch_of_a_closed_block_takes_nothing() {
    proves(
        "fetch",
        "if n <= hi and not open then return 'closed' end",
        "if n <= hi and not open then hi = n - 1 end",
        |lab| {
            lab.leader_with("gen", &["1", "2"]);
            lab.join("w");
            let fetch = lab.fetch_call("w", 1, 1, NOBODY);
            let block = lab.send(&fetch);
            lab.settle("w", 1, block.at(1), "1", &[]);
            lab.try_send(&fetch).is_ok_and(|answer| answer == "closed")
        },
    );
}

/// ⚑ A block that is open in Redis and unknown to its owner: Redis lost data.
#[test]
fn a_block_nobody_holds_is_noticed() {
    let rule = "if others > tonumber(ARGV[6]) then return 'stray' end";
    proves("fetch", rule, "", |lab| {
        lab.leader_with("gen", &["1", "2"]);
        lab.join("w");
        lab.fetch("w", 1, 1, NOBODY);
        lab.fetch("w", 2, 1, NOBODY) == "stray" && lab.lane("generated").len() == 1
    });
}

/// ⚑ The caller also counts blocks that calls before this one are about to close: one that Redis brought back
/// from an older state would hide behind them.
#[test]
fn a_block_that_came_back_is_noticed_although_another_one_is_closed_with_the_fetch() {
    let rule =
        "if number ~= 'hi' and tonumber(number) < n and not known[number] then return 'stray' end";
    proves("fetch", rule, "", |lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        lab.join("w");
        let first = lab.fetch("w", 1, 1, NOBODY);
        let (stamp, copy) = (first.at(1).to_owned(), lab.copy());
        assert_eq!(lab.settle("w", 1, &stamp, "1", &[]), "ok");
        // Redis goes back to before that; only the worker knows that it is settled.
        lab.put_back(copy);
        let second = lab.fetch_known("w", 2, 1, &[1], 1);
        let second = lab.send(&second).at(1).to_owned();
        lab.settle("w", 2, &second, "1", &[]);
        // As put together before that: block 2 is known, block 1 is not.
        let third = lab.fetch_known("w", 3, 1, &[2], 1);
        lab.send(&third) == "stray"
    });
}

/// ⚑ A fetch for several blocks comes late, after its sender asked again for one: whatever it opened belongs to
/// the sender, who finds it number by number.
#[test]
fn what_a_late_fetch_of_several_blocks_opened_is_found() {
    let rule = "if open then others = others - (hi - n + 1) end";
    proves("fetch", rule, "if open then others = others - 1 end", |lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        lab.join("w");
        let late = lab.fetch_known("w", 1, 10, &[], 3);
        die_with_block(lab, "dead", 3);
        lab.send(&late); // three blocks, and nobody hears of it
        let first = lab.fetch_known("w", 1, 10, &[], 1);
        let first = lab.send(&first);
        if first != "ok" {
            return false;
        }
        assert_eq!((first.at(2), first.messages().len()), ("1", 1));
        let second = lab.fetch_known("w", 2, 10, &[1], 2);
        let second = lab.send(&second);
        assert_eq!((second.at(2), second.messages().len()), ("2", 2));
        lab.assert_clean();
        true
    });
}

#[test]
fn a_number_too_far_ahead_is_noticed() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1"]);
        lab.join("w");
        assert_eq!(lab.fetch("w", 2, 1, NOBODY), "gap");
        assert_eq!(lab.lane("generated").len(), 1);
    });
}

#[test]
fn an_empty_fetch_keeps_its_number_and_a_burnt_one_does_not() {
    on_each_server(|lab| {
        lab.join("w");
        let fetch = lab.fetch_call("w", 1, 5, NOBODY);
        assert_eq!(lab.send(&fetch), "empty");
        assert_eq!(lab.fetch("w", 1, 0, NOBODY), "burnt");
        lab.leader_with("gen", &["1"]);
        assert_eq!(lab.send(&fetch), "closed", "a late copy, after the worker was elected");
        assert_eq!(lab.lane("generated").len(), 1);
    });
}

#[test]
fn a_block_is_bounded_by_bytes_and_never_empty() {
    on_each_server(|lab| {
        let big = "x".repeat(700_000);
        lab.leader_with("gen", &[&big, &big, "small"]);
        lab.join("w");
        assert_eq!(lab.fetch("w", 1, 10, NOBODY).messages().len(), 1, "one of them fits");
        assert_eq!(lab.fetch("w", 2, 10, "1").messages().len(), 2, "the second, and the small one");
        lab.assert_clean();
    });
}

/// ⚑ A message that was returned travels alone: poison must not take innocents with it.
#[test]
fn a_returned_message_travels_alone() {
    let alone = "while #reply - 5 < math.min(max, blocks_max) do";
    proves("fetch", alone, "while #reply - 4 < max do", |lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        die_with_block(lab, "w1", 2);
        lab.join("w2");
        let call = lab.fetch_call("w2", 1, 10, NOBODY);
        // Without a key for it, a second block cannot even be opened.
        lab.try_send(&call).is_ok_and(|first| first.messages().len() == 1)
    });
}

/// Several may come with one fetch, if the caller has room for them, each in a block of its own.
#[test]
fn several_returned_messages_come_in_blocks_of_their_own() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3", "4", "5"]);
        die_with_block(lab, "w1", 5);
        lab.join("w2");
        let fetch = lab.fetch_many("w2", 1, 10, NOBODY, 3);
        let first = lab.send(&fetch);
        assert_eq!((first.at(2), first.at(3), first.messages().len()), ("3", "2", 3));
        assert_eq!(lab.send(&fetch), first, "repeated after a lost reply");
        let stamp = first.at(1).to_owned();
        assert_eq!(lab.settle("w2", 2, &stamp, "1", &[]), "ok");
        assert_eq!(lab.fetch("w2", 3, 1, "2"), "ok", "the third block, once more");
        let rest = lab.fetch_many("w2", 4, 10, "2", 3);
        let rest = lab.send(&rest);
        assert_eq!((rest.at(2), rest.at(3)), ("2", "0"));
        assert_eq!(lab.count("claimed"), 4);
        lab.assert_clean();
        // Only as many as the caller asks for.
        lab.reap("w2");
        let adopt = lab.adopt_all_call("gen", "w2", &[5, 4, 3, 1], 100);
        assert_eq!(lab.send(&adopt).0, ["ok", "4", "0", "4"]);
        assert!(lab.lane("returned")[0].ends_with("|1"), "in order: {:?}", lab.lane("returned"));
        lab.join("w3");
        let fetch = lab.fetch_many("w3", 1, 2, NOBODY, 3);
        // The third attempt: alone.
        assert_eq!(lab.send(&fetch).messages().len(), 1);
        lab.assert_clean();
    });
}

#[test]
fn what_a_dead_worker_held_comes_back_in_order_one_attempt_on() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        die_with_block(lab, "w1", 3);
        let returned = lab.lane("returned");
        let tails: Vec<&str> =
            returned.iter().map(|m| m.rsplit('|').next().unwrap_or("")).collect();
        assert_eq!(tails, ["1", "2", "3"]);
        assert!(returned.iter().all(|message| message.contains("|2|")), "attempt 2: {returned:?}");
        assert_eq!((lab.count("returned"), lab.count("claimed")), (3, 0));
        lab.assert_clean();
    });
}

#[test]
fn adopting_goes_in_chunks_and_is_safe_to_repeat_and_to_race() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3", "4", "5"]);
        lab.join("w1");
        lab.join("heir");
        let block = lab.fetch("w1", 1, 5, NOBODY);
        lab.settle("w1", 1, block.at(1), "-", &[(1, "d")]);
        lab.reap("w1");
        let adopt = lab.adopt_call("heir", "w1", 1, 2);
        let forget = lab.forget_call("heir", "w1");
        for _ in 0..3 {
            assert_eq!(lab.send(&forget), "left");
            assert_eq!(lab.send(&adopt), "ok");
            lab.assert_clean();
        }
        assert_eq!(lab.send(&forget), "ok");
        for late in [&adopt, &forget] {
            assert_eq!(lab.send(late), "already");
        }
        assert_eq!(lab.lane("returned").len(), 4, "the settled one is not put back");
        let tails: Vec<String> =
            lab.lane("returned").iter().map(|m| m[m.len() - 1..].to_owned()).collect();
        assert_eq!(tails, ["1", "3", "4", "5"]);
    });
}

#[test]
fn a_living_member_is_never_adopted() {
    proves("adopt", " or deadline_of(KEYS[1], dead)", "", |lab| {
        lab.leader_with("gen", &["1"]);
        lab.join("w");
        lab.fetch("w", 1, 1, NOBODY);
        let orphans = lab.key("orphans");
        let () = lab.redis(&["SADD", &orphans, "w"]); // as after a late copy of its join
        let adopt = lab.adopt_call("gen", "w", 1, 100);
        lab.send(&adopt) == "already"
    });
    proves("forget", "if deadline_of(KEYS[1], dead) then return 'alive' end", "", |lab| {
        lab.join("gen");
        lab.join("w");
        let orphans = lab.key("orphans");
        let () = lab.redis(&["SADD", &orphans, "w"]);
        let forget = lab.forget_call("gen", "w");
        lab.send(&forget) == "alive"
    });
}

/// A dead member stays an orphan as long as one of its messages is in a block.
#[test]
fn an_orphan_with_messages_is_not_forgotten() {
    let rule = "if redis.call('HLEN', KEYS[3]) > redis.call('HEXISTS', KEYS[3], 'hi') then return 'left' end";
    proves("forget", rule, "", |lab| {
        lab.leader_with("gen", &["1"]);
        lab.join("w");
        lab.fetch("w", 1, 1, NOBODY);
        lab.reap("w");
        let forget = lab.forget_call("gen", "w");
        lab.send(&forget) == "left"
    });
}

#[test]
fn a_message_whose_workers_keep_dying_goes_to_the_error_store() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["poison"]);
        for (worker, n) in [("w1", 1), ("w2", 2), ("w3", 3)] {
            die_with_block(lab, worker, n);
        }
        assert_eq!(lab.lane("returned"), Vec::<String>::new());
        assert_eq!((lab.count("failed"), lab.count("claimed")), (1, 0));
        lab.assert_clean();
    });
}

#[test]
fn what_was_not_started_goes_back_to_the_head_uncounted() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1", "2", "3", "4"]);
        lab.join("w");
        let block = lab.fetch("w", 1, 3, NOBODY);
        let back = lab.give_back_call("w", 1, block.at(1), &[1, 2]);
        assert_eq!(lab.send(&back).at(1), "2");
        assert_eq!(lab.send(&back).at(1), "0", "repeated: nothing more");
        let lane = lab.lane("generated");
        assert!(lane[0].ends_with("|1|1794710083950|2") && lane[1].ends_with("|3"));
        lab.settle("w", 1, block.at(1), "1", &[]);
        assert_eq!(lab.send(&back), "already");
        lab.assert_clean();
    });
}

#[test]
fn what_was_returned_before_is_given_back_to_the_returned() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1"]);
        die_with_block(lab, "w1", 1);
        lab.join("w2");
        let block = lab.fetch("w2", 1, 3, NOBODY);
        let back = lab.give_back_call("w2", 1, block.at(1), &[0]);
        lab.send(&back);
        assert_eq!(lab.lane("returned").len(), 1);
        lab.assert_clean();
    });
}

/// One token at most; and a fetch that leaves messages leaves a token for the next worker.
#[test]
fn workers_are_woken_one_by_one() {
    on_each_server(|lab| {
        let term = lab.leader_with("gen", &["1", "2"]);
        lab.push("gen", &term, 3, &["3"]);
        let wake = lab.key("wake");
        let tokens: u64 = lab.redis(&["LLEN", &wake]);
        assert_eq!(tokens, 1);
        lab.join("w");
        let () = lab.redis(&["DEL", &wake]);
        lab.fetch("w", 1, 1, NOBODY);
        let tokens: u64 = lab.redis(&["LLEN", &wake]);
        assert_eq!(tokens, 1, "two more wait");
        let () = lab.redis(&["DEL", &wake]);
        lab.fetch("w", 2, 9, "1");
        let tokens: u64 = lab.redis(&["LLEN", &wake]);
        assert_eq!(tokens, 0, "nothing waits");
    });
}

#[test]
fn blocks_of_nobody_become_orphans() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["1"]);
        lab.join("w");
        lab.fetch("w", 1, 1, NOBODY);
        let disown = lab.late("disown", &["members", "orphans", "blocks:w"], &["gen", "w"]);
        assert_eq!(lab.send(&disown), "already", "it is alive");
        let members = lab.key("members");
        let () = lab.redis(&["ZREM", &members, "w"]); // somebody deleted it by hand
        assert_eq!(lab.send(&disown), "ok");
        let adopt = lab.adopt_call("gen", "w", 1, 100);
        assert_eq!(lab.send(&adopt).at(1), "1");
        lab.assert_clean();
    });
}

/// Something in the lane that is no message of ours must not stop anybody.
#[test]
fn a_foreign_element_ends_in_the_error_store() {
    on_each_server(|lab| {
        lab.join("gen");
        let lane = lab.key("lane:generated");
        let () = lab.redis(&["RPUSH", &lane, "what is this"]);
        die_with_block(lab, "w", 1);
        assert_eq!(lab.count("failed"), 1);
        lab.join("w2");
        let () = lab.redis(&["RPUSH", &lane, "and this"]);
        let block = lab.fetch("w2", 1, 1, NOBODY);
        assert_eq!(lab.settle("w2", 1, block.at(1), "0", &[(0, "f")]), "ok");
        assert_eq!(lab.count("failed"), 2);
    });
}

/// A worker joins, claims, dies; what it held is put back.
fn die_with_block(lab: &mut Lab, worker: &str, max: u64) {
    lab.join(worker);
    lab.fetch(worker, 1, max, NOBODY);
    lab.reap(worker);
    let adopt = lab.adopt_call("gen", worker, 1, 100);
    assert_eq!(lab.send(&adopt).at(3), "1");
    let forget = lab.forget_call("gen", worker);
    assert_eq!(lab.send(&forget), "ok");
}

/// A user lost a right while the fleet ran: no message leaves its lane for a block that cannot be written.
#[test]
fn a_fetch_without_the_right_to_all_of_it_takes_nothing() {
    let rule = "refusal = denied({{'RPUSH', KEYS[11], ''}, {'LPUSH', KEYS[6], ''}, {'HSET', KEYS[2], 'hi', ''},\n  \
        {'HINCRBY', KEYS[3], 'claimed', '1'}})";
    proves("fetch", rule, "", |lab| {
        lab.leader_with("a", &["1", "2"]);
        let () = lab.redis(&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "&*"]);
        let fetch = lab.fetch_call("a", 1, 2, NOBODY);
        let mut kept = true;
        for right in ["rpush", "hset", "hincrby", "lpush"] {
            let () = lab.redis(&["ACL", "SETUSER", "u", &format!("-{right}")]);
            let () = lab.redis(&["AUTH", "u", "x"]);
            kept &= lab.try_send(&fetch).is_err();
            let () = lab.redis(&["AUTH", "default", ""]);
            let () = lab.redis(&["ACL", "SETUSER", "u", "+@all"]);
            kept &= lab.lane("generated").len() == 2;
        }
        kept && lab.send(&fetch).messages().len() == 2
    });
}
