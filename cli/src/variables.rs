//! The environment: which variables are ours, and which of them our child processes get.
//!
//! **Invariant:** a variable with our prefix that nobody reads is reported. Variables with the
//! address of Redis or with credentials are not handed to handlers and generators.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::file::nearest;

const PREFIX: &str = "ARTEL_";
const EMBEDDED: &str = "ARTEL_EMBEDDED";
pub(crate) const HTTP_TOKEN: &str = "ARTEL_HTTP_TOKEN";
pub(crate) const HTTP_READ_TOKEN: &str = "ARTEL_HTTP_READ_TOKEN";
/// What signs webhooks.
pub(crate) const ALERT_SECRET: &str = "ARTEL_ALERT_SECRET";
/// The usual variable for the address of Redis; other programs use it, too.
pub(crate) const SHARED: &str = "REDIS_URL";

/// Variables that we read, and that are not settings.
const OTHERS: [&str; 6] =
    ["ARTEL_LOG", "ARTEL_CONFIG", "ARTEL_REDIS", HTTP_TOKEN, HTTP_READ_TOKEN, ALERT_SECRET];
/// Variables that we set for the commands we run. Such a command may run us again.
const TOLD: [&str; 11] = [
    "ARTEL_MESSAGE_ID",
    "ARTEL_MESSAGE_LANE",
    "ARTEL_MESSAGE_KIND",
    "ARTEL_MESSAGE_ORIGIN",
    "ARTEL_ATTEMPT",
    "ARTEL_TERM",
    "ARTEL_SEQ",
    "ARTEL_TICK",
    "ARTEL_TIME_MS",
    "ARTEL_LOCK_NAME",
    "ARTEL_LOCK_TOKEN",
];
/// Variables with the address of Redis.
const ADDRESS: [&str; 7] = [
    "ARTEL_REDIS_URL",
    "ARTEL_REDIS",
    "ARTEL_REDIS_URL_FILE",
    "ARTEL_HOST",
    "ARTEL_PORT",
    "ARTEL_DB",
    SHARED,
];
/// Variables with the name of a file that says how Redis is reached.
const FILES: [&str; 6] = [
    "ARTEL_TLS_CA",
    "ARTEL_TLS_CERT",
    "ARTEL_TLS_KEY",
    "ARTEL_CONFIG",
    "ARTEL_SENTINEL_USER",
    "ARTEL_SENTINEL_PASSWORD_FILE",
];
/// Variables with credentials that only this process needs, or with the name of a file that holds some.
const SECRETS: [&str; 7] = [
    "ARTEL_HTTP_TOKEN_FILE",
    "ARTEL_HTTP_READ_TOKEN_FILE",
    "ARTEL_ALERT_TO",
    "ARTEL_ALERT_SECRET_FILE",
    HTTP_TOKEN,
    HTTP_READ_TOKEN,
    ALERT_SECRET,
];

/// An address of Redis was given, by a flag, a variable or a file.
static ADDRESS_GIVEN: AtomicBool = AtomicBool::new(false);

/// Records that this process was given an address, so that the commands it runs do not find another
/// Redis by chance.
pub(crate) fn address_given() {
    ADDRESS_GIVEN.store(true, Ordering::Relaxed);
}

/// The name of an option's variable.
pub(crate) fn of_option(long: &str) -> String {
    match long {
        "redis" => "ARTEL_REDIS_URL".to_owned(),
        _ => format!("{PREFIX}{}", long.to_uppercase().replace('-', "_")),
    }
}

/// All variables that we read; `settings` are the names of all settings.
pub(crate) fn all(settings: &[String]) -> Vec<String> {
    let settings = settings.iter().map(|long| of_option(long));
    settings.chain(OTHERS.map(str::to_owned)).collect()
}

/// A warning for each variable of this process that has our prefix and is not ours.
pub(crate) fn unknown(settings: &[String]) -> Vec<String> {
    let ours = all(settings);
    let mut names: Vec<String> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    names.sort();
    let unknown = |name: &&String| {
        name.starts_with(PREFIX)
            && !ours.contains(name)
            && !TOLD.contains(&name.as_str())
            && !is_of_kubernetes(name)
    };
    names.iter().filter(unknown).map(|name| say(name, &ours)).collect()
}

fn say(name: &str, ours: &[String]) -> String {
    let without = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let names: Vec<String> = ours.iter().map(|name| without(name)).collect();
    match nearest(&without(name), &names) {
        Some(right) => format!("{name} is not read: did you mean {PREFIX}{right}?"),
        None => format!("{name} is not read: it is no setting of ours"),
    }
}

/// If a service is called `artel`, Kubernetes sets variables with its address.
fn is_of_kubernetes(name: &str) -> bool {
    ["ARTEL_SERVICE_", "ARTEL_PORT_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Removes addresses and credentials from the environment of a user's command. That command may run
/// us again: if an address was given, it must not find another Redis by chance.
pub(crate) fn withhold(command: &mut Command) {
    let address = ADDRESS_GIVEN.load(Ordering::Relaxed)
        || ADDRESS.iter().any(|name| std::env::var_os(name).is_some());
    for name in ADDRESS.iter().chain(&FILES) {
        command.env_remove(name);
    }
    withhold_secrets(command);
    if address {
        command.env(EMBEDDED, "never");
    }
}

/// Removes only our own credentials: this command may use the same Redis.
pub(crate) fn withhold_secrets(command: &mut Command) {
    for name in &SECRETS {
        command.env_remove(name);
    }
}

/// The value of a variable, unless it is empty.
pub(crate) fn get(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_told_with_the_right_name() {
        let ours = all(&["interval".to_owned(), "error-rate".to_owned()]);
        assert_eq!(
            say("ARTEL_INTERVALL", &ours),
            "ARTEL_INTERVALL is not read: did you mean ARTEL_INTERVAL?"
        );
        assert!(say("ARTEL_XYZZY", &ours).ends_with("no setting of ours"));
        assert!(is_of_kubernetes("ARTEL_PORT_6379_TCP") && is_of_kubernetes("ARTEL_SERVICE_HOST"));
        assert!(!is_of_kubernetes("ARTEL_PROT"));
    }
}
