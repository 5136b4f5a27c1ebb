//! What a sender was told of and Redis has forgotten.
//!
//! **Invariant:** each message that a caller was told of and that is forgotten is counted once, and the count is told to one
//! caller; unless the sender keeps the message: then it is sent again.

use futures_util::future::BoxFuture;

use super::send::Sender;
use crate::Error;
use crate::fleet::{Budget, Kept, Numbers};
use crate::message::NewMessage;
use crate::store::{Call, Reply, StoreError};

impl Sender {
    /// Messages were sent under these numbers.
    pub(super) fn keep_sent(&self, numbers: &Numbers, key: Option<&str>, messages: &[NewMessage]) {
        if self.keep > 0 {
            self.fleet.names.keep(numbers, self.lane, key, messages, self.keep);
        }
    }

    /// Redis knows numbers under this name up to `last`: what was told behind it is forgotten. Then the other names are
    /// looked at, too.
    pub(super) async fn note_forgotten(&self, numbers: &Numbers, last: Option<u64>) {
        let mut lost = self.made_good(numbers, last).await;
        if numbers.forgotten(last) > 0 {
            let others = std::mem::take(&mut *self.fleet.names.free());
            for other in others {
                match self.last_known(&other).await {
                    Ok(last) if other.forgotten(last) > 0 => {
                        lost += self.made_good(&other, last).await;
                    }
                    // One that cannot be asked now finds it out when it is used.
                    _ => self.fleet.names.free().push(other),
                }
            }
        }
        self.fleet.names.note_forgotten(lost);
    }

    /// The error of a caller, if messages are forgotten and nobody was told yet.
    pub(super) fn tell_forgotten(&self) -> Result<(), Error> {
        match self.fleet.names.take_forgotten() {
            Some(messages) => Err(Error::Forgotten { messages }),
            None => Ok(()),
        }
    }

    /// The last number that Redis knows of this name.
    async fn last_known(&self, numbers: &Numbers) -> Result<Option<u64>, StoreError> {
        let sent = self.fleet.store.keys.sent(&numbers.name);
        let known = Call::plain("GET").arg(sent).reading(Reply::into_text);
        let known = self.fleet.store.work.call(&known, Budget::new(self.timeout).one_try()).await?;
        Ok(known.split('|').next().and_then(|last| last.parse().ok()))
    }

    /// Sends again what was kept. Returns how many messages are forgotten for good.
    async fn made_good(&self, numbers: &Numbers, last: Option<u64>) -> u64 {
        let lost = numbers.forgotten(last);
        if lost == 0 {
            return 0;
        }
        let mut again = 0;
        for kept in self.fleet.names.take_kept(&numbers.name, last.unwrap_or(0)) {
            again += u64::from(self.again(kept).await);
        }
        lost.saturating_sub(again)
    }

    /// Sends a message again. In a box, because its batch may find out that more is forgotten.
    fn again(&self, kept: Kept) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let sender = self.clone().lane(kept.lane);
            let (messages, budget) = ([kept.message], Budget::new(self.timeout));
            sender.send_alone(&messages, kept.key.as_deref(), budget).await.is_ok()
        })
    }
}
