//! The alerts of a member of the program: the rules and the sinks that its settings name.
//!
//! **Invariant:** every sink is checked before the member joins. The address of a sink may hold a secret, so it is in no log, no
//! error and no answer; a sink is called by its name.

use std::time::Duration;

use artel::hub::Severity;
use artel::hub::notify::{Alert, Mail, Send, SendError, Webhook};
use artel::{AlertRule, Alerts};

use crate::args::{AlertArgs, SinkArgs};
use crate::exit::{Failure, USAGE};
use crate::external::CommandLine;
use crate::file::nearest;
use crate::harmless::harmless;
use crate::variables::ALERT_SECRET;
use crate::{layers, secret};

/// How long a command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);
const KINDS: &str = "a sink is log, command:CMD, webhook:URL, slack:URL or \
                     mail:smtps://USER:PASSWORD@HOST?from=ADDRESS&to=ADDRESS";

/// Someone who is told, and the name by which all members know it.
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) sink: Box<dyn Send>,
}

/// The sinks that the settings name.
pub(crate) fn sinks(args: &SinkArgs) -> Result<Vec<Sink>, Failure> {
    sinks_of(&layers::name_of("--alert-to"), args)
}

/// These sinks. An error says who named them.
pub(crate) fn sinks_of(named_by: &str, args: &SinkArgs) -> Result<Vec<Sink>, Failure> {
    let option = "--alert-secret-file";
    let secret = secret::read("secret", ALERT_SECRET, option, args.alert_secret_file.as_deref())?;
    let mut sinks: Vec<Sink> = Vec::new();
    for written in &args.sinks {
        let (kind, sink) = open(named_by, written, secret.as_deref())?;
        let same = sinks.iter().filter(|other| other.name.split('-').next() == Some(kind)).count();
        let name = if same == 0 { kind.to_owned() } else { format!("{kind}-{}", same + 1) };
        sinks.push(Sink { name, sink });
    }
    Ok(sinks)
}

/// What may be shown of a sink.
pub(crate) fn without_secrets(written: &str) -> String {
    match written.split_once(':') {
        Some(("command", _)) | None => written.to_owned(),
        Some((kind, _)) => format!("{kind}:…"),
    }
}

/// Reads one sink, as it is written.
fn open(
    named_by: &str,
    written: &str,
    secret: Option<&str>,
) -> Result<(&'static str, Box<dyn Send>), Failure> {
    let refuse = |why: String| Failure::new(USAGE, format!("{named_by}: {why}")).hint(KINDS);
    let (kind, rest) = written.split_once(':').unwrap_or((written, ""));
    let bad = |error: &dyn std::fmt::Display| refuse(error.to_string());
    Ok(match (kind, rest) {
        ("log", "") => ("log", Box::new(Log)),
        (kind @ ("command" | "webhook" | "slack" | "mail"), "") => {
            return Err(refuse(format!("behind {kind}: must stand whom to tell")));
        }
        ("command", command) => {
            ("command", Box::new(Command(CommandLine::parse_of(named_by, command)?)))
        }
        ("webhook", url) => {
            let webhook = Webhook::json(url).map_err(|error| bad(&error))?;
            let webhook = match secret {
                Some(secret) => webhook.signed(secret.as_bytes()),
                None => webhook,
            };
            ("webhook", Box::new(webhook))
        }
        ("slack", url) => ("slack", Box::new(Webhook::slack(url).map_err(|error| bad(&error))?)),
        ("mail", url) => ("mail", Box::new(mail(url).map_err(refuse)?)),
        // What is not a kind may be a secret. What is nearly one is not.
        (kind, _) => {
            let kinds = ["log", "command", "webhook", "slack", "mail"].map(str::to_owned);
            return Err(refuse(match nearest(kind, &kinds) {
                Some(right) => format!("there is no sink `{kind}`: did you mean `{right}`?"),
                None => "it names a sink that does not exist".to_owned(),
            }));
        }
    })
}

/// A mail sink: the URL of the server, with the addresses as parameters.
fn mail(text: &str) -> Result<Mail, String> {
    let mut url = url::Url::parse(text)
        .map_err(|_| "the server's URL must begin with smtp:// or smtps://".to_owned())?;
    let (mut from, mut to, mut rest) = (None, Vec::new(), Vec::new());
    for (name, value) in url.query_pairs() {
        match &*name {
            "from" => from = Some(value.into_owned()),
            "to" => to.extend(value.split(',').map(|one| one.trim().to_owned())),
            _ => rest.push((name.into_owned(), value.into_owned())),
        }
    }
    url.set_query(None);
    if !rest.is_empty() {
        url.query_pairs_mut().extend_pairs(rest);
    }
    let from = from.ok_or("who sends it? Add ?from=ADDRESS to the server's URL")?;
    if to.is_empty() {
        return Err("who gets it? Add &to=ADDRESS to the server's URL".to_owned());
    }
    Mail::smtp(url.as_str(), &from, to.iter().map(String::as_str))
        .map_err(|error| error.to_string())
}

/// What a member must tell to whom. `None` if nothing was asked for.
pub(crate) fn alerts(args: &AlertArgs) -> Result<Option<Alerts>, Failure> {
    let mut sinks = sinks(&args.to)?;
    if sinks.is_empty() && args.rules.is_empty() {
        return Ok(None);
    }
    if sinks.is_empty() {
        sinks.push(Sink { name: "log".to_owned(), sink: Box::new(Log) });
    }
    let rules = match args.rules.is_empty() {
        true => AlertRule::defaults(),
        false => args.rules.clone(),
    };
    let alerts = Alerts::new(rules);
    let alerts = sinks.into_iter().fold(alerts, |all, one| all.to_boxed(&one.name, one.sink));
    alerts.validate()?;
    Ok(Some(alerts))
}

/// Alerts in the log of this process.
struct Log;

impl Send for Log {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        let (about, text) = (harmless(&alert.source), harmless(&alert.text));
        let again = if alert.is_repeat { " (repeat)" } else { "" };
        match (alert.is_resolved, alert.severity) {
            // Whoever sees the begin, also with --quiet, must see the end.
            (true, _) => tracing::warn!(about = &*about, "resolved: {text}{again}"),
            (false, Severity::Warning) => tracing::warn!(about = &*about, "alert: {text}{again}"),
            (false, severity) => {
                tracing::error!(about = &*about, %severity, "alert: {text}{again}");
            }
        }
        Ok(())
    }
}

/// Alerts for a command: one JSON document on its stdin.
struct Command(CommandLine);

impl Send for Command {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        let mut input = serde_json::to_vec(alert).map_err(SendError::new)?;
        input.push(b'\n');
        let runtime = tokio::runtime::Handle::current();
        runtime.block_on(self.0.run_once(&input, COMMAND_WITHIN)).map_err(SendError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(written: &str) -> String {
        let args = SinkArgs { sinks: vec![written.to_owned()], alert_secret_file: None };
        match sinks(&args) {
            Ok(_) => panic!("{written} was accepted"),
            Err(failure) => format!("{} {}", failure.error, failure.hint.unwrap_or_default()),
        }
    }

    #[test]
    fn a_wrong_sink_is_refused_without_its_secret() {
        for written in [
            "webhok:https://hush@example.org",
            "webhook:ftp://example.org/hush",
            "slack:hush",
            "mail:smtp://user:hush@example.org?from=a@example.org&to=b@example.org",
            "mail:smtps://user:hush@example.org?to=b@example.org",
            "mail:smtps://user:hush@example.org?from=a@example.org",
            "mail:hush",
            "hush",
        ] {
            let said = refused(written);
            assert!(!said.contains("hush"), "{written}: {said}");
            assert!(said.contains("--alert-to"), "{said}");
        }
        assert!(refused("command:no-such-command-here").contains("is not there"));
    }

    #[test]
    fn sinks_have_names_that_all_members_share() {
        let sinks =
            ["log", "webhook:https://a.example", "webhook:https://b.example", "command:cat"];
        let args = SinkArgs { sinks: sinks.map(str::to_owned).to_vec(), alert_secret_file: None };
        let names: Vec<String> =
            super::sinks(&args).unwrap_or_default().into_iter().map(|sink| sink.name).collect();
        assert_eq!(names, ["log", "webhook", "webhook-2", "command"]);
        assert_eq!(without_secrets("slack:https://hooks.example/T0/hush"), "slack:…");
        assert_eq!(without_secrets("command:./page.sh"), "command:./page.sh");
    }
}
