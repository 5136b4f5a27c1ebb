//! Generators that are commands, and what Redis keeps for them.

use artel_rig::{Program, eventually};

use crate::fleet::{TestFleet, on_each_server};

/// Counts: what was kept last comes on stdin, what is to be kept goes to descriptor 3. Every third time it
/// fails after it has done both, and once in a while it keeps a number without a message.
const COUNTS: &str = r#"read -r n || n=0
n=$((n + 1)); echo $n >&3; echo $n
if [ -n "$ARTEL_TICK" ] && [ $((ARTEL_TICK % 3)) = 0 ]; then echo 'not now' >&2; exit 1; fi"#;

on_each_server! {
    /// ⚑ Whoever leads is killed again and again: the numbers go on without a gap and without a double.
    fn a_generator_goes_on_where_its_predecessor_stopped(kind) {
        let dir = tempfile::tempdir().expect("a dir");
        let seen = dir.path().join("seen").display().to_string();
        // A handler may start twice if it is killed: what counts is one line per message, by its id.
        let handler = format!("read -r n; echo \"$ARTEL_MESSAGE_ID $n\" >> {seen}");
        let options =
            ["--generator", COUNTS, "--interval", "20ms", "--lease", "1s", "--handler", &handler];
        let mut fleet = TestFleet::start(kind, 4, &options);
        for _ in 0..3 {
            let before = fleet.count("generated");
            let (leader, process) = fleet.leader();
            eventually("some numbers of this term", || fleet.count("generated") >= before + 5);
            fleet.members[process].kill();
            fleet.add();
            fleet.next_leader(&leader);
        }
        let before = fleet.count("generated");
        eventually("some more", || fleet.count("generated") >= before + 5);
        for member in &fleet.members {
            if member_is_alive(member) {
                member.terminate();
            }
        }
        for member in &mut fleet.members {
            member.exit_code();
        }
        // What is left is done by one that never leads.
        let url = fleet.server.url();
        let worker = ["work", "--redis", &url, "--fleet", crate::fleet::FLEET, "--handler", &handler];
        let _worker = Program::start(crate::fleet::artel(), &worker);
        eventually("all to be done", || fleet.count("done") == fleet.count("generated"));
        let text = std::fs::read_to_string(&seen).expect("written");
        let mut by_id: Vec<(&str, u64)> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(id, number)| (id, number.parse().expect("a number")))
            .collect();
        by_id.sort();
        by_id.dedup();
        let mut numbers: Vec<u64> = by_id.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        let expected: Vec<u64> = (1..=fleet.count("generated") as u64).collect();
        assert_eq!(numbers, expected, "no gap, no double");
        fleet.audit();
    }
}

fn member_is_alive(member: &Program) -> bool {
    std::path::Path::new(&format!("/proc/{}/fd", member.id())).exists()
        && std::fs::read_dir(format!("/proc/{}/fd", member.id()))
            .is_ok_and(|mut fds| fds.next().is_some())
}

on_each_server! {
    /// Nothing written leaves the state as it is; one that is too large skips its tick; one without messages
    /// is kept; a process it leaves behind does not hold it up.
    fn what_a_generator_keeps_is_up_to_it(kind) {
        let script = r#"was=$(cat); was=${was:-none}
case $ARTEL_TICK in
  1) printf one >&3 ;;
  2) echo "$was" ;;
  3) head -c 70000 /dev/zero >&3; echo lost ;;
  4) echo "$was"; printf two >&3 ;;
  5) echo "$was $ARTEL_SEQ $ARTEL_TICK" ;;
esac"#;
        let options = ["--generator", script, "--interval", "50ms", "--lease", "2s", "--leader-works",
            "alone", "--handler", "false"];
        let mut fleet = TestFleet::start(kind, 1, &options);
        eventually("the last of them", || fleet.count("failed") == 3);
        fleet.members[0].says("the command keeps a state of more than 65536 bytes");
        let url = fleet.server.url();
        let taken = ["getErrors", "--redis", &url, "--fleet", crate::fleet::FLEET];
        let mut taken = Program::start(crate::fleet::artel(), &taken);
        assert_eq!(taken.exit_code(), Some(0));
        assert_eq!(taken.stdout().lines().collect::<Vec<_>>(), ["one", "one", "two 3 5"]);
    }
}
