//! What many members cost: who is told of a join, and how often presence and members are compared one by one.

use std::io::{Read, Write};
use std::net::TcpStream;

use artel_rig::eventually;

use crate::lab::{Lab, proves};
use crate::membership::next_look;

/// ⚑ A connection that Redis still counts after its end makes every look a full scan. After ten that found nothing there is
/// one in a second, and whoever dies is noticed at the next look all the same.
#[test]
fn a_connection_that_is_only_counted_costs_one_scan_in_a_second() {
    proves("look", "if times >= 10 and", "if times >= 1000 and", |lab| {
        let _watcher = lab.presence("watcher");
        lab.join("watcher");
        let presence = lab.presence("a");
        lab.join("a");
        let _half_open = lab.presence("nobody");
        let (watch, suspects) = (lab.key("watch"), lab.key("suspects"));
        let scans = |lab: &mut Lab| -> String {
            let odd: Option<String> = lab.redis(&["HGET", &watch, "odd"]);
            odd.unwrap_or_default()
        };
        // Twenty looks take two seconds: more of them do not scan than do.
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..11 {
            next_look(lab, 60_000);
        }
        for _ in 0..20 {
            next_look(lab, 60_000);
            seen.insert(scans(lab));
        }
        let is_cheap = seen.len() < 10;
        lab.absent("a", presence);
        let alive = lab.key("@0:alive");
        eventually("the connection to be gone", || {
            lab.redis::<(String, u64)>(&["PUBSUB", "SHARDNUMSUB", &alive]).1 == 2
        });
        next_look(lab, 60_000);
        assert!(lab.redis::<bool>(&["HEXISTS", &suspects, "a"]), "a death was not noticed");
        is_cheap
    });
}

/// Only members with fewer than 64 others before them are told of: nobody else's rank matters soon.
#[test]
fn a_member_with_many_before_it_wakes_nobody() {
    proves("join", "if below < 64 then", "if true then", |lab| {
        let mut listener = TcpStream::connect(("127.0.0.1", lab.port())).expect("connects");
        write!(listener, "SSUBSCRIBE {}\r\n", lab.key("@0:ctl")).expect("writes");
        let mut said = String::new();
        let mut hear = |until: &str| {
            let mut bytes = [0; 4096];
            while !said.contains(until) {
                let n = listener.read(&mut bytes).expect("reads");
                said.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        };
        hear(":1\r\n");
        for n in 0..70 {
            lab.join(&format!("m{n:03}"));
        }
        let () = lab.redis(&["SPUBLISH", &lab.key("@0:ctl"), "the end"]);
        hear("the end");
        let told = said.matches("joined|").count();
        assert!(told >= 64, "{told}");
        told == 64
    });
}
