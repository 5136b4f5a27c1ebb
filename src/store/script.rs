//! A script, its hash, and one call of it.
//!
//! **Invariant:** a [`Call`] is built once and sent byte for byte the same every time it is
//! repeated. A number once sent is bound to its bytes. A call knows the type of its answer.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::ToRedisArgs;

use super::prelude::with_prelude;
use super::{Reply, StoreError};

/// Bytes per second that a link must carry.
const SLOWEST: u64 = 256 << 10;
/// Fewer bytes make no difference.
const SMALL: u64 = 32 << 10;

/// A Lua file that is part of this crate, or a user's.
pub(crate) struct Script {
    name: &'static str,
    source: Cow<'static, str>,
    /// What Redis gets, and its hash.
    ready: OnceLock<(Arc<str>, String)>,
    /// It answers with a tag of ours.
    tagged: bool,
}

impl Script {
    pub(crate) const fn new(name: &'static str, source: &'static str) -> Script {
        Script { name, source: Cow::Borrowed(source), ready: OnceLock::new(), tagged: true }
    }

    /// One that is put together while the program runs; what it answers is a user's.
    pub(crate) fn composed(name: &'static str, source: String) -> Script {
        Script { name, source: Cow::Owned(source), ready: OnceLock::new(), tagged: false }
    }

    fn ready(&self) -> &(Arc<str>, String) {
        self.ready.get_or_init(|| {
            // A user's script is sent as it is.
            let source = match self.tagged {
                true => with_prelude(&self.source),
                false => self.source.to_string(),
            };
            #[cfg(feature = "mutants")]
            let source = crate::mutant::script(self.name, source);
            let hash = redis::Script::new(&source).get_hash().to_owned();
            (source.into(), hash)
        })
    }

    /// Begins a call with the keys it declares.
    pub(crate) fn call(&self, keys: &[String]) -> Call {
        let (source, hash) = self.ready();
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(hash).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        Call::new(self.name, cmd, Some(source.clone()), self.tagged)
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Reads an answer.
type Read<R> = Arc<dyn Fn(Reply) -> Result<R, StoreError> + Send + Sync>;

/// One command, ready to be sent and sent again, and what its answer is read as.
pub(crate) struct Call<R = Reply> {
    /// Its script, or its command.
    pub(super) name: &'static str,
    tagged: bool,
    /// What to load if Redis does not know the script.
    pub(super) source: Option<Arc<str>>,
    pub(super) cmd: redis::Cmd,
    /// Bytes its answer may have, if they are many.
    answer_bytes: usize,
    /// The tags of those answers with which Redis has refreshed the caller's session.
    refreshing: &'static [&'static str],
    read: Read<R>,
}

impl<R> Clone for Call<R> {
    fn clone(&self) -> Call<R> {
        Call {
            source: self.source.clone(),
            cmd: self.cmd.clone(),
            read: self.read.clone(),
            ..*self
        }
    }
}

impl Call {
    fn new(name: &'static str, cmd: redis::Cmd, source: Option<Arc<str>>, tagged: bool) -> Call {
        let read: Read<Reply> = Arc::new(Ok);
        Call { name, tagged, source, cmd, answer_bytes: 0, refreshing: &[], read }
    }

    /// A plain command.
    pub(crate) fn plain(name: &'static str) -> Call {
        Call::new(name, redis::cmd(name), None, false)
    }

    /// The answer is read like this.
    pub(crate) fn reading<R: 'static>(
        self,
        read: impl Fn(Reply) -> Result<R, StoreError> + Send + Sync + 'static,
    ) -> Call<R> {
        let Call { name, tagged, source, cmd, answer_bytes, refreshing, .. } = self;
        Call { name, tagged, source, cmd, answer_bytes, refreshing, read: Arc::new(read) }
    }
}

impl<R> Call<R> {
    pub(crate) fn arg<T: ToRedisArgs>(mut self, arg: T) -> Call<R> {
        self.cmd.arg(arg);
        self
    }

    pub(crate) fn push_arg<T: ToRedisArgs>(&mut self, arg: T) {
        self.cmd.arg(arg);
    }

    /// Says that its answer may have this many bytes.
    pub(crate) fn answering(mut self, bytes: usize) -> Call<R> {
        self.answer_bytes = bytes;
        self
    }

    /// Says that an answer with one of these tags comes from a Redis that has refreshed the caller's session.
    pub(crate) fn refreshing(mut self, tags: &'static [&'static str]) -> Call<R> {
        self.refreshing = tags;
        self
    }

    /// Did Redis refresh the caller's session with this answer?
    pub(crate) fn refreshes(&self, reply: &Reply) -> bool {
        self.refreshing.contains(&reply.tag())
    }

    /// Makes something else of its answer, or of what is wrong with it.
    pub(crate) fn map_read<T: 'static>(
        self,
        map: impl Fn(Result<R, StoreError>) -> T + Send + Sync + 'static,
    ) -> Call<T>
    where
        R: 'static,
    {
        let Call { name, tagged, source, cmd, answer_bytes, refreshing, read } = self;
        let read: Read<T> = Arc::new(move |reply| Ok(map(read(reply))));
        Call { name, tagged, source, cmd, answer_bytes, refreshing, read }
    }

    /// Reads an answer to this call.
    pub(crate) fn read(&self, reply: Reply) -> Result<R, StoreError> {
        (self.read)(reply)
    }

    /// The tag of its answer, for the log: nothing of a user's is ever shown.
    pub(super) fn logged_tag<'a>(&self, reply: &'a Reply) -> &'a str {
        let tag = if self.tagged { reply.tag() } else { "" };
        if tag.bytes().all(|byte| byte.is_ascii_lowercase()) { tag } else { "" }
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
}
