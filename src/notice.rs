//! [`Notice`]: what the stages report to listeners.
//!
//! **Invariant:** publishing never waits and never fails. A listener that is too slow learns how many
//! notices it missed; it cannot slow a stage down. That holds for an [`EventHub`], too: a task of its
//! own carries notices there. Only that task waits for the hub's subscribers.

mod names;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use artel_hub::{EventHub, Publisher, Topic};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cause::Cause;
use crate::feed::Feed;
use crate::id::MemberId;
use crate::id::MessageId;
use crate::lane::Lane;
use crate::meter::Meter;
use crate::term::Term;

pub(crate) use names::NAMES;

/// How many notices a slow listener may be behind before it misses some.
const KEPT: usize = 1024;

/// Something that happened in this process, or that it learned about the fleet.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::Notice;
///
/// let mut member = fleet.join().start().await?;
/// match member.notices().next().await {
///     Some(Notice::Joined { member: id }) => assert_eq!(Some(id), member.id()),
///     other => panic!("{other:?}"),
/// }
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Notice {
    /// This process has a session and takes part.
    Joined {
        /// Its new id.
        member: MemberId,
    },
    /// This process generates from now on.
    BecameGenerator {
        /// Under this term.
        term: Term,
        /// For how long nobody led before. `None` if nobody ever did, or if it is not known.
        gap: Option<Duration>,
    },
    /// This process no longer generates.
    LeaseLost {
        /// The term that ended.
        term: Term,
        /// Why.
        reason: &'static str,
    },
    /// Redis refused a write of a generator whose term, or whose session, is over. Nothing was added.
    Fenced {
        /// The stale term.
        term: Term,
    },
    /// This process leads and no member works: messages pile up. Reported once per term.
    NoWorker,
    /// Too many messages wait or are stored as failed, Redis is out of memory, or it denies a write.
    /// The generator waits, and nothing is dropped.
    Full {
        /// What Redis reported.
        reason: String,
    },
    /// There is room again.
    Flowing,
    /// A member was found dead and its session was ended.
    MemberDied {
        /// The dead member.
        member: MemberId,
        /// Its name for people.
        label: String,
        /// Where it ran, as `host:pid`.
        process: String,
    },
    /// Messages that dead members held were put back.
    Adopted {
        /// The dead member.
        member: MemberId,
        /// How many will be handled again.
        returned: u64,
        /// How many had used up their attempts and went to the error store.
        failed: u64,
    },
    /// A message ended in the error store.
    MessageFailed {
        /// Which message.
        id: MessageId,
        /// Its kind, if its maker set one.
        kind: Option<String>,
        /// The attempt that failed.
        attempt: u32,
        /// Why.
        cause: Cause,
        /// Why, in words.
        reason: String,
        /// How long its handler ran.
        took: Duration,
    },
    /// A run of a message did not work, and it will be retried.
    Retried {
        /// Which message.
        id: MessageId,
        /// Its kind, if its maker set one.
        kind: Option<String>,
        /// The attempt that did not work.
        attempt: u32,
        /// The number of the retry.
        retry: u32,
        /// Why, in words.
        reason: String,
        /// After how long it will be retried.
        after: Duration,
    },
    /// A handler asked for a later run of its message, or no handler here knows its kind. This is not an error.
    Snoozed {
        /// Which message.
        id: MessageId,
        /// Its kind, if its maker set one.
        kind: Option<String>,
        /// The attempt that ended so.
        attempt: u32,
        /// Why, if it was not its handler that asked for it.
        reason: Option<String>,
        /// After how long it will be run again.
        after: Duration,
    },
    /// A periodic entry fired: its message was added.
    Fired {
        /// The entry.
        entry: String,
        /// For this time.
        due: SystemTime,
    },
    /// A time of a periodic entry passed without a message.
    Skipped {
        /// The entry.
        entry: String,
        /// The time.
        due: SystemTime,
        /// Why.
        reason: &'static str,
    },
    /// Two programs, or two versions of one, declare a periodic entry differently. The last one wins.
    CronReplaced {
        /// The entry.
        entry: String,
        /// How it was declared before, as JSON without the payload.
        before: String,
    },
    /// An operator paused lanes, or drained this process. What it holds is handled, and nothing new is fetched.
    Paused {
        /// Nothing is fetched from these lanes.
        lanes: Vec<Lane>,
        /// This process fetches nothing and does not lead.
        drained: bool,
    },
    /// Nothing is paused any more, and this process is not drained.
    Resumed,
    /// A scheduled message should have started long ago.
    Overdue {
        /// How late it is.
        late: Duration,
    },
    /// This process handled a message that was no longer its own. The outcome was not recorded.
    ClaimLost {
        /// Which message.
        id: MessageId,
    },
    /// This process lost its session. Its messages and locks belong to others now.
    SessionLost {
        /// The id that is no longer a member.
        member: MemberId,
    },
    /// Redis does not answer. Nothing new is started until it does.
    Disconnected {
        /// What the network reported.
        reason: String,
    },
    /// Redis answers, but refuses our credentials or a right that we had. Nothing new is started until
    /// it accepts them; an operator must help.
    Denied {
        /// What Redis reported.
        reason: String,
    },
    /// Redis answers again.
    Reconnected {
        /// How long it did not answer.
        after: Duration,
    },
    /// Redis lost acknowledged writes. The fleet goes on; messages may be missing or repeated.
    DataLossSeen {
        /// What was lost, or did not fit.
        what: &'static str,
    },
    /// Redis keeps refusing a call that must be recorded: this process gives up what it holds and joins
    /// again.
    Refused {
        /// What Redis reported.
        reason: String,
    },
    /// A message was claimed and could not be read over this link in time.
    Unread {
        /// Which message.
        id: MessageId,
        /// True if it went to the error store, because too many workers could not read it. Otherwise
        /// another worker may try.
        failed: bool,
    },
    /// No larger term or token can be granted: Redis's clock is, or once was, past the year 2112. An
    /// operator must help. Reported once a minute.
    Exhausted {
        /// The keys in Redis: without terms no member is elected, and without tokens no member gets a
        /// lock.
        keys: Vec<String>,
    },
    /// Fewer replicas than required have the last writes: everything that a user is told waits for them. After a lease no
    /// handler is started.
    Unreplicated {
        /// How many replicas have them.
        replicas: u32,
        /// How many replicas must have them.
        wanted: u32,
    },
    /// Enough replicas have the last writes again.
    Replicated {
        /// How long they lacked.
        after: Duration,
    },
    /// Another server process answers than before: another one is the primary now, or it was started again.
    ServerChanged {
        /// The id that the one before gave itself (`run_id`).
        from: String,
        /// The id of the one that answers now.
        to: String,
        /// How many steps that this process knew of are forgotten, at least. Making, sending, finishing or putting back a
        /// message is a step. 0 is good.
        forgotten: u64,
    },
    /// The slot of the fleet has been on its way to another node of a cluster for some seconds. Everything stands still until
    /// it is there; nothing is lost. If nobody is moving it, `redis-cli --cluster fix` ends that.
    SlotMoving {
        /// The slot.
        slot: u16,
        /// For how long calls have been put off.
        after: Duration,
    },
    /// This process gave back messages that it had not started. This is not an attempt.
    GaveBack {
        /// How many messages.
        messages: u64,
    },
    /// The generator's own code failed. The tick was skipped.
    GenerateFailed {
        /// The error, in words.
        reason: String,
    },
    /// The listener was too slow and missed this many notices.
    Missed {
        /// How many notices.
        notices: u64,
    },
}

/// Where the stages publish.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    sender: broadcast::Sender<Notice>,
    pub(crate) meter: Arc<Meter>,
    /// Where it is told what becomes of each message, if somebody wants to know.
    pub(crate) feed: Option<Arc<Feed>>,
}

impl Board {
    pub(crate) fn new(feed: Option<Feed>) -> Board {
        let sender = broadcast::Sender::new(KEPT);
        Board { sender, meter: Arc::default(), feed: feed.map(Arc::new) }
    }

    pub(crate) fn publish(&self, notice: Notice) {
        tracing::trace!(?notice, "notice");
        self.meter.notice(notice.name());
        if let Notice::BecameGenerator { gap: Some(gap), .. } = &notice {
            self.meter.failover.add(*gap);
        }
        let _ = self.sender.send(notice);
    }

    /// Carries all notices to a hub from now on.
    pub(crate) fn relay(&self, hub: &EventHub, topic: &Topic<Notice>) -> Relay {
        let over = CancellationToken::new();
        let Ok(publisher) = hub.publisher(topic) else { return Relay { over, task: None } };
        let task = tokio::spawn(carry(self.listen(), publisher, over.clone()));
        Relay { over, task: Some(task) }
    }

    pub(crate) fn listen(&self) -> Notices {
        Notices { receiver: self.sender.subscribe() }
    }
}

/// A bounded stream of [`Notice`]s, from the moment it was made.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let mut member = fleet.join().start().await?;
/// let mut notices = member.notices();
/// member.shutdown().await;
/// while let Some(notice) = notices.next().await {
///     println!("{notice:?}");
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Notices {
    receiver: broadcast::Receiver<Notice>,
}

impl Notices {
    /// The next notice. `None` when the member has stopped.
    ///
    /// # Cancel safety
    ///
    /// Safe: a notice is either returned or still to come.
    pub async fn next(&mut self) -> Option<Notice> {
        match self.receiver.recv().await {
            Ok(notice) => Some(notice),
            Err(broadcast::error::RecvError::Lagged(notices)) => Some(Notice::Missed { notices }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Carries notices to a hub, and waits for those of its subscribers that lose nothing. After `over` is
/// cancelled it carries the remaining notices, as far as there is room.
async fn carry(mut notices: Notices, publisher: Publisher<Notice>, over: CancellationToken) {
    loop {
        let notice = tokio::select! {
            notice = notices.next() => notice,
            () = over.cancelled() => break,
        };
        let Some(notice) = notice else { return };
        let sent = tokio::select! {
            sent = publisher.publish(notice.clone()) => sent,
            () = over.cancelled() => publisher.try_publish(notice),
        };
        if sent.is_err() {
            return; // the hub is shut down, or full while we stop
        }
    }
    while let Ok(notice) = notices.receiver.try_recv() {
        if publisher.try_publish(notice).is_err() {
            return;
        }
    }
}

/// The task that carries notices to a hub.
#[derive(Debug)]
pub(crate) struct Relay {
    over: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Relay {
    /// Lets it carry the remaining notices, and waits for its end.
    pub(crate) async fn end(mut self) {
        self.over.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_missed() {
        let board = Board::new(None);
        let mut notices = board.listen();
        for _ in 0..KEPT + 7 {
            board.publish(Notice::NoWorker);
        }
        assert!(matches!(notices.next().await, Some(Notice::Missed { notices: 7 })));
        assert!(matches!(notices.next().await, Some(Notice::NoWorker)));
    }
}
