//! What a generator keeps with its messages, what bounds them, and the end of a fleet.

use crate::lab::{Lab, on_each_server, proves};

fn state(lab: &mut Lab) -> Option<String> {
    let key = lab.key("state");
    lab.redis(&["HGET", &key, "state"])
}

/// ⚑ Two pushes without messages; the first one's late copy comes last, and has the same number of messages
/// in front of it.
#[test]
fn a_late_copy_brings_no_old_state_back() {
    let rule = "if at_term == term and tonumber(at) >= number then return 'already' end";
    proves("push", rule, "", |lab| {
        let term = lab.leader_with("a", &["x"]);
        let first = lab.push_with("a", &term, 2, &[], ("1", "page 1"));
        let second = lab.push_with("a", &term, 2, &[], ("2", "page 2"));
        assert_eq!(lab.send(&first), "ok");
        assert_eq!(lab.send(&second), "ok");
        lab.send(&first) == "already" && state(lab).as_deref() == Some("page 2")
    });
}

/// The same when messages were pushed between the two.
#[test]
fn a_late_state_behind_newer_messages_is_refused() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["x"]);
        let alone = lab.push_with("a", &term, 2, &[], ("1", "page 1"));
        assert_eq!(lab.send(&alone), "ok");
        let with = lab.push_with("a", &term, 2, &["y"], ("2", "page 2"));
        assert_eq!(lab.send(&with), "ok");
        assert_eq!(lab.send(&with), "already");
        assert_eq!(lab.send(&alone), "already");
        assert_eq!(state(lab).as_deref(), Some("page 2"));
        assert_eq!(lab.lane("generated").len(), 2);
        lab.assert_clean();
    });
}

#[test]
fn a_state_is_kept_with_its_messages_or_not_at_all() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1"]);
        lab.limit_backlog("2");
        let push = lab.push_with("a", &term, 2, &["2", "3"], ("1", "page 1"));
        assert_eq!(lab.send(&push), "full");
        assert_eq!(state(lab), None, "nothing was added, so nothing is kept");
        lab.limit_backlog("3");
        assert_eq!(lab.send(&push), "ok");
        assert_eq!(state(lab).as_deref(), Some("page 1"));
    });
}

/// The next leader gets what was accepted last, and a leader of an older term changes nothing any more.
#[test]
fn a_successor_gets_the_state_that_was_accepted_last() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1"]);
        let push = lab.push_with("a", &term, 2, &["2"], ("1", "page 1"));
        assert_eq!(lab.send(&push), "ok");
        lab.join("b");
        lab.reap("a");
        let won = lab.acquire("b");
        assert_eq!((won.tag(), won.at(5)), ("won", "page 1"));
        let late = lab.push_with("a", &term, 3, &[], ("2", "page 2"));
        assert_eq!(lab.send(&late), "gone");
        // Numbers of states begin anew with a term.
        let term = won.at(1).to_owned();
        let push = lab.push_with("b", &term, 1, &[], ("1", "page 3"));
        assert_eq!(lab.send(&push), "ok");
        assert_eq!(state(lab).as_deref(), Some("page 3"));
    });
}

/// Beyond the bound nothing new comes in, and nothing is dropped; a state alone needs no room.
#[test]
fn a_full_error_store_takes_no_new_messages() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1"]);
        let (config, errors) = (lab.key("config"), lab.key("errors"));
        let () = lab.redis(&["HSET", &config, "errors_max", "2"]);
        for _ in 0..2 {
            let _: String = lab.redis(&["XADD", &errors, "*", "m", "1g-|9-9|1|9|x", "e", "{}"]);
        }
        let full = lab.push("a", &term, 2, &["2"]);
        assert_eq!((full.tag(), full.at(1), full.at(2)), ("full", "errors", "2"));
        let send = lab.send_call("s", 1, "normal", &["3"], None);
        let full = lab.send(&send);
        assert_eq!((full.tag(), full.at(1)), ("full", "errors"));
        let alone = lab.push_with("a", &term, 2, &[], ("1", "page 1"));
        assert_eq!(lab.send(&alone), "ok");
        let first: Vec<(String, Vec<String>)> =
            lab.redis(&["XRANGE", &errors, "-", "+", "COUNT", "1"]);
        let drop = lab.late("drop", &["errors", "counts", "notices"], &["ops", &first[0].0]);
        assert_eq!(lab.send(&drop).at(1), "1");
        assert_eq!(lab.send(&drop).at(1), "0", "a repeat drops nothing more");
        assert_eq!(lab.count("dropped"), 1);
        assert_eq!(lab.push("a", &term, 2, &["2"]), "ok");
        assert_eq!(lab.send(&send), "ok");
    });
}

/// What is dropped is counted: without the right to count nothing is dropped.
#[test]
fn nothing_is_dropped_that_cannot_be_counted() {
    let rule = "local refusal = denied({{'HINCRBY', KEYS[2], 'dropped', '1'}})";
    proves("drop", rule, "local refusal", |lab| {
        let errors = lab.key("errors");
        let at: String = lab.redis(&["XADD", &errors, "*", "m", "1g-|9-9|1|9|x", "e", "{}"]);
        let drop = lab.late("drop", &["errors", "counts", "notices"], &["ops", &at]);
        let () =
            lab.redis(&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "-hincrby", "~*", "&*"]);
        let () = lab.redis(&["AUTH", "u", "x"]);
        assert!(lab.try_send(&drop).is_err());
        let () = lab.redis(&["AUTH", "default", ""]);
        lab.redis::<u64>(&["XLEN", &errors]) == 1
    });
}

fn begins(lab: &mut Lab, name: &str, born: &str) -> crate::lab::Late {
    let until = (lab.now_ms() + 10_000).to_string();
    lab.late("remove", &["members", "config"], &["begin", name, "4294967295", born, &until])
}

fn removal(lab: &Lab, name: &str, keys: &[&str], last: bool) -> crate::lab::Late {
    let mut all = vec!["members", "config"];
    all.extend(keys);
    lab.late("remove", &all, &[if last { "last" } else { "piece" }, name])
}

#[test]
fn a_fleet_with_members_is_not_removed() {
    proves("remove", "if here > 0 then return {'busy', here} end", "", |lab| {
        lab.leader_with("a", &["1"]);
        let begin = begins(lab, "r", "a");
        let piece = removal(lab, "r", &["lane:generated", "counts"], false);
        lab.send(&begin) == "busy" && lab.send(&piece) == "busy" && lab.lane("generated").len() == 1
    });
}

/// A fleet that is joined, left, and being removed; `counts` is still to go.
fn half_removed(lab: &mut Lab) {
    lab.leader_with("a", &["1"]);
    let leave = lab.leave_call("a");
    lab.send(&leave);
    let begin = begins(lab, "r", "a");
    assert_eq!(lab.send(&begin).at(1), "r");
    let piece = removal(lab, "r", &["lane:generated", "config"], false);
    assert_eq!(lab.send(&piece), "ok");
}

/// ⚑ Somebody joins, or sends, between two of its steps.
#[test]
fn nobody_gets_into_a_fleet_that_is_being_removed() {
    let rule = "redis.call('HSET', KEYS[2], 'protocol', ARGV[3], 'removing', ARGV[2])";
    proves("remove", rule, "redis.call('HSET', KEYS[2], 'removing', ARGV[2])", |lab| {
        half_removed(lab);
        let send = lab.send_call("s", 1, "normal", &["2"], None);
        let refused = lab.join("b") == "protocol" && lab.send(&send) == "protocol";
        // Another one finishes it, under its name.
        let again = begins(lab, "other", "a");
        if !refused {
            return false;
        }
        assert_eq!(lab.send(&again).at(1), "r");
        let rest = removal(lab, "r", &["counts"], false);
        lab.send(&rest);
        let last = removal(lab, "r", &[], true);
        lab.send(&last);
        let config = lab.key("config");
        lab.redis::<i64>(&["EXISTS", &config]) == 0 && lab.join("b") == "ok"
    });
}

/// ⚑ A copy of any of its calls arrives when the fleet was removed, and another one of the same name began.
#[test]
fn a_late_copy_removes_nothing_of_a_new_fleet() {
    proves("remove", "if config[1] ~= ARGV[2] then return 'over' end", "", |lab| {
        half_removed(lab);
        let begin = begins(lab, "r", "a");
        let rest = removal(lab, "r", &["counts", "lane:normal"], false);
        let last = removal(lab, "r", &[], true);
        for call in [&rest, &last] {
            assert_eq!(lab.send(call), "ok");
        }
        lab.join("b");
        let leave = lab.leave_call("b");
        lab.send(&leave);
        let send = lab.send_call("s", 1, "normal", &["new"], None);
        assert_eq!(lab.send(&send), "ok");
        for call in [&begin, &rest, &last] {
            lab.send(call);
        }
        let config = lab.key("config");
        let protocol: Option<String> = lab.redis(&["HGET", &config, "protocol"]);
        lab.lane("normal").len() == 1 && protocol.as_deref() == Some(crate::lab::PROTOCOL)
    });
}

/// A user lost a right while the fleet ran: nothing of a push or a batch is written, so its copies add it once.
#[test]
fn a_push_and_a_batch_without_the_right_to_all_of_it_leave_no_trace() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1"]);
        let push = lab.push_with("a", &term, 2, &["2"], ("1", "page 1"));
        let send = lab.send_call("s", 1, "normal", &["3"], Some("k"));
        let () = lab.redis(&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "&*"]);
        for right in ["set", "rpush", "hset"] {
            let () = lab.redis(&["ACL", "SETUSER", "u", &format!("-{right}")]);
            let () = lab.redis(&["AUTH", "u", "x"]);
            for _ in 0..3 {
                assert!(lab.try_send(&push).is_err(), "{right}");
                assert!(lab.try_send(&send).is_err(), "{right}");
            }
            let () = lab.redis(&["AUTH", "default", ""]);
            let () = lab.redis(&["ACL", "SETUSER", "u", "+@all"]);
            assert_eq!((lab.lane("generated").len(), state(lab)), (1, None), "{right}");
        }
        assert!(lab.send(&push) == "ok" && lab.send(&send) == "ok");
        assert_eq!(lab.lane("generated").len(), 2);
        assert_eq!(lab.lane("normal").len(), 1, "once");
        assert_eq!(lab.count("sent"), 1);
    });
}

/// Somebody wrote a text into a counter: nothing is added while it is there, and everything once when it is mended.
#[test]
fn a_counter_that_is_not_a_number_refuses_before_anything_is_added() {
    on_each_server(|lab| {
        let term = lab.leader_with("a", &["1"]);
        let push = lab.push_with("a", &term, 2, &["2"], ("1", "page 1"));
        let send = lab.send_call("s", 1, "normal", &["3"], Some("k"));
        let counts = lab.key("counts");
        let () = lab.redis(&["HSET", &counts, "generated", "many", "sent", "many"]);
        for _ in 0..2 {
            assert!(lab.try_send(&push).is_err() && lab.try_send(&send).is_err());
        }
        assert_eq!((lab.lane("generated").len(), lab.lane("normal").len()), (1, 0));
        assert_eq!(state(lab), None);
        let () = lab.redis(&["HSET", &counts, "generated", "1", "sent", "0"]);
        assert!(lab.send(&push) == "ok" && lab.send(&send) == "ok");
        assert_eq!((lab.count("generated"), lab.count("sent")), (2, 1));
    });
}

/// Of two who take an event one gets it, and hears so again if its reply was lost.
#[test]
fn an_event_is_taken_once() {
    let rule =
        "if event[1] ~= '1' or whole(tonumber(event[2]) or 0) ~= ARGV[1] then return 'missed' end";
    proves("event_take", rule, "", |lab| {
        let key = lab.key("event:e");
        let () = lab.redis(&["HSET", &key, "flag", "1", "gen", "7", "until", "0"]);
        let mine = lab.late("event_take", &["event:e"], &["7", "me"]);
        let theirs = lab.late("event_take", &["event:e"], &["7", "you"]);
        assert_eq!(lab.send(&mine), "taken");
        let () = lab.redis(&["HSET", &key, "flag", "1", "gen", "8"]);
        let once = lab.send(&theirs) == "missed";
        assert_eq!(lab.send(&mine), "taken", "a repeat");
        let flag: String = lab.redis(&["HGET", &key, "flag"]);
        once && flag == "1"
    });
}

/// A message is found wherever it is, in pieces of any size, while others come and go.
#[test]
fn a_message_is_found_in_a_list_and_in_a_stream() {
    on_each_server(|lab| {
        let payloads: Vec<String> = (1..=50).map(|n| format!("p{n}")).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let term = lab.leader_with("a", &payloads);
        for (seq, ahead) in [(1, "0"), (17, "16"), (50, "49")] {
            let (id, mut from) = (format!("{term}-{seq}"), String::new());
            let found = loop {
                let answer = lab.call("find", &["lane:generated"], &[&id, &from, "7"]);
                match answer.tag() {
                    "more" => answer.at(1).clone_into(&mut from),
                    _ => break answer,
                }
            };
            assert_eq!((found.tag(), found.at(2)), ("found", ahead), "{id}");
            assert!(found.at(1).ends_with(&format!("|p{seq}")));
        }
        let nobody = lab.call("find", &["lane:generated"], &["9-9", "50", "7"]);
        assert_eq!(nobody, "end");
        assert_eq!(lab.call("find", &["nothing"], &["9-9", "", "7"]), "end");
    });
}
