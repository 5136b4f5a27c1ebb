//! What is asked of Redis, and what it answers.
//!
//! **Invariant:** what another program wrote into the record of the alerts harms nobody: it is bounded, and made a text.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::sinks::{Sink, Told};
use crate::id::MemberId;
use crate::membership::Session;
use crate::store::{Call, Reply, Script, Store, StoreError};

static STEP: Script = Script::new("alert_step", include_str!("alert_step.lua"));
static TOLD: Script = Script::new("alert_told", include_str!("alert_told.lua"));

/// How long Redis may take to answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is noted that an alert was told, if Redis does not answer, and the pause.
const NOTE_TRIES: u32 = 30;
const NOTE_PAUSE: Duration = Duration::from_secs(1);
/// The longest text of an alert, in characters.
const TEXT_MAX: usize = 2500;

/// What this process is telling, and what it knows to be told.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling(Arc<Mutex<Claims>>);

#[derive(Debug, Default)]
struct Claims {
    /// The claims that this process is telling now: the session that made the claim, and `<sink>:<rule>`.
    busy: HashSet<(MemberId, String)>,
    /// What sinks were told to fire, by any member, and not yet to end. Redis may lose it.
    open: HashSet<String>,
}

impl Telling {
    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.claims().busy.is_empty()
    }

    pub(super) fn begin(&self, me: &MemberId, claim: &Claim) {
        self.claims().busy.insert((me.clone(), claim.name()));
    }

    /// What Redis says is open.
    pub(super) fn learn(&self, open: &str) {
        let open: HashSet<String> =
            open.lines().filter(|claim| !claim.is_empty()).map(str::to_owned).collect();
        let mut claims = self.claims();
        if open.len() != claims.open.len() {
            tracing::debug!("alerts that fire, by sink: {}", open.len());
        }
        claims.open = open;
    }
}

/// What Redis answers to a step.
pub(super) enum Stepped {
    /// This member judges. This is open, and this must be told.
    Ok(String, Vec<Claim>),
    /// The log was read up to here.
    Moved(String),
    /// Another member judges. It has read the log up to here, and this is open.
    Held(Option<(String, String)>),
}

/// What this member must tell.
pub(super) struct Claim {
    pub(super) sink: String,
    pub(super) rule: String,
    what: String,
    episode: String,
    pub(super) is_repeat: bool,
    /// When it happened, Redis time.
    pub(super) at_ms: u64,
    pub(super) text: String,
}

impl Claim {
    fn name(&self) -> String {
        format!("{}:{}", self.sink, self.rule)
    }

    pub(super) fn is_resolved(&self) -> bool {
        self.what == "resolved"
    }

    /// Notes what became of it.
    pub(super) async fn note(&self, told: Told, me: &MemberId, store: &Store, telling: &Telling) {
        let told_word = match told {
            Told::Yes => "1",
            // What was in doubt before stays in doubt.
            Told::No if !self.is_repeat => "-",
            Told::No | Told::InDoubt => "0",
        };
        let call =
            TOLD.call(&[store.keys.alerts()]).arg(me.as_str()).arg(&self.sink).arg(&self.rule);
        let call = call.arg(&self.what).arg(&self.episode).arg(told_word);
        for _ in 0..NOTE_TRIES {
            if store.work.call(&call, TIMEOUT).await.is_ok() {
                break;
            }
            tokio::time::sleep(NOTE_PAUSE).await;
        }
        telling.claims().busy.remove(&(me.clone(), self.name()));
    }
}

impl Stepped {
    pub(super) fn read(reply: Reply) -> Result<Stepped, StoreError> {
        match reply.tag() {
            "gone" => return Ok(Stepped::Held(None)),
            "held" => {
                let known = (reply.text(0)?, lossy(&reply.bytes(1)?));
                return Ok(Stepped::Held((!known.0.is_empty()).then_some(known)));
            }
            "moved" => return Ok(Stepped::Moved(reply.text(0)?)),
            "ok" => {}
            _ => return Err(reply.unexpected()),
        }
        let open = lossy(&reply.bytes(1)?);
        let mut parts = Vec::new();
        for part in reply.into_parts().into_iter().skip(2) {
            parts.push(lossy(&part.into_bytes()?));
        }
        let claim = |part: &[String]| Claim {
            sink: part[0].clone(),
            rule: part[1].clone(),
            what: part[2].clone(),
            episode: part[3].clone(),
            is_repeat: part[4] == "1",
            at_ms: part[5].parse().unwrap_or_default(),
            text: part[6].chars().take(TEXT_MAX).collect(),
        };
        Ok(Stepped::Ok(open, parts.chunks_exact(7).map(claim).collect()))
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A step without rules.
pub(super) fn step(
    store: &Store,
    session: &Session,
    (cursor, next): (&str, &str),
    sinks: &[Sink],
    telling: &Telling,
) -> Call {
    let keys = &store.keys;
    let call = STEP.call(&[keys.members(), keys.alerts(), keys.notices()]).arg(session.id.as_str());
    let mut call = call.arg(u8::from(session.speaks())).arg(cursor).arg(next);
    let claims = telling.claims();
    // What an earlier session told is nothing of this one.
    let mine = claims.busy.iter().filter(|(by, _)| *by == session.id);
    let busy = mine.map(|(_, claim)| claim.as_str());
    let resting = sinks.iter().filter(|sink| sink.rests()).map(|sink| sink.name.as_str());
    for list in [
        sinks.iter().map(|sink| sink.name.as_str()).collect::<Vec<_>>(),
        busy.chain(resting).collect(),
        claims.open.iter().map(String::as_str).collect(),
    ] {
        call.push_arg(list.len());
        for item in list {
            call.push_arg(item);
        }
    }
    call
}
