//! Duties: what every member does in addition to its part in the stages, for as long as it is a member.
//!
//! **Invariant:** a duty runs from the first session to the end of the last, and [`Duties::stop`]
//! returns when none of them runs any longer. Each follows the sessions by itself. Work that it began
//! under a session that is over has no effect.

mod adopter;
mod firer;
mod lag;
mod noter;
mod promoter;
mod reporter;

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use artel_hub::EventHub;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::membership::Session;
use crate::notice::Board;
use crate::role::Role;
use crate::store::Store;
use crate::watch::EventWatch;

pub(crate) use adopter::adopt_all;

/// What a duty needs for its work.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) store: Store,
    pub(crate) board: Board,
    pub(crate) sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(crate) roles: watch::Receiver<Role>,
    /// The question for this member's numbers.
    pub(crate) question: Arc<EventWatch>,
    /// The hub of this member, once there is one.
    pub(crate) hub: Arc<OnceLock<EventHub>>,
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) began: Instant,
    /// Cancelled when the member ends.
    pub(crate) over: CancellationToken,
}

/// One duty. It runs until it is stopped, or until there will be no further session.
trait Duty: Send + 'static {
    /// It runs on the session thread, where busy handlers cannot delay it.
    const ON_SESSION_THREAD: bool;

    fn run(self) -> impl Future<Output = ()> + Send;
}

/// The running duties of one member.
pub(crate) struct Duties {
    running: Vec<JoinHandle<()>>,
    /// Ends by itself, after what it still has to write.
    noter: JoinHandle<()>,
    over: CancellationToken,
}

impl Duties {
    /// Starts all duties.
    pub(crate) fn start(means: &Means) -> Result<Duties, Error> {
        let noter = tokio::spawn(noter::Noter::new(means.clone()).run());
        let mut duties = Duties { running: Vec::new(), noter, over: means.over.clone() };
        duties.begin(means, adopter::Adopter::new(means.clone()))?;
        duties.begin(means, reporter::Reporter::new(means.clone())?)?;
        duties.begin(means, promoter::Promoter::new(means.clone())?)?;
        duties.begin(means, firer::Firer::new(means.clone())?)?;
        duties.begin(means, lag::LagWatcher::new(means.clone()))?;
        Ok(duties)
    }

    fn begin<D: Duty>(&mut self, means: &Means, duty: D) -> Result<(), Error> {
        let running = match D::ON_SESSION_THREAD {
            true => means.store.session_link()?.spawn(duty.run()),
            false => tokio::spawn(duty.run()),
        };
        self.running.push(running);
        Ok(())
    }

    /// Stops all duties, and waits for their end.
    pub(crate) async fn stop(mut self) {
        for duty in &mut self.running {
            duty.abort();
            let _ = duty.await;
        }
        self.over.cancel();
        let _ = (&mut self.noter).await;
    }
}

impl Drop for Duties {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
        self.noter.abort();
    }
}
