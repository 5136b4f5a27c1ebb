//! [`LogEntry`]: one entry of the common log.
//!
//! **Invariant:** whatever is in Redis, an entry can be read and shown. Fields that this version does not know are shown
//! as they are.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use crate::id::MemberId;
use crate::json_time;
use crate::term::Term;

/// Fields that are numbers, beside those that end with `_ms`.
const COUNTS: [&str; 4] = ["count", "returned", "failed", "open"];

/// One entry of the common log of a fleet. Made by [`History`](crate::History).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let work = |_: artel::Message, _: artel::Context| async { artel::Outcome::done() };
/// fleet.join().handle(work).start().await?.shutdown().await;
/// let entries = fleet.history().page().await?;
/// let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
/// assert_eq!(kinds, ["joined", "left"]);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogEntry {
    /// Its place in the log.
    pub id: String,
    /// When it was written, by the clock of Redis.
    #[serde(flatten, serialize_with = "json_time::point_both::serialize")]
    pub time: SystemTime,
    /// What happened: `joined`, `left`, `died`, `elected`, `resigned`, `adopted`, `ordered`, …
    pub kind: String,
    /// The member that it is about, or that saw it. None if an operator acted.
    pub member: Option<MemberId>,
    /// The name of that member for people, if it is still known.
    pub label: Option<String>,
    /// The role of that member, if it is known.
    pub role: Option<String>,
    /// The term that it is about.
    pub term: Option<Term>,
    /// Everything else, by name.
    #[serde(flatten, serialize_with = "with_numbers")]
    pub fields: BTreeMap<String, String>,
}

/// The fields, and those that count or measure something as numbers.
fn with_numbers<S: Serializer>(
    fields: &BTreeMap<String, String>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(fields.iter().map(|(name, value)| {
        let counts = name.ends_with("_ms") || COUNTS.contains(&name.as_str());
        let number = value.parse::<u64>().ok().filter(|_| counts);
        (name, number.map_or_else(|| value.as_str().into(), serde_json::Value::from))
    }))
}

impl LogEntry {
    pub(super) fn read(id: &str, mut fields: BTreeMap<String, String>) -> Option<LogEntry> {
        let ms: u64 = id.split('-').next()?.parse().ok()?;
        let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms))?;
        let mut take = |name: &str| fields.remove(name).filter(|value| !value.is_empty());
        let (kind, member) = (take("kind")?, take("member"));
        let (role, term) = (take("role"), take("term"));
        take("mark");
        fields.retain(|_, value| !value.is_empty());
        // These are parts of the JSON themselves.
        for name in ["id", "time", "time_ms"] {
            fields.remove(name);
        }
        Some(LogEntry {
            id: id.to_owned(),
            time,
            kind,
            member: member.and_then(|id| MemberId::from_redis(&id)),
            label: None,
            role,
            term: term.and_then(|term| Term::parse(&term)),
            fields,
        })
    }

    /// A number of ms among its fields.
    fn span(&self, name: &str) -> Option<Duration> {
        self.fields.get(name)?.parse().ok().map(Duration::from_millis)
    }

    /// What happened, in one line, without when and to whom.
    pub fn text(&self) -> String {
        let of = |name: &str| self.fields.get(name).map_or("", String::as_str);
        let member = |name: &str| match of(&format!("{name}_label")) {
            "" => of(name).chars().take(8).collect(),
            label => label.to_owned(),
        };
        let led = |text: String| match (self.role.as_deref(), self.term) {
            (Some("generator"), Some(term)) => format!("{text}; it led under term {term}"),
            _ => text,
        };
        let term = self.term.map_or_else(|| "?".to_owned(), |term| term.to_string());
        match self.kind.as_str() {
            "joined" => format!("joined the fleet ({}, version {})", of("process"), of("version")),
            "left" if of("open") == "0" => led("left the fleet".to_owned()),
            "left" => led(format!("left the fleet, with {} blocks or locks open", of("open"))),
            "died" => led(match self.span("silent_ms") {
                Some(silent) => format!("died: not heard of for {} ms", silent.as_millis()),
                None => "died".to_owned(),
            }),
            "elected" => {
                let why = match of("why") {
                    "first" => "the first generator".to_owned(),
                    "again" => "it led already".to_owned(),
                    "died" => format!("{} died", member("from")),
                    "left" => format!("{} left", member("from")),
                    "resigned" => format!("{} resigned", member("from")),
                    _ => "nobody led".to_owned(),
                };
                let gap = self.span("gap_ms");
                let gap = gap.map(|gap| format!(", nobody led for {} ms", gap.as_millis()));
                format!("elected: leads under term {term} ({why}{})", gap.unwrap_or_default())
            }
            "resigned" => format!("resigned: no longer leads under term {term}"),
            "adopted" => format!(
                "put back messages of {}: {} to run again, {} to the errors",
                member("whose"),
                of("returned"),
                of("failed")
            ),
            "server-changed" => {
                format!("another server process answers: {}, before it {}", of("to"), of("from"))
            }
            "ordered" => format!("order `{}`, by {}", order(of("order")), of("by")),
            "order-ended" => {
                format!("end of the order `{}`, by {}", order(of("order")), of("by"))
            }
            "cron-set" => format!("periodic entry `{}` was written, by {}", of("entry"), of("by")),
            "cron-removed" => {
                format!("periodic entry `{}` was removed, by {}", of("entry"), of("by"))
            }
            "errors-dropped" => format!("{} errors were dropped, by {}", of("count"), of("by")),
            "errors-requeued" => {
                format!("{} errors were put back to work, by {}", of("count"), of("by"))
            }
            "scheduled-cancelled" | "scheduled-started" | "scheduled-moved" => format!(
                "{} scheduled messages were {}, by {}",
                of("count"),
                self.kind.trim_start_matches("scheduled-"),
                of("by")
            ),
            _ if self.fields.contains_key("text") => of("text").to_owned(),
            _ => {
                let rest = self.fields.iter().map(|(name, value)| format!("{name}={value}"));
                rest.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// An order in words, by the field in which it stands.
fn order(field: &str) -> String {
    match field.split_once(':') {
        Some(("lane", lane)) => format!("pause lane {lane}"),
        Some(("drain", member)) => format!("drain {}", member.chars().take(8).collect::<String>()),
        _ if field == "all" => "pause everything".to_owned(),
        _ => field.replace('-', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &[(&str, &str)]) -> LogEntry {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        LogEntry::read("1794710083950-0", fields.collect()).expect("an entry")
    }

    #[test]
    fn an_election_tells_why_and_for_how_long_nobody_led() {
        let elected = entry(&[
            ("kind", "elected"),
            ("member", "7f0011223344556677889900aabbccdd"),
            ("term", "12"),
            ("why", "died"),
            ("from", "7e"),
            ("gap_ms", "412"),
        ]);
        let text = elected.text();
        assert_eq!(text, "elected: leads under term 12 (7e died, nobody led for 412 ms)");
    }

    #[test]
    fn what_is_not_known_is_shown_as_it_is() {
        let strange = entry(&[("kind", "eclipse"), ("a", "1"), ("b", "x")]);
        assert_eq!((strange.text().as_str(), strange.member), ("a=1 b=x", None));
        assert!(LogEntry::read("x", BTreeMap::new()).is_none());
        let huge = BTreeMap::from([("kind".to_owned(), "joined".to_owned())]);
        let _ = LogEntry::read("18446744073709551615-0", huge);
    }

    #[test]
    fn an_order_is_told_in_words() {
        for (field, text) in [
            ("all", "order `pause everything`, by anna"),
            ("lane:low", "order `pause lane low`, by anna"),
            ("drain:7f0011223344556677889900aabbccdd", "order `drain 7f001122`, by anna"),
            ("step-down", "order `step down`, by anna"),
        ] {
            let ordered = entry(&[("kind", "ordered"), ("order", field), ("by", "anna")]);
            assert_eq!(ordered.text(), text);
        }
    }
}
