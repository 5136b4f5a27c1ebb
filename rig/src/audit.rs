//! [`Audit`]: finds gaps and duplicates in a [`Snapshot`]. It does not trust the fleet's own
//! counters.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::Snapshot;

/// The failed messages that are no longer stored.
#[derive(Clone, Copy, Debug)]
pub enum Taken<'a> {
    /// These ids were printed by takers, or put back to work.
    Ids(&'a [String]),
    /// Only their number is known: as many as the fleet has counted.
    Counted,
}

/// The result of an audit.
#[derive(Debug, Default)]
pub struct Audit {
    /// Every problem, in words.
    pub problems: Vec<String>,
    /// All messages that were seen, by term.
    pub terms: BTreeMap<u64, BTreeSet<u64>>,
    /// Settled messages.
    pub settled: usize,
}

impl Audit {
    /// Audits a fleet that runs with the ledger on.
    pub fn of(snapshot: &Snapshot, taken: Taken<'_>) -> Audit {
        let mut audit = Audit::default();
        let mut seen: HashMap<&str, String> = HashMap::new();
        let places = snapshot.lanes.iter().map(|(lane, ids)| (format!("lane {lane}"), ids));
        let places = places.chain(snapshot.blocks.iter().map(|(name, ids)| (name.clone(), ids)));
        for (place, ids) in places {
            for id in ids {
                audit.put(&mut seen, id, place.clone());
            }
        }
        let duties = &snapshot.duties;
        for id in duties.scheduled.keys().chain(duties.parked.iter().map(|(_, _, id)| id)) {
            audit.put(&mut seen, id, "later".to_owned());
        }
        audit.problems.extend(duties.problems());
        for settled in &snapshot.ledger {
            let place = format!("settled {} by {}", settled.outcome, settled.member);
            audit.put(&mut seen, &settled.id, place);
        }
        audit.settled = snapshot.ledger.len();
        for (term, seqs) in &audit.terms {
            let last = seqs.last().copied().unwrap_or(0);
            for missing in (1..=last).filter(|seq| !seqs.contains(seq)) {
                audit.problems.push(format!("{term}-{missing} is missing"));
            }
        }
        audit.blocks(snapshot);
        audit.errors(snapshot, taken);
        audit.counters(snapshot);
        audit
    }

    fn put<'a>(&mut self, seen: &mut HashMap<&'a str, String>, id: &'a str, place: String) {
        if let Some((term, seq)) = id.split_once('-')
            && let (Ok(term), Ok(seq)) = (term.parse(), seq.parse())
        {
            self.terms.entry(term).or_default().insert(seq);
        }
        if let Some(other) = seen.insert(id, place.clone()) {
            self.problems.push(format!("{id} is in two places: {other} and {place}"));
        }
    }

    /// Every block is on record with the right number of messages, and has an owner.
    fn blocks(&mut self, snapshot: &Snapshot) {
        self.problems.extend(snapshot.torn.iter().cloned());
        for (block, ids) in &snapshot.blocks {
            let (held, recorded) = (ids.len() as u64, snapshot.recorded.get(block));
            if recorded != Some(&held) {
                self.problems.push(format!("{block} has {held} messages, on record {recorded:?}"));
            }
            let member = block.strip_prefix("block:").and_then(|rest| rest.rsplit_once(':'));
            let member = member.map_or("", |(member, _)| member);
            if !snapshot.members.iter().any(|id| id == member) && !snapshot.orphans.contains(member)
            {
                self.problems.push(format!("{block} belongs to neither a member nor an orphan"));
            }
        }
    }

    fn errors(&mut self, snapshot: &Snapshot, taken: Taken<'_>) {
        let failed = snapshot.ledger.iter().filter(|settled| settled.outcome == "failed");
        let failed: BTreeSet<&str> = failed.map(|settled| settled.id.as_str()).collect();
        let ids = match taken {
            Taken::Ids(ids) => ids,
            Taken::Counted => &[],
        };
        let mut kept: BTreeSet<&str> = BTreeSet::new();
        for id in snapshot.errors.iter().chain(ids) {
            if !kept.insert(id) {
                self.problems
                    .push(format!("{id} is in the error store twice, or stored and taken"));
            }
        }
        for id in kept.difference(&failed) {
            self.problems.push(format!("{id} is in the error store, but not failed in the ledger"));
        }
        // Nobody knows the ids of failed messages that were not kept.
        let gone: Vec<&&str> = failed.difference(&kept).collect();
        let counted: &[&str] = match taken {
            Taken::Ids(_) => &["forgotten"],
            Taken::Counted => &["taken", "requeued", "dropped", "forgotten"],
        };
        let counted: i64 = counted.iter().map(|name| snapshot.count(name)).sum();
        if gone.len() as i64 != counted {
            let few: Vec<_> = gone.iter().take(5).collect();
            self.problems.push(format!(
                "{} failed messages are not stored ({few:?}), but {counted} were counted",
                gone.len()
            ));
        }
        let mut origins = BTreeSet::new();
        for origin in snapshot.origins.iter().filter(|origin| !origins.insert(*origin)) {
            self.problems.push(format!("{origin} was put back to work twice"));
        }
    }

    fn counters(&mut self, snapshot: &Snapshot) {
        let failed = snapshot.ledger.iter().filter(|settled| settled.outcome == "failed").count();
        let facts = [
            ("claimed", snapshot.claimed()),
            ("failed", failed),
            ("done", snapshot.ledger.len() - failed),
        ];
        let added = snapshot.count("generated") + snapshot.count("sent");
        let there = (snapshot.unsettled() + snapshot.ledger.len()) as i64;
        if added != there {
            self.problems.push(format!("{added} were generated or sent, but {there} exist"));
        }
        for (name, fact) in facts {
            if snapshot.count(name) != fact as i64 {
                let count = snapshot.count(name);
                self.problems.push(format!("counter {name} is {count}, but should be {fact}"));
            }
        }
        if snapshot.wakes > 1 {
            self.problems.push(format!("there are {} wake tokens", snapshot.wakes));
        }
    }

    /// Panics if there is any problem.
    #[track_caller]
    pub fn assert_clean(&self) {
        let shown = self.problems.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.problems.is_empty(), "{} problems:\n{shown}", self.problems.len());
    }
}
