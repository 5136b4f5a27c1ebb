//! The scripts as they are, or with one rule switched off.

use std::collections::BTreeMap;

/// The scripts, possibly with a rule switched off.
#[derive(Clone)]
pub struct Rules(BTreeMap<String, String>);

impl Rules {
    pub fn all() -> Rules {
        let mut rules = artel_rig::scripts();
        // It is only the beginning of a user's script.
        rules.entry("guarded".to_owned()).and_modify(|source| {
            source.push_str("return {'ok', redis.call('RPUSH', KEYS[1], ARGV[1])}");
        });
        Rules(rules)
    }

    pub fn source(&self, script: &str) -> &str {
        &self.0[script]
    }

    /// Switches a rule off: `rule` must stand in the script exactly once.
    pub fn without(mut self, script: &'static str, rule: &str, instead: &str) -> Rules {
        let source = &self.0[script];
        assert_eq!(source.matches(rule).count(), 1, "{script}.lua has the rule {rule:?} once");
        let source = source.replace(rule, instead);
        self.0.insert(script.to_owned(), source);
        self
    }
}
