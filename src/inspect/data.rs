//! Reading the data that effects wrote.

use crate::Error;
use crate::fleet::Fleet;
use crate::store::{Call, Reply};

/// The most elements of one name that are read at once. More are refused, not cut.
const ELEMENTS_MAX: i64 = 100_000;
/// The most bytes of the answer.
const BYTES_MAX: usize = 64 << 20;

/// The data that effects wrote under one name.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::{Context, Data, Effect, Message, Outcome};
///
/// let handler = |_: Message, _: Context| async {
///     Outcome::done().with(Effect::incr_by("sold", 3)).with(Effect::rpush("mails", "ann"))
/// };
/// let member = fleet.join().handle(handler).start().await?;
/// fleet.send("order 7").await?;
/// # while fleet.status().await?.messages.done == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// assert_eq!(fleet.data("sold").await?.and_then(|data| data.number()), Some(3));
/// assert_eq!(fleet.data("mails").await?, Some(Data::List(vec![b"ann".to_vec()])));
/// member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Data {
    /// From [`Effect::set`](crate::Effect::set), or a number from
    /// [`Effect::incr_by`](crate::Effect::incr_by).
    Text(Vec<u8>),
    /// From [`Effect::hset`](crate::Effect::hset) and [`Effect::hincr_by`](crate::Effect::hincr_by), by
    /// field.
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    /// From [`Effect::sadd`](crate::Effect::sadd), sorted.
    Set(Vec<Vec<u8>>),
    /// From [`Effect::rpush`](crate::Effect::rpush), in their order.
    List(Vec<Vec<u8>>),
}

impl Data {
    /// The number that [`Effect::incr_by`](crate::Effect::incr_by) counts, if it is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Data::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }
}

impl Fleet {
    /// The data that effects wrote under this name. `None` if there is none.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses, or there are more than 100,000 elements.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn data(&self, name: &str) -> Result<Option<Data>, Error> {
        self.compare().await?;
        let key = self.store.keys.data(name);
        let explain = |error| self.store.explain(error);
        let kind = Call::plain("TYPE").arg(&key).reading(Reply::into_text);
        let kind = self.store.try_repeat(&kind).await.map_err(explain)?;
        let (length, read) = match kind.as_str() {
            "none" => return Ok(None),
            "string" => (None, Call::plain("GET").arg(&key)),
            "hash" => (Some("HLEN"), Call::plain("HGETALL").arg(&key)),
            "set" => (Some("SCARD"), Call::plain("SMEMBERS").arg(&key)),
            "list" => (Some("LLEN"), Call::plain("LRANGE").arg(&key).arg(0).arg(-1)),
            other => {
                let reason = format!("data {name:?} holds a {other}, which no effect writes");
                return Err(Error::Refused { reason });
            }
        };
        if let Some(length) = length {
            let count = Call::plain(length).arg(&key).reading(Reply::into_number);
            let count = self.store.try_repeat(&count).await.map_err(explain)?;
            if count > ELEMENTS_MAX {
                let reason = format!(
                    "data {name:?} has {count} elements, more than {ELEMENTS_MAX}: read the {kind} {key} \
                     with a Redis client"
                );
                return Err(Error::Refused { reason });
            }
        }
        let value = self.store.try_repeat(&read.answering(BYTES_MAX)).await.map_err(explain)?;
        if let "string" = kind.as_str() {
            return Ok(value.into_bytes().ok().map(Data::Text)); // or it was removed meanwhile
        }
        let items = value.into_list().map_err(explain)?;
        let items: Result<Vec<_>, _> = items.into_iter().map(Reply::into_bytes).collect();
        let mut items = items.map_err(explain)?;
        Ok(Some(match kind.as_str() {
            "hash" => {
                let mut pairs: Vec<_> =
                    items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
                pairs.sort();
                Data::Hash(pairs)
            }
            "set" => {
                items.sort();
                Data::Set(items)
            }
            _ => Data::List(items),
        }))
    }
}
