//! Every mutating script, in a story that uses them all: repeated at once, as after a lost reply, it
//! changes nothing more; sent again later, after newer calls, it is refused or harmless.

use artel_testkit::Snapshot;

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
        let take = self.lab.take_call("t", "");
        assert_eq!(self.tell(take), "ok");
        let fetch = self.lab.fetch_call("w2", 1, 2, NOBODY);
        assert_eq!(self.tell(fetch), "ok");
        self.lab.reap("w2");
        let adopt = self.lab.adopt_call("gen", "w2", 1, 100);
        assert_eq!(self.tell(adopt), "ok");
        let burn = self.lab.fetch_call("w1", 2, 0, NOBODY);
        assert_eq!(self.tell(burn), "burnt");
        let leave = self.lab.leave_call("w1");
        assert_eq!(self.tell(leave), "ok");
        let resign = self.lab.resign_call("gen", &term);
        assert_eq!(self.tell(resign), "ok");
    }
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
        "{:?} {:?} {:?} {:?} {counts:?} {effect:?} {:?}",
        snapshot.lanes, snapshot.blocks, snapshot.ledger, snapshot.errors, snapshot.members
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
