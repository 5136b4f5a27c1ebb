//! What those do in the random schedule who are no members: senders, takers, whoever puts errors back.

use crate::schedule::World;

impl World<'_> {
    pub(super) fn take_errors(&mut self) {
        let token = if self.pick(2) == 0 { "t1" } else { "t2" };
        let call = self.lab.take_call(token, "");
        let answer = self.lab.send(&call);
        self.history.push(call);
        self.note(&format!("take {}", answer.tag()));
        // A taker that does not come to confirm what it has read keeps it in hand.
        if (answer == "ok" || answer == "same") && self.pick(2) == 0 {
            let drain = self.lab.key(&format!("drain:{token}"));
            let page: Vec<(String, Vec<String>)> =
                self.lab.redis(&["XRANGE", &drain, "-", "+", "COUNT", "2"]);
            let ids: Vec<&str> = page.iter().map(|(id, _)| id.as_str()).collect();
            let call = self.lab.confirm_call(token, "60000", &ids);
            self.lab.send(&call);
            self.history.push(call);
        }
    }

    /// A sender, or somebody who puts errors back to work: repeats what was not answered.
    pub(super) fn post(&mut self) {
        let at = self.pick(self.senders.len() as u64) as usize;
        let (name, next, unanswered) = self.senders[at].clone();
        let stored = self.lab.stored();
        let call = match unanswered {
            Some(call) => call,
            None if at == 0 && stored.is_empty() => return,
            None if at == 0 => {
                let some: Vec<&str> = stored.iter().take(2).map(String::as_str).collect();
                let lane = ["", "h", "l"][self.pick(3) as usize];
                self.lab.requeue_call(&name, next, lane, &some)
            }
            None => {
                let lane = ["high", "normal", "low"][self.pick(3) as usize];
                let payloads = self.payloads();
                let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
                let key = (payloads.len() == 1 && self.pick(2) == 0).then_some("key");
                match self.pick(2) {
                    0 if key.is_none() => self.lab.send_packed(&name, next, lane, &payloads),
                    _ => self.lab.send_call(&name, next, lane, &payloads, key),
                }
            }
        };
        let answer = self.lab.send(&call);
        self.note(&format!("{} {}", call.script, answer.tag()));
        self.history.push(call.clone());
        if self.pick(4) == 0 {
            self.senders[at].2 = Some(call);
            return self.note("lost reply");
        }
        self.senders[at].2 = None;
        match answer.tag() {
            "gap" => {
                self.born += 1;
                self.senders[at] = (format!("n{}", self.born), 1, None);
            }
            "full" => {}
            _ if call.script == "requeue" => {
                self.senders[at].1 += answer.at(1).parse::<u64>().expect("a number");
            }
            _ => {
                let packed: u64 = call.args[4].parse().expect("a number");
                let count = if packed > 0 { packed } else { call.args.len() as u64 - 7 };
                self.senders[at].1 += count;
            }
        }
    }

    pub(super) fn restore(&mut self) {
        let token = if self.pick(2) == 0 { "t1" } else { "t2" };
        let (own, chunk) = (self.pick(2) == 0, 1 + self.pick(3));
        let call = self.lab.restore_call(token, own, chunk);
        let answer = self.lab.send(&call);
        self.history.push(call);
        self.note(&format!("restore {}", answer.tag()));
    }

    pub(super) fn pick_errors(&mut self) {
        let stored = self.lab.stored();
        let some: Vec<&str> = stored.iter().skip(1).take(2).map(String::as_str).collect();
        self.born += 1;
        let call = self.lab.pick_call(&format!("k{}", self.born), &some);
        let answer = self.lab.send(&call);
        self.history.push(call);
        self.note(&format!("pick {}", answer.at(1)));
    }
}
