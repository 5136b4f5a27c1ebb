//! Scripts with a rule switched off, for the test of the tests: `artel verify` must catch each of them.
//!
//! Built with the feature `mutants` only, which no release has. `MUTANT_OF_ARTEL` holds edits, each a script,
//! a piece of its text and what stands there instead, between unit separators; a line each.

use std::borrow::Cow;

/// The variable that says what is switched off.
const VARIABLE: &str = "MUTANT_OF_ARTEL";

/// This script, as it is or spoilt.
///
/// # Panics
///
/// If an edit of this script does not fit: a mutant that is none would be caught by nobody.
pub(super) fn of(name: &str, source: Cow<'static, str>) -> Cow<'static, str> {
    let Ok(edits) = std::env::var(VARIABLE) else { return source };
    let mut text = source.into_owned();
    for edit in edits.lines() {
        let parts: Vec<&str> = edit.split('\u{1f}').collect();
        let [script, rule, instead] = parts[..] else { panic!("{edit:?} is no edit") };
        if script == name {
            assert!(text.contains(rule), "{rule:?} is not in {name}.lua");
            text = text.replace(rule, instead);
        }
    }
    Cow::Owned(text)
}
