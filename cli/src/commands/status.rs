//! `artel status`: who leads, who is here, the books.

use std::fmt::Write;

use artel::Status;

use crate::args::StatusArgs;
use crate::exit::{Failure, OK, UNHEALTHY};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::signals::Signals;
use crate::{printer, table};

pub(crate) async fn status(place: &Place, args: &StatusArgs) -> Result<u8, Failure> {
    if args.watch {
        return watch(place, args).await;
    }
    let status = Status::read(&place.redis, &place.fleet).await?;
    let text = if args.json { table::json(&status)? } else { page(&status) };
    printer::data(&text)?;
    let healthy = status.generator.is_some() && status.exhausted.is_empty();
    Ok(if healthy { OK } else { UNHEALTHY })
}

/// Again and again, until Ctrl-C or until nobody reads. A Redis that is away is said, and waited for.
async fn watch(place: &Place, args: &StatusArgs) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    let mut ticks = tokio::time::interval(args.every.max(std::time::Duration::from_millis(50)));
    let mut first = true;
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(OK),
            _ = ticks.tick() => {}
        }
        let read = signals.unless(Status::read(&place.redis, &place.fleet)).await;
        let Ok(status) = read else { return Ok(OK) };
        let text = match status {
            Ok(status) if args.json => table::json(&status)?,
            Ok(status) => page(&status),
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

/// The books, in one line.
pub(crate) fn books(status: &Status) -> String {
    let m = &status.messages;
    let sent = if m.sent > 0 { format!(" · sent {}", m.sent) } else { String::new() };
    format!(
        "generated {}{sent} · waiting {} · claimed {} · done {} · failed {} · balance {}\n",
        m.generated, m.waiting, m.claimed, m.done, m.failed, m.balance
    )
}

fn page(status: &Status) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "fleet {} on {} {} ({:.1} ms), {}",
        status.fleet,
        harmless(status.redis.server),
        harmless(&status.redis.version),
        status.redis.rtt_ms,
        status.time
    );
    let _ = match &status.generator {
        Some(leader) => writeln!(
            text,
            "generator {} ({}), term {}, lease {} ms",
            harmless(&leader.label),
            leader.member,
            leader.term,
            leader.lease_ms
        ),
        None => writeln!(text, "generator: nobody leads"),
    };
    for key in &status.exhausted {
        let what =
            if key.ends_with(":term") { "nobody can be elected" } else { "no lock can be had" };
        let _ = writeln!(
            text,
            "{key} cannot grow, so {what}: Redis's clock is, or once was, past the year 2112 \
             (README, \"Clocks\")"
        );
    }
    text.push_str(&books(status));
    let lanes = &status.lanes;
    if status.messages.waiting > 0 {
        let _ = writeln!(
            text,
            "waiting: returned {} · high {} · generated {} · normal {} · low {} · oldest {} ms",
            lanes.returned,
            lanes.high,
            lanes.generated,
            lanes.normal,
            lanes.low,
            status.oldest_waiting_ms.unwrap_or(0)
        );
    }
    let _ = writeln!(text, "errors stored {}", status.errors.stored);
    if status.members.is_empty() {
        text.push_str("no members\n");
        return text;
    }
    let rows = status.members.iter().map(|member| {
        [
            member.id.clone(),
            member.label.clone(),
            member.role.to_owned(),
            format!("{}:{}", member.host, member.pid),
            member.done.to_string(),
            member.failed.to_string(),
            member.in_flight.to_string(),
            member.claimed.to_string(),
            format!("{} ms", member.seen_ms),
        ]
    });
    let head =
        ["MEMBER", "LABEL", "ROLE", "HOST:PID", "DONE", "FAILED", "IN FLIGHT", "CLAIMED", "SEEN"];
    text.push('\n');
    text.push_str(&table::columns(head, rows));
    text
}
