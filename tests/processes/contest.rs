//! Eight processes want one lock, and everything happens to its holder: tokens of guarded writes
//! never decrease.

use std::time::{Duration, Instant};

use artel_rig::{Fault, Program, Proxy, Server, eventually, wait_for};

use crate::{actor, key, servers, soak};

const LEASE_MS: u64 = 1000;

/// A process and the link it reaches Redis over.
struct Contestant {
    process: Program,
    proxy: Proxy,
}

struct Contest {
    server: Server,
    connection: redis::Connection,
    contestants: Vec<Contestant>,
    file: String,
    killed: u32,
    frozen: u32,
    cut: u32,
}

impl Contest {
    fn on(server: Server) -> Contest {
        let file = server.dir().join("ledger").display().to_string();
        let connection = server.connect();
        let contestants = Vec::new();
        let mut contest =
            Contest { server, connection, contestants, file, killed: 0, frozen: 0, cut: 0 };
        for _ in 0..8 {
            let one = contest.contestant();
            contest.contestants.push(one);
        }
        contest
    }

    fn contestant(&self) -> Contestant {
        let proxy = Proxy::start(self.server.port()).expect("a free port");
        let lease = LEASE_MS.to_string();
        let process = actor(&["lock", &proxy.url(), &self.file, &lease]);
        Contestant { process, proxy }
    }

    /// Who holds the lock, as a process that is there.
    fn holder(&mut self) -> usize {
        wait_for("a holder", || {
            let right: Option<String> =
                redis::cmd("GET").arg(key("lock:ledger")).query(&mut self.connection).ok()?;
            let member = right?.split('|').next()?.to_owned();
            let pid: Option<u32> = redis::cmd("HGET")
                .arg(key(&format!("member:{member}")))
                .arg("pid")
                .query(&mut self.connection)
                .ok()?;
            self.contestants.iter().position(|one| Some(one.process.id()) == pid)
        })
    }

    fn writes(&mut self) -> Vec<(u64, f64)> {
        let lines: Vec<String> = redis::cmd("LRANGE")
            .arg(key("data:ledger"))
            .arg(0)
            .arg(-1)
            .query(&mut self.connection)
            .expect("reads");
        let parse = |line: &String| {
            let (token, ms) = line.split_once(' ').expect("a token and a time");
            (token.parse().expect("a token"), ms.parse().expect("a time"))
        };
        lines.iter().map(parse).collect()
    }

    /// Waits until somebody else writes.
    fn goes_on(&mut self) {
        let count: u64 =
            redis::cmd("LLEN").arg(key("data:ledger")).query(&mut self.connection).expect("reads");
        let connection = &mut self.connection;
        eventually("guarded writes to go on", || {
            let now: u64 =
                redis::cmd("LLEN").arg(key("data:ledger")).query(connection).expect("reads");
            now > count + 10
        });
    }

    /// Something happens to the holder, for longer than its lease.
    fn disturb(&mut self) {
        let at = self.holder();
        let over_lease = Duration::from_millis(LEASE_MS + LEASE_MS / 4);
        match rand::random_range(0..3) {
            0 => {
                self.contestants[at].process.kill();
                self.goes_on();
                self.contestants[at] = self.contestant();
                self.killed += 1;
            }
            1 => {
                self.contestants[at].process.freeze();
                std::thread::sleep(over_lease);
                self.goes_on();
                self.contestants[at].process.thaw();
                self.frozen += 1;
            }
            _ => {
                // Nothing passes, and then everything that was on its way does.
                self.contestants[at].proxy.set(Fault::Stall);
                std::thread::sleep(over_lease);
                self.goes_on();
                self.contestants[at].proxy.set(Fault::Pass);
                self.cut += 1;
            }
        }
    }
}

#[test]
fn tokens_of_guarded_writes_never_decrease() {
    let time = Duration::from_secs(if soak() { 180 } else { 20 });
    // Side by side: what happens is mostly waiting for leases to end.
    std::thread::scope(|scope| {
        for server in servers() {
            scope.spawn(move || contest(server, time));
        }
    });
}

fn contest(server: Server, time: Duration) {
    let mut contest = Contest::on(server);
    contest.goes_on();
    let began = Instant::now();
    while began.elapsed() < time {
        contest.disturb();
    }
    contest.goes_on();
    let writes = contest.writes();
    for pair in writes.windows(2) {
        assert!(pair[0].0 <= pair[1].0, "the token went back: {pair:?}");
    }
    let said = |word: &str| {
        let count = |one: &Contestant| {
            one.process.stdout().lines().filter(|line| line.starts_with(word)).count()
        };
        contest.contestants.iter().map(count).sum::<usize>()
    };
    let gap = writes.windows(2).map(|pair| pair[1].1 - pair[0].1).fold(0.0, f64::max);
    println!(
        "{} guarded writes; {} killed, {} frozen, {} cut off; {} writes refused, {} unheard, {} \
         holders learnt of the loss at the end; longest time without a write {gap:.0} ms",
        writes.len(),
        contest.killed,
        contest.frozen,
        contest.cut,
        said("refused"),
        said("unheard"),
        said("lost")
    );
    assert!(contest.killed + contest.frozen + contest.cut > 3, "hardly anything happened");
    if soak() {
        assert!(contest.killed > 0 && contest.frozen > 0 && contest.cut > 0);
        assert!(said("refused") > 0, "no stale holder ever tried to write");
        assert!(gap < LEASE_MS as f64 + 500.0, "nobody held it for {gap} ms");
    }
}
