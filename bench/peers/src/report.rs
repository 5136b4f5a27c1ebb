//! What was measured, as a markdown table: the median of the rounds, and the smallest and largest of them.

use std::fmt::Write;

use crate::load::BYTES;
use crate::peer::Peer;

const HEADER: [&str; 14] = [
    "peer",
    "messages x rounds",
    "in /s",
    "out /s",
    "artel/peer in",
    "artel/peer out",
    "Redis CPU us in",
    "Redis CPU us out",
    "own CPU us in",
    "own CPU us out",
    "B per waiting",
    "p50 ms",
    "p99 ms",
    "handled",
];

/// Messages one way: their rate, and what one of them cost Redis and this process.
pub(crate) struct Way {
    pub(crate) per_s: f64,
    pub(crate) server_us: f64,
    pub(crate) own_us: f64,
}

/// Messages in and out, once.
pub(crate) struct Flow {
    pub(crate) into: Way,
    pub(crate) out: Way,
    pub(crate) memory: f64,
    pub(crate) handled: usize,
}

/// All that was measured.
pub(crate) struct Report {
    server: String,
    rounds: usize,
    load: String,
    flows: Vec<(Peer, usize, Flow)>,
    /// Peer, p50 and p99 in milliseconds.
    latencies: Vec<(Peer, f64, f64)>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(server: String, rounds: usize) -> Report {
        let (flows, latencies, notes) = (Vec::new(), Vec::new(), Vec::new());
        Report { server, rounds, load: load(), flows, latencies, notes }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn flow(&mut self, peer: Peer, round: usize, flow: Flow) {
        self.flows.push((peer, round, flow));
    }

    pub(crate) fn latency(&mut self, peer: Peer, (p50, p99): (f64, f64)) {
        self.latencies.push((peer, p50, p99));
    }

    /// One row per peer that worked at least once.
    pub(crate) fn table(&self, peers: &[Peer]) -> String {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let mut text = format!(
            "{} without persistence, {cores} cores, {BYTES}-byte messages, {} rounds after one to warm up, \
             median (min..max). Load average before: {}, after: {}.\n\n",
            self.server,
            self.rounds,
            self.load,
            load()
        );
        let _ = writeln!(text, "| {} |", HEADER.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(HEADER.len()));
        for &peer in peers {
            if let Some(row) = self.row(peer) {
                let _ = writeln!(text, "| {} |", row.join(" | "));
            }
        }
        let notes = if self.notes.is_empty() {
            "Handled: in every round that counts, handled messages (for artel, its books) equal those that were added."
                .to_owned()
        } else {
            self.notes.join("\n")
        };
        let _ = writeln!(text, "\n{notes}");
        text
    }

    pub(crate) fn title(&self) -> String {
        format!("Messages a second, {} without persistence", self.server)
    }

    /// The medians of messages in and out per second, of each peer that worked at least once.
    pub(crate) fn rates(&self, peers: &[Peer]) -> Vec<(&'static str, f64, f64)> {
        let rate = |peer, value: fn(&Flow) -> f64| {
            median(self.of(peer).map(|(_, flow)| value(flow)).collect())
        };
        let both = |&peer: &Peer| {
            Some((
                peer.name(),
                rate(peer, |flow| flow.into.per_s)?,
                rate(peer, |flow| flow.out.per_s)?,
            ))
        };
        peers.iter().filter_map(both).collect()
    }

    fn row(&self, peer: Peer) -> Option<Vec<String>> {
        let flows: Vec<&Flow> = self.of(peer).map(|(_, flow)| flow).collect();
        let latencies: Vec<_> = self.latencies.iter().filter(|row| row.0 == peer).collect();
        if flows.is_empty() && latencies.is_empty() {
            return None;
        }
        let flow = |value: fn(&Flow) -> f64| spread(flows.iter().map(|flow| value(flow)).collect());
        let right = flows.iter().filter(|flow| flow.handled == peer.count()).count();
        Some(vec![
            peer.name().to_owned(),
            format!("{} x {}", peer.count(), flows.len()),
            flow(|flow| flow.into.per_s),
            flow(|flow| flow.out.per_s),
            self.ratio(peer, |flow| flow.into.per_s),
            self.ratio(peer, |flow| flow.out.per_s),
            flow(|flow| flow.into.server_us),
            flow(|flow| flow.out.server_us),
            flow(|flow| flow.into.own_us),
            flow(|flow| flow.out.own_us),
            flow(|flow| flow.memory),
            spread(latencies.iter().map(|row| row.1).collect()),
            spread(latencies.iter().map(|row| row.2).collect()),
            if flows.is_empty() {
                "-".to_owned()
            } else {
                format!("all in {right} of {}", flows.len())
            },
        ])
    }

    fn of(&self, peer: Peer) -> impl Iterator<Item = (usize, &Flow)> {
        let of_peer = self.flows.iter().filter(move |row| row.0 == peer);
        of_peer.map(|(_, round, flow)| (*round, flow))
    }

    /// How many times as fast Artel was in the same round.
    fn ratio(&self, peer: Peer, value: fn(&Flow) -> f64) -> String {
        let of_round = |(round, flow): (usize, &Flow)| {
            let (_, artel) = self.of(Peer::Artel).find(|(number, _)| *number == round)?;
            Some(value(artel) / value(flow))
        };
        spread(self.of(peer).filter_map(of_round).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    let is_odd = values.len() % 2 == 1;
    Some(if is_odd { upper } else { (values[middle - 1] + upper) / 2.0 })
}

/// The median, and the range if there is one.
fn spread(values: Vec<f64>) -> String {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let median = median(values);
    median.map_or("-".to_owned(), |median| {
        format!("{} ({}..{})", short(median), short(min), short(max))
    })
}

/// Three digits are more than these figures carry.
fn short(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 1_000.0 => format!("{:.1}k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// How busy the machine is, over the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_between_the_ends() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), "2.00 (1.00..3.00)");
        assert_eq!(spread(vec![1.0, 3.0]), "2.00 (1.00..3.00)");
        assert_eq!(spread(Vec::new()), "-");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(short(663_412.0), "663k");
        assert_eq!(short(1_234.0), "1.2k");
        assert_eq!(short(154.7), "155");
    }
}
