//! Alerts: one member judges, and each sink is told once, whichever member dies and whichever reply is lost.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::lab::{Answer, Lab, Late, on_each_server, proves};

/// What a member must tell, as the script answers it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Claim {
    sink: String,
    rule: String,
    what: String,
    episode: String,
    is_repeat: bool,
    at: u64,
    text: String,
}

fn claims(answer: &Answer) -> Vec<Claim> {
    assert_eq!(answer.tag(), "ok", "{answer:?}");
    let parts = answer.0[3..].chunks(7);
    parts
        .map(|part| Claim {
            sink: part[0].clone(),
            rule: part[1].clone(),
            what: part[2].clone(),
            episode: part[3].clone(),
            is_repeat: part[4] == "1",
            at: part[5].parse().expect("a time"),
            text: part[6].clone(),
        })
        .collect()
}

/// A rule as a step names it: its name, its kind, verdict, hold, cooldown, text.
type Rule<'a> = [&'a str; 6];

fn backlog(verdict: &str) -> Rule<'_> {
    ["backlog", "c", verdict, "0", "0", if verdict == "1" { "it waits" } else { "it is gone" }]
}

fn lost<'a>(who: &'a str) -> Rule<'a> {
    ["lost", "e", if who.is_empty() { "0" } else { "1" }, "0", "0", who]
}

impl Lab {
    fn step_call(
        &self,
        (me, speaks): (&str, bool),
        (cursor, next): (&str, &str),
        sinks: &[&str],
        (busy, open): (&[String], &[&str]),
        rules: &[Rule<'_>],
    ) -> Late {
        let counts = [sinks.len(), busy.len(), open.len()].map(|count| count.to_string());
        let mut args = vec![me, if speaks { "1" } else { "0" }, cursor, next, &counts[0]];
        args.extend(sinks);
        args.push(&counts[1]);
        args.extend(busy.iter().map(String::as_str));
        args.push(&counts[2]);
        args.extend(open);
        args.extend(rules.iter().flatten());
        self.late("alert_step", &["members", "alerts", "notices"], &args)
    }

    /// One step of this member, which knows how far the log was read.
    fn step(&mut self, me: &str, busy: &[String], rules: &[Rule<'_>]) -> Vec<Claim> {
        let cursor = self.cursor();
        let cursors = (cursor.as_str(), cursor.as_str());
        let call = self.step_call((me, true), cursors, &["mail"], (busy, &[]), rules);
        claims(&self.send(&call))
    }

    fn cursor(&mut self) -> String {
        let alerts = self.key("alerts");
        let cursor = self.redis::<Option<String>>(&["HGET", &alerts, "cursor"]);
        cursor.unwrap_or_else(|| "0-0".to_owned())
    }

    fn told_call(&self, me: &str, claim: &Claim, told: &str) -> Late {
        let args = [me, &claim.sink, &claim.rule, &claim.what, &claim.episode, told];
        self.late("alert_told", &["alerts"], &args)
    }

    fn told(&mut self, me: &str, claim: &Claim) {
        let call = self.told_call(me, claim, "1");
        assert_eq!(self.send(&call), "ok");
    }
}

fn whats(claims: &[Claim]) -> Vec<(&str, bool)> {
    claims.iter().map(|claim| (&*claim.what, claim.is_repeat)).collect()
}

#[test]
fn a_condition_is_told_once_and_its_end_once() {
    on_each_server(|lab| {
        lab.join("a");
        assert!(lab.step("a", &[], &[backlog("0")]).is_empty());
        let fired = lab.step("a", &[], &[backlog("1")]);
        assert_eq!(whats(&fired), [("firing", false)]);
        assert_eq!(fired[0].text, "it waits");
        let busy = ["mail:backlog".to_owned()];
        assert!(lab.step("a", &busy, &[backlog("1")]).is_empty(), "it is being told");
        assert!(lab.step("a", &busy, &[backlog("0")]).is_empty(), "its end waits");
        lab.told("a", &fired[0]);
        let over = lab.step("a", &[], &[backlog("?")]);
        assert_eq!(whats(&over), [("resolved", false)]);
        assert_eq!(over[0].text, "it is gone");
        lab.told("a", &over[0]);
        assert!(lab.step("a", &[], &[backlog("0")]).is_empty());
        assert_eq!(whats(&lab.step("a", &[], &[backlog("1")])), [("firing", false)]);
    });
}

#[test]
fn what_is_not_known_changes_nothing() {
    on_each_server(|lab| {
        lab.join("a");
        let fired = lab.step("a", &[], &[backlog("1")]);
        lab.told("a", &fired[0]);
        lab.join("b");
        assert!(lab.step("b", &[], &[backlog("?")]).is_empty());
        assert_eq!(whats(&lab.step("b", &[], &[backlog("0")])), [("resolved", false)]);
    });
}

#[test]
fn a_hold_and_a_cooldown_are_kept() {
    on_each_server(|lab| {
        lab.join("a");
        let slow = |verdict| ["slow", "c", verdict, "3600000", "0", "x"];
        assert!(lab.step("a", &[], &[slow("1")]).is_empty());
        assert!(lab.step("a", &[], &[slow("1")]).is_empty());
        let cool = |verdict| ["cool", "c", verdict, "0", "3600000", "x"];
        let fired = lab.step("a", &[], &[cool("1")]);
        lab.told("a", &fired[0]);
        let over = lab.step("a", &[], &[cool("0")]);
        lab.told("a", &over[0]);
        assert!(lab.step("a", &[], &[cool("1")]).is_empty(), "not so soon");
    });
}

/// A sender died: what it was telling is told again, and marked. What it had told is not.
fn is_told_again(lab: &mut Lab) -> bool {
    ["a", "b"].iter().for_each(|id| {
        lab.join(id);
    });
    let fired = lab.step("a", &[], &[backlog("1")]);
    assert_eq!(whats(&fired), [("firing", false)]);
    let patient = lab.step("b", &[], &[backlog("1")]).is_empty();
    lab.reap("a");
    let again = lab.step("b", &[], &[backlog("1")]);
    let marked = whats(&again) == [("firing", true)];
    let late = lab.told_call("a", &fired[0], "1");
    let refused = lab.send(&late) == "moved";
    lab.told("b", again.first().unwrap_or(&fired[0]));
    lab.join("c");
    patient && marked && refused && lab.step("c", &[], &[backlog("1")]).is_empty()
}

#[test]
fn what_a_dead_member_was_telling_is_told_again_and_marked() {
    on_each_server(|lab| assert!(is_told_again(lab)));
    proves("alert_step", "or who ~= me and deadline_of(KEYS[1], who)", "", is_told_again);
    proves("alert_step", "or who ~= me and deadline_of(KEYS[1], who)", "or who ~= me", |lab| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| is_told_again(lab)))
            .unwrap_or(false)
    });
}

/// A reply is lost: the repeat is refused, nothing is judged twice, and what was claimed is told by the next step.
#[test]
fn a_step_whose_reply_is_lost_is_not_taken_twice() {
    on_each_server(|lab| {
        lab.join("a");
        let call =
            lab.step_call(("a", true), ("0-0", "5-0"), &["mail"], (&[], &[]), &[lost("b died")]);
        let first = claims(&lab.send(&call));
        let again = lab.send(&call);
        assert_eq!((again.tag(), again.at(1)), ("moved", "5-0"));
        let next = lab.step("a", &[], &[lost("")]);
        assert_eq!(next.len(), 1);
        assert_eq!((&next[0].what, &next[0].text), (&first[0].what, &first[0].text));
        assert!(next[0].is_repeat, "nobody knows whether the first one was told");
        let told = lab.told_call("a", &next[0], "1");
        assert_eq!(lab.send(&told), "ok");
        assert_eq!(lab.send(&told), "moved", "a repeat changes nothing");
        let given_up = lab.told_call("a", &next[0], "0");
        assert_eq!(lab.send(&given_up), "moved", "and a late copy neither");
        assert!(lab.step("a", &[], &[lost("")]).is_empty());
    });
}

#[test]
fn one_member_judges() {
    on_each_server(|lab| {
        ["a", "b"].iter().for_each(|id| {
            lab.join(id);
        });
        let step = |lab: &Lab, me: &str, speaks, cursor: &str| {
            lab.step_call((me, speaks), (cursor, "7-0"), &["mail"], (&[], &[]), &[])
        };
        let call = step(lab, "a", false, "0-0");
        assert_eq!(lab.send(&call), "ok");
        let call = step(lab, "b", false, "7-0");
        assert_eq!(lab.send(&call), "held");
        let call = step(lab, "b", true, "7-0");
        assert_eq!(lab.send(&call), "ok", "it speaks for the fleet");
        let call = step(lab, "a", false, "7-0");
        assert_eq!(lab.send(&call), "held");
        lab.reap("b");
        assert_eq!(lab.send(&call), "ok", "the other one is dead");
        let call = step(lab, "b", true, "7-0");
        assert_eq!(lab.send(&call), "gone");
    });
}

#[test]
fn events_that_happen_while_one_is_told_are_told_together() {
    on_each_server(|lab| {
        ["a", "b"].iter().for_each(|id| {
            lab.join(id);
        });
        let first = lab.step("a", &[], &[lost("x died")]);
        let busy = ["mail:lost".to_owned()];
        assert!(lab.step("a", &busy, &[lost("y died")]).is_empty());
        assert!(lab.step("a", &busy, &[lost("z died")]).is_empty());
        lab.reap("a");
        let rest = lab.step("b", &[], &[lost("")]);
        assert_eq!(whats(&rest), [("firing", true)], "the first may have been told");
        assert_eq!(rest[0].text, "x died; y died; z died");
        assert_ne!(rest[0].episode, first[0].episode);
        lab.told("b", &rest[0]);
        assert!(lab.step("b", &[], &[lost("")]).is_empty());
    });
}

fn fields(lab: &mut Lab, pairs: &[(&str, &str)]) {
    let alerts = lab.key("alerts");
    for (field, value) in pairs {
        let _: i64 = lab.redis(&["HSET", &alerts, field, value]);
    }
}

/// Redis lost the record: the caller knows how far the log was read, and what must still be told to end.
fn survives_a_loss(lab: &mut Lab) -> bool {
    lab.join("a");
    let fired = lab.step("a", &[], &[backlog("1")]);
    lab.told("a", &fired[0]);
    let alerts = lab.key("alerts");
    let step = |lab: &mut Lab, cursor: &str, rules: &[Rule<'_>]| {
        let memory = (&[][..], &["mail:backlog"][..]);
        let call = lab.step_call(("a", true), (cursor, "8-0"), &["mail"], memory, rules);
        lab.send(&call)
    };
    assert_eq!(step(lab, "7-0", &[]).at(1), "0-0", "the record knows better");
    let _: i64 = lab.redis(&["DEL", &alerts]);
    let begun = step(lab, "7-0", &[]);
    let open = begun.at(2).contains("mail:backlog");
    let quiet = claims(&step(lab, "8-0", &[backlog("1")])).is_empty();
    let over = claims(&step(lab, "8-0", &[backlog("0")]));
    open && quiet && whats(&over) == [("resolved", false)]
}

#[test]
fn what_was_told_to_fire_is_told_to_end_although_redis_lost_the_record() {
    on_each_server(|lab| assert!(survives_a_loss(lab)));
    let rule = "if rule and (not told or set_back and fired <= resolved) then";
    proves("alert_step", rule, "if false then", survives_a_loss);
}

/// Redis went back to a state before the alert: the judge is new and remembers nothing, another member does.
fn survives_a_step_back(lab: &mut Lab) -> bool {
    for id in ["a", "b"] {
        lab.join(id);
    }
    let step = |lab: &mut Lab,
                (who, judges): (&str, bool),
                cursors: (&str, &str),
                open: &[&str],
                rules: &[Rule<'_>]| {
        let call = lab.step_call((who, judges), cursors, &["mail"], (&[], open), rules);
        lab.send(&call)
    };
    // The sink was told of an earlier episode, which ended; then Redis forgot the latest one.
    let fired = lab.step("a", &[], &[backlog("1")]);
    lab.told("a", &fired[0]);
    let over = lab.step("a", &[], &[backlog("0")]);
    lab.told("a", &over[0]);
    fields(lab, &[("cursor", "5-0")]);
    step(lab, ("b", false), ("7-0", "7-0"), &["mail:backlog"], &[]);
    let over = claims(&step(lab, ("a", true), ("5-0", "6-0"), &[], &[backlog("0")]));
    whats(&over) == [("resolved", false)]
}

#[test]
fn what_only_another_member_remembers_is_told_to_end_although_redis_went_back() {
    on_each_server(|lab| assert!(survives_a_step_back(lab)));
    let rule = "not told or set_back and fired <= resolved";
    proves("alert_step", rule, "not told", survives_a_step_back);
}

/// A cursor that cannot be true is taken as missing, and the caller's, too.
fn heals_a_cursor(lab: &mut Lab) -> bool {
    lab.join("a");
    let notices = lab.key("notices");
    let entry: String = lab.redis(&["XADD", &notices, "*", "kind", "joined"]);
    let step = |lab: &mut Lab, cursor: &str, next: &str| {
        let call = lab.step_call(("a", true), (cursor, next), &["mail"], (&[], &[]), &[]);
        lab.send(&call)
    };
    let future = "99999999999999-0";
    for damaged in
        ["", "x", "5", future, "1-99999999999999999999999", "\n", "9999999999999999999999-1"]
    {
        fields(lab, &[("cursor", damaged)]);
        if step(lab, "5-0", &entry).tag() != "ok" {
            return false;
        }
        fields(lab, &[("cursor", damaged)]);
        let unknown = step(lab, "", "");
        let unsound = step(lab, future, future);
        if unknown.tag() != "moved" || unknown.at(1) != entry || unsound.at(1) != entry {
            return false;
        }
    }
    // The clock went back: the log itself is ahead, so its newest entry is a place in it.
    let _: String = lab.redis(&["XADD", &notices, future, "kind", "joined"]);
    fields(lab, &[("cursor", future)]);
    step(lab, future, future).tag() == "ok"
}

#[test]
fn a_cursor_that_cannot_be_true_stops_nobody() {
    on_each_server(|lab| assert!(heals_a_cursor(lab)));
    let rule = "if tonumber(ms) > now and tonumber(ms) > tonumber((string.match(newest(), '^%d+'))) then return nil end";
    proves("alert_step", rule, "", heals_a_cursor);
    proves("alert_step", rule, "if tonumber(ms) > now then return nil end", heals_a_cursor);
}

/// Times that are still to come keep no alert back.
fn fires_although_times_are_wrong(lab: &mut Lab) -> bool {
    lab.join("a");
    let future = "99999999999999";
    fields(
        lab,
        &[
            ("rule:cool", &format!("q|0|{future}|{future}")),
            ("rule:slow", &format!("p|{future}|0|0")),
            ("rule:lost", &format!("q|{future}|0|0")),
        ],
    );
    let rules = [
        ["cool", "c", "1", "0", "3600000", "x"],
        ["slow", "c", "1", "0", "0", "x"],
        ["lost", "e", "1", "0", "3600000", "b died"],
    ];
    let fired = lab.step("a", &[], &rules);
    fired.len() == 3 && fired[1].at < 99_999_999_999_999
}

#[test]
fn times_that_are_still_to_come_keep_no_alert_back() {
    on_each_server(|lab| assert!(fires_although_times_are_wrong(lab)));
    let holds = fires_although_times_are_wrong;
    proves("alert_step", "since > now or now - since >= time", "now - since >= time", holds);
    proves("alert_step", "if state == 'q' or since > now then", "if state == 'q' then", holds);
}

/// A rule that is not set any more: what it was told to fire is told to end.
fn ends_with_its_rule(lab: &mut Lab) -> bool {
    lab.join("a");
    let fired = lab.step("a", &[], &[backlog("1"), lost("")]);
    let busy = ["mail:backlog".to_owned()];
    assert!(lab.step("a", &busy, &[lost("")]).is_empty(), "it is being told");
    lab.told("a", &fired[0]);
    let over = lab.step("a", &[], &[lost("")]);
    if whats(&over) != [("resolved", false)] || over[0].text != "this rule is not set any more" {
        return false;
    }
    lab.told("a", &over[0]);
    lab.step("a", &[], &[lost("")]).is_empty()
}

#[test]
fn what_fires_ends_with_its_rule() {
    on_each_server(|lab| assert!(ends_with_its_rule(lab)));
    proves("alert_step", "if rule and not judged[rule] then", "if false then", ends_with_its_rule);
}

/// A sink that rests gets no claim from this member. What was given back untouched is not marked.
fn lets_a_sink_rest(lab: &mut Lab) -> bool {
    lab.join("a");
    let resting = ["mail".to_owned()];
    let rests = lab.step("a", &resting, &[backlog("1"), lost("b died")]).is_empty();
    let tried = lab.step("a", &[], &[backlog("1"), lost("c died")]);
    for claim in &tried {
        let call = lab.told_call("a", claim, "-");
        assert_eq!(lab.send(&call), "ok");
    }
    let again = lab.step("a", &[], &[backlog("1"), lost("")]);
    rests && whats(&again) == [("firing", false); 2] && again[1].text == "b died; c died"
}

#[test]
fn a_sink_that_rests_gets_nothing_and_loses_nothing() {
    on_each_server(|lab| assert!(lets_a_sink_rest(lab)));
    proves("alert_step", "return telling or busy[sink],", "return telling,", lets_a_sink_rest);
}

#[test]
fn a_claim_says_when_it_happened() {
    on_each_server(|lab| {
        lab.join("a");
        let now = |lab: &mut Lab| -> u64 {
            let time: (u64, u64) = lab.redis(&["TIME"]);
            time.0 * 1000 + time.1 / 1000
        };
        let before = now(lab);
        let fired = lab.step("a", &[], &[backlog("1"), lost("b died")]);
        let after = now(lab);
        assert!(fired.iter().all(|claim| (before..=after).contains(&claim.at)), "{fired:?}");
        lab.told("a", &fired[0]);
        let over = lab.step("a", &["mail:lost".to_owned()], &[backlog("0"), lost("")]);
        assert!((after..=now(lab)).contains(&over[0].at), "{over:?}");
    });
}

/// How many steps it may take until everything is told.
const END_MAX: u64 = 1000;

/// Members that judge, tell, die and lose replies, at random. Whatever happens: a sink is told each episode before the next
/// one, never twice without a mark, and in the end nothing is left out.
fn nobody_is_told_twice_at_random(lab: &mut Lab, seed: u64, steps: u64) -> Result<(), String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut named = 0;
    let mut living: Vec<String> = Vec::new();
    let mut open: Vec<(String, Claim)> = Vec::new(); // who tells what now
    let mut told: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new(); // by sink: what reached it
    let mut happened = Vec::new();
    let mut holds = false;
    let busy = |open: &[(String, Claim)], me: &str| -> Vec<String> {
        let mine = open.iter().filter(|(who, _)| who == me);
        mine.map(|(_, claim)| format!("{}:{}", claim.sink, claim.rule)).collect()
    };
    // At the end everything arrives, until there is nothing to tell: each member has asked since the last news.
    let mut quiet = BTreeSet::new();
    for step in 0..steps + END_MAX {
        let is_end = step >= steps;
        if is_end && open.is_empty() && living.iter().all(|id| quiet.contains(id)) {
            break;
        }
        if living.len() < 2 {
            named += 1;
            let id = format!("m{named}");
            lab.join(&id);
            living.push(id);
        }
        match random.random_range(0..100) {
            0..10 if !is_end => {
                let at = random.random_range(0..living.len());
                let dead = living.remove(at);
                lab.reap(&dead);
                // What it was sending reached the sink, or not.
                for (_, claim) in open.extract_if(.., |(who, _)| *who == dead) {
                    if random.random_bool(0.5) {
                        told.entry(claim.sink.clone())
                            .or_default()
                            .push((claim.what + &claim.text, claim.is_repeat));
                    }
                }
            }
            10..50 => {
                let Some(at) = (!open.is_empty()).then(|| random.random_range(0..open.len()))
                else {
                    continue;
                };
                quiet.clear();
                let (who, claim) = open.remove(at);
                let arrived = is_end || random.random_bool(0.8);
                let call = lab.told_call(&who, &claim, if arrived { "1" } else { "0" });
                if arrived {
                    told.entry(claim.sink.clone())
                        .or_default()
                        .push((claim.what + &claim.text, claim.is_repeat));
                }
                if lab.send(&call) != "ok" {
                    return Err(format!("{who} told what somebody else was telling"));
                }
            }
            _ => {
                let me = living[random.random_range(0..living.len())].clone();
                if !is_end && random.random_bool(0.3) {
                    holds = !holds;
                }
                let event = match !is_end && random.random_bool(0.3) {
                    true => format!("<{step}>"),
                    false => String::new(),
                };
                let verdict = if is_end {
                    "0"
                } else if holds {
                    "1"
                } else {
                    "0"
                };
                let cursor = lab.cursor();
                let next = if event.is_empty() { cursor.clone() } else { format!("{step}-0") };
                let rules = [backlog(verdict), lost(&event)];
                let call = lab.step_call(
                    (&me, true),
                    (&cursor, &next),
                    &["mail", "hook"],
                    (&busy(&open, &me), &[]),
                    &rules,
                );
                let answer = lab.send(&call);
                if !event.is_empty() {
                    happened.push(event.clone());
                }
                // A lost reply: nothing of it is told now.
                if !is_end && random.random_bool(0.1) {
                    continue;
                }
                let claims = claims(&answer);
                match is_end && claims.is_empty() {
                    true => drop(quiet.insert(me.clone())),
                    false => quiet.clear(),
                }
                for claim in claims {
                    let same = |(_, other): &(String, Claim)| {
                        (&other.sink, &other.rule) == (&claim.sink, &claim.rule)
                    };
                    if open.iter().any(same) {
                        return Err(format!("two tell {} to {}", claim.rule, claim.sink));
                    }
                    open.push((me.clone(), claim));
                }
            }
        }
    }
    if !open.is_empty() || !living.iter().all(|id| quiet.contains(id)) {
        return Err(format!("there is something to tell after {END_MAX} steps: {open:?}"));
    }
    for (sink, told) in &told {
        for event in &happened {
            let mut about = told.iter().filter(|(text, _)| text.contains(event.as_str()));
            if about.next().is_none() {
                return Err(format!("{sink} was not told {event}"));
            }
            if about.any(|(_, is_repeat)| !is_repeat) {
                return Err(format!("{sink} was told {event} twice, without a mark"));
            }
        }
        let states: Vec<&(String, bool)> =
            told.iter().filter(|(text, _)| text.contains("it ")).collect();
        for pair in states.windows(2) {
            if pair[0].0 == pair[1].0 && !pair[1].1 {
                return Err(format!("{sink} was told {:?} twice, without a mark", pair[1].0));
            }
        }
        if states.last().is_some_and(|(text, _)| text.starts_with("firing")) {
            return Err(format!("{sink} believes that it still fires"));
        }
    }
    Ok(())
}

#[test]
fn nobody_is_told_twice_and_nothing_is_left_out_whatever_happens() {
    on_each_server(|lab| {
        for seed in 0..20 {
            let () = lab.redis(&["FLUSHALL"]);
            if let Err(wrong) = nobody_is_told_twice_at_random(lab, seed, 300) {
                panic!("seed {seed}: {wrong}");
            }
        }
    });
    let holds = |lab: &mut Lab| {
        (100..110).all(|seed| {
            let () = lab.redis(&["FLUSHALL"]);
            nobody_is_told_twice_at_random(lab, seed, 200).is_ok()
        })
    };
    for (rule, instead) in [
        ("who == me and busy[claim] or ", ""),
        ("what, which, doubtful == what,", "what, which, false,"),
        ("'firing', episode, doubtful, since", "'firing', episode, false, since"),
        ("redis.call('HEXISTS', KEYS[2], 'telling:' .. claim) == 1", "false"),
        ("    if state == 'f' then ended, news", "    if false then ended, news"),
    ] {
        proves("alert_step", rule, instead, holds);
    }
    proves("alert_told", "redis.call('HDEL', KEYS[1], 'telling:'", "local _ = ('telling:'", holds);
    proves("alert_told", "'|' .. what .. '|' .. of .. '|')", "'|||')", holds);
}
