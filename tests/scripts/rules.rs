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

    /// Switches a rule of `jobs.lua` off, in every script that has it.
    pub fn without_in_jobs(mut self, rule: &str, instead: &str) -> Rules {
        let mut scripts =
            self.0.values_mut().filter(|source| source.contains("local jobs = true")).peekable();
        assert!(scripts.peek().is_some());
        for source in scripts {
            assert_eq!(source.matches(rule).count(), 1, "jobs.lua has the rule {rule:?} once");
            *source = source.replace(rule, instead);
        }
        self
    }

    /// In every second world a closing settle leaves packs packed, as it does without a ledger, and still writes the
    /// ledger, which the audit needs. In half of the worlds packs are cut from small chunks, too.
    pub fn witnessed(self, seed: u64) -> Rules {
        let rules = match seed % 2 {
            0 => self,
            _ => ["settle", "settle_jobs"].into_iter().fold(self, |rules, form| {
                rules
                    .without(form, "if not closing or keep ~= '0' then", "if not closing then")
                    .without(form, "  if word == 'd' then return head end\n", "")
                    .without(
                        form,
                        "  for i, message in ipairs(redis.call('LRANGE', BLOCK, 0, -1)) do",
                        "  local all, text = redis.call('LRANGE', BLOCK, 0, -1), redis.call('GET', PACK)
                       if text then
                         local h, s, t, from = pack_head(text)
                         all = envelopes(text, from, h, s, t, 1000)
                       end
                       for i, message in ipairs(all) do",
                    )
            }),
        };
        if seed % 4 < 2 {
            rules.without("fetch", "local MANY = 64", "local MANY = 2")
        } else {
            rules
        }
    }
}
