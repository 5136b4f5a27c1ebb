//! Disabled rules, for the test of the tests: `artel verify` must notice each of them.
//!
//! Built with the feature `mutants` only, which no release has. The variable `MUTANT_OF_ARTEL` says
//! what is disabled, one entry per line: the name of a rule that is written in Rust, or an edit of a
//! script. An edit is the script's name, a piece of its text and the replacement, with unit separators
//! between them.

/// The variable that says what is disabled.
#[cfg(feature = "mutants")]
const VARIABLE: &str = "MUTANT_OF_ARTEL";

/// A rule written in Rust that can be disabled.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "mutants"), allow(dead_code))]
pub(crate) enum Rule {
    /// Trust counts from before a call was sent.
    TrustFromSending,
    /// A waiter subscribes first, and then reads.
    SubscribeThenRead,
    /// A waiter reads again on a new connection.
    ReadAfterReconnect,
    /// A channel names the database of its fleet.
    ChannelNamesDatabase,
    /// A sender whose numbers were forgotten does not repeat a batch that may have been added.
    ForgottenIsDoubt,
    /// Others than the first let go what is overdue.
    OthersPromote,
    /// Periodic entries fire by the clock of Redis.
    FireByRedisTime,
    /// Outcomes of messages with duties are named.
    DutiesAreNamed,
    /// A subscription that ends unasked ends the connection.
    UnaskedUnsubscribe,
    /// A connection is used only after it was found to lead to the primary that owns the slot.
    ProbeBeforeUse,
    /// An answer is believed only while its connection lives.
    AnswersOfTheLiving,
    /// A call is released only by a `WAIT` of the server that answered it.
    WaitAtSameServer,
    /// A lease, a lock or a permit is used when replicas have it.
    GrantsLast,
    /// All replicas are as many as there ever were.
    AllNeverShrinks,
    /// A sender says how many of its messages are forgotten.
    SendersSpeak,
    /// A server is on the list of servers before anything is done there.
    ListFirst,
    /// What is held is compared with what another server has.
    CompareHolds,
}

#[cfg(feature = "mutants")]
const RULES: [Rule; 17] = [
    Rule::TrustFromSending,
    Rule::SubscribeThenRead,
    Rule::ReadAfterReconnect,
    Rule::ChannelNamesDatabase,
    Rule::ForgottenIsDoubt,
    Rule::OthersPromote,
    Rule::FireByRedisTime,
    Rule::DutiesAreNamed,
    Rule::UnaskedUnsubscribe,
    Rule::ProbeBeforeUse,
    Rule::AnswersOfTheLiving,
    Rule::WaitAtSameServer,
    Rule::GrantsLast,
    Rule::AllNeverShrinks,
    Rule::SendersSpeak,
    Rule::ListFirst,
    Rule::CompareHolds,
];

/// Is this rule disabled?
#[cfg(not(feature = "mutants"))]
pub(crate) const fn disabled(_: Rule) -> bool {
    false
}

/// Is this rule disabled?
#[cfg(feature = "mutants")]
pub(crate) fn disabled(rule: Rule) -> bool {
    use std::sync::LazyLock;
    static OFF: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());
    !OFF.is_empty() && OFF.lines().any(|line| line == format!("{rule:?}"))
}

/// This script, unchanged or with the edits. An edit of `jobs` is for every script with that piece, an edit of a script for
/// both of its forms.
///
/// # Panics
///
/// If an edit of this script does not fit: a mutant without an effect would not be noticed.
#[cfg(feature = "mutants")]
pub(crate) fn script(name: &str, source: String) -> String {
    let Ok(edits) = std::env::var(VARIABLE) else { return source };
    let mut text = source;
    for edit in edits.lines() {
        let parts: Vec<&str> = edit.split('\u{1f}').collect();
        let [script, rule, instead] = parts[..] else {
            assert!(RULES.iter().any(|rule| edit == format!("{rule:?}")), "{edit:?} is not a rule");
            continue;
        };
        let in_jobs = script == "jobs" && text.contains("local jobs = true");
        if in_jobs || script == name || name.strip_suffix("_jobs") == Some(script) {
            assert!(text.contains(rule), "{rule:?} is not in {name}.lua");
            text = text.replace(rule, instead);
        }
    }
    text
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    /// With a rule switched off that only a test in here can show, that test fails.
    #[test]
    fn every_rule_of_a_connection_is_needed() {
        for (rule, test) in [
            ("ProbeBeforeUse", "store::client::tests::a_replica_is_not_handed_out"),
            (
                "UnaskedUnsubscribe",
                "store::push_router::tests::a_subscription_that_ends_unasked_ends_the_connection",
            ),
            ("AnswersOfTheLiving", "store::link::tests::no_answer_is_that_of_another_call"),
            (
                "WaitAtSameServer",
                "store::replication::tests::what_another_server_has_covers_nothing",
            ),
        ] {
            let program = std::env::current_exe().expect("this test");
            let output = std::process::Command::new(program)
                .args(["--exact", test])
                .env(super::VARIABLE, rule)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("running 1 test"), "{test} is no test: {said}");
            assert!(!output.status.success(), "{test} does not need {rule}");
        }
    }
}
