//! What a runner does about a failure. [`restart`](crate::run::restart) decides, this module acts.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::notice::HubNotice;
use crate::run::bounds::Bounds;
use crate::run::handler::{Handler, Remedy};
use crate::run::handling::{Failure, failed, judge, letter};
use crate::run::restart::Verdict;
use crate::run::runner::{End, Runner};
use crate::stats::count;

impl<T, H, F> Runner<T, F>
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    /// Handles a failure that no event caused: there is no handler.
    pub(crate) async fn not_made(&mut self, failure: Box<Failure>) -> Option<End> {
        count(&self.me.counts.troubles().errors);
        let verdict = self.not_made_verdict();
        self.act(verdict, failure).await
    }

    pub(crate) fn not_made_verdict(&mut self) -> Verdict {
        let record = &mut self.record;
        self.maker.decide(|budget| record.not_made(budget, Instant::now(), rand::random()))
    }

    /// Handles a failure of the event in hand.
    pub(crate) async fn fail(&mut self, failure: Box<Failure>) -> Result<(), Option<End>> {
        let Some(event) = self.inbox.current().cloned() else { return Ok(()) };
        let (id, remedy, maker) = (event.id(), failure.remedy, &self.maker);
        let (verdict, is_letter) =
            judge(&self.core, &self.me, &event, &failure, &mut self.record, |record| {
                maker.decide(|budget| {
                    record.failed(id, remedy, budget, Instant::now(), rand::random())
                })
            });
        if is_letter {
            self.inbox.advance(&self.me, event.bytes.into());
        }
        drop(event);
        match verdict {
            Verdict::Letter => Ok(()),
            Verdict::Again(pause) => {
                count(&self.me.counts.troubles().retries);
                self.sleep(pause).await;
                Ok(())
            }
            verdict => Err(self.act(verdict, failure).await),
        }
    }

    /// Asks a handler that collects to commit, until it succeeds or dies.
    pub(crate) async fn commit(&mut self, handler: &mut H) -> Result<(), Option<End>> {
        let at = self.at();
        let mut tries = 0u32;
        loop {
            self.inbox.commits(&self.me, true);
            self.inbox.is_inside(true);
            let result = {
                let (core, me, inbox) = (&*self.core, &*self.me, &self.inbox);
                let bounds = Bounds { core, me, inbox, at, span: None };
                let result = bounds.guard(|| handler.commit()).await;
                inbox.is_inside(false);
                result
            };
            if self.inbox.is_replaced(&self.me) {
                return Err(Some(End::Replaced));
            }
            self.inbox.commits(&self.me, false);
            let Err(failure) = result else {
                let many = self.inbox.committed(&self.me).len() as u64;
                self.me.counts.processed.fetch_add(many, Ordering::Relaxed);
                self.held = 0;
                self.record.committed();
                return Ok(());
            };
            tries += 1;
            if let Some(event) = self.me.first_held() {
                failed(&self.core, &self.me, &event, &failure, tries);
            }
            if failure.remedy == Remedy::Late {
                // It is unknown whether they are committed, so they are not handled again.
                for event in self.inbox.committed(&self.me) {
                    letter(&self.core, &self.me, &event, tries, &failure);
                }
                self.held = 0;
            }
            let fatal = matches!(failure.remedy, Remedy::Fatal | Remedy::Late);
            if fatal || self.me.life.orders().stop() {
                let verdict = self.not_made_verdict();
                return Err(self.act(verdict, Box::new(failure)).await);
            }
            count(&self.me.counts.troubles().retries);
            let wait = self.maker.decide(|budget| budget.pause(tries, rand::random()));
            self.sleep(wait).await;
        }
    }

    /// Pauses before a new handler is created. Returns the end of the runner if the budget is
    /// spent.
    pub(crate) async fn act(&mut self, verdict: Verdict, failure: Box<Failure>) -> Option<End> {
        let Verdict::Anew { pause, .. } = verdict else {
            return Some(End::Spent(failure));
        };
        count(&self.me.counts.troubles().restarts);
        let notice = HubNotice::Restarting {
            subscriber: self.me.name().to_string(),
            reason: failure.reason,
            pause_ms: pause.as_millis() as u64,
        };
        self.core.say(notice);
        self.sleep(pause).await;
        None
    }
}
