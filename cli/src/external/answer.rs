//! What a handler in another language answers, as JSON: on a line, or on descriptor 3.
//!
//! ```text
//! {"id":"…"}                                    done
//! {"id":"…","error":"no answer"}                an accident: retried if `--retries` allows it
//! {"id":"…","error":"no customer","failed":true} a verdict: failed, and never retried
//! {"id":"…","retry":true,"error":"busy"}        retried; a number is after how many seconds
//! {"id":"…","snooze":30}                        run again after 30 seconds; not an error
//! {"id":"…","then":[{"payload":"next","kind":"mail","lane":"low","in":60}]}   what follows
//! ```
//!
//! **Invariant:** a field that is not known is ignored. A field of the wrong type, or one that is not supported, fails the
//! message with a reason that names it.

use std::time::Duration;

use artel::{IntoOutcome, Lane, NewMessage, Outcome};
use base64::Engine;
use serde_json::{Map, Value};

/// The fields of a message that follows. Any other one is refused: a misspelt time would be no time at all.
const FIELDS: [&str; 5] = ["payload", "payload_b64", "kind", "lane", "in"];
/// The longest time that can be asked for.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// A failure that is retried if that is allowed.
pub(super) fn accident(reason: impl Into<String>) -> Outcome {
    Err::<(), String>(reason.into()).into_outcome()
}

/// Reads an answer. The error says what is wrong with it.
pub(super) fn outcome(answer: &Map<String, Value>) -> Result<Outcome, String> {
    let reason = match answer.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(reason)) => Some(reason.clone()),
        Some(other) => Some(other.to_string()),
    };
    let failed = flag(answer, "failed")?;
    let snooze = seconds(answer, "snooze")?;
    if answer.contains_key("result") {
        return Err("\"result\" is not supported".to_owned());
    }
    let outcome = match answer.get("retry") {
        None | Some(Value::Null | Value::Bool(false)) => match (reason, failed) {
            _ if snooze.is_some() => Outcome::snooze(snooze.unwrap_or_default()),
            (None, false) => Outcome::done(),
            (None, true) => Outcome::failed("failed"),
            (Some(reason), true) => Outcome::failed(reason),
            (Some(reason), false) => accident(reason),
        },
        Some(Value::Bool(true)) => Outcome::retry(reason.unwrap_or_else(|| "asked for".to_owned())),
        Some(_) => {
            let after = seconds(answer, "retry")?.unwrap_or_default();
            Outcome::retry(reason.unwrap_or_else(|| "asked for".to_owned())).after(after)
        }
    };
    follow_ups(outcome, answer.get("then"))
}

fn flag(answer: &Map<String, Value>, name: &str) -> Result<bool, String> {
    match answer.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(format!("{name:?} must be true or false, not {other}")),
    }
}

fn seconds(answer: &Map<String, Value>, name: &str) -> Result<Option<Duration>, String> {
    let or_true = if name == "retry" { "true or " } else { "" };
    let wrong = |value: &Value| {
        format!("{name:?} must be {or_true}a number of seconds, at most 366 days, not {value}")
    };
    match answer.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().ok_or_else(|| wrong(value))?;
            let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST);
            time.map(Some).ok_or_else(|| wrong(value))
        }
    }
}

fn text<'a>(message: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match message.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("{name:?} must be a text, not {other}")),
    }
}

/// Adds the messages that follow.
fn follow_ups(mut outcome: Outcome, then: Option<&Value>) -> Result<Outcome, String> {
    let all = match then {
        None | Some(Value::Null) => return Ok(outcome),
        Some(Value::Array(all)) => all,
        Some(other) => {
            return Err(format!("\"then\" must be a list of messages, not {other:.100}"));
        }
    };
    for (number, one) in (1..).zip(all) {
        let (lane, message) =
            follow_up(one).map_err(|why| format!("\"then\", number {number}: {why}"))?;
        outcome = outcome.then_in(lane, message);
    }
    Ok(outcome)
}

fn follow_up(one: &Value) -> Result<(Lane, NewMessage), String> {
    let Value::Object(fields) = one else { return Err("it must be an object".to_owned()) };
    if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("{name:?} is not supported, only {}", FIELDS.join(", ")));
    }
    let payload = match (text(fields, "payload")?, text(fields, "payload_b64")?) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(base64)) => base64::prelude::BASE64_STANDARD
            .decode(base64)
            .map_err(|error| format!("\"payload_b64\" is not base64 ({error})"))?,
        _ => return Err("it needs a \"payload\" or a \"payload_b64\"".to_owned()),
    };
    let mut message = NewMessage::from(payload);
    if let Some(kind) = text(fields, "kind")? {
        message = message.with_kind(kind);
    }
    if let Some(delay) = seconds(fields, "in")? {
        message = message.after(delay);
    }
    let lane = match text(fields, "lane")? {
        Some(name) => match name.parse::<Lane>() {
            Ok(lane) if lane != Lane::Generated => lane,
            _ => return Err(format!("\"lane\" must be high, normal or low, not {name:?}")),
        },
        None => Lane::Normal,
    };
    Ok((lane, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Outcome, String> {
        let Ok(Value::Object(answer)) = serde_json::from_str(text) else { panic!("{text}") };
        outcome(&answer)
    }

    #[test]
    fn an_answer_says_how_it_ended() {
        assert!(read("{}").expect("good").is_done());
        assert!(read(r#"{"new":1,"error":null}"#).expect("good").is_done());
        assert_eq!(read(r#"{"error":"no"}"#), Ok(accident("no")));
        assert_eq!(read(r#"{"error":"no","failed":true}"#), Ok(Outcome::failed("no")));
        assert_eq!(read(r#"{"error":"busy","retry":true}"#), Ok(Outcome::retry("busy")));
        let after = Outcome::retry("asked for").after(Duration::from_millis(1500));
        assert_eq!(read(r#"{"retry":1.5}"#), Ok(after));
        assert_eq!(read(r#"{"snooze":30}"#), Ok(Outcome::snooze(Duration::from_secs(30))));
    }

    #[test]
    fn what_follows_is_read_with_its_lane_and_its_time() {
        let text = r#"{"then":[{"payload":"a","kind":"mail","in":60,"lane":"low"},{"payload_b64":"/w=="}]}"#;
        let first = NewMessage::from("a").with_kind("mail").after(Duration::from_secs(60));
        let expected = Outcome::done().then_in(Lane::Low, first).then(vec![0xff]);
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn a_wrong_type_is_named() {
        for (text, part) in [
            (r#"{"failed":1}"#, "failed"),
            (r#"{"retry":"soon"}"#, "retry"),
            (r#"{"retry":-1}"#, "retry"),
            (r#"{"snooze":true}"#, "snooze"),
            (r#"{"then":{}}"#, "then"),
            (r#"{"then":[7]}"#, "number 1"),
            (r#"{"then":[{"kind":"x"}]}"#, "payload"),
            (r#"{"then":[{"payload":7}]}"#, "payload"),
            (r#"{"then":[{"payload":"x","lane":"fast"}]}"#, "lane"),
            (r#"{"then":[{"payload":"x","key":"customer/7"}]}"#, "not supported"),
            (r#"{"then":[{"payload":"x","at":"2026-12-24T18:00:00Z"}]}"#, "not supported"),
            (r#"{"then":[{"payload":"x","lane":"generated"}]}"#, "high, normal or low"),
            (r#"{"snooze":40000000}"#, "366 days"),
            (r#"{"result":7}"#, "not supported"),
        ] {
            let error = read(text).expect_err("wrong");
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
