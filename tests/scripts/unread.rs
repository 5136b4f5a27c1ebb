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

/// Many at once were too much for the link: nothing is known of any of them.
#[test]
fn what_came_with_others_goes_back_to_the_head_of_its_lane_and_is_not_blamed() {
    proves("unread", "  if #found == 1 then\n", "  if true then\n", |lab| {
        let term = lab.leader_with("gen", &["1", "2"]);
        lab.join("w");
        assert_eq!(lab.fetch("w", 1, 10, NOBODY), "ok");
        let unread = lab.unread_call("w", 1, 1);
        let said = lab.send(&unread).0;
        let many = ["ok", "1", &format!("{term}-2"), "many", &format!("{term}-1"), "many"];
        let lane = lab.lane("generated");
        let unread = lab.key("unread");
        said == many
            && lane[0].contains("-1|1|")
            && lane[1].contains("-2|1|")
            && lab.redis::<i64>(&["EXISTS", &unread]) == 0
    });
}

/// One by one it is known which is too large: that goes to the end, uncounted, so that others come first.
#[test]
fn what_cannot_be_read_alone_goes_to_the_end_of_its_lane_uncounted() {
    on_each_server(|lab| {
        let term = lab.leader_with("gen", &["1", "2"]);
        lab.join("w");
        lab.fetch("w", 1, 1, NOBODY);
        let unread = lab.unread_call("w", 1, 1);
        assert_eq!(lab.send(&unread).0, ["ok", "1", &format!("{term}-1"), "back"]);
        let lane = lab.lane("generated");
        assert!(lane[0].contains("-2|1|") && lane[1].contains("-1|1|"), "{lane:?}");
        assert_eq!((lab.count("claimed"), lab.count("returned")), (0, 0));
        lab.assert_clean();
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
        assert_eq!(lab.send(&again).0, ["ok", "2", &id, "again"]);
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

/// ⚑ A fleet of fewer workers than that does not pass it round for ever.
#[test]
fn a_message_that_one_worker_cannot_read_again_and_again_is_failed() {
    proves("unread", " and tries < tonumber(ARGV[5])", "", |lab| {
        lab.leader_with("gen", &["large"]);
        lab.join("w");
        for n in 1..=6 {
            if lab.fetch("w", n, 1, NOBODY) != "ok" {
                return false;
            }
            let unread = lab.unread_call("w", n, 1);
            lab.send(&unread);
        }
        let unread = lab.key("unread");
        lab.assert_clean();
        lab.count("failed") == 1 && lab.redis::<i64>(&["EXISTS", &unread]) == 0
    });
}

/// Given back by one, and then its next workers die over it: nothing is remembered of it.
#[test]
fn what_fails_otherwise_is_forgotten() {
    proves("adopt", "  redis.call('HDEL', KEYS[24], id)\n", "", |lab| {
        lab.leader_with("gen", &["1"]);
        gives_up(lab, "w0");
        for worker in ["w1", "w2", "w3"] {
            lab.join(worker);
            lab.fetch(worker, 1, 1, NOBODY);
            lab.reap(worker);
            let adopt = lab.adopt_call("gen", worker, 1, 100);
            lab.send(&adopt);
        }
        let unread = lab.key("unread");
        lab.count("failed") == 1 && lab.redis::<i64>(&["EXISTS", &unread]) == 0
    });
}

/// ⚑ The fetch that was given up arrives late: it must open nothing.
#[test]
fn a_fetch_that_was_given_up_opens_nothing() {
    let rule = "redis.call('HSET', KEYS[19], 'hi', whole(hi))";
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
    proves("unread", "local last = n + blocks - 1", "local last = n", |lab| {
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
