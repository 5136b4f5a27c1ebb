use crate::lab::{Lab, NOBODY, on_each_server};
use crate::rules::Rules;

/// ⚑ A full Redis refuses new messages and nothing else: it can still elect, drain and settle.
#[test]
fn a_full_redis_can_elect_drain_and_settle() {
    on_each_server(|lab| {
        lab.enroll("s");
        let (stamp, term) = fill(lab);
        let push = lab.push_call("gen", &term, 3, &["more"]);
        let send = lab.send_call("s", 2, "normal", &["more"], None);
        for adds in [&push, &send] {
            let refused = lab.try_send(adds).expect_err("out of memory");
            assert_eq!(refused.code(), Some("OOM"));
        }
        // Everything that empties it, or keeps the fleet alive, goes on.
        assert_eq!(lab.heartbeat("w", "1", "1"), "ok");
        assert_eq!(lab.settle("w", 1, &stamp, "0", &[(0, "f")]), "ok");
        let block = lab.fetch("w", 2, 1, NOBODY);
        assert_eq!(block, "ok");
        let back = lab.give_back_call("w", 2, block.at(1), &[0]);
        assert_eq!(lab.send(&back), "ok");
        lab.reap("gen");
        assert_eq!(lab.join("gen2"), "ok");
        assert_eq!(lab.acquire("gen2"), "won");
        assert_ne!(lab.look("gen2", 60_000, 300), "gone");
        lab.fetch("w", 3, 1, NOBODY);
        lab.reap("w");
        let adopt = lab.adopt_call("gen2", "w", 3, 100);
        assert_eq!(lab.send(&adopt).at(1), "1");
        let take = lab.take_call("t", "");
        assert_eq!(lab.send(&take), "ok");
        let leave = lab.leave_call("gen2");
        assert_eq!(lab.send(&leave), "ok");
        lab.assert_clean();
    });
}

/// The flag is what lets it.
#[test]
fn without_the_flag_a_full_redis_cannot_drain() {
    on_each_server(|lab| {
        lab.rules = Rules::all().without("settle", "#!lua flags=allow-oom", "#!lua");
        let (stamp, _) = fill(lab);
        let settle = lab.settle_call("w", 1, &stamp, "1", &[], &[]);
        assert_eq!(lab.try_send(&settle).expect_err("refused").code(), Some("OOM"));
    });
}

#[test]
fn only_adding_messages_is_refused_when_memory_is_full() {
    for (name, source) in artel_rig::scripts() {
        let expected = match name.as_str() {
            "push" | "send" | "post" | "fire" | "enroll" | "requeue" => "#!lua",
            "guarded" => "#!lua", // what a user's script adds is not for us to allow
            "agenda" | "event_read" | "find" | "peek" | "books" | "collect" | "permissions" => {
                "#!lua flags=no-writes"
            }
            _ => "#!lua flags=allow-oom",
        };
        assert_eq!(source.lines().next(), Some(expected), "{name}.lua");
    }
}

/// A generator with one message waiting and one claimed by `w`, in a Redis that is full.
fn fill(lab: &mut Lab) -> (String, String) {
    let term = lab.leader_with("gen", &["1", "2"]);
    lab.join("w");
    let block = lab.fetch("w", 1, 1, NOBODY);
    let () = lab.redis(&["CONFIG", "SET", "maxmemory", "1"]);
    (block.at(1).to_owned(), term)
}
