//! [`Orders`]: what operators ask of the fleet: pause, drain, step down.
//!
//! **Invariant:** orders are in Redis, and every heartbeat tells them anew. So each member follows within half a lease,
//! however it missed the hint.

use tokio::sync::watch;

use crate::id::MemberId;
use crate::lane::Lane;
use crate::notice::Notice;
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

    /// The lanes from which nothing is fetched, by everybody.
    fn paused(&self) -> Vec<Lane> {
        match self.all_paused {
            true => Lane::ALL.to_vec(),
            false => self.lanes_paused.clone(),
        }
    }

    /// What to tell a member whose orders were other ones.
    fn differ_from(&self, before: &Orders) -> Option<Notice> {
        let (lanes, drained) = (self.paused(), self.is_drained);
        if (&lanes, drained) == (&before.paused(), before.is_drained) {
            return None;
        }
        match lanes.is_empty() && !drained {
            true => Some(Notice::Resumed),
            false => Some(Notice::Paused { lanes, drained }),
        }
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

    /// Replaces the orders. Returns what to tell if something was paused or resumed.
    pub(super) fn update(&self, orders: Orders) -> Option<Notice> {
        let mut notice = None;
        self.present.send_if_modified(|present| {
            let changed = *present != orders;
            notice = orders.differ_from(present);
            *present = orders;
            changed
        });
        notice
    }

    /// What to tell a member that has just joined.
    pub(super) fn first_notice(&self) -> Option<Notice> {
        self.present.borrow().differ_from(&Orders::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_told_what_was_paused_and_when_all_of_it_goes_on() {
        let low = || Orders { lanes_paused: vec![Lane::Low], ..Orders::default() };
        let book = OrderBook::default();
        assert!(book.first_notice().is_none());
        let told = book.update(low());
        assert!(
            matches!(told, Some(Notice::Paused { lanes, drained: false }) if lanes == [Lane::Low])
        );
        assert!(book.first_notice().is_some(), "a member that joins now is told, too");
        assert!(book.update(Orders { crons: 7, ..low() }).is_none());
        let told = book.update(Orders { all_paused: true, is_drained: true, ..low() });
        assert!(
            matches!(told, Some(Notice::Paused { lanes, drained: true }) if lanes == Lane::ALL)
        );
        assert!(matches!(book.update(Orders::default()), Some(Notice::Resumed)));
    }
}
