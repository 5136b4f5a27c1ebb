//! [`Source`]: what a port serves: a member and its fleet, or fleets alone.

use std::sync::Arc;

use artel::hub::EventHub;
use artel::{Fleet, Member, MetricsSource, Readiness};

/// What is served.
#[derive(Clone)]
pub(crate) struct Source {
    /// The first one is meant where none is named.
    pub(super) fleets: Arc<[Fleet]>,
    pub(super) metrics: Arc<[MetricsSource]>,
    /// Without a member this process is ready as soon as it runs.
    pub(super) readiness: Option<Readiness>,
    pub(super) hub: Option<EventHub>,
}

impl Source {
    /// A member, and its fleet.
    pub(crate) fn of_member(member: &Member) -> Source {
        Source {
            fleets: [member.fleet().clone()].into(),
            readiness: Some(member.readiness()),
            hub: Some(member.hub().clone()),
            metrics: [member.metrics()].into(),
        }
    }

    /// Fleets that this process is no member of.
    pub(crate) fn of_fleets(fleets: Vec<Fleet>) -> Source {
        let metrics = fleets.iter().map(Fleet::metrics).collect();
        Source { fleets: fleets.into(), metrics, readiness: None, hub: None }
    }
}
