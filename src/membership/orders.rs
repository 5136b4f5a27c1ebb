//! [`Orders`]: what operators ask of the fleet: pause, drain, step down.
//!
//! **Invariant:** orders are in Redis, and every heartbeat tells them anew. So each member follows within half a lease,
//! however it missed the hint.

use tokio::sync::watch;

use crate::id::MemberId;
use crate::lane::Lane;
use crate::store::{Reply, StoreError};
use crate::term::Term;

/// The orders as one member must follow them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Orders {
    /// Nothing is fetched.
    pub(crate) all_paused: bool,
    /// Nothing is fetched from these lanes.
    pub(crate) lanes_paused: Vec<Lane>,
    /// This member fetches nothing and does not lead.
    pub(crate) is_drained: bool,
    /// This lease is to be given up.
    pub(crate) step_down: Option<(MemberId, Term)>,
    /// When the periodic entries were last changed; 0 = there never was one.
    pub(crate) crons: u64,
}

impl Orders {
    /// The field that pauses everything.
    pub(crate) const ALL: &str = "all";
    /// The field that names a lease to be given up.
    pub(crate) const STEP_DOWN: &str = "step-down";

    /// The field that pauses a lane.
    pub(crate) fn lane_field(lane: Lane) -> String {
        format!("lane:{lane}")
    }

    /// The field that drains a member.
    pub(crate) fn drain_field(member: &MemberId) -> String {
        format!("drain:{member}")
    }

    /// Reads them as they are for this member. What is not known is ignored.
    pub(super) fn read(control: Reply, me: &MemberId) -> Result<Orders, StoreError> {
        let (mut orders, drained) = (Orders::default(), Orders::drain_field(me));
        for (field, value) in control.into_pairs()? {
            let lane = field.strip_prefix("lane:").and_then(|name| name.parse::<Lane>().ok());
            orders.lanes_paused.extend(lane);
            match field.as_str() {
                Orders::ALL => orders.all_paused = true,
                Orders::STEP_DOWN => {
                    let value = value.into_text()?;
                    orders.step_down = value.split_once('|').and_then(|(member, term)| {
                        Some((MemberId::from_redis(member)?, Term::parse(term)?))
                    });
                }
                "crons" => orders.crons = value.into_text()?.parse().unwrap_or(0),
                field => orders.is_drained |= field == drained,
            }
        }
        orders.lanes_paused.sort_by_key(|lane| lane.name());
        Ok(orders)
    }

    /// Must the holder of this lease give it up?
    pub(crate) fn ends(&self, me: &MemberId, term: Term) -> bool {
        let named = |(member, other): &(MemberId, Term)| member == me && *other == term;
        self.is_drained || self.step_down.as_ref().is_some_and(named)
    }
}

/// The current orders, and their followers.
#[derive(Debug, Default)]
pub(crate) struct OrderBook {
    present: watch::Sender<Orders>,
}

impl OrderBook {
    pub(super) fn new(orders: Orders) -> OrderBook {
        OrderBook { present: watch::Sender::new(orders) }
    }

    /// The current orders, and every later change.
    pub(crate) fn follow(&self) -> watch::Receiver<Orders> {
        self.present.subscribe()
    }

    pub(super) fn update(&self, orders: Orders) {
        self.present.send_if_modified(|present| {
            let changed = *present != orders;
            *present = orders;
            changed
        });
    }
}
