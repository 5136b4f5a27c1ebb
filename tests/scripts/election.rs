use crate::lab::{Lab, on_each_server, proves};

#[test]
fn one_member_leads_and_terms_only_grow() {
    on_each_server(|lab| {
        for id in ["a", "b"] {
            lab.join(id);
        }
        let first = lab.acquire("a");
        assert_eq!(first, "won");
        let refused = lab.acquire("b");
        assert_eq!(refused, "held");
        assert!(refused.at(1).starts_with("a|"));
        lab.reap("a");
        let second = lab.acquire("b");
        assert_eq!(second, "won");
        assert!(term(second.at(1)) > term(first.at(1)));
        assert_eq!(lab.acquire("a"), "gone");
    });
}

#[test]
fn a_term_grows_even_when_the_clock_stands_far_behind() {
    on_each_server(|lab| {
        lab.join("a");
        let key = lab.key("term");
        let () = lab.redis(&["SET", &key, "4499999999999999"]);
        assert_eq!(lab.acquire("a").at(1), "4500000000000000");
    });
}

/// ⚑ A promoted server may have forgotten a term or a token, and its clock may be behind: what is granted is higher than
/// what the caller has seen. A number from a year ahead counts for nothing.
#[test]
fn what_is_granted_is_higher_than_what_was_seen() {
    let rule = "math.max(before or 0, floor)";
    proves("acquire", rule, "before or 0", |lab| {
        lab.join("a");
        let now: (u64, u64) = lab.redis(&["TIME"]);
        let ahead = |seconds: u64| ((now.0 + seconds) * 1_000_000).to_string();
        let (hour, years) = (ahead(3600), ahead(2 * 366 * 86400));
        let lease = lab.acquire_from("a", &years).at(1) < hour.as_str();
        let lock = lab.lock_from("a", "l", &years).at(1) < hour.as_str();
        assert!(lease && lock, "nobody may push the numbers far ahead");
        let lease = lab.acquire_from("a", &hour).at(1) > hour.as_str();
        let lock = lab.lock_from("a", "m", &hour).at(1) > hour.as_str();
        lease && lock
    });
}

/// ⚑ Past 2^53 Lua's numbers skip, and a term would not grow. Nothing is granted past 2^52; what is stored
/// stays as it is, and every heartbeat says so.
#[test]
fn no_term_and_no_token_is_granted_past_two_to_the_52nd() {
    let rule = "next <= 4503599627370496 and ";
    for key in ["term", "token"] {
        proves("acquire", rule, "", |lab| {
            lab.join("a");
            let stored = lab.key(key);
            let ask = |lab: &mut Lab, last: &str| {
                let () = lab.redis(&["SET", &stored, last]);
                match key {
                    "term" => lab.acquire("a"),
                    _ => lab.lock("a", "l", 1),
                }
            };
            assert_eq!(lab.heartbeat("a", "0", "0").at(7), "");
            let refused = ask(lab, "4503599627370496") == "spent";
            assert_eq!(lab.heartbeat("a", "0", "0").at(7), key);
            let () = lab.redis(&["SET", &stored, "9007199254740993"]);
            let still: String = lab.redis(&["GET", &stored]);
            assert_eq!(still, "9007199254740993");
            // An operator lowers it, and all is well.
            refused && ask(lab, "4503599627370495") == "won"
        });
    }
}

/// ⚑ Always a new term, also when the lease is already mine: otherwise a late copy of a push that
/// was numbered under it is accepted a second time.
#[test]
fn acquiring_again_gives_a_new_term() {
    let rule = "if not token then return 'spent' end";
    let off = "token = held and string.match(held, '|(%d+)$') or token";
    proves("acquire", rule, off, |lab| {
        lab.join("a");
        let term = lab.acquire("a").at(1).to_owned();
        let push = lab.push_call("a", &term, 1, &["x"]);
        assert_eq!(lab.send(&push), "ok");
        lab.acquire("a"); // the reply to the first one was lost
        lab.send(&push); // a late copy
        lab.lane("generated").len() == 1
    });
}

#[test]
fn a_stale_generator_is_refused() {
    on_each_server(|lab| {
        let old = lab.leader_with("a", &["x"]);
        lab.join("b");
        lab.reap("a");
        assert_eq!(lab.push("a", &old, 2, &["y"]), "gone");
        lab.acquire("b");
        lab.join("a2");
        assert_eq!(lab.push("a2", &old, 2, &["y"]), "fenced");
        assert_eq!(lab.lane("generated").len(), 1);
        lab.assert_clean();
    });
}

/// The check of the lease is what refuses it.
#[test]
fn without_the_lease_check_two_generators_are_accepted() {
    let rule = "if redis.call('GET', KEYS[2]) ~= me .. '|' .. term then return 'fenced' end";
    proves("push", rule, "", |lab| {
        let old = lab.leader_with("a", &["x"]);
        let resign = lab.resign_call("a", &old);
        assert_eq!(lab.send(&resign), "ok");
        lab.push("a", &old, 2, &["y"]);
        lab.lane("generated").len() == 1
    });
}

/// A late copy from a member's first term must not end its second.
#[test]
fn resigning_names_its_term() {
    let rule = "local held = holder == whose .. '|' .. token";
    proves("resign", rule, "local held = holder", |lab| {
        lab.join("a");
        let first = lab.acquire("a").at(1).to_owned();
        let resign = lab.resign_call("a", &first);
        assert_eq!(lab.send(&resign), "ok");
        lab.acquire("a");
        lab.send(&resign);
        leads(lab, "a")
    });
}

fn leads(lab: &mut Lab, id: &str) -> bool {
    let key = lab.key("lease");
    let lease: Option<String> = lab.redis(&["GET", &key]);
    lease.is_some_and(|lease| lease.starts_with(&format!("{id}|")))
}

fn term(text: &str) -> u64 {
    text.parse().expect("a term")
}
