//! Locks hang on sessions, as the lease does; events have generations. Each rule, and what happens
//! without it.

use crate::lab::{Answer, LEASE, Lab, Late, NOBODY, on_each_server, proves};

impl Lab {
    /// `ticket` is empty for a first attempt, `-` for one that will not wait.
    pub fn lock_call(&self, me: &str, name: &str, attempt: u64, ticket: &str) -> Late {
        let (lock, locks) = (format!("lock:{name}"), format!("locks:{me}"));
        let (waiters, attempt) = (format!("waiters:{name}"), attempt.to_string());
        let keys = ["members", &lock, "token", &locks, &waiters];
        self.late("acquire", &keys, &[me, &LEASE.to_string(), name, &attempt, ticket])
    }

    pub fn lock(&mut self, me: &str, name: &str, attempt: u64) -> Answer {
        let call = self.lock_call(me, name, attempt, "");
        self.send(&call)
    }

    pub fn release_call(&self, me: &str, whose: &str, name: &str, token: &str) -> Late {
        let (lock, locks) = (format!("lock:{name}"), format!("locks:{whose}"));
        let keys = ["members", &lock, "@0:alive", &locks, &format!("waiters:{name}")];
        self.late("resign", &keys, &[me, token, name, whose])
    }

    /// A guarded write: appends the token to a list.
    pub fn guarded_call(&self, me: &str, name: &str, token: &str) -> Late {
        let (lock, list) = (format!("lock:{name}"), format!("data:{name}"));
        self.late("guarded", &["members", &lock, &list], &[me, token, token])
    }

    pub fn written(&mut self, name: &str) -> Vec<u64> {
        let key = self.key(&format!("data:{name}"));
        self.redis(&["LRANGE", &key, "0", "-1"])
    }

    pub fn holder(&mut self, name: &str) -> Option<String> {
        let (lock, members) = (self.key(&format!("lock:{name}")), self.key("members"));
        let right: Option<String> = self.redis(&["GET", &lock]);
        let holder = right?.split('|').next()?.to_owned();
        let alive: Option<f64> = self.redis(&["ZSCORE", &members, &holder]);
        alive.map(|_| holder)
    }

    fn event(&mut self, script: &'static str, args: &[&str]) -> Answer {
        let keys = ["event:e", "@0:event:e"];
        self.call(script, if script == "event_set" { &keys } else { &keys[..1] }, args)
    }

    /// Sets an event that is known to be in this state.
    fn set(&mut self, state: &str, by: &str, ttl_ms: &str) -> Answer {
        self.event("event_set", &[state, by, ttl_ms])
    }

    fn clear(&mut self, state: &str) -> Answer {
        self.event("event_clear", &[&state[1..]])
    }

    fn is_set(&mut self) -> bool {
        self.event("event_read", &[]) == "set"
    }
}

fn won(answer: &Answer) -> String {
    assert_eq!(answer.tag(), "won", "{answer:?}");
    answer.at(1).to_owned()
}

#[test]
fn one_session_holds_a_lock_and_tokens_grow() {
    on_each_server(|lab| {
        lab.join("a");
        lab.join("b");
        let first = won(&lab.lock("a", "l", 1));
        let held = lab.lock("b", "l", 1);
        assert_eq!((held.tag(), held.at(1)), ("held", format!("a|{first}").as_str()));
        let other = won(&lab.lock("b", "other", 2));
        let release = lab.release_call("a", "a", "l", &first);
        assert_eq!(lab.send(&release), "ok");
        let second = won(&lab.lock("b", "l", 3));
        let numbers =
            [&first, &other, &second].map(|token| token.parse::<u64>().expect("a number"));
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert_eq!(lab.send(&release), "fenced", "a late copy frees nothing");
        assert_eq!(lab.holder("l").as_deref(), Some("b"));
    });
}

/// Tokens grow on after Redis lost everything: they are times.
#[test]
fn a_token_survives_data_loss() {
    on_each_server(|lab| {
        lab.join("a");
        let before: u64 = won(&lab.lock("a", "l", 1)).parse().expect("a number");
        let () = lab.redis(&["FLUSHALL"]);
        lab.join("a2");
        let after: u64 = won(&lab.lock("a2", "l", 1)).parse().expect("a number");
        assert!(after > before);
    });
}

/// A dead session's lock is nobody's, at once.
#[test]
fn a_lock_ends_with_its_session() {
    let rule = "local deadline = holder and holder ~= me and deadline_of(KEYS[1], holder)";
    proves("acquire", rule, "local deadline = holder ~= me and 9e15", |lab| {
        lab.join("a");
        lab.join("b");
        lab.lock("a", "l", 1);
        lab.reap("a");
        lab.lock("b", "l", 1) == "won"
    });
}

#[test]
fn a_member_that_is_gone_gets_no_lock() {
    let rule = "if not deadline_of(KEYS[1], me) then return 'gone' end";
    proves("acquire", rule, "", |lab| {
        lab.join("a");
        lab.reap("a");
        lab.lock("a", "l", 1) == "gone"
    });
}

/// A repeat after a lost reply finds what the first copy got: its holder keeps its token.
#[test]
fn a_repeated_attempt_gets_the_same_token() {
    let rule = "if attempt == ARGV[4] and held == me .. '|' .. token then";
    proves("acquire", rule, "if false then", |lab| {
        lab.join("a");
        let token = won(&lab.lock("a", "l", 1));
        won(&lab.lock("a", "l", 1)) == token
    });
}

/// A late copy of an attempt must not change the token under its own holder.
#[test]
fn a_late_attempt_does_not_disturb_the_holder() {
    let rule = "if attempt and tonumber(ARGV[4]) < tonumber(attempt) then return 'late' end";
    proves("acquire", rule, "", |lab| {
        lab.join("a");
        let late = lab.lock_call("a", "l", 1, "");
        let first = won(&lab.send(&late));
        let release = lab.release_call("a", "a", "l", &first);
        assert_eq!(lab.send(&release), "ok");
        let token = won(&lab.lock("a", "l", 2));
        lab.send(&late);
        let write = lab.guarded_call("a", "l", &token);
        lab.try_send(&write).is_ok()
            || lab.written("l") == [token.parse::<u64>().expect("a number")]
    });
}

/// A late copy that arrives when the lock is free takes it for a session that does not know: the
/// heartbeat lists it, so that it can be given back.
#[test]
fn a_lock_that_nobody_asked_for_is_listed() {
    on_each_server(|lab| {
        lab.join("a");
        let late = lab.lock_call("a", "l", 1, "");
        let token = won(&lab.send(&late));
        let release = lab.release_call("a", "a", "l", &token);
        lab.send(&release);
        let stray = won(&lab.send(&late));
        let beat = lab.heartbeat("a", NOBODY, "0");
        assert_eq!(beat.0[beat.0.len() - 2..], ["l".to_owned(), format!("{stray}:1")]);
    });
}

/// The first in the queue is told, and only that one; whoever was told and does not come loses its
/// place, whoever comes too late keeps it.
#[test]
fn a_release_tells_the_first_who_listens() {
    on_each_server(|lab| {
        for id in ["a", "b", "c", "d"] {
            lab.join(id);
        }
        let token = won(&lab.lock("a", "l", 1));
        let ticket = lab.lock("b", "l", 1).at(3).to_owned();
        lab.lock("c", "l", 1);
        lab.lock("d", "l", 1);
        // b is not listening at the moment, so c is told.
        let (mut c, mut d) = (lab.presence("c"), lab.presence("d"));
        let release = lab.release_call("a", "a", "l", &token);
        lab.send(&release);
        assert_eq!(c.hears(), "lock|l");
        let waiting: Vec<String> = {
            let key = lab.key("waiters:l");
            lab.redis(&["ZRANGE", &key, "0", "-1"])
        };
        assert_eq!(waiting, ["d"]);
        // Somebody else was quicker; b comes back with its ticket and stands before d.
        let token = won(&lab.lock("a", "l", 2));
        let back = lab.lock_call("b", "l", 2, &ticket);
        assert_eq!(lab.send(&back).at(3), ticket);
        let mut b = lab.presence("b");
        let release = lab.release_call("a", "a", "l", &token);
        lab.send(&release);
        assert_eq!(b.hears(), "lock|l");
        // b has lost interest: what it was told goes on to the next.
        let leave = lab.release_call("b", "b", "l", "0");
        assert_eq!(lab.send(&leave), "fenced");
        assert_eq!(d.hears(), "lock|l");
    });
}

/// The locks of a dead member are freed by whoever puts back what it held, and the orphan stays one
/// until they are.
#[test]
fn the_dead_give_up_their_locks() {
    let rule = "if redis.call('EXISTS', KEYS[4]) == 1 then return 'left' end";
    proves("forget", rule, "", |lab| {
        lab.join("a");
        lab.join("b");
        let token = won(&lab.lock("a", "l", 1));
        let release = lab.release_call("b", "a", "l", &token);
        assert_eq!(lab.send(&release), "alive", "not while it lives");
        lab.reap("a");
        let forget = lab.forget_call("b", "a");
        let early = lab.send(&forget);
        assert_eq!(lab.send(&release), "ok");
        let lock = lab.key("lock:l");
        assert_eq!(lab.redis::<i64>(&["EXISTS", &lock]), 0);
        early == "left" && lab.send(&forget) == "ok"
    });
}

#[test]
fn whoever_leaves_with_a_lock_is_an_orphan() {
    let rule = "open = open + redis.call('HLEN', KEYS[9])";
    proves("leave", rule, "", |lab| {
        lab.join("a");
        lab.lock("a", "l", 1);
        let leave = lab.leave_call("a");
        lab.send(&leave);
        let orphans = lab.key("orphans");
        lab.redis::<i64>(&["SISMEMBER", &orphans, "a"]) == 1
    });
}

/// ⚑ As terms and tokens, generations end at 2^52; a permit comes back all the same.
#[test]
fn no_generation_is_granted_past_two_to_the_52nd() {
    const LAST: &str = "4503599627370496";
    on_each_server(|lab| {
        lab.join("a");
        let event = lab.key("event:e");
        let () = lab.redis(&["HSET", &event, "flag", "0", "gen", LAST]);
        let answer = lab.set(&format!("c{LAST}"), "x", "0");
        assert_eq!(answer.0, ["spent", &format!("c{LAST}")]);
        let latch = lab.key("latch:l");
        let () = lab.redis(&["HSET", &latch, "count", "1", "round", "7", "gen", LAST]);
        let down = lab.call("latch_down", &["latch:l", "@0:latch:l"], &["7", "x"]);
        assert_eq!(down.0, ["spent", "1", "7"]);
        let () = lab.redis(&["HSET", &latch, "count", "0", "round", LAST]);
        assert_eq!(lab.call("latch_set", &["latch:l"], &["1", "y", LAST]), "spent");
        let barrier = lab.key("barrier:b");
        let () = lab.redis(&["HSET", &barrier, "gen", LAST]);
        let keys = ["members", "barrier:b", "@0:barrier:b"];
        assert_eq!(lab.call("arrive", &keys, &["a", "1", "1"]), "spent");
        let semaphore = lab.key("semaphore:s");
        assert_eq!(lab.call("permit_take", &["members", "semaphore:s"], &["a", "1", "1"]), "ok");
        let () = lab.redis(&["HSET", &semaphore, "gen", LAST]);
        let keys = ["members", "semaphore:s", "@0:semaphore:s"];
        assert_eq!(lab.call("permit_back", &keys, &["a", "1"]), "ok");
        for (key, field) in [(event, "gen"), (semaphore, "gen"), (latch, "round")] {
            assert_eq!(lab.redis::<String>(&["HGET", &key, field]), LAST, "as it was");
        }
    });
}

/// A guarded write compares member and token inside the script.
#[test]
fn a_stale_holder_writes_nothing() {
    for (rule, off) in [
        (" or redis.call('GET', KEYS[2]) ~= right", ""),
        ("not redis.call('ZSCORE', KEYS[1], me) or ", ""),
    ] {
        proves("guarded", rule, off, |lab| {
            lab.join("a");
            lab.join("b");
            let old = won(&lab.lock("a", "l", 1));
            let write = lab.guarded_call("a", "l", &old);
            lab.reap("a");
            let dead = lab.try_send(&write).is_err();
            won(&lab.lock("b", "l", 1));
            lab.join("a");
            dead && lab.try_send(&write).is_err() && lab.written("l").is_empty()
        });
    }
}

#[test]
fn setting_twice_is_setting_once() {
    on_each_server(|lab| {
        let set = lab.set("c0", "x", "0");
        assert_eq!(set, "ok");
        let again = lab.set("c0", "y", "0");
        assert_eq!((again.tag(), again.at(1)), ("already", set.at(1)));
        assert_eq!(lab.clear(set.at(1)), "ok");
        assert!(!lab.is_set());
        let next = lab.set(&set.at(1).replace('s', "c"), "z", "0");
        let number = |answer: &Answer| answer.at(1)[1..].parse::<u64>().expect("a generation");
        assert!(number(&next) > number(&set), "generations grow");
    });
}

/// A late copy of a `set` must not set again what was cleared since, whether it found the event set
/// or clear when it was made.
#[test]
fn a_late_set_does_not_come_back() {
    let rule = "if ARGV[1] ~= state then return {'moved', state} end";
    proves("event_set", rule, "", |lab| {
        let late = lab.late("event_set", &["event:e", "@0:event:e"], &["c0", "x", "0"]);
        let first = lab.send(&late);
        lab.clear(first.at(1));
        let second = lab.set(&first.at(1).replace('s', "c"), "y", "0");
        lab.clear(second.at(1));
        lab.send(&late);
        !lab.is_set()
    });
    on_each_server(|lab| {
        let first = lab.set("c0", "x", "0");
        // Made while it was set, answered `already`; the copy arrives after it was cleared.
        let late = lab.late("event_set", &["event:e", "@0:event:e"], &[first.at(1), "y", "0"]);
        assert_eq!(lab.send(&late), "already");
        lab.clear(first.at(1));
        assert_eq!(lab.send(&late), "moved");
        assert!(!lab.is_set());
    });
}

/// Nor must it make longer what somebody has set since.
#[test]
fn a_late_set_does_not_lengthen_the_next() {
    let rule = "if ARGV[1] ~= state then return {'moved', state} end";
    proves("event_set", rule, "", |lab| {
        let late = lab.late("event_set", &["event:e", "@0:event:e"], &["c0", "x", "0"]);
        let first = lab.send(&late);
        lab.clear(first.at(1));
        lab.set(&first.at(1).replace('s', "c"), "y", "60000");
        lab.send(&late);
        lab.event("event_read", &[]).at(2) != "0"
    });
}

/// A repeat whose first copy was answered by nobody, and cleared by somebody, is not a second set.
#[test]
fn a_repeated_set_is_one_set() {
    let rule = "if event[3] == ARGV[2] then return {'ok', state} end";
    on_each_server(|lab| {
        let set = lab.late("event_set", &["event:e", "@0:event:e"], &["c0", "x", "0"]);
        let first = lab.send(&set);
        lab.clear(first.at(1));
        assert_eq!(lab.send(&set), "ok");
        assert!(!lab.is_set());
    });
    // Without the rule its sender is told that it came too late, and sets it once more.
    proves("event_set", rule, "", |lab| {
        let set = lab.late("event_set", &["event:e", "@0:event:e"], &["c0", "x", "0"]);
        let first = lab.send(&set);
        lab.clear(first.at(1));
        lab.send(&set) == "ok"
    });
}

/// A late copy of a `clear` must not clear what was set since.
#[test]
fn a_late_clear_does_not_clear_the_next_set() {
    let rule = "if ARGV[1] ~= gen then return {'moved', 's' .. gen} end";
    proves("event_clear", rule, "", |lab| {
        let first = lab.set("c0", "x", "0");
        let late = lab.late("event_clear", &["event:e"], &[&first.at(1)[1..]]);
        lab.send(&late);
        lab.set(&first.at(1).replace('s', "c"), "y", "0");
        lab.send(&late);
        lab.is_set()
    });
}

/// An event that clears itself keeps its generation, so nobody who waits misses it.
#[test]
fn an_event_outlives_its_time_as_a_generation() {
    on_each_server(|lab| {
        let set = lab.set("c0", "x", "1");
        artel_rig::eventually("it to clear itself", || !lab.is_set());
        assert_eq!(lab.event("event_read", &[]).at(1), &set.at(1)[1..]);
        // Whoever asks for longer gets it, if it knows what it makes longer.
        let state = lab.set(&set.at(1).replace('s', "c"), "y", "60000").at(1).to_owned();
        assert_eq!(lab.set("c0", "z", "1"), "already", "long enough");
        assert_eq!(lab.set("c0", "z", "0"), "moved");
        assert_eq!(lab.set(&state, "z", "0"), "ok");
        assert_eq!(lab.event("event_read", &[]).at(2), "0", "for good");
    });
}
