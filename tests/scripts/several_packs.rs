//! One fetch that brings several packs, each in a block of its own.

use crate::lab::{Answer, Lab, NOBODY, on_each_server, proves};
use crate::packs::{is_whole, packed};

/// Two more packs behind the first one, of two and of three messages.
fn three_packs(lab: &mut Lab) -> String {
    let term = packed(lab, &["a", "b"]);
    for (from, payloads) in [(3, &["c", "d"][..]), (5, &["e", "ff", "ggg"])] {
        let push = lab.push_packed("gen", &term, from, payloads);
        assert_eq!(lab.send(&push), "ok");
    }
    term
}

fn fetch(lab: &mut Lab, n: u64, max: u64, held: &str, blocks: u64) -> Answer {
    let call = lab.fetch_many("w", n, max, held, blocks);
    lab.send(&call)
}

/// The messages in the packs of an answer.
fn counts(answer: &Answer) -> Vec<String> {
    let blocks: usize = answer.at(2).parse().expect("a number");
    (4..4 + blocks).map(|index| answer.at(index).to_owned()).collect()
}

#[test]
fn several_chunks_come_at_once_each_as_a_pack_of_its_own() {
    on_each_server(|lab| {
        let term = three_packs(lab);
        let three = fetch(lab, 1, 10, NOBODY, 8);
        assert_eq!(counts(&three), ["2", "2", "3"]);
        assert!(is_whole(lab) && lab.lane("generated").is_empty());
        assert_eq!(lab.count("extra:generated"), 0);
        // The same again while they are open, also to a copy that comes late.
        assert_eq!(fetch(lab, 1, 10, NOBODY, 8), three);
        for (n, first) in [(1, 1), (2, 3), (3, 5)] {
            let pack = lab.pack("w", n).expect("packed");
            assert!(pack.starts_with(&format!("1g-|{term}-{first}|1|")), "{pack}");
        }
        // Each is settled by itself, and the next number goes on behind the last.
        for (n, count) in [(2, "2"), (1, "2"), (3, "3")] {
            let settle = lab.settle_call("w", n, three.at(1), count, &[], &[]);
            assert_eq!(lab.send(&settle), "ok");
            assert!(is_whole(lab));
        }
        assert_eq!(fetch(lab, 4, 10, NOBODY, 8), "empty");
        assert_eq!(lab.count("done"), 7);
    });
}

#[test]
fn as_many_packs_come_as_are_wanted_and_have_keys() {
    on_each_server(|lab| {
        three_packs(lab);
        assert_eq!(counts(&fetch(lab, 1, 10, NOBODY, 1)), ["2"]);
        assert_eq!(counts(&fetch(lab, 2, 4, "1", 8)), ["2"], "three more would be too many");
        assert_eq!(counts(&fetch(lab, 3, 3, "2", 8)), ["3"]);
        assert!(is_whole(lab));
    });
}

/// ⚑ Not more messages than are wanted.
#[test]
fn packs_do_not_bring_more_than_is_wanted() {
    proves("fetch", "or packed + total > max ", "", |lab| {
        three_packs(lab);
        counts(&fetch(lab, 1, 4, NOBODY, 8)) == ["2", "2"] && is_whole(lab)
    });
}

/// ⚑ A chunk that was cut before is not a whole pack any more.
#[test]
fn a_chunk_that_was_cut_does_not_come_whole() {
    proves("fetch", "or taken ~= '0' or packed", "or packed", |lab| {
        let term = packed(lab, &["x"; 100]);
        assert_eq!(lab.fetch("w", 1, 64, NOBODY).at(4), "64");
        let push = lab.push_packed("gen", &term, 101, &["y", "z"]);
        assert_eq!(lab.send(&push), "ok");
        // By hand: a whole one stands before it.
        let lane = lab.key("lane:generated");
        let _: String = lab.redis(&["LMOVE", &lane, &lane, "RIGHT", "LEFT"]);
        counts(&fetch(lab, 2, 1000, "1", 8)) == ["2"] && is_whole(lab)
    });
}

/// ⚑ What waits is counted: a chunk that leaves its lane takes its messages with it.
#[test]
fn every_pack_leaves_the_count_of_what_waits() {
    proves("fetch", "      extra(lane, total - 1)\n", "", |lab| {
        three_packs(lab);
        counts(&fetch(lab, 1, 10, NOBODY, 8)).len() == 3 && lab.count("extra:generated") == 0
    });
}

/// ⚑ Whoever gives up a fetch gives back all of its packs.
#[test]
fn a_fetch_that_is_given_up_gives_back_every_pack() {
    let rule = "KEYS[i == 25 and 24 or i + blocks - 1]";
    proves("unread", rule, "KEYS[24]", |lab| {
        three_packs(lab);
        let three = fetch(lab, 1, 10, NOBODY, 8);
        assert_eq!(counts(&three).len(), 3);
        let unread = lab.unread_call("w", 1, 8);
        lab.send(&unread) == "ok" && lab.lane("generated").len() == 7 && is_whole(lab)
    });
}
