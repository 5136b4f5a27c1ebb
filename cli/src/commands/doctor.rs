//! `artel doctor`: what endangers the promise, what follows from it, and what mends it.

use std::path::Path;

use artel::{Finding, Level};
use serde_json::json;

use crate::embedded::Embedded;
use crate::exit::{Failure, OK, UNHEALTHY};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::table::Screen;
use crate::{printer, table};

/// With less room than this on its disk, a server may soon be unable to write its file.
const ROOM_MIN: u64 = 1 << 30;

pub(crate) async fn doctor(place: &Place, private: &Embedded, json: bool) -> Result<u8, Failure> {
    let mut findings = place.open()?.examine().await?;
    if place.redis.to_string() == private.url() {
        findings.extend(files(private.folder()));
    }
    match json {
        true => {
            let document = json!({ "v": 1, "fleet": place.fleet, "findings": findings });
            printer::data(&table::json(&document)?)?;
        }
        false => printer::shown(&page(&findings, printer::screen()))?,
    }
    let dangers = findings.iter().filter(|finding| finding.level == Level::Danger).count();
    Ok(if dangers == 0 { OK } else { UNHEALTHY })
}

/// The findings, the worst ones marked.
fn page(findings: &[Finding], screen: Screen) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let indent = 8 + width + 2;
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Good => "ok",
            Level::Advice => "advice",
            _ => "DANGER",
        };
        let level = format!("{level:8}");
        let level = if finding.level == Level::Danger { screen.trouble(&level) } else { level };
        let what = screen.wrapped(indent, &harmless(&finding.what));
        text.push_str(&format!("{level}{:width$}  {what}", finding.check));
        let mend = finding.mend.as_ref().map(|mend| format!("mend: {mend}"));
        for more in finding.consequence.iter().chain(&mend) {
            let more = screen.wrapped(indent, &harmless(more));
            text.push_str(&format!("{:indent$}{more}", ""));
        }
    }
    let dangers = findings.iter().filter(|finding| finding.level == Level::Danger).count();
    text.push_str(&match dangers {
        0 => "nothing endangers a promise\n".to_owned(),
        1 => screen.trouble("1 finding endangers a promise") + "\n",
        more => screen.trouble(&format!("{more} findings endanger a promise")) + "\n",
    });
    text
}

/// The data folder of the private server, and the disk it is on.
fn files(folder: &Path) -> Option<Finding> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let used: u64 = walk(&folder.join("appendonlydir"));
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let what = format!("{} in {}, {} free on its disk", gib(used), folder.display(), gib(free));
    // A rewrite of the file needs room for a second one.
    Some(match free < ROOM_MIN || free < used {
        false => Finding::good("files", what),
        true => Finding::bad(
            ("files", Level::Danger),
            what,
            "when the disk is full, the private server refuses all writes",
            "make room, or move the folder: `artel embedded stop`, then `--data-dir DIR`",
        ),
    })
}

/// The bytes of the files in a folder.
fn walk(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|it| it.len()).sum()
}
