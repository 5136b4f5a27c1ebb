//! [`GuardedScript`]: a write to Redis that happens only while a lock is held.
//!
//! **Invariant:** Redis compares holder and token and runs the user's script in one step. A holder that
//! lost the lock, however late it wakes, writes nothing.

use crate::Error;
use crate::store::Script;

/// A Lua script that Redis runs only while a lock is held: see
/// [`LockGuard::run`](crate::LockGuard::run).
///
/// It finds its own keys and arguments in `KEYS` and `ARGV`, as any script of Redis does.
///
/// ```
/// let append = artel::GuardedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])")?;
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Debug)]
pub struct GuardedScript {
    pub(super) script: Script,
}

impl GuardedScript {
    /// Prepares a script. Make it once and use it often.
    ///
    /// # Errors
    ///
    /// If it begins with `#!`: the first lines are ours. Redis finds errors in the Lua code only when
    /// the script runs.
    pub fn new(lua: &str) -> Result<GuardedScript, Error> {
        if lua.trim_start().starts_with("#!") {
            let problem = "must not begin with `#!`: leave out that line".to_owned();
            return Err(Error::Config { field: "script", problem });
        }
        let source = format!("{}{lua}", include_str!("guarded.lua"));
        Ok(GuardedScript { script: Script::composed("guarded", source) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_flags_is_refused() {
        assert!(GuardedScript::new("return 1").is_ok());
        // A line that looks like one of ours belongs to the user's script.
        let script = GuardedScript::new("-- Uses    nothing\nreturn 1").expect("a script");
        let _ = script.script.call(&[]);
        assert!(GuardedScript::new("#!lua flags=no-writes\nreturn 1").is_err());
    }
}
