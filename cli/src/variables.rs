//! The environment: which variables are ours, and what others get to see of them.
//!
//! **Invariant:** a variable with our prefix that nobody reads is told of. What says where Redis is,
//! or how to prove who one is, is not handed to handlers and generators.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::file::nearest;

const PREFIX: &str = "ARTEL_";
const EMBEDDED: &str = "ARTEL_EMBEDDED";
pub(crate) const HTTP_TOKEN: &str = "ARTEL_HTTP_TOKEN";
/// Everybody's variable for the address of Redis.
pub(crate) const SHARED: &str = "REDIS_URL";

/// Read by us beside the settings.
const OTHERS: [&str; 4] = ["ARTEL_LOG", "ARTEL_CONFIG", "ARTEL_REDIS", HTTP_TOKEN];
/// Told by us to the commands we run, which may run us again.
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
/// Where Redis is.
const ADDRESS: [&str; 7] = [
    "ARTEL_REDIS_URL",
    "ARTEL_REDIS",
    "ARTEL_REDIS_URL_FILE",
    "ARTEL_HOST",
    "ARTEL_PORT",
    "ARTEL_DB",
    SHARED,
];
/// How to prove who one is, or a file that may say so.
const SECRETS: [&str; 6] = [
    "ARTEL_TLS_CA",
    "ARTEL_TLS_CERT",
    "ARTEL_TLS_KEY",
    "ARTEL_CONFIG",
    "ARTEL_HTTP_TOKEN_FILE",
    HTTP_TOKEN,
];

/// An address was given, wherever.
static ADDRESS_GIVEN: AtomicBool = AtomicBool::new(false);

/// This process was told where Redis is: what it runs is not to find another one by chance.
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

/// The variables that we read, given the settings there are.
pub(crate) fn all(settings: &[String]) -> Vec<String> {
    let settings = settings.iter().map(|long| of_option(long));
    settings.chain(OTHERS.map(str::to_owned)).collect()
}

/// A sentence for each variable of this process that looks like one of ours and is none.
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

/// Where a service is called `artel`, Kubernetes says where it is.
fn is_of_kubernetes(name: &str) -> bool {
    ["ARTEL_SERVICE_", "ARTEL_PORT_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Takes what a command of the user's is not to see from its environment. It may run us again: then
/// no other Redis is to be found by chance.
pub(crate) fn withhold(command: &mut Command) {
    let address = ADDRESS_GIVEN.load(Ordering::Relaxed)
        || ADDRESS.iter().any(|name| std::env::var_os(name).is_some());
    for name in ADDRESS.iter().chain(&SECRETS) {
        command.env_remove(name);
    }
    if address {
        command.env(EMBEDDED, "never");
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
