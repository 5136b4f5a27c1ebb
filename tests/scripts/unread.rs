//! What a worker claimed and cannot read over its link goes back, uncounted, until too many could not.

use crate::lab::{Lab, NOBODY, on_each_server, proves};

/// A worker joins, fetches block 1 and gives it up.
fn gives_up(lab: &mut Lab, worker: &str) -> Vec<String> {
    lab.join(worker);
    assert_eq!(lab.fetch(worker, 1, 10, NOBODY), "ok");
    let unread = lab.unread_call(worker, 1, 1);
    let answer = lab.send(&unread);
    lab.assert_clean();
    answer.0[1..].to_vec()
}

#[test]
fn what_cannot_be_read_goes_back_to_the_head_of_its_lane_uncounted() {
    on_each_server(|lab| {
        let term = lab.leader_with("gen", &["1", "2"]);
        let said = gives_up(lab, "w");
        assert_eq!(said, ["1", &format!("{term}-2"), "back", &format!("{term}-1"), "back"]);
        let lane = lab.lane("generated");
        assert!(lane[0].contains("-1|1|") && lane[1].contains("-2|1|"), "{lane:?}");
        assert_eq!((lab.count("claimed"), lab.count("returned")), (0, 0));
        // It reads them later after all, and nothing is remembered.
        let block = lab.fetch("w", 2, 10, NOBODY);
        assert_eq!(lab.settle("w", 2, block.at(1), "2", &[]), "ok");
        let unread = lab.key("unread");
        assert_eq!(lab.redis::<i64>(&["EXISTS", &unread]), 0);
    });
}

/// ⚑ A worker counts once, however often it tries; the last of several workers fails the message.
#[test]
fn a_message_that_several_workers_cannot_read_is_failed() {
    let rule = "if not known then by = by == '' and me or by .. ' ' .. me end";
    proves("unread", rule, "by = by == '' and me or by .. ' ' .. me", |lab| {
        let term = lab.leader_with("gen", &["large"]);
        let id = format!("{term}-1");
        assert_eq!(gives_up(lab, "w1"), ["1", &id, "back"]);
        // The same one again: it says so only once.
        lab.fetch("w1", 2, 1, NOBODY);
        let again = lab.unread_call("w1", 2, 1);
        let said = lab.send(&again).0;
        assert_eq!(said, ["ok", "2", &id, "again"]);
        if gives_up(lab, "w2") != ["1", &id, "back"] {
            return false;
        }
        let last = gives_up(lab, "w3") == ["1", &id, "failed"];
        let errors = lab.key("errors");
        let stored: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &errors, "-", "+"]);
        last && stored.len() == 1
            && stored[0].1[3].contains("\"cause\":\"unread\"")
            && lab.count("failed") == 1
    });
}

/// ⚑ The fetch that was given up arrives late: it must open nothing.
#[test]
fn a_fetch_that_was_given_up_opens_nothing() {
    let rule = "redis.call('HSET', KEYS[2], 'hi', reply[2])";
    proves("unread", rule, "", |lab| {
        lab.leader_with("gen", &["1"]);
        lab.join("w");
        let fetch = lab.fetch_call("w", 1, 10, NOBODY);
        let unread = lab.unread_call("w", 1, 1);
        assert_eq!(lab.send(&unread).0, ["ok", "1"]);
        lab.send(&fetch) == "closed"
    });
}

/// ⚑ A fetch of several blocks brought one and was given up. A late copy of giving up must not find a
/// block that was opened since.
#[test]
fn a_late_copy_of_giving_up_takes_nothing_away() {
    proves("unread", "n + #KEYS - 14)", "n)", |lab| {
        lab.leader_with("gen", &["1", "2", "3"]);
        lab.join("w");
        let fetch = lab.fetch_many("w", 1, 1, NOBODY, 3);
        lab.send(&fetch);
        let unread = lab.unread_call("w", 1, 3);
        let next = lab.send(&unread).at(1).parse::<u64>().expect("a number") + 1;
        assert_eq!(lab.fetch("w", next, 1, NOBODY), "ok");
        lab.send(&unread);
        lab.assert_clean();
        lab.count("claimed") == 1
    });
}
