//! Permits, latches and barriers: each rule, and what happens without it.

use crate::lab::{Answer, Lab, Late, NOBODY, on_each_server, proves};

impl Lab {
    fn permit(&self, script: &'static str, me: &str, n: u64) -> Late {
        let n = n.to_string();
        let args: &[&str] = if script == "permit_take" { &[me, &n, "2"] } else { &[me, &n] };
        let keys = ["members", "semaphore:s", "@0:semaphore:s"];
        self.late(script, if script == "permit_take" { &keys[..2] } else { &keys }, args)
    }

    fn take(&mut self, me: &str, n: u64) -> Answer {
        let call = self.permit("permit_take", me, n);
        self.send(&call)
    }

    fn back(&mut self, me: &str, n: u64) -> Answer {
        let call = self.permit("permit_back", me, n);
        self.send(&call)
    }

    fn arrive(&mut self, me: &str, n: u64) -> Answer {
        let call = self.arrival(me, n);
        self.send(&call)
    }

    fn arrival(&self, me: &str, n: u64) -> Late {
        self.late("arrive", &["members", "barrier:b", "@0:barrier:b"], &[me, &n.to_string(), "2"])
    }

    fn count_down(&mut self, round: &str, id: &str) -> Answer {
        self.call("latch_down", &["latch:l", "@0:latch:l"], &[round, id])
    }

    /// Begins a round after the present one.
    fn begin(&mut self, count: &str, by: &str) -> Answer {
        let key = self.key("latch:l");
        let round: Option<String> = self.redis(&["HGET", &key, "round"]);
        let round = round.unwrap_or_else(|| "0".to_owned());
        self.call("latch_set", &["latch:l"], &[count, by, &round])
    }

    fn is_open(&mut self) -> bool {
        self.call("event_read", &["latch:l"], &[]) == "set"
    }
}

/// The dead hold nothing, and what they left goes with the next who asks.
#[test]
fn the_permits_of_the_dead_are_free() {
    let rule = "elseif kind and not deadline_of(KEYS[1], member) then dead[#dead + 1] = all[i]";
    let off = "elseif all[i] == 'h:a:1' or all[i] == 'h:a:2' then held = held + 1";
    proves("permit_take", rule, off, |lab| {
        lab.join("a");
        lab.join("b");
        assert_eq!((lab.take("a", 1), lab.take("a", 2)), (answer("ok"), answer("ok")));
        assert_eq!(lab.take("b", 3), "full");
        lab.reap("a");
        let free = lab.take("b", 4) == "ok";
        let key = lab.key("semaphore:s");
        let fields: Vec<String> = lab.redis(&["HKEYS", &key]);
        free && !fields.iter().any(|field| field.contains(":a"))
    });
}

fn answer(tag: &str) -> Answer {
    Answer(vec![tag.to_owned()])
}

#[test]
fn a_repeated_attempt_takes_one_permit() {
    let rule = "if redis.call('HEXISTS', KEYS[2], mine) == 1 then return 'ok' end";
    proves("permit_take", rule, "", |lab| {
        lab.join("a");
        lab.join("b");
        assert_eq!((lab.take("a", 1), lab.take("b", 2)), (answer("ok"), answer("ok")));
        lab.take("b", 2) == "ok" // although the semaphore is full
    });
}

/// A late copy of an attempt that was given back, or given up before it arrived, takes nothing.
#[test]
fn a_late_attempt_takes_no_permit() {
    let rule = "if tonumber(n) <= back then return 'late' end";
    proves("permit_take", rule, "", |lab| {
        lab.join("a");
        let late = lab.permit("permit_take", "a", 2);
        lab.take("a", 1);
        lab.send(&late);
        assert_eq!(lab.back("a", 2), "ok");
        assert_eq!(lab.back("a", 2), "already");
        lab.send(&late) == "late" && lab.back("a", 3) == "already" && lab.take("a", 3) == "late"
    });
}

/// ⚑ A server that has forgotten that a permit was given back, or taken, is told; a late copy of that takes nothing away.
#[test]
fn what_was_given_up_is_not_held_after_a_failover() {
    let rule = "dropped = redis.call('HDEL', KEYS[2], field)";
    proves("hold_compare", rule, "dropped = true", |lab| {
        lab.join("a");
        lab.join("b");
        assert_eq!((lab.take("a", 1), lab.take("a", 2)), (answer("ok"), answer("ok")));
        // In truth it gave the first one back, and got a third and a fourth one.
        let keys = ["members", "semaphore:s", "@0:semaphore:s"];
        let compare = lab.late("hold_compare", &keys, &["a", "h", "4", "2", "3", "4"]);
        let said = lab.send(&compare);
        assert_eq!((said.at(1), said.at(2)), ("3", "4"), "the ones that are missing");
        let free = lab.take("b", 5) == "ok" && lab.take("a", 6) == "full";
        lab.back("b", 5);
        lab.take("a", 7);
        lab.send(&compare);
        free && lab.take("b", 8) == "full"
    });
    // One that is waiting at a barrier stays, and one that went through does not.
    on_each_server(|lab| {
        lab.join("a");
        lab.join("b");
        assert_eq!(lab.arrive("a", 1), "waiting");
        let keys = ["members", "barrier:b", "@0:barrier:b"];
        let waits = lab.late("hold_compare", &keys, &["a", "a", "1", "1"]);
        assert_eq!(lab.send(&waits).0, ["ok"]);
        let gone = lab.late("hold_compare", &keys, &["a", "a", "1"]);
        assert_eq!(lab.send(&gone).0, ["ok"]);
        assert_eq!(lab.arrive("b", 2), "waiting", "nobody else is there");
    });
}

#[test]
fn a_latch_counts_each_call_once_and_in_its_round() {
    on_each_server(|lab| {
        let round = lab.begin("2", "x").at(1).to_owned();
        assert_eq!(lab.begin("2", "x").at(1), round, "a repeat begins nothing");
        assert_eq!(lab.begin("5", "y"), "running");
        assert_eq!(lab.count_down(&round, "a").at(1), "1");
        assert!(!lab.is_open());
        assert_eq!(lab.count_down(&round, "b").at(1), "0");
        assert!(lab.is_open());
        let next = lab.begin("1", "z").at(1).to_owned();
        assert!(!lab.is_open(), "a new round");
        assert_eq!(lab.count_down(&round, "c"), "moved", "a late copy of before");
        assert_eq!(lab.count_down(&next, "c").at(1), "0");
        assert!(lab.is_open());
    });
    // A late copy that found a round running does not begin one later.
    let rule = "if ARGV[3] ~= (latch[2] or '0') then return {'moved', latch[2] or '0'} end";
    proves("latch_set", rule, "", |lab| {
        let late = lab.late("latch_set", &["latch:l"], &["5", "late", "0"]);
        let round = lab.begin("1", "x").at(1).to_owned();
        assert_eq!(lab.send(&late), "running");
        lab.count_down(&round, "a");
        lab.send(&late);
        lab.is_open()
    });
    let rule = " or redis.call('HSETNX', KEYS[1], 'c:' .. ARGV[2], '1') == 0";
    proves("latch_down", rule, "", |lab| {
        let round = lab.begin("2", "x").at(1).to_owned();
        lab.count_down(&round, "a");
        lab.count_down(&round, "a");
        !lab.is_open()
    });
    let rule = "if ARGV[1] ~= round then return {'moved', count, round} end";
    proves("latch_down", rule, "", |lab| {
        let round = lab.begin("1", "x").at(1).to_owned();
        let late = lab.late("latch_down", &["latch:l", "@0:latch:l"], &[&round, "a"]);
        lab.send(&late);
        lab.begin("1", "y");
        lab.send(&late);
        !lab.is_open()
    });
}

#[test]
fn an_arrival_counts_once() {
    on_each_server(|lab| {
        lab.join("a");
        lab.join("b");
        assert_eq!(lab.arrive("a", 1), "waiting");
        assert_eq!(lab.arrive("a", 1), "waiting", "a repeat");
        assert_eq!(lab.arrive("b", 2), "through");
        assert_eq!((lab.arrive("a", 1), lab.arrive("b", 2)), {
            let through = lab.arrive("b", 2);
            (through.clone(), through)
        });
    });
    // A late copy of an arrival of before does not arrive in the next round.
    let rule = "if tonumber(n) <= last then return 'late' end";
    proves("arrive", rule, "", |lab| {
        lab.join("a");
        lab.join("b");
        let late = lab.arrival("a", 1);
        lab.send(&late);
        lab.arrive("b", 1);
        lab.arrive("a", 2);
        lab.arrive("b", 2);
        lab.send(&late);
        lab.arrive("b", 3) == "waiting"
    });
    // Whoever died or went away does not count.
    let rule = "elseif kind and not deadline then old[#old + 1] = all[i]";
    let off = "elseif kind == 'a' and not deadline then here[#here + 1] = string.sub(all[i], 3)";
    proves("arrive", rule, off, |lab| {
        for id in ["a", "b", "c"] {
            lab.join(id);
        }
        lab.arrive("a", 1);
        lab.reap("a");
        lab.arrive("b", 1);
        let here = lab.call("withdraw", &["members", "barrier:b"], &["b", "1"]) == "ok";
        lab.arrive("c", 1) == "waiting" && here
    });
    // Nor does whoever is overdue; heard of again, it does.
    let rule = "elseif kind == 'a' and tonumber(deadline) >= now then";
    proves("arrive", rule, "elseif kind == 'a' then", |lab| {
        lab.join("a");
        lab.join("b");
        lab.arrive("a", 1);
        let members = lab.key("members");
        let () = lab.redis(&["ZADD", &members, "1", "a"]);
        let alone = lab.arrive("b", 1) == "waiting";
        lab.heartbeat("a", NOBODY, "0");
        alone && lab.arrive("b", 1) == "through"
    });
}
