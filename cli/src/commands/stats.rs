//! `artel stats`: what every member says about itself.

use std::fmt::Write;

use artel::{FleetStats, Redis};

use crate::exit::{Failure, OK};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::{printer, table};

pub(crate) async fn stats(place: &Place, json: bool) -> Result<u8, Failure> {
    let stats = Redis::open(&place.redis, &place.fleet)?.gather_stats().await?;
    printer::data(&if json { table::json(&stats)? } else { page(&stats) })?;
    Ok(OK)
}

fn page(stats: &FleetStats) -> String {
    let totals = &stats.totals;
    let mut text = format!(
        "fleet {}, {}: {} of {} members answered in {:.0} ms\n",
        stats.fleet, stats.time, totals.answered, totals.members, stats.took_ms
    );
    if totals.members == 0 {
        return text;
    }
    let _ = writeln!(
        text,
        "done {} · failed {} · in flight {} · memory {}",
        totals.done,
        totals.failed,
        totals.in_flight,
        mib(Some(totals.memory_bytes))
    );
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    let rows = stats.members.iter().map(|member| {
        let uptime = std::time::Duration::from_secs(member.uptime_ms / 1000);
        [
            member.label.clone(),
            member.role.clone(),
            format!("{}:{}", member.host, member.pid),
            humantime::format_duration(uptime).to_string(),
            member.done.to_string(),
            member.failed.to_string(),
            member.in_flight.to_string(),
            ms(member.handler_p50_ms),
            ms(member.handler_p99_ms),
            mib(member.memory_bytes),
            ms(Some(member.redis_rtt_ms)),
        ]
    });
    let head = [
        "LABEL",
        "ROLE",
        "HOST:PID",
        "UP",
        "DONE",
        "FAILED",
        "IN FLIGHT",
        "P50",
        "P99",
        "MEMORY",
        "REDIS",
    ];
    text.push('\n');
    text.push_str(&table::columns(head, rows));
    for missing in &stats.missing {
        let _ = writeln!(
            text,
            "no answer: {} ({}:{}, {})",
            harmless(&missing.label),
            harmless(&missing.host),
            missing.pid,
            missing.id
        );
    }
    text
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64))
}
