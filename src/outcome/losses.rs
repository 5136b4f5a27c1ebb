//! [`Loss`]: what Redis forgot when another server process took over.
//!
//! **Invariant:** a loss is named with an amount that is not too large: steps that a member knew of, and that were not there
//! any more. It may be larger than that.

use std::time::SystemTime;

use serde::Serialize;

use crate::Error;
use crate::json_time::{self, at_ms};
use crate::store::{Call, Reply, Store};

/// Steps of messages that Redis had acknowledged and has forgotten.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// for artel::Loss { steps, from, to, .. } in fleet.status().await?.losses {
///     println!("at least {steps} steps were forgotten between {from} and {to}");
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Loss {
    /// The server process that knew of them (`run_id`).
    pub from: String,
    /// The one that took over, by promotion or because it was started again.
    pub to: String,
    /// How many, at least. Making, sending, finishing or putting back a message is a step.
    pub steps: u64,
    /// When that was noticed. In JSON twice: `time` in RFC 3339, and `time_ms`.
    #[serde(flatten, serialize_with = "json_time::point_both::serialize")]
    pub time: SystemTime,
}

/// All that are known, the newest first.
pub(super) async fn read_losses(store: &Store) -> Result<Vec<Loss>, Error> {
    let call = Call::plain("HGETALL").arg(store.keys.losses()).reading(Reply::into_pairs);
    let pairs = store.once(&call).await?;
    let texts = pairs.into_iter().filter_map(|(pair, value)| Some((pair, value.into_text().ok()?)));
    let mut losses: Vec<Loss> = texts.filter_map(|(pair, value)| read(&pair, &value)).collect();
    losses.sort_by_key(|loss| std::cmp::Reverse(loss.time));
    Ok(losses)
}

fn read(pair: &str, value: &str) -> Option<Loss> {
    let ((from, to), (steps, ms)) = (pair.split_once('>')?, value.split_once('|')?);
    let (from, to) = (from.to_owned(), to.to_owned());
    Some(Loss { from, to, steps: steps.parse().ok()?, time: at_ms(ms.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_loss_is_left_out() {
        let loss = read("a>b", "139|5000").expect("a loss");
        assert_eq!((loss.from.as_str(), loss.to.as_str(), loss.steps), ("a", "b", 139));
        assert_eq!(loss.time, at_ms(5000));
        for (pair, value) in [("a", "1|2"), ("a>b", "1"), ("a>b", "x|2"), ("a>b", "1|x")] {
            assert_eq!(read(pair, value), None, "{pair} {value}");
        }
    }
}
