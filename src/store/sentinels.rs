//! [`Sentinels`]: which server they call the primary.
//!
//! **Invariant:** all of them are asked at once, and the answer with the newest configuration counts: the first one to answer
//! may be cut off from the others. A sentinel that hangs costs no more than [`OTHERS`], if another one answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisConnectionInfo, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::StoreError;
use super::dialer::{Dialer, extract};
use super::place::{Place, Spot};

/// How long the first answer may take, and how long the others are waited for then.
const FIRST: Duration = Duration::from_secs(1);
const OTHERS: Duration = Duration::from_millis(300);
/// How many sentinels are known at most.
const SENTINELS_MAX: usize = 16;
/// How long nobody listens after the sentinel that was listened to is gone.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// A sentinel that is listened to is asked for a sign of life this often.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const SWITCH: &str = "+switch-master";

#[derive(Clone)]
pub(super) struct Sentinels {
    master: Arc<str>,
    /// How we log in there.
    settings: RedisConnectionInfo,
    known: Arc<Mutex<Vec<Spot>>>,
    is_listening: Arc<AtomicBool>,
    /// One of them let us in before.
    connected: Arc<AtomicBool>,
    /// The most replicas of the primary that one of them knew.
    replicas: Arc<AtomicU32>,
}

/// What one sentinel says.
struct Named {
    epoch: u64,
    spot: Spot,
    /// How many replicas it has.
    replicas: u32,
}

enum Told {
    Named(Named, Vec<Spot>),
    /// It knows no primary with this name.
    Unknown,
    /// It does not let us in.
    Denied(StoreError),
    Silent,
}

impl Sentinels {
    pub(super) fn new(master: &str, seeds: Vec<Spot>, settings: RedisConnectionInfo) -> Sentinels {
        let known = Arc::new(Mutex::new(seeds));
        Sentinels {
            master: master.into(),
            settings,
            known,
            is_listening: Arc::default(),
            connected: Arc::default(),
            replicas: Arc::default(),
        }
    }

    /// The most replicas of the primary that one of them knew.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed)
    }

    pub(super) fn master(&self) -> &str {
        &self.master
    }

    pub(super) fn known(&self) -> Vec<Spot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, others: Vec<Spot>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for spot in others {
            if known.len() < SENTINELS_MAX && !known.contains(&spot) {
                known.push(spot);
            }
        }
    }

    /// The primary, as most recently agreed on.
    pub(super) async fn ask(&self, dialer: &Dialer) -> Result<Spot, StoreError> {
        let known = self.known();
        let mut asked: FuturesUnordered<_> =
            known.iter().map(|spot| self.ask_one(spot, dialer)).collect();
        let mut until = Instant::now() + FIRST;
        let (mut named, mut unknown, mut denied) = (None::<Named>, 0, None);
        while let Ok(Some(told)) = tokio::time::timeout_at(until, asked.next()).await {
            match told {
                Told::Named(one, others) => {
                    self.replicas.fetch_max(one.replicas, Ordering::Relaxed);
                    self.learn(others);
                    // The others may know something newer.
                    until = until.min(Instant::now() + OTHERS);
                    if named.as_ref().is_none_or(|best| one.epoch > best.epoch) {
                        named = Some(one);
                    }
                }
                Told::Unknown => unknown += 1,
                Told::Denied(error) => denied = Some(error),
                Told::Silent => {}
            }
        }
        let (master, count) = (&*self.master, known.len());
        match (named, denied) {
            (Some(named), _) => Ok(named.spot),
            (None, Some(error)) => Err(error),
            (None, None) if unknown > 0 => Err(StoreError::Unconnected(format!(
                "the sentinels know no primary called {master:?}"
            ))),
            (None, None) => {
                Err(StoreError::Unconnected(format!("none of {count} sentinels answers")))
            }
        }
    }

    async fn ask_one(&self, spot: &Spot, dialer: &Dialer) -> Told {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None);
        let mut questions = redis::pipe();
        for what in ["MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS"] {
            questions.cmd("SENTINEL").arg(what).arg(&*self.master);
        }
        let asked = async {
            let dialer = dialer.apart(&self.connected);
            let mut connection = dialer.dial(spot, &self.settings, config).await?;
            let answers = connection.send_all(&questions, 3).await?;
            let mut answers = answers.into_iter().map(extract);
            let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
            let (master, place) = (next()?, next()?);
            // A right that may be missing: then those of the address are all there are.
            Ok::<_, redis::RedisError>((fields(master), place, next().unwrap_or(Value::Nil)))
        };
        match asked.await.map_err(StoreError::from) {
            Ok((master, place, others)) => match read_named(&master, &place) {
                Some(named) => Told::Named(named, read_others(others)),
                None => Told::Silent,
            },
            Err(error) if error.is_denied() => {
                let text = format!("sentinel {spot}: {error}");
                Told::Denied(StoreError::Server { code: "WRONGPASS".to_owned(), text })
            }
            Err(StoreError::Server { text, .. }) if text.contains("No such master") => {
                Told::Unknown
            }
            Err(_) => Told::Silent,
        }
    }

    /// Listens to a sentinel, as long as somebody uses the place. It only hurries: a link that is told of another primary
    /// need not wait until its own is silent.
    pub(super) fn listen(&self, place: &Arc<Place>, dialer: &Dialer) {
        if self.is_listening.swap(true, Ordering::AcqRel) {
            return;
        }
        // The runtime of this caller may end before the others: the next one to look for the primary begins anew.
        let over = Listening(self.is_listening.clone());
        let (sentinels, place, dialer) = (self.clone(), Arc::downgrade(place), dialer.clone());
        tokio::spawn(async move {
            let _over = over;
            let mut turn = 0;
            while place.strong_count() > 0 {
                let known = sentinels.known();
                if let Some(spot) = known.get(turn % known.len().max(1)) {
                    sentinels.listen_to(spot, &place, &dialer).await;
                }
                turn += 1;
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        });
    }

    /// Until this sentinel is silent.
    async fn listen_to(&self, spot: &Spot, place: &Weak<Place>, dialer: &Dialer) {
        let gone = Arc::new(Notify::new());
        let (ended, heard, master) = (gone.clone(), place.clone(), self.master.clone());
        let config = AsyncConnectionConfig::new().set_connection_timeout(None);
        let config = config.set_push_sender(move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => ended.notify_one(),
                PushKind::Message => {
                    if let (Some(place), Some(spot)) = (heard.upgrade(), switched(&push, &master)) {
                        place.said(spot);
                    }
                }
                _ => {}
            }
            Ok::<(), redis::aio::SendError>(())
        });
        let dialer = dialer.apart(&self.connected);
        let dialing = dialer.dial(spot, &self.settings, config);
        let Ok(Ok(mut connection)) = tokio::time::timeout(FIRST, dialing).await else { return };
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(SWITCH);
        let mut sign = subscribe;
        while place.strong_count() > 0 {
            match tokio::time::timeout(FIRST, connection.send(&sign)).await {
                Ok(Ok(_)) => {}
                _ => return,
            }
            sign = redis::cmd("PING");
            tokio::select! {
                () = gone.notified() => return,
                () = tokio::time::sleep(ALIVE_EVERY) => {}
            }
        }
    }
}

/// Nobody listens once this is dropped.
struct Listening(Arc<AtomicBool>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The fields of an answer, which is a map or a list of names and values.
fn fields(value: Value) -> HashMap<String, String> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(pairs) => pairs,
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect()
        }
        _ => Vec::new(),
    };
    pairs.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

fn spot_of(fields: &HashMap<String, String>) -> Option<Spot> {
    Some(Spot::tcp(fields.get("ip")?.as_str(), fields.get("port")?.parse().ok()?))
}

/// The epoch of the configuration, and the address that it names. The sentinel that leads a failover goes on to show the old
/// address among the fields of the master until all replicas follow the new one; the other question is answered with the new
/// one as soon as it is promoted.
fn read_named(master: &HashMap<String, String>, place: &Value) -> Option<Named> {
    let Value::Array(parts) = place else { return None };
    let (host, port) = (text(parts.first()?)?, text(parts.get(1)?)?);
    let spot = Spot::tcp(host, port.parse().ok()?);
    let replicas = master.get("num-slaves").and_then(|number| number.parse().ok()).unwrap_or(0);
    Some(Named { epoch: master.get("config-epoch")?.parse().ok()?, spot, replicas })
}

fn read_others(others: Value) -> Vec<Spot> {
    let Value::Array(others) = others else { return Vec::new() };
    others.into_iter().filter_map(|one| spot_of(&fields(one))).collect()
}

/// What a sentinel says when another server becomes the primary: `<name> <old ip> <old port> <new ip> <new port>`.
fn switched(push: &PushInfo, master: &str) -> Option<Spot> {
    let said = push.data.get(1).and_then(text)?;
    let words: Vec<&str> = said.split(' ').collect();
    let [name, _, _, host, port] = words[..] else { return None };
    (name == master).then_some(())?;
    Some(Spot::tcp(host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn an_answer_is_a_map_or_a_list() {
        let names = [("ip", "10.0.0.9"), ("port", "1"), ("config-epoch", "7")];
        let place = Value::Array(vec![bulk("10.0.0.1"), bulk("6379")]);
        let map = Value::Map(names.iter().map(|(n, v)| (bulk(n), bulk(v))).collect());
        let list = Value::Array(names.iter().flat_map(|(n, v)| [bulk(n), bulk(v)]).collect());
        for answer in [map, list] {
            let named = read_named(&fields(answer), &place).expect("named");
            assert_eq!((named.epoch, named.spot.to_string()), (7, "10.0.0.1:6379".to_owned()));
        }
        assert!(read_named(&fields(Value::Nil), &place).is_none());
    }

    #[test]
    fn a_switch_is_heard_for_our_primary_only() {
        let push =
            |text: &str| PushInfo { kind: PushKind::Message, data: vec![bulk(SWITCH), bulk(text)] };
        let to = |text| switched(&push(text), "main").map(|spot| spot.to_string());
        assert_eq!(to("main 10.0.0.1 6379 10.0.0.2 6380").as_deref(), Some("10.0.0.2:6380"));
        assert_eq!(to("other 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(to("main 10.0.0.1"), None);
    }
}
