use crate::lab::{Lab, Late, NOBODY, PROTOCOL, on_each_server, proves};

impl Lab {
    /// Makes a sender known, as it does before it sends anything.
    pub fn enroll(&mut self, sender: &str) {
        let enroll = self.late("enroll", &[&format!("sent:{sender}")], &["3600000"]);
        assert_eq!(self.send(&enroll), "ok");
    }

    /// `lane` by its name; `key` deduplicates. Whoever begins to count is made known first.
    pub fn send_call(
        &mut self,
        sender: &str,
        from: u64,
        lane: &str,
        payloads: &[&str],
        key: Option<&str>,
    ) -> Late {
        if from == 1 {
            self.enroll(sender);
        }
        let (letter, ms) = (&lane[..1], self.now_ms());
        let envelopes: Vec<String> = (from..)
            .zip(payloads)
            .map(|(seq, payload)| format!("1{letter}-|s{sender}-{seq}|1|{ms}|{payload}"))
            .collect();
        let (sent, lane) = (format!("sent:{sender}"), format!("lane:{lane}"));
        let dedup = key.map(|key| format!("dedup:{key}"));
        let (from, chunk) = (from.to_string(), format!("chunk:s{sender}-{from}"));
        let mut keys = vec![sent.as_str(), &lane, "counts", "wake", "config", "errors"];
        keys.extend(["stage", &chunk]);
        keys.extend(dedup.as_deref());
        let mut args = vec![sender, &from, PROTOCOL, "60000", "0", "0", "0"];
        args.extend(envelopes.iter().map(String::as_str));
        self.late("send", &keys, &args)
    }
}

/// Sends and hears nothing: the same bytes again, and again after the next batch.
#[test]
fn a_repeated_batch_is_added_once() {
    let rule = "if from + n - 1 <= last then";
    proves("send", rule, "if false then", |lab| {
        let first = lab.send_call("a", 1, "normal", &["1", "2"], None);
        let second = lab.send_call("a", 3, "normal", &["3"], None);
        assert_eq!(lab.send(&first), "ok");
        let again = lab.send(&first) == "already";
        lab.send(&second);
        let late = lab.send(&first) == "already";
        let clean = lab.lane("normal").len() == 3 && lab.count("sent") == 3;
        again && late && clean
    });
}

#[test]
fn missing_numbers_are_refused() {
    proves("send", "if from ~= last + 1 then return 'gap' end", "", |lab| {
        let first = lab.send_call("a", 1, "normal", &["1"], None);
        lab.send(&first);
        let third = lab.send_call("a", 3, "normal", &["3"], None);
        let forgotten = lab.send_call("b", 2, "normal", &["2"], None);
        lab.send(&third) == "gap" && lab.send(&forgotten) == "gap" && lab.count("sent") == 1
    });
}

/// ⚑ A batch was added, its reply was lost, and what is known of its sender was forgotten: after an hour of
/// silence, or because the clock of Redis jumped ahead by more than that and back. Its copy must not be
/// taken for something new.
#[test]
fn a_copy_from_a_forgotten_sender_is_refused() {
    let rule = "if not seen then return 'gap' end";
    proves("send", rule, "seen = seen or '0'", |lab| {
        let first = lab.send_call("a", 1, "normal", &["1"], None);
        assert_eq!(lab.send(&first), "ok");
        let sent = lab.key("sent:a");
        let () = lab.redis(&["DEL", &sent]);
        lab.send(&first) == "gap" && lab.lane("normal").len() == 1 && lab.count("sent") == 1
    });
}

/// ⚑ A late copy of an enrolment does not begin the numbers anew.
#[test]
fn enrolling_twice_changes_nothing() {
    proves("enroll", "'NX', ", "", |lab| {
        let first = lab.send_call("a", 1, "normal", &["1"], None);
        assert_eq!(lab.send(&first), "ok");
        lab.enroll("a");
        lab.send(&first) == "already" && lab.lane("normal").len() == 1
    });
}

#[test]
fn under_one_key_one_message_is_added() {
    proves("send", "  if id then", "  if false then", |lab| {
        let mine = lab.send_call("a", 1, "high", &["pay"], Some("order 7"));
        let theirs = lab.send_call("b", 1, "high", &["pay"], Some("order 7"));
        assert_eq!(lab.send(&mine), "ok");
        let answer = lab.send(&theirs);
        answer == "duplicate" && answer.at(1) == "sa-1" && lab.lane("high").len() == 1
    });
}

/// ⚑ The reply `duplicate` was lost, and the key expired before the repeat: the answer must be the
/// same, and no later copy may be added after all.
#[test]
fn a_duplicate_stays_one_although_its_key_expires() {
    let rule = "redis.call('SET', KEYS[1], upto .. '|' .. id, 'PX', SENT_MS)";
    proves("send", rule, "", |lab| {
        let mine = lab.send_call("a", 1, "high", &["pay"], Some("k"));
        let theirs = lab.send_call("b", 1, "high", &["pay"], Some("k"));
        lab.send(&mine);
        lab.send(&theirs);
        let key = lab.key("dedup:k");
        let () = lab.redis(&["DEL", &key]);
        let answer = lab.send(&theirs);
        answer == "duplicate" && answer.at(1) == "sa-1" && lab.lane("high").len() == 1
    });
}

#[test]
fn a_full_lane_takes_all_or_nothing_and_uses_no_number() {
    let rule = "+ n > tonumber(backlog_max) then return {'full', 'backlog', backlog_max} end";
    proves("send", rule, "< 0 then end", |lab| {
        lab.limit_backlog("5");
        let four = lab.send_call("a", 1, "low", &["1", "2", "3", "4"], None);
        assert_eq!(lab.send(&four), "ok");
        let two = lab.send_call("a", 5, "low", &["5", "6"], None);
        if lab.send(&two) != "full" {
            return false;
        }
        let one = lab.send_call("a", 5, "low", &["5"], None);
        lab.send(&one) == "ok" && lab.lane("low").len() == 5
    });
}

/// What was returned goes first and alone; then the lanes in the order the worker names them.
#[test]
fn lanes_are_served_in_the_order_of_the_call() {
    on_each_server(|lab| {
        lab.leader_with("gen", &["g1"]);
        for lane in ["low", "normal", "high"] {
            let call = lab.send_call(lane, 1, lane, &[lane], None);
            assert_eq!(lab.send(&call), "ok");
        }
        lab.join("w");
        let lanes = ["lane:low", "lane:high", "lane:generated", "lane:normal"];
        let call = lab.fetch_from(&lanes, "w", 1, 3, NOBODY, 1);
        let block = lab.send(&call);
        let payloads: Vec<&str> =
            block.messages().iter().filter_map(|message| message.rsplit('|').next()).collect();
        assert_eq!(payloads, ["low", "high", "g1"]);
        // Given back, each is in its own lane again.
        let stamp = block.at(1).to_owned();
        let back = lab.give_back_call("w", 1, &stamp, &[0, 1, 2]);
        assert_eq!(lab.send(&back), "ok");
        for lane in ["low", "high", "generated", "normal"] {
            assert_eq!(lab.lane(lane).len(), 1, "{lane}");
        }
        lab.assert_clean();
    });
}

/// A lab with `count` failed messages of the generator.
fn with_errors(lab: &mut Lab, count: usize) -> Vec<String> {
    let payloads: Vec<String> = (1..=count).map(|n| format!("bad {n}")).collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    lab.leader_with("gen", &payloads);
    lab.join("w");
    let block = lab.fetch("w", 1, count as u64, NOBODY);
    let stamp = block.at(1).to_owned();
    let named: Vec<(u64, &str)> = (0..count as u64).map(|at| (at, "f")).collect();
    assert_eq!(lab.settle("w", 1, &stamp, "0", &named), "ok");
    lab.stored()
}

fn words(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

#[test]
fn a_requeued_message_is_a_new_one_that_knows_its_origin() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 2);
        let call = lab.requeue_call("r", 1, "", &words(&stored));
        assert_eq!(lab.send(&call).0, ["ok", "2", "0", "2"]);
        let lane = lab.lane("normal");
        assert!(lane[0].starts_with("1nh|sr-1|1|"), "{lane:?}");
        assert!(lane[0].contains(r#"{"origin":""#) && lane[0].ends_with("-1\"}bad 1"), "{lane:?}");
        assert_eq!((lab.count("sent"), lab.count("failed"), lab.count("requeued")), (2, 2, 2));
        assert!(lab.stored().is_empty());
        // It fails again and is put back again: its headers survive, its origin is the last failure.
        let block = lab.fetch("w", 2, 1, NOBODY);
        let stamp = block.at(1).to_owned();
        lab.settle("w", 2, &stamp, "0", &[(0, "f")]);
        let stored = lab.stored();
        let call = lab.requeue_call("r", 3, "h", &words(&stored));
        assert_eq!(lab.send(&call).0, ["ok", "1", "0", "1"]);
        let lane = lab.lane("high");
        assert!(lane[0].ends_with(r#"{"origin":"sr-1"}bad 1"#), "{lane:?}");
    });
}

/// ⚑ Named twice in one call, a record is still one.
#[test]
fn a_record_that_is_named_twice_is_put_back_once() {
    proves("requeue", "if message and not seen[ARGV[i]] then", "if message then", |lab| {
        let stored = with_errors(lab, 1);
        let call = lab.requeue_call("a", 1, "", &[&stored[0], &stored[0]]);
        lab.send(&call);
        lab.lane("normal").len() == 1 && lab.count("sent") == 1
    });
}

/// What travels beside the payload is left as it is, numbers and odd JSON included.
#[test]
fn headers_survive_being_put_back() {
    on_each_server(|lab| {
        let errors = lab.key("errors");
        for (headers, expected) in [
            (
                r#"{"kind":"x","n":1794710083943807,"a":[]}"#,
                r#"{"origin":"s1-1","kind":"x","n":1794710083943807,"a":[]}"#,
            ),
            (r#"{"origin":"5-1","n":1e999}"#, r#"{"origin":"s1-1","n":1e999}"#),
            (r#"{"kind":"x","origin":"5-1"}"#, r#"{"origin":"s1-1","kind":"x"}"#),
            ("{}", r#"{"origin":"s1-1"}"#),
            ("nonsense", r#"{"origin":"s1-1"}"#),
        ] {
            let message = format!("1nh|s1-1|1|9|{}:{headers}body", headers.len());
            let _: String = lab.redis(&["XADD", &errors, "*", "m", &message, "e", "{}"]);
            let stored = lab.stored();
            let name = format!("r{}", lab.count("sent"));
            let call = lab.requeue_call(&name, 1, "l", &words(&stored));
            assert_eq!(lab.send(&call).0, ["ok", "1", "0", "1"]);
            let lane = lab.lane("low");
            let tail = format!("{}:{expected}body", expected.len());
            assert!(lane.last().is_some_and(|message| message.ends_with(&tail)), "{lane:?}");
            let low = lab.key("lane:low");
            let () = lab.redis(&["DEL", &low]);
        }
    });
}

/// ⚑ Two people put the same back, and one of them does so twice.
#[test]
fn a_record_is_put_back_once() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 3);
        let mine = lab.requeue_call("a", 1, "", &words(&stored[..2]));
        let theirs = lab.requeue_call("b", 1, "", &words(&stored));
        assert_eq!(lab.send(&mine).0, ["ok", "2", "0", "2"]);
        assert_eq!(lab.send(&theirs).0, ["ok", "1", "0", "3"]);
        assert_eq!(
            lab.send(&mine).0,
            ["already", "2", "0", "2"],
            "the repeat knows how many it was"
        );
        assert_eq!(lab.lane("normal").len(), 3);
        assert_eq!(lab.count("sent"), 3);
    });
}

/// The numbers are what makes the count of a repeat right.
#[test]
fn without_its_numbers_a_repeated_requeue_counts_wrongly() {
    let rule = "if last >= from then\n";
    proves("requeue", rule, "if false then\n", |lab| {
        let stored = with_errors(lab, 2);
        let call = lab.requeue_call("a", 1, "", &words(&stored));
        lab.send(&call);
        let again = lab.send(&call);
        again.0.get(1).is_some_and(|count| count == "2")
    });
}

#[test]
fn a_requeue_without_room_moves_nothing() {
    let rule = "if more[target] > tonumber(backlog_max) then return {'full', backlog_max} end";
    proves("requeue", rule, "", |lab| {
        let stored = with_errors(lab, 3);
        lab.limit_backlog("5");
        let fill = lab.send_call("s", 1, "normal", &["1", "2", "3"], None);
        lab.send(&fill);
        let call = lab.requeue_call("a", 1, "", &words(&stored));
        lab.send(&call) == "full" && lab.stored().len() == 3 && lab.lane("normal").len() == 3
    });
}

#[test]
fn what_cannot_be_read_is_not_put_back() {
    on_each_server(|lab| {
        let errors = lab.key("errors");
        for message in ["what is this", "1nh|s1-1|1|9|99:{}x"] {
            let _: String = lab.redis(&["XADD", &errors, "*", "m", message, "e", "{}"]);
        }
        let stored = lab.stored();
        let call = lab.requeue_call("a", 1, "", &words(&stored));
        assert_eq!(lab.send(&call).0, ["ok", "0", "2", "2"]);
        assert_eq!(lab.stored(), stored);
    });
}

#[test]
fn picked_records_are_in_the_drain_and_nowhere_else() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 4);
        let pick = lab.pick_call("t", &[&stored[1], &stored[3]]);
        assert_eq!(lab.send(&pick).0, ["ok", "2", "2"]);
        assert_eq!(lab.send(&pick).0, ["ok", "0", "2"], "a repeat finds none of them");
        assert_eq!(lab.stored(), [stored[0].clone(), stored[2].clone()]);
        let drain = lab.key("drain:t");
        let taken: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &drain, "-", "+"]);
        let positions: Vec<&str> = taken.iter().map(|(position, _)| position.as_str()).collect();
        assert_eq!(positions, [stored[1].as_str(), stored[3].as_str()]);
        let confirm = lab.confirm_call("t", "60000", &positions);
        assert_eq!(lab.send(&confirm).0, ["ok", "0"]);
        assert_eq!(lab.count("taken"), 2);
    });
}

/// Put back among others, every record is there once and knows when it failed.
#[test]
fn a_drain_that_is_put_back_loses_nothing() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 5);
        let take = lab.take_call("t", "");
        assert_eq!(lab.send(&take), "ok");
        let other = lab.restore_call("t", false, 2);
        assert_eq!(lab.send(&other), "alive", "its taker lives");
        let errors = lab.key("errors");
        let _: String = lab.redis(&["XADD", &errors, "*", "m", "1g-|9-9|1|9|later", "e", "{}"]);
        let own = lab.restore_call("t", true, 2);
        for left in ["3", "1", "0"] {
            assert_eq!(lab.send(&own).0, ["ok", left]);
        }
        assert_eq!(lab.send(&own), "gone");
        let there: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &errors, "-", "+"]);
        assert_eq!(there.len(), 6);
        for (old, (_, fields)) in stored.iter().zip(&there[1..]) {
            assert_eq!(Some(fields[5].as_str()), old.split('-').next(), "{fields:?}");
        }
    });
}

/// Put back into an empty store, every record is where it was.
#[test]
fn a_drain_that_is_put_back_whole_keeps_its_positions() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 3);
        let take = lab.take_call("t", "");
        lab.send(&take);
        let own = lab.restore_call("t", true, 2);
        assert_eq!(lab.send(&own).0, ["ok", "0"]);
        assert_eq!(lab.stored(), stored);
        lab.assert_clean();
    });
}

/// Everything was put back to work, so the store is empty: whoever takes then finds nothing.
#[test]
fn an_emptied_store_is_empty() {
    on_each_server(|lab| {
        let stored = with_errors(lab, 1);
        let requeue = lab.requeue_call("a", 1, "", &words(&stored));
        assert_eq!(lab.send(&requeue), "ok");
        let take = lab.take_call("t", "");
        assert_eq!(lab.send(&take), "empty");
        let drains = lab.key("drains");
        assert_eq!(lab.redis::<i64>(&["EXISTS", &drains]), 0);
    });
}
