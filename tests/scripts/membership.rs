use artel_testkit::eventually;

use crate::lab::{LEASE, Lab, NOBODY, on_each_server, proves};

/// ⚑ Absent → gone, and nothing is written; a refresh never adds.
#[test]
fn a_late_heartbeat_does_not_bring_a_dead_session_back() {
    let holds = |lab: &mut Lab| {
        lab.join("a");
        lab.reap("a");
        let answer = lab.heartbeat("a", NOBODY, "0");
        let members = lab.key("members");
        let there: Option<f64> = lab.redis(&["ZSCORE", &members, "a"]);
        answer == "gone" && there.is_none()
    };
    on_each_server(|lab| assert!(holds(lab)));
    // Both halves of the rule at once: the check, and XX.
    on_each_server(|lab| {
        lab.rules = crate::lab::Rules::all()
            .without(
                "heartbeat",
                "if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end",
                "",
            )
            .without("heartbeat", "'XX', ", "");
        assert!(!holds(lab));
    });
}

/// ⚑ A join is sent once per id: the same id again would bring back a session that was judged dead,
/// and with it everything that hangs on it.
#[test]
fn a_late_copy_of_a_join_adds_only_a_ghost_nobody_acts_for() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["x", "y"]);
        let join = lab.join_call("w1");
        lab.send(&join);
        let block = lab.fetch("w1", 1, 10, NOBODY);
        lab.reap("w1");
        // The process went on as w2, as the rule wants. The late copy brings the id w1 back…
        lab.join("w2");
        assert_eq!(lab.send(&join), "ok");
        // …and a process that had kept the id could now settle what others are about to adopt.
        let as_w1 = lab.settle("w1", 1, block.at(1), "2", &[]);
        assert_eq!(as_w1, "ok", "so the id itself must be the claim token");
        let adopt = lab.adopt_call("w2", "w1", 1, 100);
        assert_eq!(lab.send(&adopt), "already");
        lab.assert_clean();
    });
}

#[test]
fn a_repeated_join_is_told_that_the_id_is_taken() {
    on_each_server(|lab| {
        assert_eq!(lab.join("a"), "ok");
        assert_eq!(lab.join("a"), "taken");
    });
}

#[test]
fn another_explicit_setting_is_refused_and_named() {
    on_each_server(|lab| {
        lab.join("a");
        let keys = ["members", "member:b", "watch", "blind", "config", "alive:b", "ctl", "term"];
        let args = ["b", "60000", "1000", "", "", "3000", "300", "5"];
        let answer = lab.call("join", &keys, &args);
        assert_eq!(answer.0, ["config", "lease_ms", &LEASE.to_string(), "1000"]);
        let leave = lab.leave_call("a");
        lab.send(&leave);
        assert_eq!(lab.call("join", &keys, &args), "ok", "an empty fleet takes new settings");
    });
}

/// ⚑ Who cannot be seen is judged by its deadline only.
#[test]
fn a_member_without_visible_presence_is_not_suspected() {
    proves("join", "redis.call('SADD', KEYS[4], ARGV[1])", "", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        lab.join("hidden"); // no presence: behind a proxy
        looks(lab, 4, 1);
        is_member(lab, "hidden")
    });
}

/// ⚑ Presence, or a refresh, clears a suspicion.
#[test]
fn a_refresh_clears_a_suspicion() {
    proves("look", "if not since or deadline - lease > since then", "if not since then", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let presence = lab.presence("a");
        lab.join("a");
        drop(presence);
        // Suspected, and heard of again before every further look.
        for _ in 0..4 {
            next_look(lab, 150);
            lab.heartbeat("a", NOBODY, "0");
        }
        is_member(lab, "a")
    });
}

#[test]
fn a_dead_member_is_reaped_after_the_grace_and_becomes_an_orphan() {
    on_each_server(|lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let presence = lab.presence("a");
        lab.join("a");
        next_look(lab, 100);
        assert!(is_member(lab, "a"), "present");
        drop(presence);
        eventually("the dead member to be reaped", || {
            next_look(lab, 100);
            !is_member(lab, "a")
        });
        let orphans = lab.key("orphans");
        let there: bool = lab.redis(&["SISMEMBER", &orphans, "a"]);
        assert!(there);
        assert!(is_member(lab, "watcher"));
    });
}

/// ⚑ After a stall of Redis, a restart, or a clock that went back, everybody gets one lease to be
/// heard of again.
#[test]
fn a_stalled_redis_does_not_cost_healthy_members() {
    proves("look", "calm = now + lease", "calm = 0", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let _a = lab.presence("a");
        lab.join("a");
        // As after a stall: nobody looked for longer than a lease, and both deadlines have passed.
        let (watch, members) = (lab.key("watch"), lab.key("members"));
        let past = (now_ms(lab) - 10_000).to_string();
        let () = lab.redis(&["HSET", &watch, "looked", &past]);
        let () = lab.redis(&["ZADD", &members, &past, "a", &past, "watcher"]);
        lab.look("watcher", 3000, 300);
        next_look(lab, 300);
        is_member(lab, "a") && is_member(lab, "watcher")
    });
}

/// ⚑ A stall of just under a lease: the looks that were on their way run first, and the refreshes on
/// record were not quite fresh when it began.
#[test]
fn a_stall_of_just_under_a_lease_does_not_cost_healthy_members() {
    proves("look", "now - looked > lease / 2", "now - looked > lease", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let _a = lab.presence("a");
        lab.join("a");
        let (watch, members) = (lab.key("watch"), lab.key("members"));
        let now = now_ms(lab);
        let (looked, passed) = ((now - 2_850).to_string(), (now - 100).to_string());
        let () = lab.redis(&["HSET", &watch, "looked", &looked]);
        let () = lab.redis(&["ZADD", &members, &passed, "a"]);
        lab.look("watcher", 3000, 300);
        is_member(lab, "a")
    });
}

#[test]
fn a_new_server_and_a_clock_that_went_back_begin_with_calm() {
    on_each_server(|lab| {
        lab.join("watcher");
        lab.join("a");
        let (watch, members) = (lab.key("watch"), lab.key("members"));
        for (field, value) in [("run_id", "another"), ("looked", "9999999999999")] {
            let now = now_ms(lab);
            let (past, recent) = ((now - 1000).to_string(), (now - 200).to_string());
            let () = lab.redis(&["ZADD", &members, &past, "a"]);
            let () = lab.redis(&["HSET", &watch, "looked", &recent, "calm", "0", field, value]);
            assert_eq!(lab.look("watcher", 3000, 300), "ok");
            assert!(is_member(lab, "a"), "{field} brings calm");
            let calm: f64 = lab.redis(&["HGET", &watch, "calm"]);
            assert!(calm > now as f64 + 2000.0);
        }
        // And without either, a passed deadline is a passed deadline.
        let recent = (now_ms(lab) - 200).to_string();
        let () = lab.redis(&["HSET", &watch, "looked", &recent, "calm", "0"]);
        assert_eq!(lab.look("watcher", 3000, 300).at(3), "a");
    });
}

#[test]
fn a_deadline_in_the_far_future_is_cut_to_a_lease() {
    on_each_server(|lab| {
        lab.join("watcher");
        lab.join("a");
        let (watch, members) = (lab.key("watch"), lab.key("members"));
        let far = (now_ms(lab) + 86_400_000).to_string();
        let () = lab.redis(&["ZADD", &members, &far, "a"]);
        let () = lab.redis(&["HSET", &watch, "looked", &far]); // the clock went back since
        lab.look("watcher", 3000, 300);
        let deadline: f64 = lab.redis(&["ZSCORE", &members, "a"]);
        assert!(deadline <= now_ms(lab) as f64 + 3000.0);
    });
}

/// ⚑ Ranks go by id among the living: the set's own order puts the dead first.
#[test]
fn the_dead_have_no_rank() {
    proves(
        "look",
        "redis.call('ZRANGEBYSCORE', KEYS[1], ms(now), '+inf')",
        "redis.call('ZRANGE', KEYS[1], 0, -1)",
        |lab| {
            let _m = lab.presence("m");
            lab.join("m");
            for dead in ["a", "b"] {
                lab.join(dead);
                let members = lab.key("members");
                let past = (now_ms(lab) - 1000).to_string();
                let () = lab.redis(&["ZADD", &members, &past, dead]);
            }
            let watch = lab.key("watch");
            // Calm: they cannot be reaped yet, and still have no rank.
            let calm = (now_ms(lab) + 60_000).to_string();
            let () = lab.redis(&["HSET", &watch, "calm", &calm]);
            let answer = lab.look("m", LEASE, 300);
            answer.at(2) == "0"
        },
    );
}

#[test]
fn who_leaves_holds_nothing_and_leaves_its_blocks_as_orphans() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["x"]);
        lab.join("w");
        lab.fetch("w", 1, 10, NOBODY);
        for id in ["gen", "w"] {
            let leave = lab.leave_call(id);
            assert_eq!(lab.send(&leave), "ok");
            assert_eq!(lab.send(&leave), "gone");
        }
        let (lease, orphans) = (lab.key("lease"), lab.key("orphans"));
        let held: Option<String> = lab.redis(&["GET", &lease]);
        let left: Vec<String> = lab.redis(&["SMEMBERS", &orphans]);
        assert_eq!((held, left), (None, vec!["w".to_owned()]));
        lab.assert_clean();
    });
}

/// ⚑ An open block that its owner does not know of is noticed by the heartbeat, too.
#[test]
fn a_heartbeat_sees_a_block_nobody_holds() {
    proves("heartbeat", "    stray = 1\n  end", "  end", |lab| {
        lab.leader_with("gen", &["x"]);
        lab.join("w");
        lab.fetch("w", 1, 10, NOBODY);
        let known = lab.heartbeat("w", ",1,2,", "1");
        let unknown = lab.heartbeat("w", ",2,", "1");
        known.at(6) == "0" && unknown.at(6) == "1"
    });
}

fn is_member(lab: &mut Lab, id: &str) -> bool {
    let members = lab.key("members");
    let deadline: Option<f64> = lab.redis(&["ZSCORE", &members, id]);
    deadline.is_some()
}

fn now_ms(lab: &mut Lab) -> u64 {
    let time: (u64, u64) = lab.redis(&["TIME"]);
    time.0 * 1000 + time.1 / 1000
}

/// Looks as soon as looking is allowed again.
fn next_look(lab: &mut Lab, grace: u64) {
    eventually("the next look", || lab.look("watcher", LEASE, grace) != "early");
}

fn looks(lab: &mut Lab, times: usize, grace: u64) {
    for _ in 0..times {
        next_look(lab, grace);
    }
}
