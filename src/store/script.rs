//! A script, its hash, and one call of it.
//!
//! **Invariant:** a [`Call`] is built once, and every repeat sends the same bytes. A number that was
//! sent is bound to its bytes. A call knows the type of its answer.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::ToRedisArgs;

use super::prelude::{with_jobs, with_prelude};
use super::{Reply, StoreError};
use crate::mutant::{Rule, disabled};

/// The slowest link that is supported, in bytes per second.
const SLOWEST: u64 = 256 << 10;
/// A call with fewer bytes gets no additional time.
const SMALL: u64 = 32 << 10;

/// A Lua script of this crate or of a user.
pub(crate) struct Script {
    name: &'static str,
    source: Cow<'static, str>,
    /// The text that Redis gets, and its hash.
    ready: OnceLock<(Arc<str>, String)>,
    form: Form,
    lasting: Lasting,
}

/// Which answers are told to a user, or give somebody a right: with these a call waits for replicas, if that was asked for.
#[derive(Clone, Copy, Debug)]
enum Lasting {
    Never,
    /// The answers with these tags.
    Tags(&'static [&'static str]),
    Every,
}

/// How a script is put together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    /// Of this crate: its answer begins with a tag of ours.
    Plain,
    /// The same, with all of `jobs.lua` before it.
    Jobs,
    /// Of a user, who defines its answer. It is sent unchanged.
    User,
}

impl Script {
    const fn of(name: &'static str, source: Cow<'static, str>, form: Form) -> Script {
        Script { name, source, ready: OnceLock::new(), form, lasting: Lasting::Never }
    }

    pub(crate) const fn new(name: &'static str, source: &'static str) -> Script {
        Script::of(name, Cow::Borrowed(source), Form::Plain)
    }

    /// The form of a script that has all of `jobs.lua`.
    pub(crate) const fn with_jobs(name: &'static str, source: &'static str) -> Script {
        Script::of(name, Cow::Borrowed(source), Form::Jobs)
    }

    /// The answers with these tags are told to a user, or give somebody a right.
    pub(crate) const fn lasting(mut self, tags: &'static [&'static str]) -> Script {
        self.lasting = Lasting::Tags(tags);
        self
    }

    /// A script that is put together while the program runs. Its answer is defined by a user.
    pub(crate) fn composed(name: &'static str, source: String) -> Script {
        Script { lasting: Lasting::Every, ..Script::of(name, Cow::Owned(source), Form::User) }
    }

    fn is_tagged(&self) -> bool {
        self.form != Form::User
    }

    fn ready(&self) -> &(Arc<str>, String) {
        self.ready.get_or_init(|| {
            let source = match self.form {
                Form::Plain => with_prelude(&self.source),
                Form::Jobs => with_jobs(&self.source).expect("a script of two forms"),
                Form::User => self.source.to_string(),
            };
            #[cfg(feature = "mutants")]
            let source = crate::mutant::script(self.name, source);
            let hash = redis::Script::new(&source).get_hash().to_owned();
            (source.into(), hash)
        })
    }

    /// Begins a call with its keys.
    pub(crate) fn call(&self, keys: &[String]) -> Call {
        let (source, hash) = self.ready();
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(hash).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        let call = Call::new(self.name, cmd, Some(source.clone()), self.is_tagged());
        Call { lasting: self.lasting, ..call }
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Commands that are written together with a script. They are sent, answered and repeated as one.
#[derive(Clone)]
pub(super) enum With {
    Nothing,
    /// The script runs in a `MULTI`, behind a `SET` of this key to these bytes and before its `DEL`.
    Stage(Arc<Staged>),
    /// A `GET` of each of these keys follows. The answers are the last parts of the script's.
    Get(Arc<[String]>),
    /// These commands follow. Their answers are a list, and that of the script is not part of it.
    Then(Arc<[redis::Cmd]>),
}

/// A key that exists only while its script runs.
pub(super) struct Staged {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
}

/// Reads an answer.
type Read<R> = Arc<dyn Fn(Reply) -> Result<R, StoreError> + Send + Sync>;

/// One command that can be sent and repeated, and how its answer is read.
pub(crate) struct Call<R = Reply> {
    /// The name of its script or of its command.
    pub(super) name: &'static str,
    tagged: bool,
    /// What to load if Redis does not know the script.
    pub(super) source: Option<Arc<str>>,
    pub(super) cmd: redis::Cmd,
    /// The commands that are written with it.
    pub(super) with: With,
    /// The only epoch of its link in which it may be sent.
    pub(super) epoch: Option<u64>,
    /// How many bytes its answer may have, if they are many.
    answer_bytes: usize,
    /// The tags of the answers that mean: Redis has refreshed the caller's session.
    refreshing: &'static [&'static str],
    lasting: Lasting,
    /// It waits for replicas as long as its connection lives, and not only until its time is over.
    pub(super) is_patient: bool,
    read: Read<R>,
}

impl<R> Clone for Call<R> {
    fn clone(&self) -> Call<R> {
        Call {
            source: self.source.clone(),
            cmd: self.cmd.clone(),
            with: self.with.clone(),
            epoch: self.epoch,
            read: self.read.clone(),
            ..*self
        }
    }
}

impl Call {
    fn new(name: &'static str, cmd: redis::Cmd, source: Option<Arc<str>>, tagged: bool) -> Call {
        let read: Read<Reply> = Arc::new(Ok);
        Call {
            name,
            tagged,
            source,
            cmd,
            with: With::Nothing,
            epoch: None,
            answer_bytes: 0,
            refreshing: &[],
            lasting: Lasting::Never,
            is_patient: false,
            read,
        }
    }

    /// A plain command.
    pub(crate) fn plain(name: &'static str) -> Call {
        Call::new(name, redis::cmd(name), None, false)
    }

    /// Sets how the answer is read.
    pub(crate) fn reading<R: 'static>(
        self,
        read: impl Fn(Reply) -> Result<R, StoreError> + Send + Sync + 'static,
    ) -> Call<R> {
        self.with_read(Arc::new(read))
    }
}

impl<R> Call<R> {
    /// The same call, whose answer is read otherwise.
    fn with_read<T>(self, read: Read<T>) -> Call<T> {
        let Call {
            name,
            tagged,
            source,
            cmd,
            with,
            epoch,
            answer_bytes,
            refreshing,
            lasting,
            is_patient,
            ..
        } = self;
        Call {
            name,
            tagged,
            source,
            cmd,
            with,
            epoch,
            answer_bytes,
            refreshing,
            lasting,
            is_patient,
            read,
        }
    }

    pub(crate) fn arg<T: ToRedisArgs>(mut self, arg: T) -> Call<R> {
        self.cmd.arg(arg);
        self
    }

    pub(crate) fn push_arg<T: ToRedisArgs>(&mut self, arg: T) {
        self.cmd.arg(arg);
    }

    /// It says something about the server of this epoch, and must not be sent to another one.
    pub(crate) fn only_in(mut self, epoch: u64) -> Call<R> {
        self.epoch = Some(epoch);
        self
    }

    /// Has the script run in one `MULTI`, with a `SET` of this key before it and a `DEL` behind it.
    pub(crate) fn staging(mut self, key: String, value: Vec<u8>) -> Call<R> {
        self.with = With::Stage(Arc::new(Staged { key, value }));
        self
    }

    /// Has a `GET` of each of these keys follow.
    pub(crate) fn then_get(mut self, keys: Vec<String>) -> Call<R> {
        self.with = With::Get(keys.into());
        self
    }

    /// Sets how many bytes the answer may have.
    pub(crate) fn answering(mut self, bytes: usize) -> Call<R> {
        self.answer_bytes = bytes;
        self
    }

    /// Sets the tags of the answers that mean: Redis has refreshed the caller's session.
    pub(crate) fn refreshing(mut self, tags: &'static [&'static str]) -> Call<R> {
        self.refreshing = tags;
        self
    }

    /// Has these commands follow. The answer is a list of theirs.
    pub(super) fn then(mut self, commands: Vec<redis::Cmd>) -> Call<R> {
        self.with = With::Then(commands.into());
        self
    }

    /// Waits for replicas, if that was asked for, as long as the connection lives.
    pub(crate) fn patient(mut self) -> Call<R> {
        self.is_patient = true;
        self
    }

    /// Is this answer told to a user, or does it give somebody a right?
    pub(super) fn lasts(&self, reply: &Reply) -> bool {
        let is_grant = ["acquire", "permit_take"].contains(&self.name);
        match self.lasting {
            _ if is_grant && disabled(Rule::GrantsLast) => false,
            Lasting::Never => false,
            Lasting::Tags(tags) => tags.contains(&reply.tag()),
            Lasting::Every => true,
        }
    }

    /// Did Redis refresh the caller's session with this answer?
    pub(crate) fn refreshes(&self, reply: &Reply) -> bool {
        self.refreshing.contains(&reply.tag())
    }

    /// Converts the answer, or the error of reading it, to another type.
    pub(crate) fn map_read<T: 'static>(
        self,
        map: impl Fn(Result<R, StoreError>) -> T + Send + Sync + 'static,
    ) -> Call<T>
    where
        R: 'static,
    {
        let read = self.read.clone();
        let read: Read<T> = Arc::new(move |reply| match read(reply) {
            // Not the caller's business: the session is over.
            Err(StoreError::Gone) => Err(StoreError::Gone),
            answer => Ok(map(answer)),
        });
        self.with_read(read)
    }

    /// Reads an answer to this call.
    pub(crate) fn read(&self, reply: Reply) -> Result<R, StoreError> {
        (self.read)(reply)
    }

    /// The tag of its answer, for the log. It never shows data of a user.
    pub(super) fn logged_tag<'a>(&self, reply: &'a Reply) -> &'a str {
        let tag = if self.tagged { reply.tag() } else { "" };
        if tag.bytes().all(|byte| byte.is_ascii_lowercase()) { tag } else { "" }
    }

    /// How much longer than a small call this one may take, over the slowest supported link.
    pub(super) fn travel_time(&self) -> Duration {
        let arg = |arg: redis::Arg<&[u8]>| match arg {
            redis::Arg::Simple(bytes) => bytes.len(),
            _ => 0,
        };
        let sent: usize = self.cmd.args_iter().map(arg).sum();
        let staged = match &self.with {
            With::Stage(staged) => staged.value.len(),
            With::Nothing | With::Get(_) | With::Then(_) => 0,
        };
        match (sent + staged + self.answer_bytes) as u64 {
            bytes if bytes < SMALL => Duration::ZERO,
            bytes => Duration::from_millis(bytes * 1000 / SLOWEST),
        }
    }
}
