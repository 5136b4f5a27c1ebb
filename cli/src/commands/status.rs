//! `artel status`: who leads, who is here, the books.

use std::fmt::Write;

use artel::Status;

use crate::args::StatusArgs;
use crate::exit::{FAILURE, Failure, OK, UNHEALTHY};
use crate::printer;
use crate::settings::Place;

pub(crate) async fn status(place: &Place, args: &StatusArgs) -> Result<u8, Failure> {
    let status = Status::read(&place.redis, &place.fleet).await?;
    let text = if args.json {
        let text = serde_json::to_string(&status);
        text.map_err(|error| Failure::new(FAILURE, error.to_string()))? + "\n"
    } else {
        table(&status)
    };
    printer::data(&text).map_err(|error| Failure::new(FAILURE, error.to_string()))?;
    Ok(if status.generator.is_some() { OK } else { UNHEALTHY })
}

/// The books, in one line.
pub(crate) fn books(status: &Status) -> String {
    let m = &status.messages;
    format!(
        "generated {} · waiting {} · claimed {} · done {} · failed {} · balance {}\n",
        m.generated, m.waiting, m.claimed, m.done, m.failed, m.balance
    )
}

fn table(status: &Status) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "fleet {} on Redis {} ({:.1} ms), {}",
        status.fleet, status.redis.version, status.redis.rtt_ms, status.time
    );
    let _ = match &status.generator {
        Some(leader) => writeln!(
            text,
            "generator {} ({}), term {}, lease {} ms",
            leader.label, leader.member, leader.term, leader.lease_ms
        ),
        None => writeln!(text, "generator: nobody leads"),
    };
    text.push_str(&books(status));
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
            format!("{} ms", member.seen_ms),
        ]
    });
    let head = ["MEMBER", "LABEL", "ROLE", "HOST:PID", "DONE", "FAILED", "IN FLIGHT", "SEEN"];
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; 8] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    text.push('\n');
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
