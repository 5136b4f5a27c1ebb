//! [`AlertRule`]: when somebody must be told, and how it is written.
//!
//! **Invariant:** what is written is read as it is meant, or refused with what would be right.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use artel_hub::Severity;

/// The shortest and the longest time over which a rule may look. The fleet is looked at once a second.
pub(super) const WINDOW_MIN: Duration = Duration::from_secs(5);
pub(super) const WINDOW_MAX: Duration = Duration::from_secs(3600);

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

    /// Every rule that there is, as it may be written, and what it means.
    ///
    /// ```
    /// assert!(artel::AlertRule::all().any(|(rule, _)| rule == "backlog_age > 5m"));
    /// ```
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        RULES.iter().map(|known| (known.example, known.meaning))
    }

    /// The rules to use if nobody says which.
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

/// What a rule may say behind `>`, and what it means.
#[derive(Clone, Copy)]
enum Bound {
    None(Condition),
    /// How long it must last; this long if nothing is said.
    Hold(Duration, Condition),
    Age(fn(Duration) -> Condition),
    Share(fn(f64, Duration) -> Condition),
    Count(Option<u64>, fn(u64, Duration) -> Condition),
}

impl Bound {
    /// The condition of a rule with this value behind `>`, and how long it must last at least.
    fn read(self, value: Option<&str>, over: Duration) -> Result<(Condition, Duration), String> {
        let as_time =
            |value: &str| time(value).ok_or(format!("{value:?} is not a time, such as `10s`"));
        let lasting = |condition| Ok((condition, Duration::ZERO));
        match (self, value) {
            (Bound::None(_), Some(_)) => Err("it has no bound: leave out the `>`".to_owned()),
            (Bound::None(condition), None) => lasting(condition),
            (Bound::Hold(usual, condition), None) => Ok((condition, usual)),
            (Bound::Hold(_, condition), Some(value)) => Ok((condition, as_time(value)?)),
            (Bound::Age(_), None) => Err("say how old: `backlog_age > 5m`".to_owned()),
            (Bound::Age(make), Some(value)) => lasting(make(as_time(value)?)),
            (Bound::Share(_), None) => Err("say how many: `error_ratio > 0.2`".to_owned()),
            (Bound::Share(make), Some(value)) => match value.parse::<f64>() {
                Ok(share) if (0.0..1.0).contains(&share) => lasting(make(share, over)),
                _ => Err(format!("{value:?} is not a share, such as `0.2`")),
            },
            (Bound::Count(None, _), None) => Err("say how many: `hub_lag > 5000`".to_owned()),
            (Bound::Count(Some(usual), make), None) => lasting(make(usual, over)),
            (Bound::Count(_, make), Some(value)) => match value.parse() {
                Ok(count) => lasting(make(count, over)),
                Err(_) => Err(format!("{value:?} is not a whole number")),
            },
        }
    }
}

/// A rule that there is.
#[derive(Clone, Copy)]
struct Known {
    name: &'static str,
    bound: Bound,
    /// The time over which it looks, if it does.
    over: Option<Duration>,
    severity: Severity,
    /// How it may be written.
    example: &'static str,
    meaning: &'static str,
}

const RULES: [Known; 12] = {
    use Severity::{Critical, Error, Warning};
    const LASTS: Duration = Duration::from_secs(10);
    const fn rule(
        example: &'static str,
        name: &'static str,
        bound: Bound,
        severity: Severity,
        meaning: &'static str,
    ) -> Known {
        Known { name, bound, over: None, severity, example, meaning }
    }
    const fn over(rule: Known) -> Known {
        Known { over: Some(Duration::from_secs(300)), ..rule }
    }
    let no_generator = Bound::Hold(LASTS, Condition::NoGenerator);
    let redis_down = Bound::Hold(LASTS, Condition::RedisDown);
    let books = Bound::Hold(LASTS, Condition::BooksUnbalanced);
    let flapping = Bound::Count(Some(3), Condition::Flapping);
    let ratio = Bound::Share(Condition::ErrorRatio);
    let age = Bound::Age(Condition::BacklogAge);
    let changed = Bound::None(Condition::GeneratorChanged);
    let lag = Bound::Count(None, |most, _| Condition::HubLag(most));
    let lost = Bound::None(Condition::MemberLost);
    let loss = Bound::None(Condition::DataLoss);
    let errors = Bound::None(Condition::HubErrors);
    let failed = Bound::None(Condition::SubscriberFailed);
    [
        rule(
            "no_generator > 10s",
            "no_generator",
            no_generator,
            Critical,
            "nobody generates, although a member could",
        ),
        rule(
            "generator_changed",
            "generator_changed",
            changed,
            Warning,
            "another member generates",
        ),
        over(rule(
            "flapping > 3 over 5m",
            "flapping",
            flapping,
            Error,
            "the generator changed more often",
        )),
        over(rule(
            "error_ratio > 0.2 over 5m",
            "error_ratio",
            ratio,
            Error,
            "a larger share of messages failed",
        )),
        rule(
            "backlog_age > 5m",
            "backlog_age",
            age,
            Error,
            "a message waits longer, in a lane that is not paused",
        ),
        rule("member_lost", "member_lost", lost, Warning, "a member died"),
        rule(
            "redis_down > 10s",
            "redis_down",
            redis_down,
            Critical,
            "this process cannot reach Redis",
        ),
        rule("data_loss", "data_loss", loss, Critical, "Redis has lost data"),
        rule(
            "books_unbalanced > 10s",
            "books_unbalanced",
            books,
            Critical,
            "messages are missing, or are there twice",
        ),
        rule(
            "hub_lag > 5000",
            "hub_lag",
            lag,
            Warning,
            "more events wait for a subscriber of this process",
        ),
        rule("hub_errors", "hub_errors", errors, Warning, "a subscriber of this process fails"),
        rule(
            "subscriber_failed",
            "subscriber_failed",
            failed,
            Error,
            "a subscriber of this process was stopped",
        ),
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

/// What may stand behind the bound.
struct Options {
    over: Option<Duration>,
    hold: Duration,
    cooldown: Duration,
    severity: Severity,
}

impl Options {
    fn read<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        while let Some(word) = words.next() {
            let mut span = || {
                let value = words.next().unwrap_or_default();
                time(value).ok_or(format!("{word} {value:?} is not a time, such as `10s`"))
            };
            match word {
                "hold" => self.hold = span()?,
                "cooldown" => self.cooldown = span()?,
                "over" if self.over.is_some() => self.over = Some(span()?),
                "warning" => self.severity = Severity::Warning,
                "error" => self.severity = Severity::Error,
                "critical" => self.severity = Severity::Critical,
                _ => {
                    let over = if self.over.is_some() { "over TIME, " } else { "" };
                    return Err(format!(
                        "{word:?} is not understood: behind the bound may stand {over}hold TIME, \
                         cooldown TIME, and warning, error or critical"
                    ));
                }
            }
        }
        match self.over {
            Some(over) if !(WINDOW_MIN..=WINDOW_MAX).contains(&over) => {
                Err("`over` must be a time from 5s to 1h".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for AlertRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<AlertRule, BadRule> {
        let spaced = text.replace('>', " > ");
        let mut words = spaced.split_whitespace().peekable();
        let name = words.next().unwrap_or_default();
        let Some(&Known { name, bound, over, severity, .. }) =
            RULES.iter().find(|known| known.name == name)
        else {
            let names: Vec<&str> = RULES.iter().map(|known| known.name).collect();
            return Err(BadRule(format!("there is no rule {name:?}: try {}", names.join(", "))));
        };
        let bad = |what: String| BadRule(format!("{name}: {what}"));
        if text.contains(">=") {
            return Err(bad("a bound is written with `>`".into()));
        }
        let value = match words.next_if_eq(&">") {
            Some(_) => Some(words.next().ok_or_else(|| bad("a value must follow `>`".into()))?),
            None if words.peek().is_some_and(|word| word.starts_with(['<', '='])) => {
                return Err(bad("a bound is written with `>`".into()));
            }
            None => None,
        };
        let (hold, cooldown) = (Duration::ZERO, Duration::ZERO);
        let mut options = Options { over, hold, cooldown, severity };
        options.read(words).map_err(bad)?;
        let Options { over, hold, cooldown, severity } = options;
        let (condition, lasts) = bound.read(value, over.unwrap_or_default()).map_err(bad)?;
        let text = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.len() > 200 {
            return Err(bad("it is longer than 200 bytes".into()));
        }
        Ok(AlertRule { condition, hold: hold.max(lasts), cooldown, severity, name, text })
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
        for known in RULES {
            assert_eq!(rule(known.example).name(), known.name);
        }
    }

    #[test]
    fn wrong_rules_say_what_would_be_right() {
        for (text, hint) in [
            ("", "try no_generator"),
            ("no_generators", "try no_generator"),
            ("no_generator >", "must follow"),
            ("no_generator < 10s", "written with `>`"),
            ("no_generator >= 10s", "written with `>`"),
            ("no_generator > 10", "such as `10s`"),
            ("no_generator > 99999999999999999999s", "such as `10s`"),
            ("backlog_age", "how old"),
            ("error_ratio > 20%", "such as `0.2`"),
            ("error_ratio > 1.5", "such as `0.2`"),
            ("member_lost > 3", "no bound"),
            ("hub_lag > many", "whole number"),
            ("data_loss over 5m", "not understood"),
            ("data_loss hold", "not a time"),
            ("error_ratio > 0.1 over 2h", "from 5s to 1h"),
            ("flapping over 1s", "from 5s to 1h"),
            ("data_loss loudly", "critical"),
        ] {
            let error = text.parse::<AlertRule>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
