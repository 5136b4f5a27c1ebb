//! Proves the house rules that a compiler cannot see: which room may know which, what a script
//! must say about itself, how long a file and a function may be, which names are not used.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Which rooms of the library each room may import. Every room is listed.
const ROOMS: [(&str, &[&str]); 25] = [
    ("store", &[]),
    ("watch", &["store"]),
    ("fleet", &["store", "watch"]),
    ("tenure", &["store"]),
    ("membership", &["store", "tenure"]),
    ("election", &["store", "membership", "tenure"]),
    ("queue", &["store", "fleet", "membership", "election"]),
    ("generator", &["store", "election", "queue"]),
    ("outcome", &["store", "fleet", "membership", "queue"]),
    ("worker", &["store", "membership", "queue", "outcome"]),
    ("sync", &["store", "watch", "fleet", "membership", "tenure"]),
    ("stats", &["store", "fleet", "membership", "sync"]),
    ("inspect", &["store", "fleet", "membership", "queue", "outcome", "schedule"]),
    ("schedule", &["store", "fleet", "membership", "queue"]),
    ("orders", &["store", "fleet", "membership"]),
    (
        "duties",
        &["store", "watch", "membership", "tenure", "queue", "schedule", "stats", "history"],
    ),
    ("history", &["store", "fleet", "membership"]),
    ("alerts", &["store", "watch", "fleet", "membership", "outcome", "history", "member"]),
    ("metrics", &["store", "fleet", "membership", "outcome"]),
    ("shutdown", &[]),
    (
        "stages",
        &[
            "store",
            "membership",
            "tenure",
            "election",
            "generator",
            "queue",
            "worker",
            "duties",
            "shutdown",
        ],
    ),
    (
        "member",
        &[
            "store",
            "fleet",
            "membership",
            "generator",
            "queue",
            "worker",
            "schedule",
            "sync",
            "duties",
            "stages",
            "shutdown",
            "metrics",
        ],
    ),
    ("testing", &["generator", "outcome", "queue", "worker"]),
    ("mutant", &[]),
    ("lib", &[]),
];
/// What belongs to no stage and may be imported from anywhere.
const COMMON: [&str; 19] = [
    "backoff",
    "cause",
    "clock",
    "config",
    "error",
    "feed",
    "id",
    "json_time",
    "lane",
    "message",
    "meter",
    "mutant",
    "notice",
    "panic",
    "process",
    "role",
    "term",
    "timings",
    "trace",
];

/// The crates of this project that have a `src` folder.
const CRATES: [&str; 6] = ["src", "cli/src", "hub/src", "measure/src", "rig/src", "verify/src"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(below: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(below)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty());
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text")
}

/// The room of a file of the library: its folder, or itself.
fn room(path: &Path) -> String {
    let within = path.strip_prefix(root().join("src")).expect("below src");
    let first = within.components().next().expect("a name").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Every `crate::…` in the code of a file: the first word behind it.
fn imports(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let word: String =
            rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        assert!(!word.is_empty(), "an import this test cannot read: crate::{:.40}", rest);
        // `crate::Error` is the library's own name for it.
        found.insert(if word == "Error" { "error".to_owned() } else { word });
    }
    found
}

/// Which room imports which.
fn graph() -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files("src", "rs") {
        let room = room(&path);
        let mut imports = imports(&read(&path));
        imports.remove(&room);
        graph.entry(room).or_default().extend(imports);
    }
    graph
}

#[test]
fn data_goes_one_way_through_the_house() {
    let allowed: BTreeMap<_, _> = ROOMS.into_iter().collect();
    for (room, imports) in graph() {
        if COMMON.contains(&room.as_str()) {
            continue; // `no_room_needs_itself` checks these
        }
        let may = allowed.get(room.as_str());
        let may = may.unwrap_or_else(|| panic!("the room {room:?} is not listed in this test"));
        for import in imports {
            let fine = may.contains(&import.as_str()) || COMMON.contains(&import.as_str());
            assert!(fine, "{room} must not know crate::{import}");
        }
    }
}

#[test]
fn no_room_needs_itself() {
    let graph = graph();
    for start in graph.keys().filter(|room| *room != "lib") {
        let (mut open, mut seen) = (vec![start], BTreeSet::new());
        while let Some(room) = open.pop() {
            for import in graph.get(room).into_iter().flatten() {
                assert_ne!(import, start, "{start} imports itself by way of {room}");
                if seen.insert(import) {
                    open.push(import);
                }
            }
        }
    }
}

#[test]
fn every_module_opens_with_what_it_is_for() {
    for path in CRATES.into_iter().flat_map(|below| files(below, "rs")) {
        assert!(read(&path).starts_with("//!"), "{} has no head", path.display());
    }
}

/// Every script of the library; not what is put before them.
fn scripts() -> Vec<(String, String)> {
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let all = files("src", "lua").into_iter().map(|path| (name(&path), read(&path)));
    all.filter(|(name, _)| !["prelude", "control", "jobs"].contains(&name.as_str())).collect()
}

#[test]
fn every_script_says_what_it_takes_and_returns() {
    for (name, text) in scripts() {
        let is_head = |line: &&str| line.starts_with("#!") || line.starts_with("--");
        let head: Vec<&str> = text.lines().take_while(is_head).collect();
        assert!(head[0].starts_with("#!lua"), "{name}.lua");
        for word in ["-- KEYS[1", "-- ARGV", "-- Returns"] {
            let there = head.iter().any(|line| line.starts_with(word));
            assert!(there, "{name}.lua: no {word} in its head");
        }
    }
}

/// The functions that a head names.
fn uses(text: &str) -> BTreeSet<&str> {
    let uses = text.lines().find_map(|line| line.strip_prefix("-- Uses    ")).unwrap_or("");
    uses.split(", ").filter(|name| !name.is_empty()).collect()
}

/// A script names exactly those shared functions that it calls.
#[test]
fn every_script_names_the_functions_it_uses() {
    let shared =
        read(&root().join("src/store/prelude.lua")) + &read(&root().join("src/store/control.lua"));
    let functions: Vec<String> = shared
        .lines()
        .filter_map(|line| line.strip_prefix("local function ")?.split_once('('))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(functions.len() > 10, "{functions:?}");
    let jobs = read(&root().join("src/store/jobs.lua"));
    for (name, text) in scripts().into_iter().chain([("jobs".to_owned(), jobs.clone())]) {
        let mut uses = uses(&text);
        // A script that is put behind jobs.lua has its functions, too.
        if uses.remove("jobs") {
            uses.extend(self::uses(&jobs));
        }
        let code: Vec<&str> = text.lines().filter(|line| !line.starts_with("--")).collect();
        let code = code.join("\n");
        let calls = |function: &str| {
            code.match_indices(&format!("{function}(")).any(|(at, _)| {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                !before.is_ascii_alphanumeric() && !"_.".contains(before)
            })
        };
        let called: BTreeSet<&str> =
            functions.iter().map(String::as_str).filter(|function| calls(function)).collect();
        assert!(uses.is_superset(&called), "{name}.lua uses {uses:?} and calls {called:?}");
        let named: BTreeSet<&str> =
            self::uses(&text).into_iter().filter(|it| *it != "jobs").collect();
        assert!(called.is_superset(&named), "{name}.lua names {named:?} and calls {called:?}");
    }
}

/// Numbers go through Lua as strings or by %.0f: `tostring` prints 1.79e+15.
#[test]
fn no_script_prints_a_number_its_own_way() {
    for (name, text) in scripts() {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
            let small = line.contains("tostring(i - 1)"); // a position in a block
            assert!(!line.contains("tostring(") || small, "{name}.lua: {line}");
        }
    }
}

#[test]
fn files_stay_readable() {
    for path in CRATES.into_iter().flat_map(|below| files(below, "rs")) {
        let lines = read(&path).lines().count();
        assert!(lines <= 500, "{} has {lines} lines: split it by noun", path.display());
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(!["utils", "helpers", "common", "misc"].contains(&name.as_str()));
    }
}

/// Lines of a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

#[test]
fn functions_stay_readable() {
    let mut long = Vec::new();
    for path in CRATES.into_iter().flat_map(|below| files(below, "rs")) {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_function = line.trim_start().split('"').next().is_some_and(|code| {
                ["fn ", "pub fn ", "async fn "].iter().any(|head| code.starts_with(head))
                    || (code.starts_with("pub") && code.contains(" fn "))
            });
            if !is_function || line.trim_end().ends_with([';', '}']) {
                continue;
            }
            let close = format!("{}}}", " ".repeat(indent));
            let length = lines[at..].iter().position(|line| line.trim_end() == close);
            let length = length.unwrap_or(0) + 1;
            if length > FUNCTION_LINES_MAX {
                long.push(format!("{}:{} has {length} lines", path.display(), at + 1));
            }
        }
    }
    assert!(long.is_empty(), "split these by what they do:\n{}", long.join("\n"));
}

/// No type of the Redis client is part of the public API, or of any room but the store.
#[test]
fn the_client_library_stays_inside() {
    for path in files("src", "rs") {
        let in_store = room(&path) == "store";
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            let named = line.contains("redis::") || line.contains("use redis");
            let public = line.trim_start().starts_with("pub ") && named;
            assert!(!public && (in_store || !named), "{}: {line}", path.display());
        }
    }
}

/// One way to make a call in the name of a session: nobody else looks for `gone`.
#[test]
fn only_one_place_ends_a_session_that_is_gone() {
    for path in files("src", "rs") {
        let text = read(&path);
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let knows = text.contains("session.end(End::Gone)");
        let may = ["ask.rs", "heartbeat.rs"].contains(&name.as_str());
        assert!(!knows || may, "{} ends a session: use Session::ask", path.display());
    }
}

/// Names that were metaphors, or that two things had, and what they are called now.
const OLD_NAMES: [(&str, &str); 26] = [
    ("Crew", "Stages, Children"),
    ("Keeper", "SessionHandle"),
    ("Pace", "Beats"),
    ("Exercise", "LeaseUse"),
    ("Standing", "FleetView"),
    ("Card", "MemberInfo"),
    ("Ear", "SessionLink"),
    ("Switchboard", "PushRouter"),
    ("Gauge", "ReplyLimit"),
    ("Locksmith", "SyncContext"),
    ("Flag", "EventWatch"),
    ("Outlet", "Pusher"),
    ("Signature", "SettledBy"),
    ("Rights", "Tenures"),
    ("take_in", "apply"),
    ("consumer_timeout", "reread_every"),
    ("takeover_timeout", "takeover_step"),
    ("Heart", "HubCore"),
    ("Desk", "LetterWriter"),
    ("Lived", "RunnerTask"),
    ("Post", "Intake"),
    ("Spare", "RunnerMaker"),
    ("Caretaker", "Timer"),
    ("testkit", "rig"),
    ("Actor", "Process"),
    ("Scribe", "CallLog"),
];

#[test]
fn old_names_do_not_come_back() {
    for path in
        ["src", "hub/src", "rig/src", "verify/src"].into_iter().flat_map(|dir| files(dir, "rs"))
    {
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words {
                if let Some((old, new)) = OLD_NAMES.iter().find(|(old, _)| *old == word) {
                    panic!("{}: {old} is called {new}: {line}", path.display());
                }
            }
        }
    }
}

/// The names behind `pub use` at the beginning of a line.
fn exported(lib: &str) -> Vec<String> {
    let mut names = Vec::new();
    for item in lib.split("\npub use ").skip(1) {
        let item = item.split(';').next().expect("an end");
        let list = item.split_once('{').map_or_else(
            || item.rsplit("::").next().expect("a name"),
            |(_, list)| list.trim_end_matches('}'),
        );
        names.extend(list.split(',').map(|name| name.trim().to_owned()));
    }
    // Modules, constants and other crates are no types.
    names.retain(|name| name.chars().next().is_some_and(char::is_uppercase));
    names.retain(|name| name.chars().any(char::is_lowercase));
    names
}

/// The doc comment of the public type of this name, if it is in this file.
fn doc_of<'a>(text: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_it = |line: &str| {
        let made_here = ["struct", "enum", "trait", "type"].into_iter().any(|kind| {
            let rest = line.strip_prefix("pub ").and_then(|rest| rest.strip_prefix(kind));
            rest.and_then(|rest| rest.trim_start().strip_prefix(name))
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        });
        made_here || line == name // the argument of a macro that makes it
    };
    let at = lines.iter().position(|line| is_it(line))?;
    Some(lines[..at].iter().rev().copied().take_while(|line| !line.is_empty()).collect())
}

#[test]
fn every_public_type_has_an_example_that_runs() {
    for crate_src in ["src", "hub/src"] {
        let names = exported(&read(&root().join(crate_src).join("lib.rs")));
        assert!(names.len() > 30, "{crate_src}: {names:?}");
        let texts: Vec<String> = files(crate_src, "rs").iter().map(|path| read(path)).collect();
        for name in names {
            let docs: Vec<_> = texts.iter().filter_map(|text| doc_of(text, &name)).collect();
            assert!(!docs.is_empty(), "{crate_src}: where is {name}?");
            let runs = docs.iter().flatten().any(|line| *line == "/// ```");
            assert!(runs, "{crate_src}: {name} has no example that runs");
        }
    }
}

/// The hub has users without Redis: it knows nothing of Redis or of fleets.
#[test]
fn the_hub_knows_nothing_of_redis() {
    let manifest = read(&root().join("hub/Cargo.toml"));
    assert!(
        !manifest.contains("redis") && !manifest.contains("artel ") && !manifest.contains("artel.")
    );
    for path in files("hub/src", "rs") {
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!line.to_lowercase().contains("redis"), "{}: {line}", path.display());
        }
    }
}
