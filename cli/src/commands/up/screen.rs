//! The lines that `up` prints: which member, its role, and its text.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::children::Children;
use crate::args::Global;
use crate::commands::notice_log::DONE;
use crate::harmless::harmless;
use crate::printer;
use crate::settings::Place;

/// Colours. The words say the same without them.
const GENERATOR: &str = "\x1b[1;33m";
const WORKER: &str = "\x1b[36m";
const OURSELVES: &str = "\x1b[1;32m";
const WARNING: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

pub(super) struct Screen {
    coloured: bool,
    /// Show only warnings and errors of the members.
    quiet: bool,
    /// Columns of the longest label.
    width: usize,
    /// Counts the lines about sent messages that are done; `None` if all of them are shown.
    done: Option<DoneLines>,
}

/// How many such lines were shown in this second, and how many were hidden since the last report.
/// They are bounded, because a million messages may be sent.
struct DoneLines {
    second: Instant,
    shown: u32,
    hidden: u64,
}

/// How many sent messages are shown as done per second.
const DONE_PER_SECOND: u32 = 10;

impl Screen {
    /// With `verbose`, all output of the members is shown.
    pub(super) fn new(coloured: bool, quiet: bool, verbose: bool, members: u16) -> Screen {
        let done = DoneLines { second: Instant::now(), shown: 0, hidden: 0 };
        let done = Some(done).filter(|_| !verbose);
        Screen { coloured, quiet, width: format!("member-{members}").len(), done }
    }

    /// May one more line about a sent message that is done be shown?
    fn has_room(&mut self) -> bool {
        let Some(done) = &mut self.done else { return true };
        if done.second.elapsed() >= Duration::from_secs(1) {
            (done.second, done.shown) = (Instant::now(), 0);
        }
        done.shown += 1;
        done.hidden += u64::from(done.shown > DONE_PER_SECOND);
        done.shown <= DONE_PER_SECOND
    }

    /// How many sent messages were done and not shown since the last call.
    pub(super) fn hidden(&mut self) -> u64 {
        self.done.as_mut().map_or(0, |done| std::mem::take(&mut done.hidden))
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.coloured { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    /// Prints a line of `up` itself.
    pub(super) fn remark(&self, text: &str) {
        let who = format!("{:width$}", "up", width = self.width + "  generator".len());
        let (who, text) = (self.paint(OURSELVES, &who), self.paint(OURSELVES, &harmless(text)));
        printer::painted(&format!("{who} │ {text}"));
    }

    /// Invites the user to kill the generator.
    pub(super) fn invite(&self, pid: u32) {
        self.remark(&format!("the generator is {pid}. See what happens: kill -9 {pid}"));
    }

    /// A line of a member's log.
    pub(super) fn line(&mut self, children: &Children, at: usize, line: &str) {
        match serde_json::from_str::<Value>(line) {
            Ok(Value::Object(entry)) => {
                let level = entry.get("level").and_then(Value::as_str).unwrap_or_default();
                let is_done = entry.get("message").is_some_and(|message| message == DONE);
                if is_done && !self.has_room() {
                    return;
                }
                if !self.quiet || ["WARN", "ERROR"].contains(&level) {
                    self.show(children, at, &self.readable(&entry));
                }
            }
            // Not a log line: an error before the log began, or output of a handler.
            _ => self.text(children, at, line),
        }
    }

    /// A line of any other output of a member.
    pub(super) fn text(&self, children: &Children, at: usize, line: &str) {
        self.show(children, at, &harmless(line));
    }

    fn show(&self, children: &Children, at: usize, line: &str) {
        let (role, colour) =
            if children.leads(at) { ("generator", GENERATOR) } else { ("worker", WORKER) };
        let label = format!("member-{}", at + 1);
        let who = format!("{label:width$}  {role:9}", width = self.width);
        printer::painted(&format!("{} │ {line}", self.paint(colour, &who)));
    }

    /// `message  field=value …`, with the level if it is a warning or an error.
    fn readable(&self, entry: &serde_json::Map<String, Value>) -> String {
        let mut text = String::new();
        if let Some(level @ ("WARN" | "ERROR")) = entry.get("level").and_then(Value::as_str) {
            text.push_str(&self.paint(WARNING, &level.to_lowercase()));
            text.push_str(": ");
        }
        let message = entry.get("message").and_then(Value::as_str).unwrap_or_default();
        text.push_str(&harmless(message));
        for (name, value) in entry {
            // The label is at the beginning of the line already.
            if ["timestamp", "level", "message", "label"].contains(&name.as_str()) {
                continue;
            }
            text.push_str("  ");
            let value = match value {
                Value::String(value) => harmless(value),
                value => harmless(&value.to_string()),
            };
            text.push_str(&format!("{}={value}", harmless(name)));
        }
        text
    }
}

/// The command line of this program that finds the same fleet.
pub(super) fn program(global: &Global, place: &Place) -> String {
    let name = std::env::args().next().unwrap_or_else(|| "artel".to_owned());
    let mut text = name;
    let elsewhere = [&global.redis, &global.host].iter().any(|address| address.is_some());
    if elsewhere || global.port.is_some() || global.redis_url_file.is_some() {
        // Another Redis is configured here, so the address must be given.
        text.push_str(&format!(" --redis {}", place.redis));
    } else if let Some(dir) = &global.data_dir {
        text.push_str(&format!(" --data-dir {}", dir.display()));
    }
    if global.fleet() != "artel" {
        text.push_str(&format!(" --fleet {}", global.fleet()));
    }
    text
}
