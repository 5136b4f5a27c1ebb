//! Every mutating script, in a story that uses them all: repeated at once, as after a lost reply, it
//! changes nothing more; sent again later, after newer calls, it is refused or harmless.

use std::collections::BTreeSet;

use artel_rig::Snapshot;
use serde_json::{Value as Json, json};

use crate::job_calls::envelope;
use crate::lab::{Answer, Lab, Late, NOBODY, on_each_server};

struct Story<'a> {
    lab: &'a mut Lab,
    sent: Vec<Late>,
    after_each: fn(&mut Lab, &Late, &Answer),
}

impl Story<'_> {
    fn tell(&mut self, call: Late) -> Answer {
        let answer = self.lab.send(&call);
        (self.after_each)(self.lab, &call, &answer);
        self.lab.assert_clean();
        self.sent.push(call);
        answer
    }

    /// Uses every script, with every kind of effect on the messages.
    fn run(&mut self) {
        for id in ["gen", "w1", "w2"] {
            let join = self.lab.join_call(id);
            assert_eq!(self.tell(join), "ok");
        }
        let acquire = self.lab.acquire_call("gen");
        self.tell(acquire);
        let lease = self.lab.key("lease");
        let lease: String = self.lab.redis(&["GET", &lease]);
        let term = lease.split_once('|').expect("member|term").1.to_owned();
        let push = self.lab.push_call("gen", &term, 1, &["1", "2", "3", "4", "5", "6"]);
        assert_eq!(self.tell(push), "ok");
        let beat = self.lab.heartbeat_call("w1", "0", "0");
        assert_eq!(self.tell(beat), "ok");
        let fetch = self.lab.fetch_call("w1", 1, 4, NOBODY);
        let block = self.tell(fetch);
        let part = self.lab.settle_call(
            "w1",
            1,
            block.at(1),
            "-",
            &[(0, "d")],
            &[(0, "INCRBY", "n", "1", "")],
        );
        assert_eq!(self.tell(part), "ok");
        let back = self.lab.give_back_call("w1", 1, block.at(1), &[3]);
        assert_eq!(self.tell(back), "ok");
        let close = self.lab.settle_call("w1", 1, block.at(1), "1", &[(1, "f")], &[]);
        assert_eq!(self.tell(close), "ok");
        let position = self.lab.stored().remove(0);
        let take = self.lab.take_call("t", "");
        assert_eq!(self.tell(take), "ok");
        let drop = self.lab.late("drop", &["errors", "counts", "notices"], &["ops", &position]);
        assert_eq!(self.tell(drop).0, ["ok", "0"], "it is being taken");
        let disown = self.lab.late("disown", &["members", "orphans", "blocks:w1"], &["gen", "w1"]);
        assert_eq!(self.tell(disown), "already");
        let fetch = self.lab.fetch_call("w2", 1, 2, NOBODY);
        assert_eq!(self.tell(fetch), "ok");
        self.lab.reap("w2");
        let adopt = self.lab.adopt_call("gen", "w2", 1, 100);
        assert_eq!(self.tell(adopt), "ok");
        let forget = self.lab.forget_call("gen", "w2");
        assert_eq!(self.tell(forget), "ok");
        let burn = self.lab.fetch_call("w1", 2, 0, NOBODY);
        assert_eq!(self.tell(burn), "burnt");
        self.run_jobs(&term);
        let leave = self.lab.leave_call("w1");
        assert_eq!(self.tell(leave), "ok");
        let resign = self.lab.resign_call("gen", &term);
        assert_eq!(self.tell(resign), "ok");
    }

    /// Messages with times and duties.
    fn run_jobs(&mut self, term: &str) {
        let ms = self.lab.now_ms();
        let new = |n: u64, headers: Json, due: &str| {
            (envelope('h', &format!("sj-{n}"), ms, &headers, "x"), due.to_owned())
        };
        let all = [
            new(1, json!({"key": "o/1"}), ""),
            new(2, json!({"key": "o/1"}), ""),
            new(3, Json::Null, "+3600000"),
            new(4, json!({"children": 1, "result": 60_000}), ""),
            new(5, json!({"parent": "sj-4"}), ""),
            new(6, json!({"kind": "k"}), "+3600000"),
        ];
        let post = self.lab.post_call("j", 1, &all, None);
        assert_eq!(self.tell(post), "ok");
        for (id, what) in [("sj-3", "now"), ("sj-6", "cancel")] {
            let known = self.lab.due(id).expect("it is scheduled");
            let alter = self.lab.alter_call(id, &known, what);
            assert_eq!(self.tell(alter), "ok");
        }
        let fetch = self.lab.fetch_from(
            &["lane:high", "lane:low", "lane:normal", "lane:generated"],
            "w1",
            3,
            3,
            NOBODY,
            1,
        );
        let block = self.tell(fetch);
        assert_eq!(block, "ok");
        let named: Vec<(u64, &str, String)> = (0..block.messages().len() as u64)
            .map(|at| (at, if at == 0 { "r" } else { "d" }, "0".to_owned()))
            .collect();
        let then = (1, "then", envelope('n', "fw1-3-1-1", ms, &Json::Null, "x"), String::new());
        let settle = self.lab.settle_jobs_call("w1", 3, block.at(1), "0", &named, &[then]);
        assert_eq!(self.tell(settle), "ok");
        let promote = self.lab.promote_call("w1", 100, 1);
        assert_eq!(self.tell(promote), "ok");
        let set = self.lab.cron_set_call("tick", "{}", "0");
        let rev = self.tell(set).at(1).to_owned();
        let fired = self.lab.key("fired");
        let last: String = self.lab.redis(&["HGET", &fired, "tick"]);
        let due = (last.parse::<u64>().expect("a time") + 1).to_string();
        artel_rig::eventually("the next ms", || self.lab.now_ms() > due.parse().expect("a time"));
        let message =
            envelope('n', &format!("ctick-{due}"), ms, &json!({"unique": "cron:tick"}), "");
        let fire = self.lab.fire_call(("gen", term), ("tick", &rev), &last, &due, &message);
        assert_eq!(self.tell(fire), "ok");
    }
}

/// Scripts whose repeats and late copies are another test's story.
const ELSEWHERE: [(&str, &str); 28] = [
    ("alert_step", "alerts::a_step_whose_reply_is_lost_is_not_taken_twice"),
    ("alert_told", "alerts::a_step_whose_reply_is_lost_is_not_taken_twice"),
    ("note", "notices::a_repeated_note_is_one_entry"),
    ("control_set", "jobs::a_late_order_is_not_followed"),
    ("send", "sending::a_repeated_batch_is_added_once"),
    ("enroll", "sending::enrolling_twice_changes_nothing"),
    ("requeue", "sending::a_record_is_put_back_once"),
    ("pick", "sending::picked_records_are_in_the_drain_and_nowhere_else"),
    ("restore", "sending::a_drain_that_is_put_back_loses_nothing"),
    ("confirm", "errors::a_page_is_deleted_once_and_the_drain_with_its_last_record"),
    ("unread", "unread::a_late_copy_of_giving_up_takes_nothing_away"),
    ("mark", "repeats::a_mark_may_be_written_again"),
    ("enlist", "membership::a_server_is_listed_once_with_what_it_had_first"),
    ("look", "membership::a_dead_member_is_reaped_after_the_grace_and_becomes_an_orphan"),
    ("open", "membership::another_protocol_is_refused_by_everything_that_joins_opens_or_adds"),
    ("remove", "state::a_late_copy_removes_nothing_of_a_new_fleet"),
    ("event_set", "tenures::a_repeated_set_is_one_set"),
    ("event_clear", "tenures::a_late_clear_does_not_clear_the_next_set"),
    ("event_take", "state::an_event_is_taken_once"),
    ("guarded", "tenures::a_stale_holder_writes_nothing"),
    ("permit_take", "recipes::a_repeated_attempt_takes_one_permit"),
    ("permit_back", "recipes::a_late_attempt_takes_no_permit"),
    ("latch_set", "recipes::a_latch_counts_each_call_once_and_in_its_round"),
    ("latch_down", "recipes::a_latch_counts_each_call_once_and_in_its_round"),
    ("arrive", "recipes::an_arrival_counts_once"),
    ("hold_compare", "recipes::what_was_given_up_is_not_held_after_a_failover"),
    ("withdraw", "recipes::an_arrival_counts_once"),
    ("answer", "repeats::an_answer_is_given_once_and_only_by_a_member"),
];

/// Every script that writes is in the story above, or another test is named that tells its own.
#[test]
fn every_script_has_a_story_of_repeats() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    on_each_server(|lab| {
        let mut story = Story { lab, sent: Vec::new(), after_each: |_, _, _| {} };
        story.run();
        let told: BTreeSet<&str> = story.sent.iter().map(|call| call.script).collect();
        for (name, source) in artel_rig::scripts() {
            let elsewhere = ELSEWHERE.iter().find(|(script, _)| *script == name);
            let reads = source.starts_with("#!lua flags=no-writes");
            let places = usize::from(reads)
                + usize::from(told.contains(name.as_str()))
                + usize::from(elsewhere.is_some());
            assert_eq!(places, 1, "{name}.lua");
            if let Some((file, test)) = elsewhere.and_then(|(_, test)| test.split_once("::")) {
                let text =
                    std::fs::read_to_string(tests.join(format!("{file}.rs"))).expect("a file");
                let there = format!("fn {test}(");
                let uses = [format!("\"{name}\""), format!("{name}_call(")];
                let uses = uses.iter().any(|word| text.contains(word));
                assert!(text.contains(&there) && uses, "{name}.lua: {file}::{test}");
            }
        }
    });
}

/// A mark says nothing, and is gone after a minute.
#[test]
fn a_mark_may_be_written_again() {
    on_each_server(|lab| {
        let mark = lab.late("mark", &["mark"], &["7"]);
        for _ in 0..2 {
            assert_eq!(lab.send(&mark), "ok");
        }
        let key = lab.key("mark");
        let left: i64 = lab.redis(&["PTTL", &key]);
        assert!(0 < left && left <= 60_000, "{left}");
    });
}

/// Numbers for whoever asked: a repeat changes nothing, and the late answer of a dead member is none.
#[test]
fn an_answer_is_given_once_and_only_by_a_member() {
    on_each_server(|lab| {
        lab.join("a");
        let answer = lab.late("answer", &["members", "stats:7"], &["a", "{}", "60000"]);
        for _ in 0..2 {
            assert_eq!(lab.send(&answer), "ok");
        }
        let stats = lab.key("stats:7");
        assert_eq!(lab.redis::<Vec<String>>(&["HGETALL", &stats]), ["a", "{}"]);
        lab.reap("a");
        let () = lab.redis(&["DEL", &stats]);
        assert_eq!(lab.send(&answer), "gone");
        assert_eq!(lab.redis::<u64>(&["EXISTS", &stats]), 0);
    });
}

/// Where every message is, and all counters: what a repeat must not change.
fn state(lab: &mut Lab) -> String {
    let mut snapshot = Snapshot::read(&mut lab.connection, "lab");
    snapshot.members.sort(); // a refresh changes their order
    let mut counts: Vec<_> =
        snapshot.counts.iter().filter(|(name, _)| *name != "pushed_ms").collect();
    counts.sort();
    let n = lab.key("data:n");
    let effect: Option<i64> = lab.redis(&["GET", &n]);
    format!(
        "{:?} {:?} {:?} {:?} {counts:?} {effect:?} {:?} {:?}",
        snapshot.lanes,
        snapshot.blocks,
        snapshot.ledger,
        snapshot.errors,
        snapshot.members,
        snapshot.duties
    )
}

#[test]
fn every_script_is_safe_to_repeat_after_a_lost_reply() {
    on_each_server(|lab| {
        let after_each = |lab: &mut Lab, call: &Late, first: &Answer| {
            let before = state(lab);
            // An acquire repeated grants a new term; the story goes on under that one.
            let second = lab.send(call);
            assert_eq!(state(lab), before, "{} repeated", call.script);
            if call.script == "acquire" {
                assert!(second.at(1) > first.at(1), "always a new term");
            }
        };
        Story { lab, sent: Vec::new(), after_each }.run();
    });
}

#[test]
fn every_late_copy_is_refused_or_harmless() {
    on_each_server(|lab| {
        let mut story = Story { lab, sent: Vec::new(), after_each: |_, _, _| {} };
        story.run();
        let sent = story.sent;
        for late in &sent {
            let _ = lab.send(late);
            lab.assert_clean();
        }
        // And once more in the other order, with the ghosts that late joins made judged dead.
        for ghost in ["w1", "w2", "gen"] {
            lab.reap(ghost);
        }
        for late in sent.iter().rev() {
            let _ = lab.send(late);
            lab.assert_clean();
        }
    });
}
