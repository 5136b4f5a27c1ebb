//! Calls with packs: staged as the library stages them, read and settled by their places.

use redis::Value;

use crate::lab::{Answer, Lab, Late, flatten};

/// The first id of a pack, and the offset and length of each of its messages.
pub(super) fn places(pack: &str) -> (String, Vec<(u64, u64)>) {
    let bars: Vec<usize> = pack.match_indices('|').map(|(at, _)| at).take(4).collect();
    let (first, mut at, mut places) = (&pack[bars[0] + 1..bars[1]], bars[3] + 1, Vec::new());
    while at < pack.len() {
        let digits = pack[at..].split(':').next().expect("a length");
        let length: u64 = digits.parse().expect("a number");
        places.push((at as u64, length));
        at += digits.len() + 1 + length as usize;
    }
    (first.to_owned(), places)
}

impl Late {
    /// Puts its messages into a pack. `at` is where the call says how many there are.
    pub fn stage(&mut self, head: &str, first: &str, payloads: &[&str], at: usize) {
        let bodies: String =
            payloads.iter().map(|payload| format!("{}:{payload}", payload.len())).collect();
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        self.pack = Some(format!("{head}|{first}|1|1794710083950|{bodies}"));
        self.args[at] = payloads.len().to_string();
        self.args[at + 1] = bytes.to_string();
        self.args[at + 2] = "1794710083950".to_owned();
    }

    /// Makes a settle of a pack: the id of its first message, and where the named messages stand.
    pub fn name_places(&mut self, first: &str, named: &[(u64, &str)], places: &[(u64, u64)]) {
        self.args[5] = first.to_owned();
        for (index, (position, _)) in named.iter().enumerate() {
            let (offset, length) = places[*position as usize];
            self.args[7 + 5 * index + 3] = offset.to_string();
            self.args[7 + 5 * index + 4] = length.to_string();
        }
    }
}

impl Lab {
    /// As the library does: `MULTI`, `SET stage`, the script, `DEL stage`, `EXEC`.
    pub(super) fn try_send_staged(
        &mut self,
        late: &Late,
        script: &redis::Script,
        pack: &str,
    ) -> redis::RedisResult<Answer> {
        let () = script.prepare_invoke().load(&mut self.connection).map(drop)?;
        let stage = self.key("stage");
        let mut call = redis::cmd("EVALSHA");
        call.arg(script.get_hash()).arg(late.keys.len()).arg(&late.keys).arg(&late.args);
        let mut pipe = redis::pipe();
        pipe.atomic().set(&stage, pack).ignore().add_command(call).del(&stage).ignore();
        let (answer,): (Value,) = pipe.query(&mut self.connection)?;
        Ok(Answer(flatten(answer)))
    }

    /// The same messages as a pack.
    pub fn push_packed(&self, me: &str, term: &str, from: u64, payloads: &[&str]) -> Late {
        let mut call = self.push_with(me, term, from, &[], ("", ""));
        call.stage("1g-", &format!("{term}-{from}"), payloads, 7);
        call
    }

    /// The same messages as a pack.
    pub fn send_packed(&mut self, sender: &str, from: u64, lane: &str, payloads: &[&str]) -> Late {
        let mut call = self.send_call(sender, from, lane, &[], None);
        call.stage(&format!("1{}-", &lane[..1]), &format!("s{sender}-{from}"), payloads, 4);
        call
    }

    /// The pack of a block, as the `GET` behind a fetch reads it.
    pub fn pack(&mut self, me: &str, n: u64) -> Option<String> {
        let key = self.key(&format!("pack:{me}:{n}"));
        self.redis(&["GET", &key])
    }
}
