use std::io::Write;
use std::process::Stdio;

use artel_rig::{Fault, Program, Proxy, Server, clean_command, eventually, script_hash};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server, soak};

/// All of a list, in pages.
fn list(server: &Server, key: &str) -> Vec<String> {
    let mut connection = server.connect();
    let mut all = Vec::new();
    loop {
        let (from, to) = (all.len() as isize, all.len() as isize + 9_999);
        let page: Vec<String> = redis::cmd("LRANGE")
            .arg(key)
            .arg(from)
            .arg(to)
            .query(&mut connection)
            .expect("answers");
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// How many messages wait in a lane: a chunk counts for all its messages.
fn waiting(connection: &mut redis::Connection, lane: &str) -> i64 {
    let fleet = |name: &str| format!("artel:{{{FLEET}}}:{name}");
    let (entries, extra): (i64, Option<i64>) = redis::pipe()
        .atomic()
        .llen(fleet(&format!("lane:{lane}")))
        .hget(fleet("counts"), format!("extra:{lane}"))
        .query(connection)
        .expect("answers");
    entries + extra.unwrap_or(0)
}

/// The bodies of the messages in a lane, those in chunks, too.
fn bodies(server: &Server, lane: &str) -> Vec<String> {
    let (mut connection, mut bodies) = (server.connect(), Vec::new());
    for entry in list(server, lane) {
        let Some(reference) = entry.strip_prefix('#') else {
            bodies.extend(entry.splitn(5, '|').last().map(str::to_owned));
            continue;
        };
        let first = reference.split('|').next().expect("an id");
        let key = format!("artel:{{{FLEET}}}:chunk:{first}");
        let chunk: String = redis::cmd("GET").arg(key).query(&mut connection).expect("a chunk");
        let mut rest = chunk.splitn(5, '|').last().expect("bodies");
        while let Some((length, text)) = rest.split_once(':') {
            let (body, behind) = text.split_at(length.parse().expect("a length"));
            bodies.push(body.to_owned());
            rest = behind;
        }
    }
    bodies
}

on_each_server! {
    /// A million lines, and the connection is cut ten times on the way: each is accepted once, in
    /// order.
    fn a_million_lines_are_accepted_once_each(kind) {
        let server = Server::with(kind, &["--appendonly", "no"]);
        let proxy = Proxy::start(server.port()).expect("a free port");
        let args = ["send", "--redis", &proxy.url(), "--fleet", FLEET];
        let mut command = clean_command(artel(), &args);
        command.stdin(Stdio::piped());
        let mut sender = Program::spawn(command);
        let mut stdin = sender.stdin();
        let writer = std::thread::spawn(move || {
            let mut lines = String::new();
            for n in 1..=1_000_000 {
                lines.push_str(&format!("{n}\n"));
                if n % 1000 == 0 {
                    stdin.write_all(lines.as_bytes()).expect("it reads");
                    lines.clear();
                }
            }
        });
        let key = format!("artel:{{{FLEET}}}:lane:normal");
        let mut connection = server.connect();
        for cut in 1..=10 {
            eventually("some of them to arrive", || {
                waiting(&mut connection, "normal") >= cut * 80_000
            });
            proxy.set(Fault::Cut);
            proxy.set(Fault::Pass);
        }
        writer.join().expect("all written");
        assert_eq!(sender.exit_code(), Some(0), "{}", sender.stderr());
        assert!(sender.stderr().contains("sent 1000000"), "{}", sender.stderr());
        let lane = bodies(&server, &key);
        assert_eq!(lane.len(), 1_000_000);
        for (n, body) in (1..).zip(&lane) {
            assert_eq!(*body, n.to_string());
        }
        let sent: u64 = redis::cmd("HGET")
            .arg(format!("artel:{{{FLEET}}}:counts"))
            .arg("sent")
            .query(&mut connection)
            .expect("answers");
        assert_eq!(sent, 1_000_000);
    }

    /// The reply to a send and to a requeue is lost right after it took effect: both are repeated,
    /// and applied once.
    fn a_lost_reply_sends_nothing_twice(kind) {
        let server = Server::start(kind);
        let proxy = Proxy::start(server.port()).expect("a free port");
        let run = |args: &[&str]| {
            let mut all = args.to_vec();
            let url = proxy.url();
            all.extend(["--redis", &url, "--fleet", FLEET]);
            let mut program = Program::start(artel(), &all);
            assert_eq!(program.exit_code(), Some(0), "{}", program.stderr());
            program.stdout()
        };
        let lose = |script: &str| proxy.set(Fault::DropReplyTo(script_hash(script)));
        lose("send");
        let ids = run(&["send", "one", "two"]);
        assert_eq!(proxy.swallowed(), 1);
        assert_eq!(list(&server, &format!("artel:{{{FLEET}}}:lane:normal")).len(), 2);
        assert_eq!(ids.lines().count(), 2);
        lose("send");
        let first = run(&["send", "--dedup", "k", "three"]);
        assert_eq!(run(&["send", "--dedup", "k", "three"]), first, "the id of the first");
        assert_eq!(list(&server, &format!("artel:{{{FLEET}}}:lane:normal")).len(), 3);
        let () = redis::cmd("XADD")
            .arg(format!("artel:{{{FLEET}}}:errors"))
            .arg("*")
            .arg("m")
            .arg("1g-|5-1|1|9|failed")
            .arg("e")
            .arg("{}")
            .query(&mut server.connect())
            .expect("answers");
        lose("requeue");
        assert_eq!(run(&["errors", "requeue", "--yes", "--lane", "low"]), "1\n");
        assert_eq!(proxy.swallowed(), 3);
        assert_eq!(list(&server, &format!("artel:{{{FLEET}}}:lane:low")).len(), 1);
    }

    /// Lane `high` is always full; `low` gets its weight all the same, one block of sixteen.
    fn a_full_lane_does_not_starve_the_others(kind) {
        let options = ["--generator", "true", "--error-rate", "0", "--lease", "2s"];
        let mut fleet = TestFleet::start(kind, 0, &options);
        let url = fleet.server.url();
        for lane in ["high", "low", "normal"] {
            let args = ["send", "--redis", &url, "--fleet", FLEET, "--lane", lane];
            let mut command = clean_command(artel(), &args);
            command.stdin(Stdio::piped());
            let mut sender = Program::spawn(command);
            let lines: String = (0..60_000).map(|n| format!("{lane} {n}\n")).collect();
            sender.stdin().write_all(lines.as_bytes()).expect("it reads");
            assert_eq!(sender.exit_code(), Some(0), "{}", sender.stderr());
        }
        fleet.add();
        fleet.add();
        // While `high` is not empty, look at what was taken from each lane.
        let mut connection = fleet.server.connect();
        let mut left = (0, 0, 0);
        eventually("half of lane high to be served", || {
            let mut length = |lane: &str| waiting(&mut connection, lane);
            left = (length("high"), length("normal"), length("low"));
            left.0 < 30_000
        });
        assert!(left.0 > 0, "high was still full: {left:?}");
        let (high, normal, low) = (60_000 - left.0, 60_000 - left.1, 60_000 - left.2);
        println!("{high} of high, {normal} of normal, {low} of low");
        // 13 : 2 : 1, as the lane of the generator is empty; by blocks, which differ in size.
        assert!(low * 40 > high, "low is starved: {high} to {low}");
        assert!(low * 5 < high, "low is served like the others: {high} to {low}");
        // Both get few blocks, and each worker begins at another turn.
        assert!(normal * 2 >= low, "normal comes before low: {normal} to {low}");
        for member in &fleet.members {
            member.terminate();
        }
        for member in &mut fleet.members {
            assert_eq!(member.exit_code(), Some(0));
        }
        fleet.audit();
    }

    /// What failed is put back to work and done; the books balance and every origin is known.
    fn requeued_errors_are_handled_again(kind) {
        let count: i64 = if soak() { 5_000 } else { 300 };
        let max = count.to_string();
        let options = ["--interval", "1ms", "--error-rate", "1", "--max-messages", &max,
            "--lease", "2s"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        fleet.complete(count);
        for member in &fleet.members {
            member.terminate();
        }
        for member in &mut fleet.members {
            assert_eq!(member.exit_code(), Some(0));
        }
        let taken: Vec<String> = fleet.look().errors.clone();
        let url = fleet.server.url();
        let args = ["errors", "requeue", "--yes", "--redis", &url, "--fleet", FLEET];
        // Two at once: each record is put back by one of them.
        let mut requeuers = [Program::start(artel(), &args), Program::start(artel(), &args)];
        let moved: i64 = requeuers
            .iter_mut()
            .map(|requeuer| {
                assert_eq!(requeuer.exit_code(), Some(0), "{}", requeuer.stderr());
                requeuer.stdout().trim().parse::<i64>().unwrap_or(0)
            })
            .sum();
        assert_eq!(moved, count);
        let options = ["run", "--redis", &url, "--fleet", FLEET, "--ledger", "all",
            "--error-rate", "0", "--max-messages", &max];
        let _again = [Program::start(artel(), &options), Program::start(artel(), &options)];
        eventually("all of them to be done", || fleet.count("done") == count);
        assert_eq!((fleet.count("sent"), fleet.count("failed")), (count, count));
        let audit = artel_rig::Audit::of(&fleet.look(), artel_rig::Taken::Ids(&taken));
        audit.assert_clean();
    }
}
