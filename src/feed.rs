//! [`MessageRecord`]: what this member did with one message, for archives and the like.
//!
//! **Invariant:** telling never waits. What a hub has no room for is not told, and its subscribers count it.

use std::time::Duration;

use artel_hub::{EventHub, Publisher, Topic};
use serde::Serialize;

use crate::id::MessageId;
use crate::json_time;

/// What a member did with a message.
///
/// ```
/// assert_eq!(serde_json::to_value(artel::Step::Done)?, "done");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// It generated it, and Redis has accepted it.
    Generated,
    /// It handled it, and the outcome is recorded.
    Done,
    /// It found it in error, and it is in the error store.
    Failed,
    /// A run did not work, and it will be retried.
    Retried,
    /// Its handler asked for a later run, or no handler here knows its kind.
    Snoozed,
}

/// What this member did with one message. Published on the hub of a member that was told to
/// [`publish_messages`](crate::MemberBuilder::publish_messages).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::hub::{Delivery, EventHub};
/// use artel::{MessageRecord, Outcome, Step};
///
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let hub = EventHub::new();
/// let join = fleet.join().hub(hub.clone()).publish_messages(true);
/// let join = join.handle(|_: artel::Message, _: artel::Context| async { Outcome::done() });
/// let member = join.start().await?;
/// let (told, heard) = std::sync::mpsc::channel();
/// let _log = hub.subscribe(&member.message_topic()).spawn(
///     move |record: Delivery<'_, MessageRecord>| told.send(record.get().clone()).expect("heard"),
/// )?;
/// fleet.send("order 7").await?;
/// let record = tokio::task::spawn_blocking(move || heard.recv()).await??;
/// assert_eq!((record.step, record.payload.as_deref()), (Step::Done, Some("order 7")));
/// # member.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MessageRecord {
    /// What happened.
    pub step: Step,
    /// The message.
    pub id: MessageId,
    /// The label of this member.
    pub member: String,
    /// Its kind, if its maker set one.
    pub kind: Option<String>,
    /// The number of the run that ended; 0 if it was generated.
    pub attempt: u32,
    /// How long its handler ran.
    #[serde(rename = "took_ms", with = "json_time::fine_ms")]
    pub took: Duration,
    /// Why it failed, or will run again.
    pub reason: Option<String>,
    /// Its payload as text, if payloads are wanted.
    pub payload: Option<String>,
}

/// Where records go.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    publisher: Publisher<MessageRecord>,
    label: String,
    /// Payloads are wanted.
    pub(crate) payloads: bool,
}

impl Feed {
    pub(crate) fn new(
        hub: &EventHub,
        topic: &Topic<MessageRecord>,
        label: &str,
        payloads: bool,
    ) -> Option<Feed> {
        let publisher = hub.publisher(topic).ok()?;
        Some(Feed { publisher, label: label.to_owned(), payloads })
    }

    /// Tells what became of a message.
    pub(crate) fn tell(
        &self,
        step: Step,
        (id, attempt): (MessageId, u32),
        kind: Option<&str>,
        took: Duration,
        (reason, payload): (Option<String>, Option<&[u8]>),
    ) {
        let payload = payload.filter(|_| self.payloads);
        let _ = self.publisher.try_publish(MessageRecord {
            step,
            id,
            member: self.label.clone(),
            kind: kind.map(str::to_owned),
            attempt,
            took,
            reason,
            payload: payload.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        });
    }
}

/// The topic of a fleet's messages.
pub(crate) fn message_topic(fleet: &str) -> Topic<MessageRecord> {
    Topic::json_to_read("artel/messages").at(format!("artel/{fleet}/messages"))
}
