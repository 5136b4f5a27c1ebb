//! One batch on its way to Redis.
//!
//! **Invariant:** a batch is sent with the same bytes until it is answered. A number whose answer never came is never
//! used for anything else: its sender goes on under a new name.

use std::time::Duration;

use tokio::sync::SemaphorePermit;

use crate::Error;
use crate::clock::Moment;
use crate::error::Unreached;
use crate::fleet::{Budget, CALLS_MAX, Numbers, Undelivered};
use crate::id::MessageId;
use crate::lane::Lane;
use crate::message::NewMessage;
use crate::mutant::{Rule, disabled};
use crate::store::{Call, PROTOCOL, Reply, Script, StoreError, nonce};

use super::keyed::Request;
use super::pack::Numbered;
use super::post::Posted;
use super::push::full;
use super::send::{Sender, Sent};

static SEND: Script =
    Script::new("send", include_str!("send.lua")).lasting(&["ok", "already", "duplicate"]);
static ENROLL: Script = Script::new("enroll", include_str!("enroll.lua"));

/// How long a name is known without a call.
const KNOWN: Duration = Duration::from_secs(3600);

/// Pause before an unanswered batch is repeated.
const RETRY: Duration = Duration::from_millis(50);

/// A name for one batch, and the permission to send it.
pub(super) struct Name<'a> {
    pub(super) numbers: Numbers,
    pub(super) _turn: SemaphorePermit<'a>,
}

/// Why a batch is not known to be added.
pub(super) enum Failed {
    /// None of its messages was added.
    Refused {
        error: Error,
        /// The name can be used for another batch.
        keeps_name: bool,
    },
    /// Redis has forgotten the name, and none of its messages was added.
    Forgotten,
    /// Redis did not answer.
    InDoubt,
    /// It was added, and only so many replicas have it, of so many that must.
    Unreplicated(u32, u32),
}

impl Sender {
    /// A name under which a batch can be sent. Nothing was sent yet.
    pub(super) async fn name(&self, budget: Budget) -> Result<Name<'_>, Error> {
        let turn = self.turn(budget).await?;
        let work = &self.fleet.store.work;
        if let Some(server) = work.server_in(work.epoch())
            && self.fleet.names.is_elsewhere(&server)
        {
            self.look_for_forgotten(budget).await;
            self.tell_forgotten()?;
        }
        let free = self.fleet.names.free().pop();
        let numbers = match free {
            Some(numbers) => numbers,
            None => match self.enroll(None, budget).await? {
                Some(numbers) => numbers,
                None => return Err(self.unreached(budget)),
            },
        };
        Ok(Name { numbers, _turn: turn })
    }

    /// A name can be used again, behind this many messages that were added under it.
    pub(super) fn give_back(&self, mut numbers: Numbers, added: usize) {
        numbers.next += added as u64;
        self.fleet.names.free().push(numbers);
    }

    /// Sends a batch by itself.
    pub(super) async fn send_alone(
        &self,
        messages: &[NewMessage],
        key: Option<&str>,
        budget: Budget,
    ) -> Result<Sent, Undelivered> {
        loop {
            let name = self.name(budget).await.map_err(Undelivered::Refused)?;
            let Name { numbers, _turn } = name;
            match self.deliver(&numbers, messages, key, budget).await {
                Ok(sent) => {
                    self.tell_sent(&numbers, key, messages, sent.is_new);
                    self.give_back(numbers, messages.len());
                    return Ok(sent);
                }
                Err(Failed::Refused { error, keeps_name }) => {
                    if keeps_name {
                        self.give_back(numbers, 0);
                    }
                    return Err(Undelivered::Refused(error));
                }
                Err(Failed::InDoubt) => return Err(Undelivered::InDoubt(numbers.first())),
                Err(Failed::Unreplicated(replicas, wanted)) => {
                    return Err(Undelivered::Unreplicated(replicas, wanted));
                }
                // Nothing was added: under another name.
                Err(Failed::Forgotten) => {
                    self.tell_forgotten().map_err(Undelivered::Refused)?;
                }
            }
        }
    }

    /// Sends one batch until it is answered. Returns its first message. Its name belongs to the caller.
    pub(super) async fn deliver(
        &self,
        numbers: &Numbers,
        messages: &[NewMessage],
        key: Option<&str>,
        budget: Budget,
    ) -> Result<Sent, Failed> {
        let call = self.call(numbers, messages, key);
        // A copy of this batch was sent and not answered. It may have been added, or may still be
        // added, so the refusal of a later copy does not prove that it was not.
        let mut unheard = false;
        loop {
            let mut replicas = None;
            match self.try_once(&call, numbers, budget).await {
                Try::Sent(sent) => return Ok(sent),
                Try::Refused { error, keeps_name } if !unheard => {
                    return Err(Failed::Refused { error, keeps_name });
                }
                Try::Forgotten => {
                    self.look_for_forgotten(budget).await;
                    let is_doubt = unheard && !self.is_missing(numbers, budget).await;
                    return Err(match is_doubt && !disabled(Rule::ForgottenIsDoubt) {
                        // It can no longer be known whether an unanswered copy was added.
                        true => Failed::InDoubt,
                        false => Failed::Forgotten,
                    });
                }
                Try::Unheard => unheard = true,
                Try::Unreplicated(have, wanted) => {
                    unheard = true;
                    replicas = Some(Failed::Unreplicated(have, wanted));
                }
                Try::Refused { .. } | Try::Again => {}
            }
            if budget.is_over() {
                return Err(replicas.unwrap_or(Failed::InDoubt));
            }
            tokio::time::sleep(RETRY.min(budget.left())).await;
        }
    }

    /// Redis cannot be reached, and nothing was sent.
    pub(super) fn unreachable(&self, reason: String) -> Error {
        let redis = self.fleet.store.address().to_owned();
        Error::Unreachable { redis, reason, why: Unreached::Network }
    }

    /// Sends a batch once.
    async fn try_once(&self, call: &Call<Answer>, numbers: &Numbers, budget: Budget) -> Try {
        let refused = |error, keeps_name| Try::Refused { error, keeps_name };
        match self.fleet.store.work.call(call, budget.one_try()).await {
            Ok(Answer::Added) => Try::Sent(Sent { id: numbers.first(), is_new: true }),
            Ok(Answer::Duplicate(id)) => Try::Sent(Sent { id, is_new: false }),
            Ok(Answer::Full(reason)) => refused(Error::Full { reason }, true),
            Ok(Answer::Protocol(theirs)) => refused(self.fleet.store.other_protocol(&theirs), true),
            Ok(Answer::Forgotten) => Try::Forgotten,
            Ok(Answer::Refused(problem)) => {
                refused(Error::Config { field: "message", problem }, true)
            }
            // It is not known how far such a call got, so its name is not used again.
            Err(error @ StoreError::Odd(_)) => refused(self.fleet.store.explain(error), false),
            Err(StoreError::Unreplicated { replicas, wanted }) => {
                Try::Unreplicated(replicas, wanted)
            }
            Err(error) if error.is_unheard() => {
                tracing::debug!(%error, "send was not answered: it will be repeated");
                Try::Unheard
            }
            Err(error) if error.is_passing() && !budget.is_over() => Try::Again,
            Err(error) if error.is_oom() => {
                refused(Error::Full { reason: "Redis is out of memory".to_owned() }, true)
            }
            Err(error) => {
                let keeps_name = error.is_passing();
                refused(self.fleet.store.explain(error), keeps_name)
            }
        }
    }

    fn call(&self, numbers: &Numbers, messages: &[NewMessage], key: Option<&str>) -> Call<Answer> {
        let Numbers { name, next, asked, now_ms } = numbers;
        let made_ms = now_ms + Moment::now().since(*asked).as_millis() as u64;
        let keys = &self.fleet.store.keys;
        let remember_ms = self.remember.as_millis() as u64;
        if messages.iter().any(NewMessage::is_posted) {
            let (lane, first, ms) = (self.lane, *next, made_ms);
            let posted = Posted { messages, lane, name, first, ms, key, remember_ms };
            return posted.call(keys).reading(move |reply| Answer::read(&reply, lane));
        }
        let lane = keys.lane(self.lane.name());
        let stage = keys.stage(name);
        let mut all = vec![
            keys.sent(name),
            lane,
            keys.counts(),
            keys.wake(),
            keys.config(),
            keys.errors(),
            stage.clone(),
            format!("{}s{name}-{next}", keys.chunks()),
        ];
        all.extend(key.map(|key| keys.dedup(key)));
        let call = SEND.call(&all).arg(&**name).arg(*next).arg(PROTOCOL).arg(remember_ms);
        let (lane, ids) = (self.lane, format!("s{name}"));
        let batch = Numbered { messages, lane, name: &ids, first: *next, ms: made_ms };
        // A message under a key travels as an envelope.
        let call = batch.add_to(call, key.is_none().then_some(stage));
        call.reading(move |reply| Answer::read(&reply, lane))
    }

    /// The error if Redis could not be reached in time, and nothing was sent.
    pub(super) fn unreached(&self, budget: Budget) -> Error {
        self.unreachable(match self.fleet.store.work.is_refused() {
            true => format!("connection refused, tried for {:?}", budget.timeout),
            false => format!("no answer within {:?}", budget.timeout),
        })
    }

    /// Waits until this sender may make one more call.
    pub(super) async fn turn(&self, budget: Budget) -> Result<SemaphorePermit<'_>, Error> {
        let turn = tokio::time::timeout(budget.left(), self.fleet.names.calls.acquire()).await;
        let why = || format!("{CALLS_MAX} calls of this sender wait for an answer already");
        turn.ok().and_then(Result::ok).ok_or_else(|| self.unreachable(why()))
    }

    /// Enrolls a name in Redis: a new one with each copy of this call, because a late copy must not enroll a forgotten name
    /// again; or that of a request. `None`: something else is sent under its key. Nothing was sent yet.
    pub(super) async fn enroll(
        &self,
        request: Option<&Request>,
        budget: Budget,
    ) -> Result<Option<Numbers>, Error> {
        self.fleet.store.count_steps();
        loop {
            let asked = Moment::now();
            let name = request.map_or_else(nonce, |request| request.name.clone());
            let sent = self.fleet.store.keys.sent(&name);
            let call = match request {
                None => ENROLL.call(&[sent]).arg(KNOWN.as_millis() as u64),
                Some(request) => {
                    let call = ENROLL.call(&[sent.clone(), format!("{sent}:request")]);
                    call.arg(Request::KNOWN.as_millis() as u64).arg(&request.digest)
                }
            };
            let answer = self.fleet.store.work.call(&call, budget.one_try()).await;
            if answer.as_ref().is_ok_and(|reply| reply.tag() == "other") {
                return Ok(None);
            }
            match answer.and_then(|reply| Ok((reply.number(0)? as u64, reply.number(1)? as u64))) {
                Ok((now_ms, next)) => {
                    return Ok(Some(Numbers { name: name.into(), next, asked, now_ms }));
                }
                Err(error) if error.is_passing() && !budget.is_over() => {
                    tokio::time::sleep(RETRY.min(budget.left())).await;
                }
                Err(error) if error.is_oom() => {
                    return Err(Error::Full { reason: "Redis is out of memory".to_owned() });
                }
                // A name without an answer does no harm: nothing was sent under it.
                Err(error) if error.is_unheard() => {
                    tracing::debug!(%error, "enroll was not answered");
                    return Err(self.unreached(budget));
                }
                Err(error) => return Err(self.fleet.store.explain(error)),
            }
        }
    }
}

/// The result of one try.
enum Try {
    Sent(Sent),
    /// This copy added nothing.
    Refused {
        error: Error,
        /// The name can be used for another batch.
        keeps_name: bool,
    },
    /// It may have been added.
    Unheard,
    /// It was added, and only so many replicas have it, of so many that must.
    Unreplicated(u32, u32),
    /// It was not added. The next try may succeed.
    Again,
    /// Redis has forgotten numbers of the name: after an hour without a batch, or because it lost data.
    Forgotten,
}

/// What Redis answered to a batch.
enum Answer {
    Added,
    /// A message with this id was sent under the same key before.
    Duplicate(MessageId),
    /// A bound is reached; the text says which.
    Full(String),
    Protocol(String),
    /// Numbers of this name are forgotten.
    Forgotten,
    /// Redis does not take it: why not.
    Refused(String),
}

impl Answer {
    fn read(reply: &Reply, lane: Lane) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" | "already" => Ok(Answer::Added),
            "duplicate" => {
                let id = MessageId::from_redis(&reply.text(0)?);
                let id =
                    id.ok_or_else(|| StoreError::odd("the key does not hold the id of a message"))?;
                Ok(Answer::Duplicate(id))
            }
            "full" => Ok(Answer::Full(full(reply, lane)?)),
            "protocol" => Ok(Answer::Protocol(reply.text(0)?)),
            "gap" => Ok(Answer::Forgotten),
            "refused" => Ok(Answer::Refused(reply.text(1)?)),
            _ => Err(reply.unexpected()),
        }
    }
}
