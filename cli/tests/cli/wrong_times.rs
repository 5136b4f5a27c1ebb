//! Times, entries and delays that cannot be: one clear error, how to go on, and nothing was done.

use artel_rig::Server;

use crate::screen::{artel, joined_server, says, text};

const ENTRY: &str = "\n\nhint: `artel cron set --help` shows what is allowed";
const FIELDS: &str = "error: the periodic entry: five fields are needed (minute, hour, day of month, month, day of week), or \
     @hourly, @daily, @weekly, @monthly, or an interval such as \"every 90s\", but ";

/// Runs one command after the other; each says its error, and ends with its code.
fn each_says(server: &Server, lines: &[(&[&str], i32, &str)]) {
    let url = server.url();
    for (args, code, screen) in lines {
        let args = [args, &["--redis", &url][..]].concat();
        says(&args, *code, screen);
    }
}

#[test]
fn entries_that_cannot_be() {
    let server = Server::any();
    let at = |why: &str| format!("error: the periodic entry: {why}{ENTRY}");
    each_says(
        &server,
        &[
            (
                &["cron", "set", "never", "0 0 30 2 *", "x"],
                2,
                &at(
                    "\"0 0 30 2 *\" is never due, because no month it names has a day it names; choose another day of month \
                 or month",
                ),
            ),
            (
                &["cron", "set", "many", "0 2 * * * *", "x"],
                2,
                &format!("{FIELDS}this has 6{ENTRY}"),
            ),
            (&["cron", "set", "one", "every", "x"], 2, &format!("{FIELDS}this has 1{ENTRY}")),
            (
                &["cron", "set", "large", "61 * * * *", "x"],
                2,
                &at("\"61\" in the minute field is not a number from 0 to 59"),
            ),
            (
                &["cron", "set", "short", "every 10ms", "x"],
                2,
                &at(
                    "the interval \"10ms\" is not a length such as 90s, 15m or 1h30m, with the units d, h, m, s in this order, \
                 from 1s to 366d",
                ),
            ),
            (
                &["cron", "set", "away", "0 2 * * *", "x", "--tz", "Mars/Olympus"],
                2,
                &at(
                    "\"Mars/Olympus\" is not a known time zone; use an IANA name such as Europe/Berlin or UTC",
                ),
            ),
            (
                &["cron", "set", "A b", "@daily", "x"],
                2,
                &format!(
                    "error: the name of the entry must have 1 to 64 lower-case letters, digits, `_` and `-`, and is \
                      \"A b\"{ENTRY}"
                ),
            ),
            (
                &["cron", "pause", "nobody"],
                5,
                "error: entry \"nobody\" does not exist, or is paused already\n\nhint: `artel cron list` shows the entries",
            ),
            (
                &["cron", "run", "nobody"],
                5,
                "error: entry \"nobody\" does not exist\n\nhint: `artel cron list` shows the entries",
            ),
            (
                &["cron", "remove", "nobody"],
                5,
                "error: entry \"nobody\" does not exist\n\nhint: `artel cron list` shows the entries",
            ),
        ],
    );
    let list = artel(&["cron", "list", "--json", "--redis", &server.url()]);
    let none = "{\"entries\":[],\"v\":1}";
    assert_eq!((list.status.code(), text(&list.stdout).trim()), (Some(0), none), "none was set");
}

#[test]
fn times_that_cannot_be() {
    let server = joined_server();
    let back_off = |was: &str| {
        format!(
            "error: --backoff must be between 100ms and 366 days, the first no longer than the longest, not {was}\n\n\
                 hint: try `--backoff 5s..1h`"
        )
    };
    each_says(
        &server,
        &[
            (
                &["send", "--in", "367d", "x"],
                2,
                "error: its time must be at most 366 days ahead\n\nhint: try `--in 10m`; at most 366 days ahead",
            ),
            (&["work", "--backoff", "0s"], 2, &back_off("0ns")),
            (&["work", "--backoff", "5s..1s"], 2, &back_off("5s..1s")),
            (
                &["schedule", "cancel", "9-9"],
                5,
                "error: message 9-9 does not wait for a time\n\nhint: `artel show 9-9` shows where it is",
            ),
            (
                &["schedule", "move", "9-9", "--in", "1s"],
                5,
                "error: message 9-9 does not wait for a time\n\nhint: `artel show 9-9` shows where it is",
            ),
            (
                &["resume", "nobody"],
                5,
                "error: no member is called \"nobody\"\n\nhint: `artel status` shows the labels and the ids",
            ),
            (
                &["drain", "nobody"],
                5,
                "error: no member is called \"nobody\"\n\nhint: `artel status` shows the labels and the ids",
            ),
            (
                &["step-down"],
                5,
                "error: nobody leads\n\nhint: `artel status` shows the members and who can lead",
            ),
        ],
    );
    let odd = artel(&["send", "--at", "yesterday", "x", "--redis", &server.url()]);
    let said = text(&odd.stderr);
    assert!(odd.status.code() == Some(2) && said.contains("try `2026-12-24T18:00:00Z`"), "{said}");
}
