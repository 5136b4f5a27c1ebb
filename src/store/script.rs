//! A script, its hash, one call of it, and the small tagged values scripts answer with.
//!
//! **Invariant:** a [`Call`] is built once and sent byte for byte the same every time it is
//! repeated. A number once sent is bound to its bytes.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use redis::{ToRedisArgs, Value};

use super::StoreError;

/// Bytes per second that a link must carry.
const SLOWEST: u64 = 256 << 10;
/// Fewer bytes make no difference.
const SMALL: u64 = 32 << 10;

/// A Lua file that is part of this crate, or a user's.
pub(crate) struct Script {
    name: &'static str,
    source: Cow<'static, str>,
    hash: OnceLock<String>,
    /// It answers with a tag of ours.
    tagged: bool,
}

impl Script {
    pub(crate) const fn new(name: &'static str, source: &'static str) -> Script {
        Script { name, source: Cow::Borrowed(source), hash: OnceLock::new(), tagged: true }
    }

    /// One that is put together while the program runs; what it answers is a user's.
    pub(crate) fn composed(name: &'static str, source: String) -> Script {
        Script { name, source: Cow::Owned(source), hash: OnceLock::new(), tagged: false }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(&self.source()).get_hash().to_owned())
    }

    #[cfg(not(feature = "mutants"))]
    fn source(&self) -> Cow<'static, str> {
        self.source.clone()
    }

    #[cfg(feature = "mutants")]
    fn source(&self) -> Cow<'static, str> {
        crate::mutant::script(self.name, self.source.clone())
    }

    /// Begins a call with the keys it declares.
    pub(crate) fn call(&self, keys: &[String]) -> Call {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.hash()).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        let source = Some(self.source());
        Call { name: self.name, tagged: self.tagged, source, cmd, answer_bytes: 0 }
    }
}

/// One command, ready to be sent and sent again.
#[derive(Clone)]
pub(crate) struct Call {
    /// Its script, or its command.
    pub(super) name: &'static str,
    tagged: bool,
    /// What to load if Redis does not know the script.
    pub(super) source: Option<Cow<'static, str>>,
    pub(super) cmd: redis::Cmd,
    /// Bytes its answer may have, if they are many.
    answer_bytes: usize,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Call {
    /// A plain command.
    pub(crate) fn plain(name: &'static str) -> Call {
        Call { name, tagged: false, source: None, cmd: redis::cmd(name), answer_bytes: 0 }
    }

    /// The tag of its answer, for the log: nothing of a user's is ever shown.
    pub(super) fn tag(&self, answer: &Value) -> String {
        let tag = match answer {
            Value::Array(items) => items.first(),
            other => Some(other),
        };
        let tag = tag.filter(|_| self.tagged).and_then(|tag| text(tag).ok());
        tag.filter(|tag| tag.bytes().all(|byte| byte.is_ascii_lowercase())).unwrap_or_default()
    }

    pub(crate) fn arg<T: ToRedisArgs>(mut self, arg: T) -> Call {
        self.cmd.arg(arg);
        self
    }

    /// Says that its answer may have this many bytes.
    pub(crate) fn answering(mut self, bytes: usize) -> Call {
        self.answer_bytes = bytes;
        self
    }

    /// How much longer than a small call this one takes, over the slowest link that counts as one.
    pub(super) fn travel_time(&self) -> Duration {
        let arg = |arg: redis::Arg<&[u8]>| match arg {
            redis::Arg::Simple(bytes) => bytes.len(),
            _ => 0,
        };
        let sent: usize = self.cmd.args_iter().map(arg).sum();
        match (sent + self.answer_bytes) as u64 {
            bytes if bytes < SMALL => Duration::ZERO,
            bytes => Duration::from_millis(bytes * 1000 / SLOWEST),
        }
    }

    pub(crate) fn push_arg<T: ToRedisArgs>(&mut self, arg: T) {
        self.cmd.arg(arg);
    }
}

/// The answer of a script: a tag, and what came with it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) tag: String,
    pub(crate) items: Vec<Value>,
}

impl Reply {
    pub(crate) fn parse(value: Value) -> Result<Reply, StoreError> {
        match value {
            Value::BulkString(_) | Value::SimpleString(_) => {
                Ok(Reply { tag: text(&value)?, items: Vec::new() })
            }
            Value::Array(mut items) if !items.is_empty() => {
                let tag = text(&items[0])?;
                items.remove(0);
                Ok(Reply { tag, items })
            }
            other => Err(StoreError::odd(format!("unexpected reply {other:?}"))),
        }
    }

    pub(crate) fn number(&self, index: usize) -> Result<i64, StoreError> {
        self.items.get(index).ok_or_else(|| StoreError::odd("reply too short")).and_then(number)
    }

    pub(crate) fn text(&self, index: usize) -> Result<String, StoreError> {
        self.items.get(index).ok_or_else(|| StoreError::odd("reply too short")).and_then(text)
    }

    pub(crate) fn bytes(&self, index: usize) -> Result<Vec<u8>, StoreError> {
        match self.items.get(index) {
            Some(Value::BulkString(bytes)) => Ok(bytes.clone()),
            _ => self.text(index).map(String::into_bytes),
        }
    }

    /// An answer this version does not know.
    pub(crate) fn unexpected(self) -> StoreError {
        StoreError::odd(format!("unexpected answer {:?}", self.tag))
    }
}

pub(crate) fn text(value: &Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text.clone()),
        Value::Okay => Ok("OK".to_owned()),
        Value::Int(n) => Ok(n.to_string()),
        other => Err(StoreError::odd(format!("expected text, got {other:?}"))),
    }
}

pub(crate) fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::Double(x) => Ok(*x as i64),
        other => {
            let text = text(other)?;
            // A score may come as `1794710083943` or in exponent form.
            text.parse()
                .or_else(|_| text.parse::<f64>().map(|x| x as i64))
                .map_err(|_| StoreError::odd(format!("expected a number, got {text:?}")))
        }
    }
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Map(pairs) => Ok(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()),
        Value::Nil => Ok(Vec::new()),
        other => Err(StoreError::odd(format!("expected a list, got {other:?}"))),
    }
}
