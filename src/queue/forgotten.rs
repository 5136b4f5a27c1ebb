//! What a sender was told of and Redis has forgotten.
//!
//! **Invariant:** each message that a caller was told of and that is forgotten is counted once, and the count is told to one
//! caller; unless the sender keeps the message: then it is sent again. Once begun, that goes on, whoever gives up waiting.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::delivery::Failed;
use super::send::Sender;
use crate::Error;
use crate::fleet::{Budget, Kept, Numbers};
use crate::message::NewMessage;
use crate::store::{Call, Reply, StoreError};

/// How long sending again may take.
const AGAIN_MAX: Duration = Duration::from_secs(60);

impl Sender {
    /// Messages were sent under these numbers, or one that was there already.
    pub(super) fn tell_sent(
        &self,
        numbers: &Numbers,
        key: Option<&str>,
        messages: &[NewMessage],
        is_new: bool,
    ) {
        let names = &self.fleet.names;
        if !is_new {
            return names.tell_duplicate(numbers);
        }
        names.tell(numbers, messages.len());
        if self.keep > 0 {
            names.keep(numbers, self.lane, key, messages, self.keep);
        }
    }

    /// Looks at all names under which somebody was told of messages: what is forgotten is sent again if it was kept, and
    /// counted otherwise.
    pub(super) async fn look_for_forgotten(&self, budget: Budget) {
        let looking = tokio::spawn(self.clone().making_good());
        let _ = tokio::time::timeout(budget.left(), looking).await;
    }

    /// In a box, because what is sent again may find out that more is forgotten.
    fn making_good(self) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.make_good().await })
    }

    async fn make_good(&self) {
        let names = &self.fleet.names;
        let mut kept = Vec::new();
        for (name, told) in names.take_told() {
            // One that cannot be asked now is looked at the next time.
            let Ok(last) = self.last_known(&name).await else {
                names.still_told(name, told);
                continue;
            };
            let lost = told.forgotten(last);
            if lost == 0 {
                names.still_told(name, told);
                continue;
            }
            names.free().retain(|numbers| numbers.name != name);
            let again = names.take_kept(&name, last.unwrap_or(0));
            names.note_forgotten(lost.saturating_sub(again.len() as u64));
            kept.extend(again);
        }
        for batch in batches(kept) {
            let count = batch.len() as u64;
            if !self.again(batch).await {
                names.note_forgotten(count);
            }
        }
    }

    /// Redis knows an earlier number of this name, and not the one before these: no copy is there, and none can be added any
    /// more, because numbers have no gaps.
    pub(super) async fn is_missing(&self, numbers: &Numbers, budget: Budget) -> bool {
        let asked = tokio::time::timeout(budget.left(), self.last_known(&numbers.name)).await;
        matches!(asked, Ok(Ok(Some(last))) if last + 1 < numbers.next)
    }

    /// How many messages that callers were told of are forgotten, because another server became the primary that did not have
    /// them yet. Each is counted once, here or in [`Error::Forgotten`]: this is for a caller that sends nothing more. It asks
    /// Redis, for at most the time of a call.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, a count may be lost.
    pub async fn forgotten(&self) -> u64 {
        self.look_for_forgotten(Budget::new(self.timeout)).await;
        self.fleet.names.take_forgotten().unwrap_or(0)
    }

    /// The error of a caller, if messages are forgotten and nobody was told yet.
    pub(super) fn tell_forgotten(&self) -> Result<(), Error> {
        match self.fleet.names.take_forgotten() {
            Some(messages) => Err(Error::Forgotten { messages }),
            None => Ok(()),
        }
    }

    /// The last number that Redis knows of this name.
    async fn last_known(&self, name: &str) -> Result<Option<u64>, StoreError> {
        let sent = self.fleet.store.keys.sent(name);
        let text = |reply: Reply| match reply.is_nil() {
            true => Ok(String::new()),
            false => reply.into_text(),
        };
        let known = Call::plain("GET").arg(sent).reading(text);
        let known = self.fleet.store.work.call(&known, Budget::new(self.timeout).one_try()).await?;
        Ok(known.split('|').next().and_then(|last| last.parse().ok()))
    }

    /// Sends messages of one lane and key again, under a new name.
    async fn again(&self, batch: Vec<Kept>) -> bool {
        let Some(Kept { lane, key, .. }) = batch.first() else { return true };
        let (sender, key) = (self.clone().lane(*lane), key.clone());
        let messages: Vec<NewMessage> = batch.into_iter().map(|kept| kept.message).collect();
        let budget = Budget::new(AGAIN_MAX);
        let Ok(Some(numbers)) = sender.enroll(None, budget).await else { return false };
        match sender.deliver(&numbers, &messages, key.as_deref(), budget).await {
            Ok(sent) => {
                sender.tell_sent(&numbers, key.as_deref(), &messages, sent.is_new);
                sender.give_back(numbers, messages.len());
                true
            }
            Err(Failed::Unreplicated(..)) => true,
            Err(Failed::Refused { .. } | Failed::Forgotten | Failed::InDoubt) => false,
        }
    }
}

/// Messages that can be sent together: of one lane, in their order; one with a key by itself.
fn batches(kept: Vec<Kept>) -> Vec<Vec<Kept>> {
    let mut batches: Vec<Vec<Kept>> = Vec::new();
    let mut bytes = 0;
    for one in kept {
        let size = one.message.payload().len();
        let fits = batches.last().is_some_and(|batch| {
            let alike = batch[0].lane == one.lane && batch[0].key.is_none() && one.key.is_none();
            let together = alike && !one.message.is_posted() && !batch[0].message.is_posted();
            together && batch.len() < Sender::BATCH_MAX && bytes + size <= Sender::BATCH_BYTES_MAX
        });
        bytes = if fits { bytes + size } else { size };
        match batches.last_mut().filter(|_| fits) {
            Some(batch) => batch.push(one),
            None => batches.push(vec![one]),
        }
    }
    batches
}
