//! `artel status`: the generator, the members, the books.

use std::fmt::Write;

use artel::{MemberStatus, Status, TimeLeft, Trouble};

use crate::args::StatusArgs;
use crate::exit::{Failure, OK, UNHEALTHY};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::signals::Signals;
use crate::table::Screen;
use crate::{printer, table, times};

pub(crate) async fn status(place: &Place, args: &StatusArgs) -> Result<u8, Failure> {
    if args.watch {
        return watch(place, args).await;
    }
    let status = place.open()?.status().await?;
    match args.json {
        true => printer::data(&table::json(&status)?)?,
        false => printer::shown(&page(&status, printer::screen()))?,
    }
    Ok(if status.trouble().is_none() { OK } else { UNHEALTHY })
}

/// Prints the status again and again, until Ctrl-C or until nobody reads it. If Redis goes down,
/// this prints the error and waits.
async fn watch(place: &Place, args: &StatusArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let mut ticks = tokio::time::interval(args.every.max(std::time::Duration::from_millis(50)));
    let (fleet, mut first) = (place.open()?, true);
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(OK),
            _ = ticks.tick() => {}
        }
        let read = signals.unless(fleet.status()).await;
        let Ok(status) = read else { return Ok(OK) };
        let text = match status {
            Ok(status) if args.json => table::json(&status)?,
            Ok(status) => page(&status, printer::screen()),
            Err(error) if error.is_unreachable() && !first => {
                printer::remark(&format!("{error}"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        first = false;
        let there = if args.json { printer::data_to_reader(&text) } else { printer::page(&text) };
        if !there? {
            return Ok(OK);
        }
    }
}

/// The books, one part per count.
pub(crate) fn books(status: &Status) -> Vec<String> {
    let m = &status.messages;
    vec![
        format!("generated {}", m.generated),
        if m.sent > 0 { format!("sent {}", m.sent) } else { String::new() },
        format!("waiting {}", m.waiting),
        if m.scheduled > 0 { format!("scheduled {}", m.scheduled) } else { String::new() },
        format!("claimed {}", m.claimed),
        format!("done {}", m.done),
        format!("failed {}", m.failed),
        format!("balance {}", m.balance),
    ]
}

/// The latest loss, if there was one.
fn loss(status: &Status) -> Option<[String; 2]> {
    let loss = status.losses.first()?;
    let ago = status.time.duration_since(loss.time).unwrap_or_default();
    let (ago, from, to) = (times::span(ago), harmless(&loss.from), harmless(&loss.to));
    let what = format!("Redis forgot at least {} steps {ago} ago, when", loss.steps);
    Some([what, format!("another server took over: {from} to {to}")])
}

/// What is wrong with this fleet, and what to try.
pub(crate) fn trouble_of(status: &Status) -> Option<[&'static str; 2]> {
    // A fleet has a lease as soon as a member has joined it.
    let is_drained = status.members.iter().any(|member| member.is_drained);
    status.trouble().map(|trouble| words(trouble, !status.lease.is_zero(), is_drained))
}

fn words(trouble: Trouble, was_joined: bool, is_drained: bool) -> [&'static str; 2] {
    match trouble {
        Trouble::NoMember if !was_joined => {
            ["nobody ever joined this fleet", "`artel fleets` shows those there are"]
        }
        Trouble::NoMember => ["no member is here", "start one: `artel work --handler CMD`"],
        Trouble::NoLeader if is_drained => {
            ["nobody has led for longer than a lease", "`artel resume MEMBER` ends a drain"]
        }
        Trouble::NoLeader => ["nobody has led for longer than a lease", "a member could lead"],
        Trouble::NoWorker if is_drained => {
            ["messages wait and nobody works", "`artel resume MEMBER` ends a drain"]
        }
        Trouble::NoWorker => {
            ["messages wait and nobody works", "start one: `artel work --handler CMD`"]
        }
        _ => ["a number in Redis cannot grow any more", ""],
    }
}

fn page(status: &Status, screen: Screen) -> String {
    let redis = &status.redis;
    let mut text = screen.flow(&[
        format!("fleet {}", status.fleet),
        format!("{} {}", harmless(redis.server), harmless(&redis.version)),
        format!("{:.1} ms", redis.rtt.as_secs_f64() * 1e3),
        times::point(status.time),
    ]);
    text.push_str(&screen.flow(&match &status.generator {
        Some(leader) => vec![
            format!("generator {}", screen.cut(&harmless(&leader.label))),
            format!("term {}", leader.term),
            format!("lease {}", times::span(leader.lease)),
        ],
        None if status.members.iter().any(|member| member.can_lead) => {
            vec!["generator: nobody leads".to_owned()]
        }
        None => vec!["generator: none, no member can lead".to_owned()],
    }));
    if let Some([what, hint]) = trouble_of(status) {
        let trouble = screen.flow(&[format!("trouble: {what}"), hint.to_owned()]);
        let _ = writeln!(text, "{}", screen.trouble(trouble.trim_end()));
    }
    for key in &status.exhausted {
        let what =
            if key.ends_with(":term") { "nobody can be elected" } else { "no lock can be had" };
        let _ = writeln!(
            text,
            "{key} cannot grow, so {what}: Redis's clock is, or once was, past the year 2112 \
             (docs/operations.md, \"Clocks\")"
        );
    }
    if let Some(loss) = loss(status) {
        let _ = writeln!(text, "{}", screen.trouble(screen.flow(&loss).trim_end()));
    }
    text.push_str(&screen.flow(&books(status)));
    let lanes = &status.lanes;
    if status.messages.waiting > 0 {
        let lane = |name: &str, count: u64| match count {
            0 => String::new(),
            count => format!("{name} {count}"),
        };
        text.push_str(&screen.flow(&[
            format!("waiting: oldest {}", times::span(status.oldest_waiting.unwrap_or_default())),
            lane("returned", lanes.returned),
            lane("high", lanes.high),
            lane("generated", lanes.generated),
            lane("normal", lanes.normal),
            lane("low", lanes.low),
        ]));
    }
    text.push_str(&later(status, screen));
    let errors = &status.errors;
    text.push_str(&screen.flow(&[
        format!("errors stored {}", errors.stored),
        if errors.taken > 0 { format!("taken {}", errors.taken) } else { String::new() },
        if errors.requeued > 0 { format!("put back {}", errors.requeued) } else { String::new() },
        if errors.dropped > 0 { format!("dropped {}", errors.dropped) } else { String::new() },
        if errors.forgotten > 0 { format!("not kept {}", errors.forgotten) } else { String::new() },
    ]));
    if status.members.is_empty() {
        text.push_str("no members\n");
        return text;
    }
    text.push('\n');
    text.push_str(&members(status, screen));
    text
}

/// What waits for a time, what is paused, and who is drained. Empty if there is nothing of it.
fn later(status: &Status, screen: Screen) -> String {
    let mut parts = Vec::new();
    if let Some(next) = status.next_due {
        parts.push(match next {
            TimeLeft::Overdue(late) => {
                format!("scheduled: the first is overdue by {}", times::span(late))
            }
            left => format!("scheduled: the first is due in {}", times::span(left.as_duration())),
        });
    }
    if status.messages.retried > 0 {
        parts.push(format!("retried {}", status.messages.retried));
    }
    if status.crons > 0 {
        parts.push(format!("periodic entries {}", status.crons));
    }
    if !status.paused.is_empty() {
        parts.push(screen.trouble(&format!("paused: {}", status.paused.join(", "))));
    }
    let drained = status.members.iter().filter(|member| member.is_drained);
    let drained: Vec<String> = drained.map(|member| harmless(&member.label)).collect();
    if !drained.is_empty() {
        parts.push(screen.trouble(&format!("drained: {}", drained.join(", "))));
    }
    if parts.is_empty() { String::new() } else { screen.flow(&parts) }
}

/// One row per member, by label.
fn members(status: &Status, screen: Screen) -> String {
    let mut members: Vec<&MemberStatus> = status.members.iter().collect();
    members.sort_by_key(|member| natural(&member.label));
    let rows = members.iter().map(|member| {
        [
            member.label.clone(),
            member.role.to_string(),
            member.done.to_string(),
            member.failed.to_string(),
            member.in_flight.to_string(),
            member.claimed.to_string(),
            times::span(member.seen),
            format!("{}:{}", member.host, member.pid),
            member.id.to_string(),
        ]
    });
    screen.columns(
        ["LABEL", "ROLE", "DONE", "FAILED", "RUNNING", "CLAIMED", "SEEN", "HOST:PID", "MEMBER"],
        rows,
        &["MEMBER", "CLAIMED", "HOST:PID", "SEEN", "RUNNING"],
        |row| row[1] == "overdue",
    )
}

/// A sort key: `member-10` comes after `member-9`.
pub(crate) fn natural(label: &str) -> (String, u64, String) {
    let digits = label.len() - label.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (name, number) = label.split_at(label.len() - digits);
    (name.to_owned(), number.parse().unwrap_or(0), label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn labels_are_sorted_as_people_count() {
        let mut labels = ["member-10", "member-9", "a", "member-1"];
        labels.sort_by_key(|label| natural(label));
        assert_eq!(labels, ["a", "member-1", "member-9", "member-10"]);
    }
}
