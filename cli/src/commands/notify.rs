//! `artel notify`: tries out the sinks of alerts, and shows the rules.

use artel::AlertRule;
use artel::hub::Severity;
use artel::hub::notify::{Alert, SendError};
use serde_json::json;

use crate::alerts::{self, Sink};
use crate::args::{NotifyCommand, SinkArgs};
use crate::exit::{FAILURE, Failure, OK, USAGE};
use crate::harmless::harmless;
use crate::{printer, table};

const TAKES: &str = "is the address right, and does the receiver take it? A receiver must answer with a \
                     status of 200 to 299, a command must end with 0";

pub(crate) async fn notify(fleet: &str, command: &NotifyCommand) -> Result<u8, Failure> {
    match command {
        NotifyCommand::Test { sink, to } => test(fleet, sink.as_deref(), to).await,
        NotifyCommand::Rules { json } => rules(*json),
    }
}

/// The sinks to try: one of the settings, one that is written here, or all of the settings.
fn wanted(sink: Option<&str>, to: &SinkArgs) -> Result<Vec<Sink>, Failure> {
    let mut sinks = alerts::sinks(to)?;
    match sink {
        None if sinks.is_empty() => {
            Err(Failure::new(USAGE, "no sink is set")
                .hint("`artel notify test webhook:URL` tries one"))
        }
        None => Ok(sinks),
        Some(name) => match sinks.iter().position(|one| one.name == name) {
            Some(at) => Ok(vec![sinks.swap_remove(at)]),
            None => {
                let one = SinkArgs { sinks: vec![name.to_owned()], ..to.clone() };
                alerts::sinks_of("SINK", &one)
            }
        },
    }
}

async fn test(fleet: &str, sink: Option<&str>, to: &SinkArgs) -> Result<u8, Failure> {
    let mut failed = 0;
    let mut text = String::new();
    for Sink { name, mut sink } in wanted(sink, to)? {
        let alert = Alert::new(
            Severity::Warning,
            format!("{fleet}/test"),
            "this is a test of `artel notify test`: nothing is wrong",
        );
        let sent = tokio::task::spawn_blocking(move || sink.send(&alert)).await;
        match sent.unwrap_or_else(|_| Err(SendError::new("the sink panicked"))) {
            Ok(()) => text.push_str(&format!("{name}: sent\n")),
            Err(error) => {
                failed += 1;
                text.push_str(&format!("{name}: {}\n", harmless(&error.to_string())));
            }
        }
    }
    printer::shown(&text)?;
    match failed {
        0 => Ok(OK),
        1 => Err(Failure::new(FAILURE, "a sink did not take the alert").hint(TAKES)),
        _ => {
            Err(Failure::new(FAILURE, format!("{failed} sinks did not take the alert")).hint(TAKES))
        }
    }
}

fn rules(json: bool) -> Result<u8, Failure> {
    let defaults = AlertRule::defaults();
    let is_default = |rule: &str| {
        let name = rule.split(' ').next().unwrap_or_default();
        defaults.iter().any(|rule| rule.name() == name)
    };
    if json {
        let rules: Vec<_> = AlertRule::all()
            .map(|(rule, meaning)| {
                json!({ "rule": rule, "meaning": meaning, "default": is_default(rule) })
            })
            .collect();
        printer::data(&table::json(&json!({ "v": 1, "rules": rules }))?)?;
        return Ok(OK);
    }
    let rows = AlertRule::all().map(|(rule, meaning)| {
        let mark = if is_default(rule) { "*" } else { "" };
        [mark.to_owned(), rule.to_owned(), meaning.to_owned()]
    });
    let head = ["", "RULE", "IT HOLDS WHEN"];
    let mut text = printer::screen().columns(head, rows, &[], |_| false);
    text.push_str("\n* used if there is an --alert-to and no --alert\n");
    printer::shown(&text)?;
    Ok(OK)
}
