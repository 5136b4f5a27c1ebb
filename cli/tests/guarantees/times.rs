//! What waits for a time, is retried, or comes again and again: with real processes that are killed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use artel_rig::{Program, Snapshot, clean_command, eventually};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server, soak};

/// Runs a command about the fleet; its output.
#[track_caller]
pub fn told(fleet: &TestFleet, args: &[&str]) -> String {
    let url = fleet.server.url();
    let mut all = args.to_vec();
    all.extend(["--redis", &url, "--fleet", FLEET]);
    let mut command = clean_command(artel(), &all);
    command.stdin(std::process::Stdio::null());
    let mut program = Program::spawn(command);
    assert_eq!(program.exit_code(), Some(0), "{args:?}: {}", program.stderr());
    program.stdout()
}

/// The times for which each entry fired, by the ledger and by what is not over.
fn fired(look: &Snapshot) -> BTreeMap<String, Vec<u64>> {
    let open = look.lanes.values().chain(look.blocks.values()).flatten();
    let open = open.chain(look.duties.scheduled.keys());
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for id in look.ledger.iter().map(|settled| &settled.id).chain(open) {
        if let Some((entry, due)) = id.strip_prefix('c').and_then(|rest| rest.rsplit_once('-')) {
            all.entry(entry.to_owned()).or_default().push(due.parse().expect("a time"));
        }
    }
    all.values_mut().for_each(|times| times.sort_unstable());
    all
}

/// A handler in a file of its own.
fn handler(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("handler.sh");
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

on_each_server! {
    /// The generator is killed in the very second of a firing, again and again: each time fires once, and none is missing.
    fn a_generator_killed_at_the_very_time_of_a_firing(kind) {
        let kills = if soak() { 200 } else { 12 };
        let options = ["--interval", "100ms", "--lease", "1s", "--error-rate", "0"];
        let mut fleet = TestFleet::start(kind, 4, &options);
        for entry in ["one", "two"] {
            told(&fleet, &["cron", "set", entry, "every 1s", "--catch-up", "all", "tick"]);
        }
        for kill in 0..kills {
            let (old, process) = fleet.leader();
            // From a little before the second to a little after it.
            let into = Duration::from_millis(960 + kill % 9 * 10);
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = Duration::from_nanos(u64::from(now.expect("after 1970").subsec_nanos()));
            let until = if into > now { into - now } else { into + Duration::from_secs(1) - now };
            std::thread::sleep(until); // the moment is the fault itself
            fleet.members[process].kill();
            fleet.next_leader(&old);
            fleet.add();
        }
        let before = fired(&fleet.look());
        let last = |of: &BTreeMap<String, Vec<u64>>, entry: &str| of.get(entry).and_then(|all| all.last().copied());
        eventually("both to fire once more", || {
            let now = fired(&fleet.look());
            ["one", "two"].iter().all(|entry| last(&now, entry) > last(&before, entry))
        });
        for (entry, times) in fired(&fleet.look()) {
            assert!(times.len() as u64 >= kills, "{entry}: {} times", times.len());
            for pair in times.windows(2) {
                assert_eq!(pair[1], pair[0] + 1000, "{entry}: every second, once");
            }
            println!("{kind:?}: {kills} kills, {entry} fired {} times", times.len());
        }
        fleet.audit();
    }

    /// A handler that fails three times and then works, while every worker is killed once with a message in its hands: one
    /// outcome each, attempts and retries counted right, and no retry before its time.
    fn a_shaky_handler_comes_to_its_end_while_workers_are_killed(kind) {
        let dir = tempfile::tempdir().expect("a folder");
        // The last run of each message waits, so that work is left for every worker that is to be killed.
        let text = "#!/bin/sh\ndir=$(dirname \"$0\")\n\
                    echo \"$ARTEL_ATTEMPT $ARTEL_RETRY $(date +%s%3N)\" >> \"$dir/$ARTEL_MESSAGE_ID\"\n\
                    sleep 0.2\n[ \"$ARTEL_RETRY\" -ge 3 ] || exit 1\n\
                    until [ -e \"$dir/open\" ] || [ ! -e \"$0\" ]; do sleep 0.05; done\n";
        let path = handler(&dir, text).display().to_string();
        let options =
            ["--handler", &path, "--retries", "3", "--backoff", "500ms..1h", "--lease", "1s", "--concurrency", "1"];
        // Nobody generates: all of them are workers.
        let mut fleet = TestFleet::start(kind, 3, &options);
        let workers: Vec<u32> = fleet.members.iter().map(Program::id).collect();
        let sent = told(&fleet, &["send", "a", "b", "c", "d", "e", "f"]);
        let ids: Vec<&str> = sent.lines().collect();
        for (killed, pid) in workers.into_iter().enumerate() {
            eventually("a retry between two kills", || fleet.count("retried") > killed as i64 * 3);
            // In the middle of a run: it holds a message now.
            eventually("it to hold a message", || fleet.holds(pid));
            let (process, returned) = (fleet.members.iter().position(|member| member.id() == pid), fleet.count("returned"));
            fleet.members[process.expect("ours")].kill();
            eventually("what it held to be put back", || fleet.count("returned") > returned);
            fleet.add();
        }
        std::fs::write(dir.path().join("open"), "").expect("written");
        fleet.settled(6);
        let look = fleet.look();
        assert_eq!((look.count("done"), look.count("failed"), look.count("retried")), (6, 0, 18));
        let (mut attempts, mut late) = (0, Vec::new());
        for id in ids {
            let settled = look.ledger.iter().find(|settled| settled.id == id).expect("settled");
            attempts += i64::from(settled.attempt);
            let runs = std::fs::read_to_string(dir.path().join(id)).expect("it ran");
            let runs: Vec<[u64; 3]> = runs
                .lines()
                .map(|line| line.split(' ').map(|n| n.parse().expect("a number")).collect::<Vec<u64>>())
                .map(|run| run.try_into().expect("three numbers"))
                .collect();
            let last = runs.last().expect("a run");
            assert_eq!((last[1], last[0]), (3, u64::from(settled.attempt)), "{runs:?}");
            assert!(runs.windows(2).all(|pair| pair[0][0] < pair[1][0]), "each attempt once: {runs:?}");
            // From the start of the run that failed, which took 0.2 s, to that of the next: half a second, doubled each time.
            for pair in runs.windows(2).filter(|pair| pair[1][1] > pair[0][1]) {
                let delay = 200 + (500 << pair[0][1]);
                let after = pair[1][2] - pair[0][2];
                assert!(after >= delay, "retry {} after {after} ms: {runs:?}", pair[1][1]);
                late.push(after - delay);
            }
        }
        // Each message ran four times, and once more for each worker that died over it.
        assert_eq!(attempts, 6 * 4 + look.count("returned"));
        println!("{kind:?}: retries began up to {:?} ms after the earliest time", late.iter().max());
        fleet.audit();
    }

    /// The generator is frozen, and keeps its lease: what is due is let go all the same.
    fn a_frozen_generator_holds_up_nothing_that_is_due(kind) {
        let options = ["--generator", "true", "--handler", "true", "--lease", "60s"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        let (leader, process) = fleet.leader();
        fleet.members[process].freeze();
        told(&fleet, &["send", "--in", "300ms", "later"]);
        fleet.settled(1);
        assert_eq!(fleet.leader().0, leader, "it still leads");
        fleet.members[process].thaw();
        fleet.audit();
    }
}

/// What a handler says by its exit code and on descriptor 3.
#[test]
fn a_command_says_how_it_went_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "#!/bin/sh\nread -r what\ncase \"$what\" in\n\
        busy) [ \"$ARTEL_RETRY\" -ge 2 ] || { echo 'still busy' >&2; exit 75; } ;;\n\
        bad) echo 'no such customer' >&2; exit 65 ;;\n\
        crash) exit 3 ;;\n\
        snooze) [ \"$ARTEL_ATTEMPT\" -gt 1 ] || printf '{\"snooze\":0.2}' >&3 ;;\n\
        chain) printf '{\"then\":[{\"payload\":\"next\",\"kind\":\"step\",\"in\":0.2,\"lane\":\"low\"}]}' >&3 ;;\n\
        wrong) printf '{\"then\":[{\"payload\":\"x\",\"unique\":\"y\"}]}' >&3 ;;\n\
        much) head -c 2000000 /dev/zero >&3 ;;\n\
        *) ;;\nesac\n";
    let path = handler(&dir, text).display().to_string();
    let options = ["--handler", &path, "--backoff", "100ms"];
    let mut fleet = TestFleet::on(artel_rig::Server::any(), 1, &options);
    told(&fleet, &["send", "busy", "bad", "crash", "snooze", "chain", "wrong", "much"]);
    fleet.settled(8);
    let counts = ["done", "failed", "retried", "snoozed", "followed"].map(|name| fleet.count(name));
    assert_eq!(counts, [4, 4, 2, 1, 1]);
    let errors = told(&fleet, &["errors", "export"]);
    let reason = |payload: &str| {
        let mut records = errors
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
        let record = records.find(|record| record["payload"] == payload).expect("failed");
        record["reason"].as_str().expect("a reason").to_owned()
    };
    assert_eq!(reason("bad"), "exit code 65: no such customer");
    assert_eq!(reason("crash"), "exit code 3");
    assert!(reason("wrong").contains("\"unique\" is not supported"), "{}", reason("wrong"));
    // What is too much is read all the same: the handler does not hang until its time-out.
    assert!(reason("much").contains("more than 1048576 bytes"), "{}", reason("much"));
    fleet.audit();
}

/// The whole life of what waits for a time, by commands alone.
#[test]
fn what_waits_for_a_time_is_seen_and_changed_by_commands() {
    let mut fleet = TestFleet::on(artel_rig::Server::any(), 1, &["--handler", "true"]);
    let sent = told(&fleet, &["send", "--in", "1h", "--kind", "mail", "a", "b", "c"]);
    let ids: Vec<&str> = sent.lines().collect();
    let list = told(&fleet, &["schedule", "list", "--json", "--kind", "mail"]);
    let list: Vec<serde_json::Value> =
        list.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    let mut listed: Vec<&str> = list.iter().map(|one| one["id"].as_str().expect("an id")).collect();
    listed.sort_unstable();
    assert_eq!(listed, {
        let mut ids = ids.clone();
        ids.sort_unstable();
        ids
    });
    assert!(
        list.iter().all(|one| one["left_ms"].as_u64() > Some(3_000_000) && one["kind"] == "mail")
    );
    assert!(told(&fleet, &["show", ids[0]]).starts_with("waits until"));
    told(&fleet, &["schedule", "run", ids[0]]);
    told(&fleet, &["schedule", "cancel", ids[1]]);
    told(&fleet, &["schedule", "move", ids[2], "--in", "100ms"]);
    fleet.settled(3);
    let status: serde_json::Value =
        serde_json::from_str(&told(&fleet, &["status", "--json"])).expect("a document");
    assert_eq!(status["messages"]["scheduled"], 0);
    assert_eq!(
        (&status["messages"]["done"], &status["errors"]["forgotten"]),
        (&2.into(), &1.into())
    );
    assert!(status["next_due_ms"].is_null() && status["paused"] == serde_json::json!([]));
    // Paused, everything waits; resumed, it goes on.
    told(&fleet, &["pause", "--all"]);
    fleet.members[0].says("joined");
    eventually("it to be known", || told(&fleet, &["status"]).contains("paused: all"));
    told(&fleet, &["resume", "--all"]);
    told(&fleet, &["send", "d"]);
    fleet.settled(4);
}
