//! Messages that wait for a time or for others, one rule at a time.

use serde_json::{Value as Json, json};

use crate::job_calls::envelope;
use crate::lab::{Lab, Late, NOBODY, on_each_server, proves};
use crate::rules::Rules;

/// Waits until the clock of Redis has gone on by more than this many ms.
fn wait_ms(lab: &mut Lab, ms: u64) {
    let from = lab.now_ms();
    artel_rig::eventually("the clock of Redis", || lab.now_ms() > from + ms);
}

fn limit(lab: &mut Lab, class: &str, rule: &str) {
    let limits = lab.key("limits");
    let () = lab.redis(&["HSET", &limits, class, rule]);
}

/// Fetches one block of `w` and ends all of its messages with this word.
fn run_all(lab: &mut Lab, n: u64, word: &str) -> Vec<String> {
    let fetched = lab.fetch("w", n, 100, NOBODY);
    if fetched != "ok" {
        return Vec::new();
    }
    let ids = fetched.messages().iter().map(|it| it.split('|').nth(1).expect("an id").to_owned());
    let ids: Vec<String> = ids.collect();
    let named: Vec<(u64, &str, String)> =
        (0..ids.len() as u64).map(|at| (at, word, "0".to_owned())).collect();
    let call = lab.settle_jobs_call("w", n, fetched.at(1), "0", &named, &[]);
    assert_eq!(lab.send(&call), "ok");
    ids
}

/// Waits for a member that knows its kind are counted apart, and no run of them counts as a dead worker.
#[test]
fn waits_snoozes_retries_and_deaths_are_counted_apart() {
    on_each_server(|lab| {
        lab.join("w");
        lab.join("gen");
        lab.post_one("a", 1, &json!({"kind": "k"}), "");
        let mut tries = Vec::new();
        for (n, word) in (1..).zip(["w", "z", "r", "w"]) {
            assert_eq!(run_all(lab, n, word).len(), 1);
            wait_ms(lab, 2);
            lab.promote("w");
            tries.push(lab.lane("normal")[0].split('|').nth(2).expect("its tries").to_owned());
        }
        assert_eq!(tries, ["2.0.0.1", "3.0.1.1", "4.1.1.1", "5.1.1.2"]);
        assert_eq!((lab.count("retried"), lab.count("snoozed")), (1, 3));
        assert_eq!(lab.fetch("w", 5, 1, NOBODY), "ok");
        lab.reap("w");
        let adopt = lab.adopt_call("gen", "w", 5, 100);
        assert_eq!(lab.send(&adopt).at(3), "1");
        assert!(lab.lane("returned")[0].contains("|6.1.1.2|"), "{:?}", lab.lane("returned"));
    });
}

/// ⚑ The limit is 0, A is parked; it becomes 1; B comes before anybody let A in.
#[test]
fn who_comes_joins_the_line_even_if_a_slot_is_free() {
    proves("post", " and not first_of(key)", "", |lab| {
        lab.join("w");
        limit(lab, "v", "-1:0:1");
        let key = json!({"key": "v/1"});
        let first = lab.post_one("a", 1, &key, "");
        limit(lab, "v", "1:0:1");
        lab.post_one("a", 2, &key, "");
        lab.promote("w");
        lab.lane("normal")[0].contains(&first)
    });
}

/// ⚑ Workers cannot read it, and it fails: its slot goes to the next in line.
#[test]
fn a_message_that_nobody_could_read_hands_its_slot_on() {
    let instead = "(string.sub(message, 3, 3) == 's' and with_flag(message, 'k') or message)";
    proves("unread", "finish(message, 'failed', '')", instead, |lab| {
        lab.join("w");
        let key = json!({"key": "o/1"});
        lab.post_one("a", 1, &key, "");
        let second = lab.post_one("a", 2, &key, "");
        for n in 1..=6 {
            assert_eq!(lab.fetch("w", n, 1, NOBODY), "ok");
            let unread = lab.unread_call("w", n, 1);
            assert_eq!(lab.send(&unread), "ok");
        }
        lab.count("failed") == 1 && lab.lane("normal").concat().contains(&second)
    });
}

/// ⚑ A slot comes back when it has rested, and no sooner.
#[test]
fn a_slot_rests_after_the_end_of_its_message() {
    proves("settle_jobs", "  if rest > 0 then", "  if rest > 1e9 then", |lab| {
        lab.join("w");
        limit(lab, "q", "1:50000:0");
        let key = json!({"key": "q"});
        lab.post_one("a", 1, &key, "");
        lab.post_one("a", 2, &key, "");
        assert_eq!(run_all(lab, 1, "d").len(), 1);
        lab.promote("w");
        lab.lane("normal").is_empty()
    });
}

/// ⚑ "Run now" is sent, moved meanwhile, and arrives: it means another time.
#[test]
fn a_late_alteration_is_not_believed() {
    let rule = "if due ~= known then return {'moved', due} end\n";
    proves("alter", rule, "", |lab| {
        lab.join("w");
        let id = lab.post_one("a", 1, &Json::Null, "+60000");
        let known = lab.due(&id).expect("it is scheduled");
        let now = lab.alter_call(&id, &known, "now");
        let later = lab.alter_call(&id, &known, "+90000");
        assert_eq!(lab.send(&later), "ok");
        lab.send(&now) == "moved" && lab.lane("normal").is_empty()
    });
}

/// Ids of one time would be sorted as text: 10 before 9.
#[test]
fn a_batch_for_later_keeps_its_order() {
    proves("post", "ms + number / 1000", "ms", |lab| {
        lab.join("w");
        let ms = lab.now_ms();
        let messages: Vec<(String, String)> = (1..=12)
            .map(|n| {
                (envelope('n', &format!("sa-{n}"), ms, &Json::Null, "x"), (ms + 30).to_string())
            })
            .collect();
        let post = lab.post_call("a", 1, &messages, None);
        assert_eq!(lab.send(&post), "ok");
        artel_rig::eventually("all of them to be due", || {
            lab.promote("w");
            lab.lane("normal").len() == 12
        });
        let came: Vec<String> = lab
            .lane("normal")
            .iter()
            .map(|it| it.split('|').nth(1).unwrap_or("").to_owned())
            .collect();
        came == (1..=12).map(|n| format!("sa-{n}")).collect::<Vec<_>>()
    });
}

/// A tree of 50 levels ends from its leaf to its root, one level at a time.
#[test]
fn no_script_ends_a_message_because_another_one_ended() {
    on_each_server(|lab| {
        lab.join("w");
        let (ms, depth) = (lab.now_ms(), 50);
        let messages: Vec<(String, String)> = (1..=depth)
            .map(|level| {
                let mut headers = json!({});
                if level < depth {
                    headers["children"] = 1.into();
                }
                if level > 1 {
                    headers["parent"] = format!("sa-{}", level - 1).into();
                }
                (envelope('n', &format!("sa-{level}"), ms, &headers, "x"), String::new())
            })
            .collect();
        let post = lab.post_call("a", 1, &messages, None);
        assert_eq!(lab.send(&post), "ok");
        lab.assert_clean();
        for level in (1..=depth).rev() {
            assert_eq!(run_all(lab, depth + 1 - level, "d"), [format!("sa-{level}")]);
        }
        lab.assert_clean();
    });
}

/// A limit that was raised lets a long line in, a bounded number at a time.
#[test]
fn a_raised_limit_lets_a_long_line_in_step_by_step() {
    on_each_server(|lab| {
        lab.join("w");
        limit(lab, "c", "1:0:0");
        let ms = lab.now_ms();
        let messages: Vec<(String, String)> = (1..=400)
            .map(|n| {
                (envelope('n', &format!("sa-{n}"), ms, &json!({"key": "c"}), "x"), String::new())
            })
            .collect();
        let post = lab.post_call("a", 1, &messages, None);
        assert_eq!(lab.send(&post), "ok");
        limit(lab, "c", "500:0:0");
        let (mut before, mut steps) = (1, 0);
        while before < 400 {
            let promote = lab.promote_call("w", 500, 100);
            lab.send(&promote);
            let now = lab.lane("normal").len();
            assert!(now > before && now - before <= 16 * 100, "{before} {now}");
            (before, steps) = (now, steps + 1);
        }
        println!("400 were let in by {steps} calls");
        lab.assert_clean();
    });
}

/// Somebody wrote nonsense beside ours: the others are let go, and a worker gets it to fail it.
#[test]
fn what_nobody_can_read_does_not_stop_what_is_due() {
    on_each_server(|lab| {
        lab.join("w");
        let (scheduled, later) = (lab.key("scheduled"), lab.key("later"));
        for (id, text) in
            [("a", "nonsense"), ("b", "1n-|b|1.2|9|x"), ("c", "1zk|c|1|9|x"), ("d", "")]
        {
            let () = lab.redis(&["ZADD", &scheduled, "1", id]);
            let () = lab.redis(&["HSET", &later, id, text]);
        }
        let () = lab.redis(&["ZADD", &scheduled, "2", "gone"]);
        let () = lab.redis(&["ZADD", &scheduled, "3", "sz-1"]);
        let () = lab.redis(&["HSET", &later, "sz-1", "1hk|sz-1|1|9|2:{}x"]);
        assert_eq!(lab.promote("w").at(1), "6");
        assert_eq!((lab.lane("normal").len(), lab.lane("high").len()), (4, 1));
        assert_eq!(
            lab.redis::<u64>(&["ZCARD", &scheduled]) + lab.redis::<u64>(&["HLEN", &later]),
            0
        );
    });
}

/// A retry of a message that came in a pack, beside others that are done: it alone comes again.
#[test]
fn a_retry_takes_one_message_out_of_a_pack() {
    on_each_server(|lab| {
        lab.join("w");
        let config = lab.key("config");
        let () = lab.redis(&["HSET", &config, "ledger", "0"]);
        let payloads: Vec<String> = (0..100).map(|n| format!("payload {n}")).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let send = lab.send_packed("a", 1, "normal", &payloads);
        assert_eq!(lab.send(&send), "ok");
        let fetched = lab.fetch("w", 1, 100, NOBODY);
        assert_eq!(fetched.at(4), "100");
        let pack = lab.pack("w", 1).expect("a pack");
        let (first, places) = crate::pack_calls::places(&pack);
        let named = [(7, "r", "0".to_owned()), (8, "d", String::new())];
        let then = (8, "then", envelope('l', "fw-1-8-1", 9, &Json::Null, "next"), String::new());
        let mut settle = lab.settle_jobs_call("w", 1, fetched.at(1), "98", &named, &[then]);
        settle.name_places(&first, &[(7, "r"), (8, "d")], &places);
        assert_eq!(lab.send(&settle), "ok");
        let counts = ["done", "retried", "claimed", "sent", "followed"].map(|name| lab.count(name));
        assert_eq!(counts, [99, 1, 0, 101, 1]);
        wait_ms(lab, 1);
        lab.promote("w");
        let lane = lab.lane("normal");
        assert_eq!(lane.len(), 1);
        assert!(
            lane[0].starts_with("1n-|sa-8|2.1.0|") && lane[0].ends_with("|payload 7"),
            "{lane:?}"
        );
        assert_eq!(lab.lane("low").len(), 1);
        assert_eq!(lab.send(&settle), "already");
    });
}

/// An effect fails although all checks passed, so its message fails: what should have followed a success does not follow.
#[test]
fn nothing_follows_an_outcome_whose_effect_failed() {
    on_each_server(|lab| {
        let check = "if kind ~= 'none' and kind ~= rule[1] and op ~= 'SET' then";
        lab.rules = Rules::all().without("settle_jobs", check, "if false then");
        lab.join("w");
        lab.post_one("a", 1, &json!({"kind": "k"}), "");
        let n = lab.key("data:n");
        let () = lab.redis(&["SET", &n, "a text"]);
        let fetched = lab.fetch("w", 1, 1, NOBODY);
        let then = (0, "then", envelope('n', "fw-1-0-1", 9, &Json::Null, "next"), String::new());
        let named = [(0, "d", String::new())];
        let mut settle = lab.settle_jobs_call("w", 1, fetched.at(1), "0", &named, &[then]);
        settle.keys.push(n);
        let effects = settle.args.iter().position(|arg| arg == "then").expect("a part") - 2;
        settle.args[effects] = "1".to_owned();
        let effect = ["0", "SADD", "1", "x", ""].map(str::to_owned);
        settle.args.splice(effects + 1..effects + 1, effect);
        assert_eq!(lab.send(&settle), "ok");
        let counts = ["done", "failed", "followed", "sent"].map(|name| lab.count(name));
        assert_eq!(counts, [0, 1, 0, 1]);
        lab.assert_clean();
    });
}

/// Large messages that are due together are let go a few at a time, and none is read only to be left.
#[test]
fn what_is_due_is_read_within_the_bound_of_bytes() {
    on_each_server(|lab| {
        lab.join("w");
        let (scheduled, later) = (lab.key("scheduled"), lab.key("later"));
        let large = "x".repeat(300_000);
        for n in 0..24 {
            let id = format!("sz-{n:02}");
            let () = lab.redis(&["ZADD", &scheduled, "1", &id]);
            let payload = if n < 5 { "small" } else { large.as_str() };
            let () = lab.redis(&["HSET", &later, &id, &format!("1n-|{id}|1|9|{payload}")]);
        }
        let mut calls = Vec::new();
        while lab.redis::<u64>(&["ZCARD", &scheduled]) > 0 {
            calls.push(lab.promote("w").at(1).to_owned());
        }
        // Four are read at once, until they have a MiB.
        assert_eq!(calls, ["12", "4", "4", "4"]);
    });
}

/// Bad input: nothing is added, and the answer says which one and why.
#[test]
fn what_cannot_be_added_is_refused_whole() {
    on_each_server(|lab| {
        let ms = lab.now_ms();
        let good = envelope('n', "sa-1", ms, &Json::Null, "x");
        let far = (ms + 367 * 86_400_000).to_string();
        let cases = [
            ("nonsense".to_owned(), String::new(), "not an envelope"),
            (envelope('g', "sa-2", ms, &Json::Null, "x"), String::new(), "not an envelope"),
            (format!("1ns|sa-2|1|{ms}|2:{{}}x"), String::new(), "flag and its key differ"),
            (format!("1nk|sa-2|1|{ms}|2:{{}}x"), String::new(), "flag and its key differ"),
            (envelope('n', "sa-2", ms, &json!({"unique": "u"}), "x"), String::new(), "sent alone"),
            (
                envelope('n', "sa-2", ms, &json!({"unique": "u", "parent": "sa-1"}), "x"),
                String::new(),
                "cannot be unique",
            ),
            (
                envelope('n', "sa-2", ms, &json!({"parent": "sa-7"}), "x"),
                String::new(),
                "no more children",
            ),
            (envelope('n', "sa-2", ms, &Json::Null, "x"), far, "366 days"),
        ];
        for (envelope, due, why) in cases {
            let post =
                lab.post_call("a", 1, &[(good.clone(), String::new()), (envelope, due)], None);
            let answer = lab.send(&post);
            assert_eq!((answer.tag(), answer.at(1)), ("refused", "2"), "{answer:?}");
            assert!(answer.at(2).contains(why), "{answer:?}");
        }
        assert_eq!(lab.count("sent"), 0);
        // A time in the past is now.
        let post = lab.post_call("a", 1, &[(good, (ms - 1).to_string())], None);
        assert_eq!(lab.send(&post), "ok");
        assert_eq!(lab.lane("normal").len(), 1);
    });
}

/// A full lane or a full schedule refuses what is new, and never what was accepted.
#[test]
fn bounds_hold_back_only_what_is_new() {
    on_each_server(|lab| {
        lab.join("w");
        lab.limit_backlog("2");
        let key = |n: u64| envelope('n', &format!("sa-{n}"), 9, &Json::Null, "x");
        let post = |lab: &mut Lab, from: u64, due: &str, count: u64| {
            let all: Vec<_> = (from..from + count).map(|n| (key(n), due.to_owned())).collect();
            let call = lab.post_call("a", from, &all, None);
            lab.send(&call)
        };
        let full = post(lab, 1, "+1", 3);
        assert_eq!((full.tag(), full.at(1), full.at(2)), ("full", "scheduled", "2"));
        assert_eq!(post(lab, 1, "+1", 2), "ok");
        let full = post(lab, 3, "", 3);
        assert_eq!((full.tag(), full.at(1)), ("full", "backlog"));
        assert_eq!(post(lab, 3, "", 2), "ok");
        wait_ms(lab, 3);
        lab.promote("w");
        assert_eq!(lab.lane("normal").len(), 4, "what was accepted is let go");
        let fetched = lab.fetch("w", 1, 1, NOBODY);
        let then = (0, "then", envelope('n', "fw-1-0-1", 9, &Json::Null, "next"), String::new());
        let named = [(0, "d", String::new())];
        let settle = lab.settle_jobs_call("w", 1, fetched.at(1), "0", &named, &[then]);
        assert_eq!(lab.send(&settle), "ok", "a follow-up belongs to accepted work");
        lab.assert_clean();
    });
}

/// Who fires an entry: the leader; or anybody while nobody leads.
#[test]
fn an_entry_fires_once_for_each_time_whoever_leads() {
    on_each_server(|lab| {
        for id in ["a", "b"] {
            lab.join(id);
        }
        let set = lab.cron_set_call("tick", "{}", "0");
        let rev = lab.send(&set).at(1).to_owned();
        let fired = lab.key("fired");
        let last: u64 = lab.redis(&["HGET", &fired, "tick"]);
        wait_ms(lab, 20);
        let fire = |lab: &Lab, who: (&str, &str), last: u64, due: u64| -> Late {
            let message = envelope('n', &format!("ctick-{due}"), 9, &json!({"kind": "t"}), "");
            lab.fire_call(who, ("tick", &rev), &last.to_string(), &due.to_string(), &message)
        };
        let (one, two) = (last + 5, last + 10);
        let call = fire(lab, ("a", ""), last, one);
        assert_eq!((lab.send(&call).tag(), lab.send(&call).tag()), ("ok", "already"));
        let late = fire(lab, ("b", ""), last, two);
        assert_eq!(lab.send(&late), "changed", "it does not know that the entry has fired");
        let term = lab.acquire("b").at(1).to_owned();
        let call = fire(lab, ("a", ""), one, two);
        assert_eq!(lab.send(&call), "fenced");
        let call = fire(lab, ("b", &term), one, two);
        assert_eq!(lab.send(&call), "ok");
        let ahead = lab.now_ms() + 60_000;
        let far = fire(lab, ("b", &term), two, ahead);
        assert_eq!(lab.send(&far), "early");
        assert_eq!((lab.count("fired"), lab.count("sent"), lab.lane("normal").len()), (2, 2, 2));
        let remove = lab.cron_set_call("tick", "", &rev);
        assert_eq!(lab.send(&remove), "ok");
        assert_eq!(lab.send(&set), "moved", "a late copy does not make it again");
        lab.assert_clean();
    });
}

/// At most so many entries; those that were removed more than a day ago make room.
#[test]
fn entries_are_bounded() {
    on_each_server(|lab| {
        for n in 0..3 {
            let set = lab.cron_set_call(&format!("e{n}"), "{}", "0");
            assert_eq!(lab.send(&set), "ok");
        }
        let more = lab.cron_set_call("more", "{}", "0");
        assert_eq!(lab.send(&more), "full");
        let crons = lab.key("crons");
        let () = lab.redis(&["HSET", &crons, "e1", "7|"]);
        assert_eq!(lab.send(&more), "ok");
        assert_eq!(lab.redis::<Vec<String>>(&["HKEYS", &crons]).len(), 3);
        // One that was removed just now makes room, too, and keeps its revision.
        let rev: String = lab.redis(&["HGET", &crons, "e0"]);
        let rev = rev.split('|').next().expect("a revision").to_owned();
        let remove = lab.cron_set_call("e0", "", &rev);
        assert_eq!(lab.send(&remove), "ok");
        let again = lab.cron_set_call("again", "{}", "0");
        assert_eq!(lab.send(&again), "ok");
        assert_eq!(lab.redis::<Vec<String>>(&["HKEYS", &crons]).len(), 4);
    });
}

/// An order is given and taken back by whoever knows what holds now; a copy that is too late changes nothing.
#[test]
fn a_late_order_is_not_followed() {
    on_each_server(|lab| {
        lab.join("w");
        let until = (lab.now_ms() + 60_000).to_string();
        let order =
            |lab: &Lab, field: &str, wanted: &str, known: &str, until: &str, member: &str| {
                lab.late(
                    "control_set",
                    &["control", "members", "@0:ctl", "notices"],
                    &[field, wanted, known, until, member, "ops"],
                )
            };
        let pause = order(lab, "all", "now", "", &until, "");
        let paused = lab.send(&pause);
        assert_eq!((paused.tag(), lab.send(&pause).tag()), ("ok", "same"));
        let since = paused.at(1).to_owned();
        let wrong = order(lab, "all", "", "7", &until, "");
        assert_eq!(lab.send(&wrong).0, ["moved", &since]);
        let resume = order(lab, "all", "", &since, &until, "");
        assert_eq!((lab.send(&resume).tag(), lab.send(&resume).tag()), ("ok", "same"));
        let late = order(lab, "all", "now", "", "7", "");
        assert_eq!(lab.send(&late), "late");
        // A late copy of what was done says so: its caller must not believe that nothing happened.
        assert_eq!(lab.send(&pause), "ok");
        assert_eq!(lab.send(&late), "same");
        let since = lab.redis::<String>(&["HGET", &lab.key("control"), "all"]);
        let resume = order(lab, "all", "", &since, &until, "");
        assert_eq!(lab.send(&resume), "ok");
        let drain = order(lab, "drain:w", "now", "", &until, "w");
        assert_eq!(lab.send(&drain), "ok");
        let nobody = order(lab, "drain:x", "now", "", &until, "x");
        assert_eq!(lab.send(&nobody), "absent");
        // It ends with its member.
        let leave = lab.leave_call("w");
        lab.send(&leave);
        let control = lab.key("control");
        assert_eq!(lab.redis::<u64>(&["EXISTS", &control]), 0);
    });
}

/// Somebody gave a key another type: nothing of a call happens, and effects are not repeated with it.
#[test]
fn a_key_of_another_type_refuses_a_settle_before_its_effects() {
    on_each_server(|lab| {
        lab.join("w");
        for n in 1..=3 {
            lab.post_one("a", n, &json!({"kind": "k"}), "");
        }
        let fetched = lab.fetch("w", 1, 3, NOBODY);
        let (later, n) = (lab.key("later"), lab.key("data:n"));
        let () = lab.redis(&["SET", &later, "a text"]);
        let named = [(0, "r", "0".to_owned()), (1, "d", String::new())];
        let mut settle = lab.settle_jobs_call("w", 1, fetched.at(1), "-", &named, &[]);
        settle.keys.push(n.clone());
        let effects = settle.args.len() - 1;
        settle.args[effects] = "1".to_owned();
        settle.args.extend(["1", "INCRBY", "1", "1", ""].map(str::to_owned));
        for _ in 0..3 {
            assert!(lab.try_send(&settle).is_err());
        }
        assert_eq!(lab.redis::<Option<u64>>(&["GET", &n]), None);
        let () = lab.redis(&["DEL", &later]);
        assert_eq!(lab.send(&settle), "ok");
        assert_eq!(lab.redis::<Option<u64>>(&["GET", &n]), Some(1));
        let later = (lab.count("claimed"), lab.count("retried"));
        assert_eq!(later, (1, 1));
        lab.assert_clean();
    });
}

/// A counter that is not a number refuses to cancel, and the message stays.
#[test]
fn a_cancellation_that_cannot_be_counted_changes_nothing() {
    on_each_server(|lab| {
        lab.join("w");
        let id = lab.post_one("a", 1, &Json::Null, "+60000");
        let counts = lab.key("counts");
        let () = lab.redis(&["HSET", &counts, "forgotten", "many"]);
        let known = lab.due(&id).expect("it is scheduled");
        let cancel = lab.alter_call(&id, &known, "cancel");
        assert_eq!(lab.send(&cancel), "refused");
        assert!(lab.due(&id).is_some());
        let () = lab.redis(&["HDEL", &counts, "forgotten"]);
        assert_eq!(lab.send(&cancel), "ok");
        lab.assert_clean();
    });
}
