//! A user without a right, or a key that somebody broke: a call about times does all of it or nothing.

use serde_json::{Value as Json, json};

use crate::job_calls::envelope;
use crate::lab::{Lab, proves};

/// Does this call change nothing while a user who lacks this right sends it?
fn refused_without(lab: &mut Lab, right: &str, call: &crate::lab::Late) -> bool {
    let user = ["ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "&*"];
    let () = lab.redis(&user);
    let () = lab.redis(&["ACL", "SETUSER", "u", &format!("-{right}")]);
    let () = lab.redis(&["AUTH", "u", "x"]);
    let is_refused = lab.try_send(call).is_err();
    let () = lab.redis(&["AUTH", "default", ""]);
    is_refused
}

/// An operator's account may not push: the message stays where it waits.
#[test]
fn a_message_that_cannot_be_let_go_now_waits_on() {
    let rule = "local refusal = denied({{'ZREM', SCHEDULED, ''}, {'HDEL', LATER, ''}, {'RPUSH', KEYS[7], ''}})";
    proves("alter", rule, "local refusal", |lab| {
        lab.join("w");
        let id = lab.post_one("a", 1, &Json::Null, "+60000");
        let known = lab.due(&id).expect("it is scheduled");
        let now = lab.alter_call(&id, &known, "now");
        let mut kept = true;
        for right in ["rpush", "hdel", "zrem"] {
            kept &= refused_without(lab, right, &now) && lab.due(&id).as_ref() == Some(&known);
        }
        kept && lab.send(&now) == "ok" && lab.lane("normal").len() == 1
    });
}

/// Somebody gave a lane another type.
#[test]
fn a_message_whose_lane_is_broken_waits_on() {
    let rule = "  for i = 4, 8 do redis.call('LLEN', KEYS[i]) end\n  start(e, id)";
    proves("alter", rule, "  start(e, id)", |lab| {
        lab.join("w");
        let id = lab.post_one("a", 1, &Json::Null, "+60000");
        let known = lab.due(&id).expect("it is scheduled");
        let now = lab.alter_call(&id, &known, "now");
        let lane = lab.key("lane:normal");
        let () = lab.redis(&["SET", &lane, "a text"]);
        lab.try_send(&now).is_err() && lab.due(&id) == Some(known)
    });
}

/// An entry that cannot send its message has not fired: its time is not lost.
#[test]
fn an_entry_that_cannot_send_has_not_fired() {
    let rule = "local refusal = denied({{'HSET', KEYS[21], '', ''}, {'HSET', UNIQUE, '', ''}, {'RPUSH', KEYS[7], ''},\n  \
        {'HINCRBY', KEYS[2], 'sent', '1'}})";
    proves("fire", rule, "local refusal", |lab| {
        let (fire, last) = due_entry(lab);
        let mut kept = true;
        for right in ["rpush", "hincrby"] {
            kept &= refused_without(lab, right, &fire) && fired(lab) == last;
        }
        kept && lab.send(&fire) == "ok" && lab.lane("normal").len() == 1
    });
}

/// What an entry sends is counted: with a broken counter nothing is sent.
#[test]
fn an_entry_that_cannot_be_counted_has_not_fired() {
    let rule = "for _, count in ipairs(redis.call('HMGET', KEYS[2], 'sent', 'fired', 'skipped')) do whole((count or 0) + 1) end\n";
    proves("fire", rule, "", |lab| {
        let (fire, last) = due_entry(lab);
        let counts = lab.key("counts");
        let () = lab.redis(&["HSET", &counts, "sent", "many"]);
        lab.try_send(&fire).is_err() && fired(lab) == last && lab.lane("normal").is_empty()
    });
}

/// The call that fires an entry which is due, and the time for which it fired last.
fn due_entry(lab: &mut Lab) -> (crate::lab::Late, u64) {
    lab.join("a");
    let set = lab.cron_set_call("tick", "{}", "0");
    let rev = lab.send(&set).at(1).to_owned();
    let last = fired(lab);
    let due = last + 1;
    artel_rig::eventually("it to be due", || lab.now_ms() > due);
    let message = envelope('n', &format!("ctick-{due}"), 9, &json!({"kind": "t"}), "");
    let call =
        lab.fire_call(("a", ""), ("tick", &rev), &last.to_string(), &due.to_string(), &message);
    (call, last)
}

fn fired(lab: &mut Lab) -> u64 {
    let fired = lab.key("fired");
    lab.redis(&["HGET", &fired, "tick"])
}
