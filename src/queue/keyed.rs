//! Batches that are sent once per key, by requests that may be repeated from anywhere.
//!
//! **Invariant:** the key names the sender of the batch, and Redis keeps its first number. So a repeat is a late copy of
//! the same batch, which adds nothing, whichever process sends it; for a day after the last one. Another batch under the same
//! key is refused before it is sent. When the key is forgotten, its numbers begin anew behind those of before: no two messages
//! ever have the same id.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::delivery::Failed;
use super::send::{KEY_BYTES_MAX, Sender};
use crate::Error;
use crate::fleet::Undelivered;
use crate::id::MessageId;
use crate::message::NewMessage;

/// How long the name of a key is known. `send.lua` and `post.lua` know such a name by its length.
const KNOWN: Duration = Duration::from_secs(86_400);
/// Half of a hash is a name.
const NAME_BYTES: usize = 16;

/// A batch that belongs to a key.
pub(super) struct Request {
    /// The name of its sender.
    pub(super) name: String,
    /// What is sent, in short.
    pub(super) digest: String,
}

impl Request {
    /// How long it is remembered.
    pub(super) const KNOWN: Duration = KNOWN;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of the sender that belongs to this key.
fn name(key: &str) -> String {
    hex(&Sha256::digest(key)[..NAME_BYTES])
}

impl Sender {
    /// The lane, and each message as it would be sent: lengths keep them apart.
    fn digest(&self, messages: &[NewMessage]) -> String {
        let (mut hash, mut envelope) = (Sha256::new(), Vec::new());
        for message in messages {
            message.envelope(&mut envelope, self.lane, "", 0);
            for part in [&envelope[..], message.due().as_bytes()] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        hex(&hash.finalize()[..NAME_BYTES])
    }

    /// Adds all of these messages or none, once per key: the same call may be repeated by any process until it is answered,
    /// and answers the same ids. The key is remembered for a day. All bounds of [`send_all`](Self::send_all) apply.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let sender = artel::Fleet::connect(url, "orders").await?.sender();
    /// let first = sender.send_all_once("import of May 7", &["one".into(), "two".into()]).await?;
    /// let again = sender.send_all_once("import of May 7", &["one".into(), "two".into()]).await?;
    /// assert_eq!(first, again);
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send_all`](Self::send_all); and [`Error::Config`] if other messages were sent under this key.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the messages may have been added or not, but never twice.
    pub async fn send_all_once(
        &self,
        key: &str,
        messages: &[NewMessage],
    ) -> Result<Vec<MessageId>, Error> {
        let refuse = |problem: String| Err(Error::Config { field: "key", problem });
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return refuse(format!("must have 1 to {KEY_BYTES_MAX} bytes, and has {}", key.len()));
        }
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let budget = self.begin(messages).await?;
        let _turn = self.turn(budget).await?;
        let request = Request { name: name(key), digest: self.digest(messages) };
        loop {
            let Some(numbers) = self.enroll(Some(&request), budget).await? else {
                return refuse("was used for another request".to_owned());
            };
            match self.deliver(&numbers, messages, None, budget).await {
                Ok(sent) => {
                    let count = messages.len() as u64;
                    return Ok((0..count).map(|number| sent.id.following(number)).collect());
                }
                Err(Failed::Refused { error, .. }) => return Err(error),
                Err(Failed::Unreplicated(replicas, wanted)) => {
                    return Err(Error::Unreplicated { replicas, wanted });
                }
                Err(Failed::InDoubt) => {
                    let doubt = Undelivered::InDoubt(numbers.first());
                    return Err(doubt.into_error(messages.len(), true, budget));
                }
                // Nothing was added: Redis has forgotten the name.
                Err(Failed::Forgotten) if budget.is_over() => return Err(self.unreached(budget)),
                Err(Failed::Forgotten) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn the_name_of_a_key_is_longer_than_other_names() {
        let names = [name("a"), name("b"), name(&"long ".repeat(1000))];
        assert!(names.iter().all(|name| name.len() == 32));
        assert!(names[0] != names[1] && names[0] == super::name("a"));
    }
}
