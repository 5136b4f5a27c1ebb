use artel_rig::eventually;

use crate::lab::{LEASE, Lab, NOBODY, PROTOCOL, on_each_server, proves};

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
        lab.rules = crate::rules::Rules::all()
            .without("heartbeat", "if not deadline_of(KEYS[1], me) then return 'gone' end", "")
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
        for (field, theirs, other) in [
            ("lease_ms", LEASE.to_string(), "1000"),
            ("grace_ms", "300".to_owned(), "500"),
            ("attempts_max", "3".to_owned(), "7"),
            ("ledger", "-1".to_owned(), "0"),
            ("backlog_max", "1000".to_owned(), "5"),
        ] {
            let join = lab.join_wanting("b", &[(field, other)], true);
            assert_eq!(lab.send(&join).0, ["config", field, &theirs, other, "0"]);
            let same = lab.join_wanting(&format!("c-{field}"), &[(field, &theirs)], false);
            assert_eq!(lab.send(&same), "ok");
            let leave = lab.leave_call(&format!("c-{field}"));
            lab.send(&leave);
        }
        let leave = lab.leave_call("a");
        lab.send(&leave);
        let join = lab.join_wanting("b", &[("lease_ms", "1000")], false);
        assert_eq!(lab.send(&join), "ok", "an empty fleet takes new settings");
    });
}

/// ⚑ Observers pin nothing; they follow what is in `config`, so that the fleet has one lease at a time.
#[test]
fn an_observer_pins_nothing_and_follows_the_fleet() {
    proves("heartbeat", "config[1] or ARGV[2]", "ARGV[2]", |lab| {
        lab.join("o1");
        let lease = LEASE + 10_000;
        let longer = lease.to_string();
        let wanted = [("lease_ms", longer.as_str()), ("ledger", "0"), ("attempts_max", "9")];
        let join = lab.join_wanting("w", &wanted, false);
        assert_eq!(lab.send(&join), "ok");
        let before = now_ms(lab);
        let beat = lab.heartbeat("o1", NOBODY, "0");
        let members = lab.key("members");
        let deadline: f64 = lab.redis(&["ZSCORE", &members, "o1"]);
        let after = now_ms(lab);
        let own = (before + lease..=after + lease).contains(&(deadline as u64));
        own && beat.at(8) == longer && beat.at(9) == "300"
    });
}

/// ⚑ An observer that holds a lock relies on it for two thirds of the lease under which it was last heard of.
/// Were the lease made shorter under it, somebody else could have the lock while it still does.
#[test]
fn a_lease_never_shrinks_under_an_observer() {
    proves("join", "(works or shrinks)", "works", |lab| {
        lab.join("o1");
        let lease = lab.join_wanting("o2", &[("lease_ms", "1000")], false);
        let grace = lab.join_wanting("o3", &[("grace_ms", "100")], false);
        let longer = lab.join_wanting("o4", &[("grace_ms", "500")], false);
        lab.send(&lease) == "config" && lab.send(&grace) == "config" && lab.send(&longer) == "ok"
    });
}

/// ⚑ All members are frozen past their lease while another starts with another one: were they left
/// in place, they would wake and go on with theirs.
#[test]
fn two_leases_in_one_fleet_are_impossible() {
    let rule = "  for _, id in ipairs(here) do\n    reap(";
    proves("join", rule, "  for _, id in ipairs({}) do\n    reap(", |lab| {
        lab.join("frozen");
        let members = lab.key("members");
        let () = lab.redis(&["ZADD", &members, "1000", "frozen"]);
        let other = [("lease_ms", "1000")];
        // Not at once: whoever lives is heard of within a lease.
        let join = lab.join_wanting("new", &other, false);
        assert_eq!(
            lab.send(&join).0,
            ["config", "lease_ms", &LEASE.to_string(), "1000", &LEASE.to_string()]
        );
        let join = lab.join_wanting("new", &other, true);
        assert_eq!(lab.send(&join), "ok");
        let orphans = lab.key("orphans");
        lab.heartbeat("frozen", NOBODY, "0") == "gone"
            && lab.redis(&["SISMEMBER", &orphans, "frozen"])
    });
}

/// A fleet of another protocol is left alone: nothing is written.
#[test]
fn another_protocol_is_refused_by_everything_that_joins_opens_or_adds() {
    on_each_server(|lab| {
        let term = lab.leader_with("gen", &["x", "y"]);
        lab.join("w");
        let block = lab.fetch("w", 1, 1, NOBODY);
        lab.settle("w", 1, block.at(1), "0", &[(0, "f")]);
        let stored = lab.stored();
        let config = lab.key("config");
        let open = lab.late("open", &["config", "members"], &[crate::lab::PROTOCOL]);
        assert_eq!(lab.send(&open).0, ["ok", "1000", "1"]);
        let message = ("1n-|sp-1|1|9|x".to_owned(), String::new());
        let post = lab.post_call("p", 1, &[message], None);
        let fire = lab.fire_call(("gen", &term), ("tick", "1"), "0", "7", "1n-|ctick-7|1|9|x");
        for (other, theirs) in [("6", "6"), ("", "1")] {
            match other {
                "" => {
                    let () = lab.redis(&["HDEL", &config, "protocol"]);
                }
                other => {
                    let () = lab.redis(&["HSET", &config, "protocol", other]);
                }
            }
            let before = lab.copy();
            let calls = [
                lab.join_call("new"),
                lab.push_call("gen", &term, 3, &["z"]),
                lab.send_call("s", 1, "normal", &["z"], None),
                lab.requeue_call("r", 1, "", &[&stored[0]]),
                post.clone(),
                fire.clone(),
                open.clone(),
            ];
            let sent = lab.key("sent:s");
            let () = lab.redis(&["DEL", &sent]); // made by the lab itself
            for call in calls {
                let answer = lab.send(&call);
                assert_eq!(answer.0[..2], ["protocol", theirs], "{}", call.script);
            }
            assert_eq!(lab.copy().len(), before.len());
        }
        // Nobody is left of the old ones: the fleet changes over; never back from a newer one.
        for id in ["gen", "w"] {
            let leave = lab.leave_call(id);
            lab.send(&leave);
        }
        let () = lab.redis(&["HSET", &config, "protocol", "6"]);
        assert_eq!((lab.send(&open).tag(), lab.join("new").tag()), ("protocol", "protocol"));
        let () = lab.redis(&["HDEL", &config, "protocol"]);
        assert_eq!(lab.send(&open), "ok");
        assert_eq!(lab.join("new"), "ok");
        let now: String = lab.redis(&["HGET", &config, "protocol"]);
        assert_eq!(now, crate::lab::PROTOCOL);
    });
}

/// ⚑ Who cannot be seen is judged by its deadline only.
#[test]
fn a_member_without_visible_presence_is_not_suspected() {
    proves("join", "  redis.call('SADD', KEYS[4], me)", "", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        lab.join("hidden"); // no presence: behind a proxy
        looks(lab, 4, 1);
        is_member(lab, "hidden")
    });
}

/// ⚑ Presence, or a refresh, clears a suspicion; also one in the very millisecond in which it began.
#[test]
fn a_refresh_clears_a_suspicion() {
    for (rule, off) in [
        ("or deadline - lease >= since then", "then"),
        ("deadline - lease >= since", "deadline - lease > since"),
    ] {
        proves("look", rule, off, |lab| {
            let _watcher = lab.presence("watcher");
            lab.join("watcher");
            let presence = lab.presence("a");
            lab.join("a");
            lab.absent("a", presence);
            suspected_and_refreshed(lab, 200, 200)
        });
    }
}

/// `a` was suspected so many milliseconds ago, and refreshed its session so many ago. Does it survive the
/// next look, with a grace of 150 ms?
fn suspected_and_refreshed(lab: &mut Lab, suspected: u64, refreshed: u64) -> bool {
    loop {
        let stage = "local t = redis.call('TIME')
            local now = t[1] * 1000 + math.floor(t[2] / 1000)
            redis.call('HSET', KEYS[1], 'looked', now - 100)
            redis.call('HSET', KEYS[2], 'a', now - ARGV[1])
            redis.call('ZADD', KEYS[3], now - ARGV[2] + ARGV[3], 'a', now + ARGV[3], 'watcher')
            return now";
        let (watch, suspects, members) =
            (lab.key("watch"), lab.key("suspects"), lab.key("members"));
        let (suspected, refreshed) = (suspected.to_string(), refreshed.to_string());
        let lease = LEASE.to_string();
        let staged: u64 = lab.redis(&[
            "EVAL", stage, "3", &watch, &suspects, &members, &suspected, &refreshed, &lease,
        ]);
        let answer = lab.look("watcher", LEASE, 150);
        assert_eq!(answer, "ok");
        // On a machine so busy that the look came a second later, suspicions begin anew.
        let looked: u64 = lab.redis(&["HGET", &watch, "looked"]);
        if looked - staged < 800 || !is_member(lab, "a") {
            return is_member(lab, "a");
        }
    }
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
        lab.absent("a", presence);
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

/// ⚑ A stranger on the channel, or a process that subscribed and has not joined yet, makes the number of
/// subscribers right although a member is dead.
#[test]
fn a_subscriber_that_is_no_member_hides_nobody() {
    proves("look", "  and stalest_here()\n", "\n", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let presence = lab.presence("a");
        lab.join("a");
        lab.absent("a", presence);
        let _stranger = lab.presence("stranger");
        let alive = lab.key("@0:alive");
        eventually("the connection to be gone", || {
            lab.redis::<(String, u64)>(&["PUBSUB", "SHARDNUMSUB", &alive]).1 == 2
        });
        let suspects = lab.key("suspects");
        next_look(lab, 60_000);
        lab.redis::<bool>(&["HEXISTS", &suspects, "a"])
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
        assert_eq!(lab.look("watcher", 3000, 300).at(5), "a");
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
        "redis.call('ZRANGEBYSCORE', KEYS[1], whole(now), '+inf')",
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

/// ⚑ Who is not seen, although it connected anew for that, is judged by its deadline only; who is seen again is not.
#[test]
fn a_heartbeat_says_who_is_seen() {
    let rule = "elseif ARGV[6] == '2' then redis.call('SADD', KEYS[13], me) end";
    proves("heartbeat", rule, "end", |lab| {
        lab.join("a");
        let blind = |lab: &mut Lab| -> Vec<String> {
            let key = lab.key("blind");
            lab.redis(&["SMEMBERS", &key])
        };
        let beat = |lab: &mut Lab, presence: &str| {
            let call = lab.heartbeat_of("a", NOBODY, "0", presence);
            lab.send(&call).at(10) == "1"
        };
        let key = lab.key("blind");
        let () = lab.redis(&["DEL", &key]);
        assert!(!beat(lab, "1") && blind(lab).is_empty(), "it connects anew first");
        let unseen = !beat(lab, "2") && blind(lab) == ["a"];
        let presence = lab.presence("a");
        assert!(beat(lab, "1") && blind(lab).is_empty(), "it is seen");
        drop(presence);
        unseen
    });
}

/// ⚑ A server that took over and has fewer steps than a member saw has forgotten them; of a server that this history does not
/// know, all that was seen there is gone.
#[test]
fn what_another_server_forgot_is_named() {
    let rule = "forgotten = math.max(tonumber(ARGV[9]) - kept, 0)";
    proves("heartbeat", rule, "forgotten = 0", |lab| {
        lab.join("a");
        lab.count_steps("100");
        let beat = |lab: &mut Lab, server: &str, (from, last, first): (&str, &str, &str)| {
            let call = lab.heartbeat_at("a", server, (from, last, first));
            let answer = lab.send(&call);
            (answer.at(11).to_owned(), answer.at(12).to_owned())
        };
        let said = |steps: &str, forgotten: &str| (steps.to_owned(), forgotten.to_owned());
        assert_eq!(beat(lab, "one", ("", "0", "0")), said("100", "0"), "the first server");
        lab.count_steps("150");
        assert_eq!(beat(lab, "one", ("one", "100", "100")), said("150", "0"));
        // Another one took over, and has it all: no loss. What comes later is no loss either.
        assert_eq!(beat(lab, "two", ("one", "150", "100")), said("150", "0"));
        lab.count_steps("180");
        // A third one is behind. Somebody else saw it first, when it had counted on already.
        lab.count_steps("160");
        assert_eq!(beat(lab, "three", ("", "0", "0")), said("160", "0"));
        lab.count_steps("300");
        let third = beat(lab, "three", ("two", "180", "150"));
        // One that was cut off went on alone: nothing of it is known here.
        let alone = beat(lab, "three", ("elsewhere", "500", "480"));
        let losses: std::collections::BTreeMap<String, String> = {
            let key = lab.key("losses");
            lab.redis(&["HGETALL", &key])
        };
        let steps = |pair: &str| losses.get(pair).and_then(|loss| loss.split('|').next());
        third == said("300", "20")
            && alone == said("300", "20")
            && (steps("two>three"), steps("elsewhere>three")) == (Some("20"), Some("20"))
            && losses.len() == 2
    });
}

/// A server is listed with the steps that it had first, whoever comes later, and however often.
#[test]
fn a_server_is_listed_once_with_what_it_had_first() {
    on_each_server(|lab| {
        let enlist = |lab: &Lab, server: &str| {
            lab.late("enlist", &["counts", "servers", "notices", "config"], &[server, PROTOCOL])
        };
        let call = enlist(lab, "nought");
        assert_eq!(lab.send(&call), "other", "there is no fleet yet");
        lab.join("a");
        for (steps, server) in [("100", "one"), ("120", "one"), ("90", "two"), ("95", "two")] {
            lab.count_steps(steps);
            let call = enlist(lab, server);
            assert_eq!(lab.send(&call), "ok");
            assert_eq!(lab.send(&call), "ok");
        }
        let (servers, notices) = (lab.key("servers"), lab.key("notices"));
        let listed: Vec<String> = lab.redis(&["LRANGE", &servers, "0", "-1"]);
        let listed: Vec<&str> =
            listed.iter().filter_map(|entry| Some(entry.rsplit_once('|')?.0)).collect();
        assert_eq!(listed, ["one|100", "two|90"]);
        let noted: u64 = lab.redis(&["XLEN", &notices]);
        assert_eq!(noted, 2, "who joined, and the change of the server");
    });
}

/// ⚑ An open block that its owner does not know of is noticed by the heartbeat, too.
#[test]
fn a_heartbeat_sees_a_block_nobody_holds() {
    proves("heartbeat", "open > ARGV[3] + (hi - known)", "false", |lab| {
        lab.leader_with("gen", &["x"]);
        lab.join("w");
        lab.fetch("w", 1, 10, NOBODY);
        let known = lab.heartbeat("w", "1", "1");
        let unknown = lab.heartbeat("w", "0", "1");
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
pub fn next_look(lab: &mut Lab, grace: u64) {
    eventually("the next look", || lab.look("watcher", LEASE, grace) != "early");
}

fn looks(lab: &mut Lab, times: usize, grace: u64) {
    for _ in 0..times {
        next_look(lab, grace);
    }
}
