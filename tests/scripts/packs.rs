//! Packs: batches that no script looks into. Each rule is shown to be needed by switching it off.

use artel_rig::{Audit, Snapshot, Taken};

use crate::lab::{Lab, Late, NOBODY, on_each_server, proves};
use crate::pack_calls::places;

/// A fleet without a ledger, whose generator has pushed these payloads as one pack; its term.
pub(super) fn packed(lab: &mut Lab, payloads: &[&str]) -> String {
    for id in ["gen", "w", "x"] {
        let call = lab.join_wanting(id, &[("ledger", "0"), ("backlog_max", "2000")], false);
        assert_eq!(lab.send(&call), "ok");
    }
    let term = lab.acquire("gen").at(1).to_owned();
    let push = lab.push_packed("gen", &term, 1, payloads);
    assert_eq!(lab.send(&push), "ok");
    term
}

/// Is everything in one place, and every count right?
pub(super) fn is_whole(lab: &mut Lab) -> bool {
    let snapshot = Snapshot::try_read(&mut lab.connection, "lab", true).expect("it answers");
    let (waiting, claimed) = (snapshot.waiting() as i64, snapshot.claimed() as i64);
    let all = waiting + claimed + lab.count("done") + lab.count("failed");
    let added = lab.count("generated") + lab.count("sent");
    snapshot.torn.is_empty() && claimed == lab.count("claimed") && all == added
}

fn exists(lab: &mut Lab, name: &str) -> bool {
    let key = lab.key(name);
    lab.redis(&["EXISTS", &key])
}

/// As a worker settles a pack that it read: closing, with these positions failed.
fn settle_failed(lab: &mut Lab, stamp: &str, failed: &[u64], count: u64) -> Late {
    let pack = lab.pack("w", 1).expect("packed");
    let (first, places) = places(&pack);
    let named: Vec<(u64, &str)> = failed.iter().map(|at| (*at, "f")).collect();
    let rest = (count - failed.len() as u64).to_string();
    let mut call = lab.settle_call("w", 1, stamp, &rest, &named, &[]);
    call.name_places(&first, &named, &places);
    call
}

#[test]
fn a_pack_is_pushed_fetched_and_settled_without_being_laid_open() {
    on_each_server(|lab| {
        let term = packed(lab, &["a", "bb", "", "3:x"]);
        assert!(is_whole(lab));
        assert_eq!(lab.lane("generated"), [format!("#{term}-1|4|6|1794710083950|0|0")]);
        let block = lab.fetch("w", 1, 4, NOBODY);
        assert_eq!((block.at(2), block.at(4), block.messages().len()), ("1", "4", 0));
        assert_eq!(
            lab.pack("w", 1).as_deref(),
            Some(&*format!("1g-|{term}-1|1|1794710083950|1:a2:bb0:3:3:x"))
        );
        assert!(is_whole(lab) && !exists(lab, "stage") && !exists(lab, &format!("chunk:{term}-1")));
        // The same again while it is open.
        assert_eq!(lab.fetch("w", 1, 4, NOBODY), block);
        let close = settle_failed(lab, block.at(1), &[1, 3], 4);
        assert_eq!(lab.send(&close).0, ["ok"]);
        assert!(is_whole(lab) && !exists(lab, "pack:w:1") && !exists(lab, "block:w:1"));
        assert_eq!((lab.count("done"), lab.count("failed")), (2, 2));
        let errors = lab.key("errors");
        let records: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &errors, "-", "+"]);
        let records: Vec<&str> = records.iter().map(|(_, fields)| fields[1].as_str()).collect();
        let envelope = |seq: u64, body: &str| format!("1g-|{term}-{seq}|1|1794710083950|{body}");
        assert_eq!(records, [envelope(2, "bb"), envelope(4, "3:x")]);
        assert_eq!(lab.send(&close), "already");
    });
}

/// A message that is larger than a fetch may bring comes alone, and no script looks into it.
#[test]
fn a_large_message_is_a_pack_of_its_own() {
    on_each_server(|lab| {
        let large = "x".repeat(2 << 20);
        let term = packed(lab, &[&large]);
        let block = lab.fetch("w", 1, 10, NOBODY);
        assert_eq!(block.at(4), "1");
        let pack = lab.pack("w", 1).expect("packed");
        assert!(pack.starts_with(&format!("1g-|{term}-1|1|")) && pack.ends_with(&large));
        assert!(is_whole(lab));
    });
}

/// ⚑ Another sender's `SET` between ours and our script would publish its messages under our numbers.
#[test]
fn a_pack_is_added_by_the_transaction_that_staged_it() {
    on_each_server(|lab| {
        let term = packed(lab, &["a"]);
        let (stage, mut push) = (lab.key("stage"), lab.push_packed("gen", &term, 2, &["b", "c"]));
        // Without a stage of its own the script adds nothing, and nothing has happened.
        push.pack = None;
        assert!(lab.try_send(&push).is_err());
        assert!(is_whole(lab) && lab.count("generated") == 1);
        // What a stranger left there is replaced.
        let () = lab.redis(&["SET", &stage, "1g-|9-9|1|9|1:z"]);
        let push = lab.push_packed("gen", &term, 2, &["b", "c"]);
        assert_eq!(lab.send(&push), "ok");
        assert_eq!(lab.send(&push), "already");
        assert!(is_whole(lab) && !exists(lab, "stage"));
    });
}

/// Numbers are refused, repeated and fenced for packs as for single messages.
#[test]
fn a_pack_is_added_once_and_only_by_its_term() {
    on_each_server(|lab| {
        let term = packed(lab, &["a", "b"]);
        let gap = lab.push_packed("gen", &term, 4, &["x"]);
        let stale = lab.push_packed("gen", "9", 3, &["x"]);
        let dead = lab.push_packed("nobody", &term, 3, &["x"]);
        for (call, tag) in [(gap, "gap"), (stale, "fenced"), (dead, "gone")] {
            assert_eq!(lab.send(&call), tag);
            assert!(is_whole(lab) && !exists(lab, "stage"));
        }
        let send = lab.send_packed("s", 1, "low", &["a", "b", "c"]);
        assert_eq!(
            (lab.send(&send).tag().to_owned(), lab.send(&send).tag().to_owned()),
            ("ok".into(), "already".into())
        );
        assert!(is_whole(lab) && lab.count("sent") == 3);
    });
}

/// A chunk counts for all its messages where a lane is bounded.
#[test]
fn a_chunk_counts_for_all_its_messages() {
    proves("push", "if lane + n >", "if redis.call('LLEN', KEYS[4]) + n >", |lab| {
        let term = packed(lab, &["a"; 900]);
        let config = lab.key("config");
        let () = lab.redis(&["HSET", &config, "backlog_max", "1000"]);
        let full = lab.push_packed("gen", &term, 901, &["a"; 101]);
        let fits = lab.push_packed("gen", &term, 901, &["a"; 100]);
        lab.send(&full) == "full" && lab.send(&fits) == "ok" && is_whole(lab)
    });
}

/// A worker that wants fewer gets fewer: a pack if they are many, single messages if not.
#[test]
fn a_chunk_is_cut() {
    on_each_server(|lab| {
        let payloads: Vec<String> = (0..200).map(|n| "x".repeat(n % 5)).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        packed(lab, &payloads);
        let many = lab.fetch("w", 1, 70, NOBODY);
        assert_eq!(many.at(4), "70");
        assert!(is_whole(lab));
        let few = lab.fetch("w", 2, 3, "1");
        assert_eq!((few.at(4), few.messages().len()), ("0", 3));
        assert!(few.messages()[0].contains("-71|1|"), "{:?}", few.messages());
        assert_eq!(
            lab.lane("generated").len(),
            62,
            "the next 64 are laid open, and the reference is behind them"
        );
        assert!(is_whole(lab));
        // A reference behind single messages waits for the next fetch.
        let rest = lab.fetch("x", 1, 1000, NOBODY);
        assert_eq!((rest.at(4), rest.messages().len()), ("0", 61));
        let last = lab.fetch("x", 2, 1000, "1");
        assert_eq!(last.at(4), "66");
        assert!(is_whole(lab) && lab.lane("generated").is_empty());
        assert_eq!(lab.count("extra:generated"), 0);
        let pack = lab.pack("x", 2).expect("packed");
        assert!(pack.contains("-135|1|"), "{pack:.60}");
    });
}

/// ⚑ A block is packed or open, not both.
#[test]
fn a_reference_behind_single_messages_waits() {
    proves(
        "fetch",
        "if #reply > 5 and (is_reference or bytes + #message > bytes_max) then",
        "if #reply > 5 and bytes + #message > bytes_max then",
        |lab| {
            for id in ["gen", "w"] {
                assert_eq!(lab.join(id), "ok");
            }
            let term = lab.acquire("gen").at(1).to_owned();
            lab.push("gen", &term, 1, &["a"]);
            let push = lab.push_packed("gen", &term, 2, &["b", "c"]);
            assert_eq!(lab.send(&push), "ok");
            let block = lab.fetch("w", 1, 10, NOBODY);
            block.at(4) == "0" && block.messages().len() == 1 && is_whole(lab)
        },
    );
}

/// ⚑ A script that looks at single messages lays the pack open, once, and deletes it in the same call.
#[test]
fn a_script_that_needs_single_messages_lays_the_pack_open() {
    for (script, rule, act) in [
        (
            "settle",
            "  lay_open(PACK, BLOCK)\n",
            (|lab: &mut Lab, stamp: &str| lab.settle("w", 1, stamp, "-", &[(1, "d")]) == "ok")
                as fn(&mut Lab, &str) -> bool,
        ),
        ("give_back", "lay_open(KEYS[11], KEYS[10])\n", |lab, stamp| {
            let back = lab.give_back_call("w", 1, stamp, &[0, 2]);
            lab.send(&back) == "ok"
        }),
        ("adopt", "  if block then lay_open(KEYS[i + 1], KEYS[i]) end\n", |lab, _| {
            lab.reap("w");
            let adopt = lab.adopt_call("x", "w", 1, 2);
            lab.send(&adopt) == "ok" && lab.lane("returned").len() == 2
        }),
        ("unread", "    lay_open(KEYS[i == 25 and 24 or i + blocks - 1], KEYS[i])\n", |lab, _| {
            let unread = lab.unread_call("w", 1, 1);
            lab.send(&unread) == "ok" && lab.lane("generated").len() == 3
        }),
    ] {
        proves(script, rule, "", |lab| {
            packed(lab, &["a", "b", "c"]);
            let block = lab.fetch("w", 1, 3, NOBODY);
            assert_eq!(block.at(4), "3");
            act(lab, block.at(1)) && !exists(lab, "pack:w:1") && is_whole(lab)
        });
    }
    proves("adopt", "  redis.call('DEL', pack)\nend\n", "end\n", |lab| {
        packed(lab, &["a", "b", "c"]);
        lab.fetch("w", 1, 3, NOBODY);
        lab.reap("w");
        let adopt = lab.adopt_call("x", "w", 1, 100);
        lab.send(&adopt) == "ok" && is_whole(lab)
    });
}

/// ⚑ With the ledger every message is named, so the pack is laid open.
#[test]
fn a_ledger_has_every_message_of_a_pack() {
    proves("settle", "if not closing or keep ~= '0' then", "if not closing then", |lab| {
        for id in ["gen", "w"] {
            assert_eq!(lab.join(id), "ok");
        }
        let term = lab.acquire("gen").at(1).to_owned();
        let push = lab.push_packed("gen", &term, 1, &["a", "b", "c"]);
        assert_eq!(lab.send(&push), "ok");
        let block = lab.fetch("w", 1, 3, NOBODY);
        assert_eq!(lab.settle("w", 1, block.at(1), "3", &[]), "ok");
        let snapshot = Snapshot::read(&mut lab.connection, "lab");
        Audit::of(&snapshot, Taken::Ids(&[])).problems.is_empty() && snapshot.ledger.len() == 3
    });
}

/// ⚑ A failed message is read from the pack by offset and length, and both are checked: nothing that is not exactly a
/// message is stored as one.
#[test]
fn a_place_must_be_that_of_a_message() {
    on_each_server(|lab| {
        packed(lab, &["aaaaaaaaaaaa", "3:x", "b"]);
        let block = lab.fetch("w", 1, 3, NOBODY);
        let right = settle_failed(lab, block.at(1), &[0], 3);
        let (at, offset) = (10, right.args[10].parse::<u64>().expect("a number"));
        for (offset, length) in [
            (offset + 1, "12"),  // `12:` one byte too far
            (offset + 17, "12"), // `3:x`, a payload that looks like a message
            (offset + 15, "12"), // the next message
            (offset, "11"),
            (offset, "13"),
            (offset, "012"),
            (offset, ""),
            (offset, "1e1"),
            (offset, "-1"),
            (0, "12"),
            (99_999_999, "1"),
        ] {
            let mut wrong = right.clone();
            wrong.args[at] = offset.to_string();
            wrong.args[at + 1] = length.to_owned();
            assert_eq!(lab.send(&wrong), "gap", "{offset} {length}");
        }
        for (index, odd) in
            [(5, "9-9"), (5, ""), (7, "3"), (7, "-1"), (7, "0x0"), (10, ""), (10, "x")]
        {
            let mut wrong = right.clone();
            wrong.args[index] = odd.to_owned();
            assert_eq!(lab.send(&wrong), "gap", "argument {index} is {odd:?}");
        }
        assert!(is_whole(lab) && exists(lab, "pack:w:1"), "nothing has happened");
        assert_eq!(lab.send(&right), "ok");
        assert!(is_whole(lab));
    });
}

/// ⚑ Between the script and the `GET` this member may be judged dead, and its block be adopted.
#[test]
fn a_pack_that_was_adopted_meanwhile_is_nobodys() {
    on_each_server(|lab| {
        packed(lab, &["a", "b"]);
        assert_eq!(lab.fetch("w", 1, 2, NOBODY).at(4), "2");
        lab.reap("w");
        let adopt = lab.adopt_call("x", "w", 1, 100);
        assert_eq!(lab.send(&adopt).0[1..], ["2", "0", "1"]);
        assert_eq!(lab.pack("w", 1), None, "so none of its messages is started");
        assert_eq!(lab.fetch("w", 1, 2, NOBODY), "gone");
        assert!(is_whole(lab));
    });
}

/// Half of a pack is settled when its worker dies: the other half comes back, once.
#[test]
fn what_is_left_of_a_pack_comes_back_once() {
    on_each_server(|lab| {
        packed(lab, &["a"; 1000]);
        let block = lab.fetch("w", 1, 1000, NOBODY);
        assert_eq!(block.at(4), "1000");
        let done: Vec<(u64, &str)> = (0..500).map(|at| (at * 2, "d")).collect();
        assert_eq!(lab.settle("w", 1, block.at(1), "-", &done), "ok");
        lab.reap("w");
        let adopt = lab.adopt_call("x", "w", 1, 100);
        let mut returned = 0;
        while exists(lab, "blocks:w") && lab.count("claimed") > 0 {
            returned += lab.send(&adopt).at(1).parse::<u64>().expect("a number");
            assert!(is_whole(lab));
        }
        assert_eq!((returned, lab.count("done"), lab.lane("returned").len()), (500, 500, 500));
    });
}

/// A chunk that somebody deleted, or cut short, does not block its lane, and what is missing shows in the books.
#[test]
fn a_broken_chunk_blocks_nothing() {
    on_each_server(|lab| {
        for broken in
            ["", "1g", "1g-|9-1|1|9|", "1g-|9-1|1|9|5:x", "1g-|9-1|1|9|x:x", "1g-|9-1|1|9|-1:x"]
        {
            let () = lab.redis(&["FLUSHALL"]);
            let term = packed(lab, &["a", "b"]);
            lab.push("gen", &term, 3, &["c"]);
            let chunk = lab.key(&format!("chunk:{term}-1"));
            let () = match broken {
                "" => lab.redis(&["DEL", &chunk]),
                text => lab.redis(&["SET", &chunk, text]),
            };
            // Wanted whole it is not looked into; cut, it goes out as one message that nobody can read.
            let block = lab.fetch("w", 1, 1, NOBODY);
            assert!(block.messages()[0].starts_with('#'), "{broken:?}: {block:?}");
            assert_eq!(lab.settle("w", 1, block.at(1), "0", &[(0, "f")]), "ok");
            let next = lab.fetch("w", 2, 1, NOBODY);
            assert!(next.messages()[0].ends_with("|c"), "{next:?}");
        }
    });
}

/// A pack that somebody damaged is laid open as far as it can be read; the rest is kept as one failed message.
#[test]
fn a_damaged_pack_keeps_its_bytes() {
    on_each_server(|lab| {
        for (damaged, rest) in [
            ("1g-|9-1|1|9|1:ax:bb", "x:bb"),
            ("junk", "junk"),
            ("1g-|9-1|1|9|", "?"), // a head and no message
            ("", "?"),
        ] {
            let () = lab.redis(&["FLUSHALL"]);
            packed(lab, &["a", "bb"]);
            assert_eq!(lab.fetch("w", 1, 2, NOBODY).at(4), "2");
            let pack = lab.key("pack:w:1");
            let () = lab.redis(&["SET", &pack, damaged]);
            lab.reap("w");
            let adopt = lab.adopt_call("x", "w", 1, 100);
            assert_eq!(lab.send(&adopt).at(2), "1", "{damaged}");
            let errors = lab.key("errors");
            let records: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &errors, "-", "+"]);
            assert_eq!(records[0].1[1], rest);
            assert!(!exists(lab, "pack:w:1") && !exists(lab, "block:w:1"));
        }
        // Of another type it holds up nobody.
        let () = lab.redis(&["FLUSHALL"]);
        packed(lab, &["a", "bb"]);
        lab.fetch("w", 1, 2, NOBODY);
        let pack = lab.key("pack:w:1");
        let () = lab.redis(&["DEL", &pack]);
        let () = lab.redis(&["RPUSH", &pack, "x"]);
        lab.reap("w");
        let adopt = lab.adopt_call("x", "w", 1, 100);
        assert_eq!(lab.send(&adopt).0[1..], ["0", "1", "1"]);
    });
}

/// A user lost a right while the fleet ran: nothing of a pack is added, and no chunk loses its reference.
#[test]
fn a_pack_without_the_right_to_all_of_it_leaves_no_trace() {
    on_each_server(|lab| {
        let term = packed(lab, &["a"; 100]);
        let push = lab.push_packed("gen", &term, 101, &["b", "c"]);
        let send = lab.send_packed("s", 1, "normal", &["d", "e"]);
        let () = lab.redis(&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "&*"]);
        for right in ["set", "rename", "rpush", "hincrby", "hset", "hdel", "getrange", "del"] {
            let () = lab.redis(&["ACL", "SETUSER", "u", &format!("-{right}")]);
            let () = lab.redis(&["AUTH", "u", "x"]);
            let calls = [push.clone(), send.clone(), lab.fetch_call("w", 1, 2, NOBODY)];
            let done: Vec<bool> = calls.iter().map(|call| lab.try_send(call).is_ok()).collect();
            let () = lab.redis(&["AUTH", "default", ""]);
            let () = lab.redis(&["ACL", "SETUSER", "u", "+@all"]);
            assert!(is_whole(lab), "{right}: {done:?}");
        }
        for call in [push, send] {
            let answer = lab.send(&call);
            assert!(answer == "ok" || answer == "already", "{answer:?}");
        }
        assert!(is_whole(lab) && (lab.count("generated"), lab.count("sent")) == (102, 2));
    });
}

/// What somebody deleted by hand does not make a lane full, or longer than it is, for ever.
#[test]
fn a_count_of_chunks_that_are_gone_heals() {
    on_each_server(|lab| {
        let term = packed(lab, &["a"; 100]);
        let (lane, counts) = (lab.key("lane:generated"), lab.key("counts"));
        let () = lab.redis(&["DEL", &lane]);
        let push = lab.push_packed("gen", &term, 101, &["b"; 70]);
        assert_eq!(lab.send(&push), "ok");
        assert_eq!(lab.count("extra:generated"), 69);
        let () = lab.redis(&["HDEL", &counts, "extra:generated"]);
        lab.fetch("w", 1, 100, NOBODY);
        let push = lab.push_packed("gen", &term, 171, &["b"; 70]);
        assert_eq!(lab.send(&push), "ok");
        assert_eq!(lab.count("extra:generated"), 69);
    });
}

#[test]
fn an_odd_reference_is_one_message() {
    on_each_server(|lab| {
        for odd in [
            "#",
            "#|||||",
            "#9-1|0|0|9|0|0",
            "#9-1|1|1|9|1|0",
            "#9-1|99999|1|9|0|0",
            "#9-1|2|9999999999999|9|0|0",
        ] {
            let () = lab.redis(&["FLUSHALL"]);
            let term = packed(lab, &["a"]);
            let lane = lab.key("lane:generated");
            let () = lab.redis(&["LPUSH", &lane, odd]);
            let block = lab.fetch("w", 1, 1, NOBODY);
            assert_eq!(block.messages(), [odd], "{term}");
        }
    });
}

/// An effect that is refused leaves the block packed, and one that is applied needs nothing laid open.
#[test]
fn effects_need_no_single_messages() {
    on_each_server(|lab| {
        packed(lab, &["a", "b", "c"]);
        let block = lab.fetch("w", 1, 3, NOBODY);
        let first = lab.pack("w", 1).map(|pack| places(&pack).0).expect("packed");
        let close = |lab: &Lab, op: &str| {
            let named = [(0, "d"), (1, "d")];
            let effects = [(0, "INCRBY", "n", "2", ""), (1, op, "n", "3", "4")];
            let mut call = lab.settle_call("w", 1, block.at(1), "1", &named, &effects);
            call.args[5] = first.clone();
            call
        };
        let refused = close(lab, "SADD");
        assert_eq!(lab.send(&refused).0[..2], ["effect", "1"]);
        assert!(exists(lab, "pack:w:1") && is_whole(lab));
        let good = close(lab, "INCRBY");
        assert_eq!(lab.send(&good), "ok");
        let n = lab.key("data:n");
        assert_eq!(lab.redis::<String>(&["GET", &n]), "5");
        assert!(is_whole(lab) && lab.count("done") == 3);
    });
}

/// In a full Redis nothing is added, and no stage is left behind.
#[test]
fn a_full_redis_adds_no_pack() {
    on_each_server(|lab| {
        let term = packed(lab, &["a"]);
        let () = lab.redis(&["CONFIG", "SET", "maxmemory", "1"]);
        let push = lab.push_packed("gen", &term, 2, &["b"; 64]);
        let refused = lab.try_send(&push);
        let () = lab.redis(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(refused.is_err());
        assert!(is_whole(lab) && !exists(lab, "stage") && lab.count("generated") == 1);
        assert_eq!(lab.send(&push), "ok");
    });
}
