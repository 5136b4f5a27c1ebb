use crate::lab::{JOBS, Lab, Late, NOBODY, PROTOCOL, on_each_server, proves};

impl Lab {
    pub fn take_call(&self, token: &str, from: &str) -> Late {
        let (drain, old) = (format!("drain:{token}"), format!("drain:{from}"));
        let mut keys = vec!["errors", "drains", &drain];
        if !from.is_empty() {
            keys.push(&old);
        }
        self.late("take", &keys, &[token, "lab", "60000", from])
    }

    pub fn confirm_call(&self, token: &str, life: &str, ids: &[&str]) -> Late {
        let drain = format!("drain:{token}");
        let mut args = vec![token, "lab", life];
        args.extend(ids);
        self.late("confirm", &["drains", &drain, "counts"], &args)
    }

    pub fn pick_call(&self, token: &str, positions: &[&str]) -> Late {
        let drain = format!("drain:{token}");
        let mut args = vec![token, "lab", "60000", "1048576"];
        args.extend(positions);
        self.late("pick", &["errors", "drains", &drain], &args)
    }

    pub fn restore_call(&self, token: &str, own: bool, chunk: u64) -> Late {
        let drain = format!("drain:{token}");
        let (own, chunk) = (if own { "1" } else { "0" }, chunk.to_string());
        self.late(
            "restore",
            &["errors", "drains", &drain],
            &[token, own, &chunk, "60000", "1048576"],
        )
    }

    pub fn requeue_call(&self, sender: &str, from: u64, lane: &str, positions: &[&str]) -> Late {
        let (sent, from) = (format!("sent:{sender}"), from.to_string());
        let mut keys = JOBS.to_vec();
        keys.extend(["errors", &sent, "config", "notices"]);
        let mut args = vec![sender, &from, lane, PROTOCOL, "1048576", "ops"];
        args.extend(positions);
        self.late("requeue", &keys, &args)
    }

    /// The positions in the error store.
    pub fn stored(&mut self) -> Vec<String> {
        let errors = self.key("errors");
        let entries: Vec<(String, Vec<String>)> = self.redis(&["XRANGE", &errors, "-", "+"]);
        entries.into_iter().map(|(position, _)| position).collect()
    }
}

/// ⚑ A repeated take must not put newer errors over the ones that are not printed yet.
#[test]
fn a_repeated_take_loses_nothing() {
    let rule = "if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 'same' end";
    proves("take", rule, "", |lab| {
        fail(lab, "w1", "first");
        let take = lab.take_call("t", "");
        lab.send(&take);
        fail(lab, "w2", "second");
        lab.send(&take);
        stored(lab) == 2
    });
}

#[test]
fn two_takers_never_share_a_record() {
    on_each_server(|lab| {
        fail(lab, "w1", "first");
        let (one, two) = (lab.take_call("one", ""), lab.take_call("two", ""));
        assert_eq!(lab.send(&one), "ok");
        assert_eq!(lab.send(&two), "empty");
        fail(lab, "w2", "second");
        assert_eq!(lab.send(&two), "ok");
        assert_eq!((length(lab, "drain:one"), length(lab, "drain:two")), (1, 1));
    });
}

#[test]
fn a_page_is_deleted_once_and_the_drain_with_its_last_record() {
    on_each_server(|lab| {
        fail(lab, "w1", "first");
        fail(lab, "w2", "second");
        let take = lab.take_call("t", "");
        lab.send(&take);
        let drain = lab.key("drain:t");
        let page: Vec<(String, Vec<String>)> = lab.redis(&["XRANGE", &drain, "-", "+"]);
        let confirm = lab.confirm_call("t", "60000", &[&page[0].0]);
        assert_eq!(lab.send(&confirm).at(1), "1");
        assert_eq!(lab.send(&confirm).at(1), "1", "repeated: nothing more");
        assert_eq!(lab.count("taken"), 1);
        let confirm = lab.confirm_call("t", "60000", &[&page[1].0]);
        assert_eq!(lab.send(&confirm).at(1), "0");
        assert_eq!(lab.send(&confirm).0, ["ok", "0"], "repeated: all was confirmed");
        let drains = lab.key("drains");
        let drains: i64 = lab.redis(&["HLEN", &drains]);
        assert_eq!(drains, 0, "nobody finds it");
        assert_eq!(lab.count("taken"), 2);
    });
}

#[test]
fn a_drain_is_inherited_only_past_its_deadline_and_whole() {
    on_each_server(|lab| {
        fail(lab, "w1", "first");
        let take = lab.take_call("old", "");
        lab.send(&take);
        let inherit = lab.take_call("heir", "old");
        assert_eq!(lab.send(&inherit), "alive");
        let release = lab.confirm_call("old", "0", &[]);
        assert_eq!(lab.send(&release), "ok");
        artel_rig::eventually("the deadline", || lab.send(&inherit) != "alive");
        assert_eq!(lab.send(&inherit), "same");
        assert_eq!(stored(lab), 1);
        assert_eq!(lab.send(&release), "gone", "the old taker learns that it is not its own");
    });
}

/// A Redis whose clock was set back would call a dead taker alive until its old time has come again.
#[test]
fn a_clock_that_went_back_keeps_nobody_waiting() {
    on_each_server(|lab| {
        let (errors, drains) = (lab.key("errors"), lab.key("drains"));
        for (inherits, worker) in [(true, "w1"), (false, "w2")] {
            fail(lab, worker, "first");
            let take = lab.take_call("old", "");
            lab.send(&take);
            let _: u64 = lab.redis(&["HSET", &drains, "old", "lab|9000000000000"]);
            let heir = match inherits {
                true => {
                    let keys = ["errors", "drains", "drain:heir", "drain:old"];
                    lab.late("take", &keys, &["heir", "lab", "50", "old"])
                }
                false => {
                    let keys = ["errors", "drains", "drain:old"];
                    lab.late("restore", &keys, &["old", "0", "100", "50", "1048576"])
                }
            };
            assert_eq!(lab.send(&heir), "alive");
            artel_rig::eventually("a deadline that was cut", || lab.send(&heir) != "alive");
            assert_eq!(length(lab, if inherits { "drain:heir" } else { "errors" }), 1);
            let _: u64 = lab.redis(&["DEL", &errors, &drains]);
        }
    });
}

#[test]
fn nothing_stored_is_nothing_taken() {
    on_each_server(|lab| {
        let take = lab.take_call("t", "");
        assert_eq!(lab.send(&take), "empty");
        let inherit = lab.take_call("t", "nobody");
        assert_eq!(lab.send(&inherit), "empty");
    });
}

fn fail(lab: &mut Lab, worker: &str, payload: &str) {
    lab.join("gen");
    let term = lab.acquire("gen").at(1).to_owned();
    lab.push("gen", &term, 1, &[payload]);
    lab.join(worker);
    let block = lab.fetch(worker, 1, 1, NOBODY);
    assert_eq!(lab.settle(worker, 1, block.at(1), "0", &[(0, "f")]), "ok");
}

fn length(lab: &mut Lab, name: &str) -> u64 {
    let key = lab.key(name);
    lab.redis(&["XLEN", &key])
}

fn stored(lab: &mut Lab) -> u64 {
    ["errors", "drain:t", "drain:old", "drain:heir"].iter().map(|name| length(lab, name)).sum()
}
