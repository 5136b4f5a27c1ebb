//! [`AlertRule`]: when somebody must be told, and how it is written.
//!
//! **Invariant:** what is written is read as it is meant, or refused with what would be right.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use artel_hub::Severity;

/// When an alert fires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Condition {
    /// Nobody generates, although somebody could.
    NoGenerator,
    GeneratorChanged,
    /// More elections than this within the time.
    Flapping(u64, Duration),
    /// A larger share of messages failed within the time.
    ErrorRatio(f64, Duration),
    /// A message waits longer than this.
    BacklogAge(Duration),
    MemberLost,
    RedisDown,
    DataLoss,
    BooksUnbalanced,
    /// More events than this wait for a subscriber of this process's hub.
    HubLag(u64),
    /// A subscriber of this process's hub fails.
    HubErrors,
    /// A subscriber of this process's hub was stopped.
    SubscriberFailed,
}

impl Condition {
    /// Is it something that happens, and not something that lasts?
    pub(crate) fn is_event(self) -> bool {
        use Condition::{DataLoss, GeneratorChanged, MemberLost};
        matches!(self, GeneratorChanged | MemberLost | DataLoss)
    }

    /// Does each process judge it for itself?
    pub(crate) fn is_local(self) -> bool {
        use Condition::{HubErrors, HubLag, RedisDown, SubscriberFailed};
        matches!(self, RedisDown | HubLag(_) | HubErrors | SubscriberFailed)
    }
}

/// When somebody must be told. Written as a name and, if it needs them, a bound and more:
///
/// ```text
/// no_generator > 10s
/// error_ratio > 0.2 over 5m hold 1m cooldown 30m critical
/// ```
///
/// ```
/// use artel::AlertRule;
///
/// let rule: AlertRule = "backlog_age > 5m cooldown 1h".parse()?;
/// assert_eq!(rule.name(), "backlog_age");
/// assert!("backlog_age".parse::<AlertRule>().is_err(), "older than what?");
/// # Ok::<(), artel::BadRule>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AlertRule {
    pub(crate) condition: Condition,
    pub(crate) hold: Duration,
    pub(crate) cooldown: Duration,
    pub(crate) severity: Severity,
    name: &'static str,
    text: String,
}

impl AlertRule {
    /// Its name, such as `no_generator`.
    pub fn name(&self) -> &str {
        self.name
    }

    /// As it was written. Two rules of the same name may have different bounds.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What is told if nothing else is said.
    pub fn defaults() -> Vec<AlertRule> {
        let rules = [
            "no_generator > 10s",
            "redis_down > 10s",
            "data_loss",
            "books_unbalanced",
            "member_lost",
            "flapping",
            "subscriber_failed",
        ];
        rules.iter().filter_map(|rule| rule.parse().ok()).collect()
    }
}

/// Why a text is not a rule.
///
/// ```
/// let error = "no_generator > soon".parse::<artel::AlertRule>().unwrap_err();
/// assert!(error.to_string().contains("such as `10s`"), "{error}");
/// ```
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct BadRule(String);

/// What a rule may say behind `>`.
#[derive(Clone, Copy)]
enum Bound {
    None,
    /// How long it must last; may be left out.
    Hold(Duration),
    Age,
    Share,
    Count(Option<u64>),
}

/// Every rule: its name, its bound, how it is judged over a time by default, its severity.
const RULES: [(&str, Bound, Option<Duration>, Severity); 12] = {
    const MINUTES_5: Option<Duration> = Some(Duration::from_secs(300));
    const S: Duration = Duration::from_secs(10);
    [
        ("no_generator", Bound::Hold(S), None, Severity::Critical),
        ("generator_changed", Bound::None, None, Severity::Warning),
        ("flapping", Bound::Count(Some(3)), MINUTES_5, Severity::Error),
        ("error_ratio", Bound::Share, MINUTES_5, Severity::Error),
        ("backlog_age", Bound::Age, None, Severity::Error),
        ("member_lost", Bound::None, None, Severity::Warning),
        ("redis_down", Bound::Hold(S), None, Severity::Critical),
        ("data_loss", Bound::None, None, Severity::Critical),
        ("books_unbalanced", Bound::Hold(S), None, Severity::Critical),
        ("hub_lag", Bound::Count(None), None, Severity::Warning),
        ("hub_errors", Bound::None, None, Severity::Warning),
        ("subscriber_failed", Bound::None, None, Severity::Error),
    ]
};

/// A time such as `500ms`, `10s`, `5m`, `1h` or `2d`.
fn time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..at].parse().ok()?;
    let ms = match &text[at..] {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}

impl FromStr for AlertRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<AlertRule, BadRule> {
        let spaced = text.replace('>', " > ");
        let mut words = spaced.split_whitespace().peekable();
        let name = words.next().unwrap_or_default();
        let known = RULES.iter().find(|(known, ..)| *known == name);
        let Some((name, bound, over, severity)) = known.copied() else {
            let names: Vec<&str> = RULES.iter().map(|(name, ..)| *name).collect();
            return Err(BadRule(format!("there is no rule {name:?}: try {}", names.join(", "))));
        };
        let bad = |what: String| BadRule(format!("{name}: {what}"));
        let value = match words.next_if_eq(&">") {
            Some(_) => Some(words.next().ok_or_else(|| bad("a value must follow `>`".into()))?),
            None => None,
        };
        let (mut over, mut severity) = (over, severity);
        let (mut hold, mut cooldown) = (Duration::ZERO, Duration::ZERO);
        while let Some(word) = words.next() {
            let mut span = || {
                let value = words.next().unwrap_or_default();
                time(value)
                    .ok_or_else(|| bad(format!("{word} {value:?} is not a time, such as `10s`")))
            };
            match word {
                "hold" => hold = span()?,
                "cooldown" => cooldown = span()?,
                "over" if over.is_some() => over = Some(span()?),
                "warning" => severity = Severity::Warning,
                "error" => severity = Severity::Error,
                "critical" => severity = Severity::Critical,
                _ => {
                    let over = if over.is_some() { "over TIME, " } else { "" };
                    return Err(bad(format!(
                        "{word:?} is not understood: behind the bound may stand {over}hold TIME, \
                         cooldown TIME, and warning, error or critical"
                    )));
                }
            }
        }
        let as_time = |value: &str| {
            time(value).ok_or_else(|| bad(format!("{value:?} is not a time, such as `10s`")))
        };
        let as_count = |value: &str| {
            let count = value.parse::<u64>();
            count.map_err(|_| bad(format!("{value:?} is not a whole number")))
        };
        let over = over.unwrap_or_default();
        let condition = match (bound, value) {
            (Bound::None, Some(_)) => return Err(bad("it has no bound: leave out the `>`".into())),
            (Bound::Hold(usual), value) => {
                hold = hold.max(value.map(as_time).transpose()?.unwrap_or(usual));
                match name {
                    "no_generator" => Condition::NoGenerator,
                    "redis_down" => Condition::RedisDown,
                    _ => Condition::BooksUnbalanced,
                }
            }
            (Bound::Age, Some(value)) => Condition::BacklogAge(as_time(value)?),
            (Bound::Share, Some(value)) => match value.parse::<f64>() {
                Ok(share) if (0.0..1.0).contains(&share) => Condition::ErrorRatio(share, over),
                _ => return Err(bad(format!("{value:?} is not a share, such as `0.2`"))),
            },
            (Bound::Count(usual), value) => {
                let count = value.map(as_count).transpose()?.or(usual);
                let count = count.ok_or_else(|| bad("say how many: `hub_lag > 5000`".into()))?;
                if name == "flapping" {
                    Condition::Flapping(count, over)
                } else {
                    Condition::HubLag(count)
                }
            }
            (Bound::Age, None) => return Err(bad("say how old: `backlog_age > 5m`".into())),
            (Bound::Share, None) => return Err(bad("say how many: `error_ratio > 0.2`".into())),
            (Bound::None, None) => match name {
                "generator_changed" => Condition::GeneratorChanged,
                "member_lost" => Condition::MemberLost,
                "data_loss" => Condition::DataLoss,
                "hub_errors" => Condition::HubErrors,
                _ => Condition::SubscriberFailed,
            },
        };
        let text = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.len() > 200 {
            return Err(bad("it is longer than 200 bytes".into()));
        }
        Ok(AlertRule { condition, hold, cooldown, severity, name, text })
    }
}

impl fmt::Display for AlertRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> AlertRule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_are_read_as_they_are_meant() {
        let s = Duration::from_secs;
        let one = rule("no_generator>15s  cooldown 1h warning");
        assert_eq!(
            (one.condition, one.hold, one.cooldown),
            (Condition::NoGenerator, s(15), s(3600))
        );
        assert_eq!(
            (one.severity, one.text()),
            (Severity::Warning, "no_generator > 15s cooldown 1h warning")
        );
        let ratio = rule("error_ratio > 0.2 over 10m hold 30s");
        assert_eq!((ratio.condition, ratio.hold), (Condition::ErrorRatio(0.2, s(600)), s(30)));
        assert_eq!(rule("flapping").condition, Condition::Flapping(3, s(300)));
        assert_eq!(rule("hub_lag > 7").condition, Condition::HubLag(7));
        assert_eq!(AlertRule::defaults().len(), 7);
        for (name, bound, ..) in RULES {
            let value = match bound {
                Bound::Age => " > 1s",
                Bound::Share => " > 0.1",
                Bound::Count(None) => " > 1",
                _ => "",
            };
            assert_eq!(rule(&format!("{name}{value}")).name(), name);
        }
    }

    #[test]
    fn wrong_rules_say_what_would_be_right() {
        for (text, hint) in [
            ("", "try no_generator"),
            ("no_generators", "try no_generator"),
            ("no_generator >", "must follow"),
            ("no_generator > 10", "such as `10s`"),
            ("no_generator > 99999999999999999999s", "such as `10s`"),
            ("backlog_age", "how old"),
            ("error_ratio > 20%", "such as `0.2`"),
            ("error_ratio > 1.5", "such as `0.2`"),
            ("member_lost > 3", "no bound"),
            ("hub_lag > many", "whole number"),
            ("data_loss over 5m", "not understood"),
            ("data_loss hold", "not a time"),
            ("data_loss loudly", "critical"),
        ] {
            let error = text.parse::<AlertRule>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
