//! What watches a member of the program: its archive.
//!
//! **Invariant:** everything here is a subscriber of the hub. It is opened before the member joins, so wrong settings are
//! told first, and ends after the member has left, so nothing is missed.

use artel::MemberBuilder;
use artel::hub::EventHub;

use crate::archive::Archive;
use crate::args::ProcessArgs;
use crate::exit::Failure;

/// What watches a member.
pub(crate) struct Watchers {
    hub: Option<EventHub>,
    archive: Option<Archive>,
    payloads: bool,
}

impl Watchers {
    pub(crate) fn open(args: &ProcessArgs, fleet: &str) -> Result<Watchers, Failure> {
        let hub = args.archive.archive.is_some().then(EventHub::new);
        let archive = hub.as_ref().map(|hub| Archive::open(&args.archive, hub, fleet));
        let archive = archive.transpose()?.flatten();
        Ok(Watchers { hub, archive, payloads: args.archive.archive_payloads })
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

    /// Waits for what is still to be written. The member has left.
    pub(crate) async fn end(self) {
        if let Some(archive) = self.archive {
            archive.end().await;
        }
    }
}
