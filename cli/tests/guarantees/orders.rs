//! What an operator orders: pause, drain, step down; by commands, with real processes.

use artel_rig::{Server, clean_command, eventually};
use serde_json::Value;

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};
use crate::times::told;

fn status(fleet: &TestFleet) -> Value {
    let args = ["status", "--json", "--redis", &fleet.server.url(), "--fleet", FLEET];
    let output = clean_command(artel(), &args).output().expect("it runs");
    serde_json::from_slice(&output.stdout).expect("a document")
}

fn add(fleet: &mut TestFleet, label: &str) -> usize {
    let url = fleet.server.url();
    let at = fleet.add_with(&["--redis", &url, "--label", label]);
    fleet.members[at].says("joined");
    at
}

fn done_by(fleet: &TestFleet, label: &str) -> u64 {
    let status = status(fleet);
    let members = status["members"].as_array().expect("a list");
    let member = members.iter().find(|member| member["label"] == label).expect("a member");
    member["done"].as_u64().expect("a number")
}

on_each_server! {
    /// A drained member fetches nothing, whatever waits; after `resume` it works again.
    fn a_drained_member_fetches_nothing(kind) {
        let mut fleet = TestFleet::on(Server::start(kind), 0, &["--handler", "true", "--lease", "1s"]);
        add(&mut fleet, "calm");
        let two = add(&mut fleet, "busy");
        told(&fleet, &["drain", "calm"]);
        fleet.members[0].says("drained: this member fetches nothing");
        let before = done_by(&fleet, "calm");
        told(&fleet, &["send", "a", "b", "c", "d", "e", "f", "g", "h"]);
        fleet.settled(8);
        assert_eq!(done_by(&fleet, "calm"), before);
        // Now it is the only one: what is sent waits.
        fleet.members[two].terminate();
        assert_eq!(fleet.members[two].exit_code(), Some(0));
        told(&fleet, &["send", "i"]);
        assert_eq!(status(&fleet)["messages"]["waiting"], 1);
        told(&fleet, &["resume", "calm"]);
        fleet.settled(9);
        fleet.audit();
    }

    /// A lane is paused while a worker holds one of its messages. The worker dies: the message was begun, so it runs.
    fn a_message_of_a_paused_lane_whose_worker_died_runs(kind) {
        let dir = tempfile::tempdir().expect("a folder");
        // The first run of one of them never ends.
        let begun = dir.path().join("begun");
        let never = format!("{{ touch {}; sleep 600; }}", begun.display());
        let handler =
            format!("read -r what; [ \"$what $ARTEL_ATTEMPT\" != 'begun 1' ] || {never}");
        let options = ["--handler", &handler, "--lease", "1s", "--concurrency", "1"];
        let mut fleet = TestFleet::on(Server::start(kind), 0, &options);
        add(&mut fleet, "first");
        told(&fleet, &["send", "begun"]);
        eventually("the handler to begin", || begun.exists());
        told(&fleet, &["pause", "--lane", "normal"]);
        fleet.members[0].says("paused: nothing is fetched");
        told(&fleet, &["send", "waits"]);
        add(&mut fleet, "second");
        fleet.members[0].kill();
        fleet.settled(1);
        let look = fleet.look();
        assert_eq!((look.count("returned"), look.count("done")), (1, 1));
        assert_eq!(status(&fleet)["lanes"]["normal"], 1, "the other one waits");
        told(&fleet, &["resume", "--lane", "normal"]);
        fleet.settled(2);
        fleet.audit();
    }

    /// While everything is paused, entries fire and delayed messages are let go: they wait in their lanes.
    fn entries_fire_while_everything_is_paused(kind) {
        let mut fleet = TestFleet::start(kind, 2, &["--handler", "true", "--generator", "true", "--lease", "1s"]);
        told(&fleet, &["pause", "--all"]);
        for member in &fleet.members {
            member.says("paused: nothing is fetched");
        }
        told(&fleet, &["cron", "set", "tick", "every 1s", "tick"]);
        told(&fleet, &["send", "--in", "200ms", "--lane", "low", "later"]);
        eventually("all to wait in their lanes", || {
            let status = status(&fleet);
            status["lanes"]["low"] == 1 && status["lanes"]["normal"].as_u64() > Some(1)
        });
        assert_eq!(fleet.count("done"), 0);
        told(&fleet, &["cron", "remove", "tick"]);
        told(&fleet, &["resume", "--all"]);
        eventually("all to be done", || status(&fleet)["messages"]["waiting"] == 0 && fleet.count("done") >= 3);
        fleet.audit();
    }

    /// The generator steps down, and another member leads; a drained one does not.
    fn another_member_leads_when_the_generator_steps_down(kind) {
        let mut fleet = TestFleet::start(kind, 3, &["--interval", "50ms", "--lease", "1s"]);
        let (first, _) = fleet.leader();
        told(&fleet, &["step-down"]);
        let (second, _) = fleet.next_leader(&first);
        told(&fleet, &["drain", &second]);
        fleet.next_leader(&second);
        let drained = status(&fleet)["members"].as_array().expect("a list").iter().filter(|one| one["is_drained"] == true).count();
        assert_eq!(drained, 1);
        fleet.audit();
    }
}
