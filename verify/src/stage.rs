//! [`Stage`]: the server, the processes, and the faults they have now. Also which faults are
//! possible on this machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use artel_rig::{Clock, PrivateServer, Target};

use crate::books::Books;
use crate::history::{self, Book};
use crate::member::{NEXT_DOOR, Part, SENDER, TAKER};
use crate::options::{Options, Trouble};
use crate::plan::Kind;
use crate::process::Process;
use crate::strike::{Act, server_args};
use crate::topology::{Servers, Topology};

/// Time between two ticks of the generator.
const INTERVAL: Duration = Duration::from_millis(20);

/// The things that are broken and repaired.
pub(crate) struct Stage {
    pub(crate) server: Option<PrivateServer>,
    /// Several servers, instead of one.
    pub(crate) servers: Option<Servers>,
    pub(crate) processes: Vec<Process>,
    pub(crate) books: Books,
    /// The acts that end faults, and when they are due.
    pub(crate) agenda: BinaryHeap<Reverse<(Instant, Act)>>,
    pub(crate) redis_hurt: bool,
    /// Since when servers that replace one another are not whole.
    pub(crate) hurt_since: Instant,
    /// When a fault of Redis last began or ended.
    pub(crate) touched: u64,
    /// When the clock of Redis was last set, and when Redis last came back.
    pub(crate) clock_set: Instant,
    pub(crate) redis_back: Instant,
    /// The history of the faults.
    pub(crate) faults: Book,
}

impl Stage {
    /// Starts the server, unless one is given, and all processes.
    pub(crate) fn build(options: &Options, library: Option<&Path>) -> Result<Stage, Trouble> {
        let (topology, mut servers) = (options.topology, None);
        let (server, url, port) = match &options.target {
            Target::Private(program) if topology != Topology::Single => {
                let all = servers.insert(Servers::start(topology, program, &options.dir)?);
                (None, all.url(), 0)
            }
            Target::Private(program) => {
                let server = start_server(options, program, library)?;
                let (url, port) = (server.url(), server.port());
                (Some(server), url, port)
            }
            Target::Given { url, .. } => (None, url.clone(), port_of(url)?),
        };
        let mut books = match &servers {
            None => Books::new(url.clone()),
            Some(servers) => Books::of(&servers.ports(), topology.replicas(), options.loses_told()),
        };
        if let Target::Given { anyway: false, .. } = &options.target {
            let keys = books.keys()?;
            if keys > 0 {
                return Err(Trouble::NotEmpty { keys });
            }
        }
        Ok(Stage {
            server,
            servers,
            processes: processes(options, &url, port, library)?,
            books,
            agenda: BinaryHeap::new(),
            redis_hurt: false,
            hurt_since: Instant::now(),
            touched: history::now(),
            clock_set: Instant::now(),
            redis_back: Instant::now(),
            faults: Book::open(&options.dir.join("faults.history"))?,
        })
    }
}

fn start_server(
    options: &Options,
    program: &Path,
    library: Option<&Path>,
) -> Result<PrivateServer, Trouble> {
    let dir = options.dir.join("server");
    std::fs::create_dir_all(&dir)?;
    let wanted = [Kind::ClockRedis, Kind::ClockSender];
    let wanted = wanted.iter().any(|kind| options.kinds.contains(kind));
    let clock = library.filter(|_| wanted);
    let clock = clock.map(|library| Clock::new(library, dir.join("clock"))).transpose()?;
    Ok(PrivateServer::start_with(program, &dir, &server_args(&options.kinds), clock, true)?)
}

/// Starts the processes: first the members, after them the taker, the sender and, on a private
/// server, the fleet next door.
fn processes(
    options: &Options,
    url: &str,
    port: u16,
    library: Option<&Path>,
) -> io::Result<Vec<Process>> {
    let ticks = (1.0 / INTERVAL.as_secs_f64()) as u64;
    let part = Part {
        url: url.to_owned(),
        name: String::new(),
        dir: options.dir.clone(),
        interval: INTERVAL,
        batch: options.rate.div_ceil(ticks).max(1),
        lease: options.lease,
        durability: options.durability,
    };
    let wanted = options.kinds.contains(&Kind::ClockMember);
    let library = library.filter(|_| wanted);
    let mut processes = Vec::new();
    for number in 1..=options.members {
        let role = format!("m{number}");
        let file = options.dir.join(format!("{role}.clock"));
        let clock = library.map(|library| Clock::new(library, file)).transpose()?;
        processes.push(Process::new(role, &options.program, part.clone(), port, clock)?);
    }
    // Not every cluster has a second database.
    let is_one = options.topology == Topology::Single;
    let next_door = (is_one && matches!(options.target, Target::Private(_))).then_some(NEXT_DOOR);
    for role in [TAKER, SENDER].into_iter().chain(next_door) {
        processes.push(Process::new(role.into(), &options.program, part.clone(), port, None)?);
    }
    Ok(processes)
}

/// The options with all faults that are possible here, and why the others are not.
pub(crate) fn possible(
    options: &Options,
    library: Option<&Path>,
) -> Result<(Options, Vec<String>), Trouble> {
    let (mut possible, mut missing) = (options.clone(), Vec::new());
    // The processes may have another working directory.
    possible.dir = options.dir.canonicalize()?;
    let kinds = &mut possible.kinds;
    kinds.retain(|kind| kind.is_on(options.topology));
    if kinds.is_empty() {
        let name = options.topology.name();
        return Err(Trouble::Usage(format!("none of these faults can happen to {name}")));
    }
    if kinds.iter().any(|kind| kind.is_clock()) {
        let why = match library {
            None => Some("libfaketime is not installed"),
            Some(library) if !Clock::works(library, &possible.dir) => {
                Some("libfaketime does not work here")
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            missing.push(format!("a wrong wall clock: {why}"));
            kinds.retain(|kind| !kind.is_clock());
            if kinds.is_empty() {
                return Err(Trouble::NoClocks(why));
            }
        }
    }
    if matches!(options.target, Target::Given { .. }) {
        let refused: Vec<&str> =
            kinds.iter().filter(|kind| kind.needs_private()).map(|kind| kind.name()).collect();
        if !refused.is_empty() {
            missing.push(format!("on a given Redis: {}", refused.join(", ")));
            kinds.retain(|kind| !kind.needs_private());
        }
        if kinds.is_empty() {
            return Err(Trouble::Usage(
                "these faults hurt Redis itself, which is done to a server of our own only".into(),
            ));
        }
    }
    Ok((possible, missing))
}

/// The port of an address on this machine. Other machines cannot be reached through the proxies.
fn port_of(url: &str) -> Result<u16, Trouble> {
    let rest = url.strip_prefix("redis://").and_then(|rest| rest.split('/').next());
    let host = rest.map(|rest| rest.rsplit('@').next().unwrap_or(rest));
    let parts = host.and_then(|host| host.rsplit_once(':'));
    match parts {
        Some(("127.0.0.1" | "localhost", port)) => {
            port.parse().map_err(|_| Trouble::Usage(format!("{port} is not a port")))
        }
        _ => Err(Trouble::Usage(
            "a given Redis must be on this machine, redis://127.0.0.1:PORT: every connection to it goes \
             through a proxy"
                .into(),
        )),
    }
}
