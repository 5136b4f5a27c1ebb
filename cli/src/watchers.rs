//! What watches a member of the program: its archive and its alerts.
//!
//! **Invariant:** it is opened before the member joins, so wrong settings are told first. It never holds up a stage. The archive
//! ends after the member has left, so nothing is missed; alerts end before, because another member goes on with them.

use artel::hub::EventHub;
use artel::{Alerting, Alerts, Member, MemberBuilder};

use crate::alerts;

use crate::archive::Archive;
use crate::args::ProcessArgs;
use crate::exit::Failure;

/// What watches a member.
pub(crate) struct Watchers {
    hub: Option<EventHub>,
    archive: Option<Archive>,
    payloads: bool,
    alerts: Option<Alerts>,
    alerting: Option<Alerting>,
}

impl Watchers {
    pub(crate) fn open(args: &ProcessArgs, fleet: &str) -> Result<Watchers, Failure> {
        let alerts = alerts::alerts(&args.alerts)?;
        // Rules about the hub need one.
        let hub = (args.archive.archive.is_some() || alerts.is_some()).then(EventHub::new);
        let archive = hub.as_ref().map(|hub| Archive::open(&args.archive, hub, fleet));
        let archive = archive.transpose()?.flatten();
        let payloads = args.archive.archive_payloads;
        Ok(Watchers { hub, archive, payloads, alerts, alerting: None })
    }

    /// Has the member publish what is watched.
    pub(crate) fn attach(&self, mut member: MemberBuilder) -> MemberBuilder {
        if let Some(hub) = &self.hub {
            member = member.hub(hub.clone());
        }
        if self.archive.is_some() {
            member = member.publish_messages(self.payloads);
        }
        member
    }

    /// Begins to judge what happens to this member and to its fleet.
    pub(crate) fn start(&mut self, member: &Member) -> Result<(), Failure> {
        self.alerting = self.alerts.take().map(|alerts| alerts.start(member)).transpose()?;
        Ok(())
    }

    /// Waits for what is being told, and leaves the rest to other members. The member is about to leave.
    pub(crate) async fn stop(&mut self) {
        if let Some(alerting) = self.alerting.take() {
            alerting.stop().await;
        }
    }

    /// Waits for what is still to be written. The member has left.
    pub(crate) async fn end(self) {
        if let Some(archive) = self.archive {
            archive.end().await;
        }
    }
}
