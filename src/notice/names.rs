//! The names of notices.
//!
//! **Invariant:** a notice has the same name in its JSON, in numbers and in logs.

use super::Notice;

/// The names of all notices: a count that begins at zero can be seen to grow.
pub(crate) const NAMES: [&str; 34] = [
    "joined",
    "became_generator",
    "lease_lost",
    "fenced",
    "no_worker",
    "full",
    "flowing",
    "member_died",
    "adopted",
    "message_failed",
    "retried",
    "snoozed",
    "fired",
    "skipped",
    "cron_replaced",
    "paused",
    "resumed",
    "overdue",
    "claim_lost",
    "session_lost",
    "disconnected",
    "denied",
    "reconnected",
    "data_loss_seen",
    "refused",
    "unread",
    "exhausted",
    "unreplicated",
    "replicated",
    "server_changed",
    "slot_moving",
    "gave_back",
    "generate_failed",
    "missed",
];

impl Notice {
    /// Its name, as in its JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Notice::Joined { .. } => "joined",
            Notice::BecameGenerator { .. } => "became_generator",
            Notice::LeaseLost { .. } => "lease_lost",
            Notice::Fenced { .. } => "fenced",
            Notice::NoWorker => "no_worker",
            Notice::Full { .. } => "full",
            Notice::Flowing => "flowing",
            Notice::MemberDied { .. } => "member_died",
            Notice::Adopted { .. } => "adopted",
            Notice::MessageFailed { .. } => "message_failed",
            Notice::Retried { .. } => "retried",
            Notice::Snoozed { .. } => "snoozed",
            Notice::Fired { .. } => "fired",
            Notice::Skipped { .. } => "skipped",
            Notice::CronReplaced { .. } => "cron_replaced",
            Notice::Paused { .. } => "paused",
            Notice::Resumed => "resumed",
            Notice::Overdue { .. } => "overdue",
            Notice::ClaimLost { .. } => "claim_lost",
            Notice::SessionLost { .. } => "session_lost",
            Notice::Disconnected { .. } => "disconnected",
            Notice::Denied { .. } => "denied",
            Notice::Reconnected { .. } => "reconnected",
            Notice::DataLossSeen { .. } => "data_loss_seen",
            Notice::Refused { .. } => "refused",
            Notice::Unread { .. } => "unread",
            Notice::Exhausted { .. } => "exhausted",
            Notice::Unreplicated { .. } => "unreplicated",
            Notice::Replicated { .. } => "replicated",
            Notice::ServerChanged { .. } => "server_changed",
            Notice::SlotMoving { .. } => "slot_moving",
            Notice::GaveBack { .. } => "gave_back",
            Notice::GenerateFailed { .. } => "generate_failed",
            Notice::Missed { .. } => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_notice_is_the_one_in_its_json() {
        for notice in [Notice::NoWorker, Notice::Resumed, Notice::DataLossSeen { what: "x" }] {
            let json = serde_json::to_value(&notice).expect("JSON");
            assert_eq!(json["notice"], notice.name());
        }
        let arms = include_str!("names.rs").split("match self {").nth(1).expect("the names");
        let arms = arms.split("\n        }\n").next().expect("the end");
        let named: Vec<&str> = arms.lines().filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(named, NAMES);
    }
}
