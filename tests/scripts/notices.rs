//! The common log: each script writes what it decided, once, and nothing depends on it.

use std::collections::BTreeMap;

use crate::lab::{Lab, on_each_server};

type Fields = BTreeMap<String, String>;

impl Lab {
    fn noted(&mut self) -> Vec<Fields> {
        let key = self.key("notices");
        let entries: Vec<(String, Vec<String>)> = self.redis(&["XRANGE", &key, "-", "+"]);
        let fields = |(_, fields): (String, Vec<String>)| {
            fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        };
        entries.into_iter().map(fields).collect()
    }

    fn kinds(&mut self) -> Vec<String> {
        self.noted().into_iter().map(|entry| entry["kind"].clone()).collect()
    }

    /// This member was heard of so many ms ago, and its time is up.
    fn silence(&mut self, id: &str, ms: u64) {
        let (members, now) = (self.key("members"), self.now_ms());
        let () = self.redis(&["ZADD", &members, &(now - ms).to_string(), id]);
        let watch = self.key("watch");
        let () = self.redis(&["HSET", &watch, "calm", "0", "looked", &(now - 100).to_string()]);
    }
}

/// A member dies, another one is elected: the log says who, under which term, and for how long nobody led.
#[test]
fn an_election_is_noted_with_its_reason_and_its_gap() {
    on_each_server(|lab| {
        for id in ["a", "b"] {
            lab.join(id);
        }
        let first = lab.acquire("a").at(1).to_owned();
        let lease = 1000;
        lab.silence("a", 500);
        let members = lab.key("members");
        let heard = lab.redis::<u64>(&["ZSCORE", &members, "a"]) - lease;
        assert_eq!(lab.look("b", lease, 300).messages(), ["a"]);
        let won = lab.acquire("b");
        let noted = lab.noted();
        assert_eq!(lab.kinds(), ["joined", "joined", "elected", "died", "elected"]);
        assert_eq!((&*noted[2]["why"], &*noted[2]["gap_ms"]), ("first", ""));
        let died = &noted[3];
        assert_eq!((&*died["member"], &*died["role"], &*died["term"]), ("a", "generator", &*first));
        let elected = &noted[4];
        assert_eq!((&*elected["member"], &*elected["term"]), ("b", won.at(1)));
        assert_eq!((&*elected["why"], &*elected["from"]), ("died", "a"));
        let gap: u64 = elected["gap_ms"].parse().expect("a number");
        let now: u64 = won.at(2).parse().expect("a time");
        assert_eq!(now - heard, gap);
        assert_eq!(won.at(6), elected["gap_ms"]);
    });
}

/// What a leader does itself is noted as such; the gap is from then on.
#[test]
fn a_leader_that_leaves_or_resigns_says_so() {
    on_each_server(|lab| {
        for id in ["a", "b", "c"] {
            lab.join(id);
        }
        let term = lab.acquire("a").at(1).to_owned();
        let resign = lab.resign_call("a", &term);
        assert_eq!(lab.send(&resign), "ok");
        assert_eq!(lab.send(&resign), "fenced", "a repeat notes nothing");
        lab.acquire("b");
        let leave = lab.leave_call("b");
        assert_eq!(lab.send(&leave), "ok");
        assert_eq!(lab.send(&leave), "gone", "a repeat notes nothing");
        lab.acquire("c");
        assert_eq!(
            lab.kinds()[3..],
            ["elected", "resigned", "elected", "left", "elected"].map(str::to_owned)
        );
        let noted = lab.noted();
        assert_eq!((&*noted[5]["why"], &*noted[5]["from"]), ("resigned", "a"));
        assert_eq!((&*noted[6]["role"], &*noted[6]["open"]), ("generator", "0"));
        assert_eq!((&*noted[7]["why"], &*noted[7]["from"]), ("left", "b"));
        // Nobody is missed while it leads.
        lab.acquire("c");
        assert_eq!(lab.noted()[8]["why"], "again");
    });
}

/// A process writes what it saw once, even if the answer was lost.
#[test]
fn a_repeated_note_is_one_entry() {
    on_each_server(|lab| {
        let note = lab.late("note", &["notices"], &["n-1", "fenced", "a", "text", "stale"]);
        assert_eq!((lab.send(&note).tag(), lab.send(&note).tag()), ("ok", "already"));
        let next = lab.late("note", &["notices"], &["n-2", "fenced", "a", "text", "stale"]);
        assert_eq!(lab.send(&next), "ok");
        assert_eq!(lab.kinds(), ["fenced", "fenced"]);
    });
}

/// A week, and about 10,000 entries.
#[test]
fn the_log_is_bounded_by_count_and_by_age() {
    on_each_server(|lab| {
        let key = lab.key("notices");
        let week_ago = lab.now_ms() - 7 * 86_400_000;
        for ms in [week_ago - 1000, week_ago + 600_000] {
            let () = lab.redis(&["XADD", &key, &format!("{ms}-0"), "kind", "old"]);
        }
        let note = |n: u32| ["note".to_owned(), n.to_string()].join("-");
        let late = lab.late("note", &["notices"], &[&note(0), "new", "a"]);
        lab.send(&late);
        assert_eq!(lab.kinds(), ["old", "new"], "one was too old");
        let fill = "for i = 1, 20000 do redis.call('XADD', KEYS[1], '*', 'kind', 'x') end";
        let () = lab.redis(&["EVAL", fill, "1", &key]);
        let late = lab.late("note", &["notices"], &[&note(1), "last", "a"]);
        lab.send(&late);
        let length: u64 = lab.redis(&["XLEN", &key]);
        assert!((10_000..10_200).contains(&length), "{length}");
    });
}

/// Nothing depends on the log: not if it is something else, and not if it may not be written.
#[test]
fn a_log_that_cannot_be_written_hinders_nobody() {
    on_each_server(|lab| {
        let key = lab.key("notices");
        let () = lab.redis(&["SET", &key, "text"]);
        for id in ["a", "b"] {
            assert_eq!(lab.join(id), "ok");
        }
        assert_eq!(lab.acquire("a"), "won");
        lab.silence("a", 500);
        assert_eq!(lab.look("b", 1000, 300).messages(), ["a"]);
        assert_eq!(lab.acquire("b"), "won");
        let drop = lab.late("drop", &["errors", "counts", "notices"], &["ops", "1-1"]);
        assert_eq!(lab.send(&drop), "ok");
        let leave = lab.leave_call("b");
        assert_eq!(lab.send(&leave), "ok");
        let note = lab.late("note", &["notices"], &["n-1", "fenced", "a"]);
        assert_eq!(lab.send(&note), "ok");
        assert_eq!(lab.redis::<String>(&["GET", &key]), "text");
    });
}

/// Whoever removes a thousand errors one by one leaves one entry, with a sum.
#[test]
fn what_an_operator_does_again_and_again_is_one_entry() {
    on_each_server(|lab| {
        for _ in 0..5 {
            let errors = lab.key("errors");
            let at: String = lab.redis(&["XADD", &errors, "*", "m", "x", "e", "{}"]);
            let drop = lab.late("drop", &["errors", "counts", "notices"], &["ops", &at]);
            assert_eq!(lab.send(&drop).0, ["ok", "1"]);
            assert_eq!(lab.send(&drop).0, ["ok", "0"], "a repeat");
        }
        let noted = lab.noted();
        assert_eq!(noted.len(), 1, "{noted:?}");
        assert_eq!((&*noted[0]["count"], &*noted[0]["by"]), ("5", "ops"));
    });
}
