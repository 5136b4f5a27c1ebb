//! `artel stats`: the numbers that every member reports about itself.

use std::fmt::Write;
use std::time::Duration;

use artel::{FleetStats, MemberStats};

use crate::commands::status::natural;
use crate::exit::{Failure, OK};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::table::Screen;
use crate::{printer, table, times};

pub(crate) async fn stats(place: &Place, json: bool) -> Result<u8, Failure> {
    let stats = place.open()?.gather_stats().await?;
    match json {
        true => printer::data(&table::json(&stats)?)?,
        false => printer::shown(&page(&stats, printer::screen()))?,
    }
    Ok(OK)
}

fn page(stats: &FleetStats, screen: Screen) -> String {
    let totals = &stats.totals;
    let mut text = screen.flow(&[
        format!("fleet {}", stats.fleet),
        format!("{} of {} members answered", totals.answered, totals.members),
        format!("in {:.0} ms", stats.took.as_secs_f64() * 1e3),
    ]);
    if totals.members == 0 {
        return text;
    }
    text.push_str(&screen.flow(&[
        format!("done {}", totals.done),
        format!("failed {}", totals.failed),
        format!("running {}", totals.in_flight),
        format!("memory {}", mib(Some(totals.memory_bytes))),
    ]));
    let ms = |span: Option<Duration>| {
        span.map_or("-".to_owned(), |span| format!("{:.1} ms", span.as_secs_f64() * 1e3))
    };
    let mut members: Vec<&MemberStats> = stats.members.iter().collect();
    members.sort_by_key(|member| natural(&member.label));
    let rows = members.iter().map(|member| {
        let [done, failed, running] =
            [member.done, member.failed, member.in_flight].map(|count| count.to_string());
        [
            member.label.clone(),
            member.role.to_string(),
            done,
            failed,
            running,
            ms(member.handler_p50),
            ms(member.handler_p99),
            times::span(member.uptime),
            mib(member.memory_bytes),
            ms(Some(member.redis_rtt)),
            format!("{}:{}", member.host, member.pid),
        ]
    });
    let head = [
        "LABEL", "ROLE", "DONE", "FAILED", "RUNNING", "P50", "P99", "UP", "MEMORY", "REDIS",
        "HOST:PID",
    ];
    text.push('\n');
    text.push_str(&screen.columns(
        head,
        rows,
        &["HOST:PID", "REDIS", "MEMORY", "UP", "RUNNING", "P50"],
        |_| false,
    ));
    text.push_str(&hubs(&members, screen));
    for missing in &stats.missing {
        let silent = screen.flow(&[
            format!("no answer: {}", screen.cut(&harmless(&missing.label))),
            format!("{}:{}", screen.cut(&harmless(&missing.host)), missing.pid),
            missing.id.to_string(),
        ]);
        let _ = writeln!(text, "{}", screen.trouble(silent.trim_end()));
    }
    text
}

/// The subscribers of the members' hubs, a line each.
fn hubs(members: &[&MemberStats], screen: Screen) -> String {
    let mut text = String::new();
    for (member, one) in members.iter().flat_map(|it| it.hub.iter().map(|one| (&it.label, one))) {
        let name = format!("hub of {}: {}", harmless(member), harmless(&one.name));
        let mut parts =
            vec![name, format!("handled {}", one.processed), format!("waiting {}", one.lag)];
        for (count, what) in
            [(one.errors, "errors"), (one.restarts, "restarts"), (one.dropped, "dropped")]
        {
            if count > 0 {
                parts.push(format!("{what} {count}"));
            }
        }
        text.push_str(&screen.flow(&parts));
    }
    text
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64))
}
