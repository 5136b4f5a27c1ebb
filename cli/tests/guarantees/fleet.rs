//! A fleet of real processes on a private server.

use artel_rig::{Audit, Kind, Program, Server, Snapshot, Taken, eventually, wait_for};
use redis::Connection;

pub const FLEET: &str = "fleet";

pub(crate) use artel_rig::{on_each_server, soak};

pub fn artel() -> &'static str {
    env!("CARGO_BIN_EXE_artel")
}

pub struct TestFleet {
    pub server: Server,
    pub members: Vec<Program>,
    /// Options every member gets.
    options: Vec<String>,
    connection: Connection,
}

impl TestFleet {
    /// A private server and `count` members with these options, all joined.
    pub fn start(kind: Kind, count: usize, options: &[&str]) -> TestFleet {
        TestFleet::on(Server::start(kind), count, options)
    }

    pub fn on(server: Server, count: usize, options: &[&str]) -> TestFleet {
        let connection = server.connect();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut fleet = TestFleet { server, members: Vec::new(), options, connection };
        for _ in 0..count {
            fleet.add();
        }
        eventually("all members to join", || fleet.sessions().len() == count);
        fleet
    }

    /// Starts one more member.
    pub fn add(&mut self) -> usize {
        let url = self.server.url();
        self.add_at(&url)
    }

    /// Starts one more member that reaches the server at this address.
    pub fn add_at(&mut self, url: &str) -> usize {
        self.add_with(&["--redis", url])
    }

    /// Starts one more member that reaches the server in this way.
    pub fn add_with(&mut self, way: &[&str]) -> usize {
        let mut args = vec!["run", "--fleet", FLEET, "--ledger", "all"];
        args.extend(way);
        args.extend(self.options.iter().map(String::as_str));
        self.members.push(Program::start(artel(), &args));
        self.members.len() - 1
    }

    /// The server was restarted: speak to the new one.
    pub fn reconnect(&mut self) {
        self.connection = self.server.connect();
    }

    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub fn look(&mut self) -> Snapshot {
        Snapshot::read(&mut self.connection, FLEET)
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query(&mut self.connection).expect("the server answers")
    }

    // Asked again and again while a fleet works: each costs Redis next to nothing, unlike `look`.

    /// The sessions there are, in a fixed order.
    pub fn sessions(&mut self) -> Vec<String> {
        let key = self.key("members");
        let mut members: Vec<String> = self.ask(&["ZRANGE", &key, "0", "-1"]);
        members.sort();
        members
    }

    /// A counter of the fleet's own.
    pub fn count(&mut self, name: &str) -> i64 {
        let key = self.key("counts");
        self.ask::<Option<i64>>(&["HGET", &key, name]).unwrap_or(0)
    }

    /// The time of Redis.
    pub fn now_ms(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// How many messages are settled, by the ledger.
    pub fn done(&mut self) -> usize {
        let key = self.key("ledger");
        self.ask(&["XLEN", &key])
    }

    /// The term of the lease.
    pub fn term(&mut self) -> u64 {
        let lease = self.key("lease");
        let lease: String = self.ask(&["GET", &lease]);
        lease.split_once('|').and_then(|(_, term)| term.parse().ok()).expect("member|term")
    }

    /// Whose lease it is, if it is valid.
    fn holder(&mut self) -> Option<String> {
        let (lease, members) = (self.key("lease"), self.key("members"));
        let holder = self.ask::<Option<String>>(&["GET", &lease])?.split('|').next()?.to_owned();
        self.ask::<Option<f64>>(&["ZSCORE", &members, &holder]).map(|_| holder)
    }

    pub fn key(&self, name: &str) -> String {
        format!("artel:{{{FLEET}}}:{name}")
    }

    /// The process behind a session.
    pub fn process_of(&mut self, member: &str) -> Option<usize> {
        let key = self.key(&format!("member:{member}"));
        let pid: Option<u32> =
            redis::cmd("HGET").arg(key).arg("pid").query(&mut self.connection).ok().flatten();
        // The newest: one that was killed before may have had the same number.
        self.members.iter().rposition(|process| Some(process.id()) == pid)
    }

    /// Does the process with this id hold a message now?
    pub fn holds(&mut self, pid: u32) -> bool {
        let all = self.sessions();
        let mine = all.into_iter().find(|id| {
            let key = self.key(&format!("member:{id}"));
            self.ask::<Option<u32>>(&["HGET", &key, "pid"]) == Some(pid)
        });
        mine.is_some_and(|id| {
            let key = self.key(&format!("blocks:{id}"));
            self.ask::<Vec<String>>(&["HKEYS", &key]).iter().any(|block| block != "hi")
        })
    }

    /// Waits until somebody leads; the session and the process.
    #[track_caller]
    pub fn leader(&mut self) -> (String, usize) {
        wait_for("a generator", || {
            let leader = self.holder()?;
            let process = self.process_of(&leader)?;
            Some((leader, process))
        })
    }

    /// Waits until somebody else leads.
    #[track_caller]
    pub fn next_leader(&mut self, old: &str) -> (String, usize) {
        wait_for("another generator", || {
            let leader = self.holder().filter(|leader| leader != old)?;
            let process = self.process_of(&leader)?;
            Some((leader, process))
        })
    }

    /// A process that does not lead.
    #[track_caller]
    pub fn worker(&mut self) -> (String, usize) {
        wait_for("a worker", || {
            let leader = self.holder()?;
            let worker = self.sessions().into_iter().find(|member| *member != leader)?;
            let process = self.process_of(&worker)?;
            Some((worker, process))
        })
    }

    /// Waits until this many messages were settled in all.
    #[track_caller]
    pub fn settled(&mut self, count: usize) {
        eventually(&format!("{count} settled messages"), || self.done() >= count);
    }

    /// Waits until the fleet has generated `count` and settled all of it; audits.
    #[track_caller]
    pub fn complete(&mut self, count: i64) -> Audit {
        eventually(&format!("{count} messages to be generated and settled"), || {
            self.count("generated") == count && self.done() as i64 == count
        });
        let audit = self.audit();
        assert_eq!(audit.settled as i64, count);
        audit
    }

    /// Nothing lost, nothing doubled, every counter right, as of now.
    #[track_caller]
    pub fn audit(&mut self) -> Audit {
        let audit = Audit::of(&self.look(), Taken::Ids(&[]));
        audit.assert_clean();
        audit
    }

    /// Does any member say this on its screen?
    pub fn anybody_says(&self, text: &str) -> bool {
        self.members.iter().any(|member| member.stderr().contains(text))
    }
}
