//! Events and locks: how long a wake-up takes, and how long a lock is on its way from one holder to the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use artel::Fleet;
use tokio::task::JoinSet;

use crate::report::Times;
use crate::{Result, ms};

/// Long enough that whoever waits sleeps.
const ASLEEP: Duration = Duration::from_millis(2);
/// Sessions that want the lock.
const CONTENDERS: usize = 10;

/// From setting an event to the return of `wait`, over connections of its own.
pub(crate) async fn wake_up(url: &str, name: &str, times: usize) -> Result<Times> {
    let setter = Fleet::connect(url, name).await?.event("wake-up")?;
    let waiter = Fleet::connect(url, name).await?.event("wake-up")?;
    let mut took = Vec::new();
    for _ in 0..times {
        let waiter = waiter.clone();
        let waiting = tokio::spawn(async move { waiter.wait().await.map(|_| Instant::now()) });
        tokio::time::sleep(ASLEEP).await;
        let began = Instant::now();
        setter.set().await?;
        took.push(ms(waiting.await?? - began));
        setter.clear().await?;
    }
    Ok(Times::of(took))
}

/// From releasing a lock to the next holder, among ten sessions that want it.
pub(crate) async fn hand_over(url: &str, name: &str, times: usize) -> Result<Times> {
    let mut members = Vec::new();
    for _ in 0..CONTENDERS {
        members.push(Fleet::open(url, name)?.join().start().await?);
    }
    /// When the lock was last released, and how long the hand-overs took.
    type Seen = (Option<Instant>, Vec<f64>);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut all = JoinSet::new();
    for member in &members {
        let (lock, seen) = (member.lock("hand-over")?, seen.clone());
        all.spawn(async move {
            loop {
                let guard = lock.acquire().await?;
                let now = Instant::now();
                {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(released) = seen.0.take() {
                        seen.1.push(ms(now - released));
                    }
                    if seen.1.len() >= times {
                        return Ok::<(), artel::Error>(());
                    }
                }
                tokio::time::sleep(ASLEEP).await;
                let released = Some(Instant::now());
                seen.lock().unwrap_or_else(PoisonError::into_inner).0 = released;
                guard.release().await?;
            }
        });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    for member in members {
        member.shutdown().await;
    }
    let seen = std::mem::take(&mut seen.lock().unwrap_or_else(PoisonError::into_inner).1);
    Ok(Times::of(seen))
}
