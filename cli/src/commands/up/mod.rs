//! `artel up`: a private server and some members in one terminal.
//!
//! **Invariant:** whatever ends `up`, its members end: each holds one end of a pipe whose other end
//! is ours, and leaves when that closes. The numbers that are printed after a death (lost, doubled,
//! handed on) are read from Redis, not assumed.

mod children;
mod screen;

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use artel::Status;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, UpArgs};
use crate::commands::run;
use crate::embedded::{Embedded, Hold};
use crate::exit::{FAILURE, Failure, OK};
use crate::http::{Listening, Rules};
use crate::settings::{self, Place};
use crate::signals::{Signals, blocking};
use crate::{commands, http, printer};

use children::{Children, Event};
use screen::Screen;

/// How often the books are printed without `--snapshot-every`.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);
/// How long the fleet may take to put everything back after a death.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// How long members may take to leave, in addition to their own grace.
const LEAVE_EXTRA: Duration = Duration::from_secs(5);
/// Where the page is, unless another program is there.
const PAGE_PORT: &str = "8090";
/// How long the answers in progress may take.
const PAGE_GRACE: Duration = Duration::from_secs(1);
/// How often the signal to end at once is sent again.
const AGAIN: Duration = Duration::from_millis(200);

/// Starts everything. `options` are the flags of the members.
pub(crate) async fn up(
    global: &Global,
    args: &UpArgs,
    options: Vec<OsString>,
) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    settings::config(Some(&args.make), &args.member).validate()?;
    let (maker, _) = run::parts(Some(&args.make), &args.member)?;
    let rules = Rules::of(&args.http_rules)?;
    let listening = listen(args.http.as_deref()).await?;
    let private = settings::private(global)?;
    let ensuring = private.clone();
    let mut ensured = std::pin::pin!(blocking(move || ensuring.ensure()));
    let hold = match signals.unless(&mut ensured).await {
        Ok(hold) => hold?,
        Err(code) => {
            // Wait until the server that is being started runs, and stop it again. A second signal
            // ends this wait.
            if let Ok(Ok(hold)) = signals.unless(ensured).await {
                drop(hold);
                let _ = signals.unless(stop_server(&private)).await;
            }
            return Ok(code);
        }
    };
    let (redis, fleet) = (private.url().into(), global.fleet().to_owned());
    let place = Place { redis, fleet, durability: global.durability };
    let version = private.running().map_or_else(String::new, |running| running.version);
    let verb = if hold.started { "started" } else { "found running" };
    let server = format!("{version}, {verb}, {}", place.redis);
    let generates = maker.is_some();
    let home = Home { place: &place, private: &private, url: private.url(), server, generates };
    let over = CancellationToken::new();
    let page = listening.as_ref().map(|listening| listening.url(&rules));
    let served = listening.map(|listening| {
        let source = http::Source::of_fleets(vec![place.open()?]);
        Ok::<_, artel::Error>(http::serve(listening, rules, source, over.clone()))
    });
    let served = served.transpose()?;
    let result = supervise(global, args, options, &home, page, &mut signals).await;
    over.cancel();
    if let Some(served) = served {
        let _ = signals.unless(tokio::time::timeout(PAGE_GRACE, served)).await;
    }
    // If nobody else uses the server, it is stopped, and its lock and socket are removed. Its data
    // are kept.
    drop(hold);
    match signals.unless(stop_server(&private)).await {
        Ok(stopped) => {
            let code = result?;
            stopped.map(|()| code)
        }
        Err(code) => Ok(code),
    }
}

/// Opens the port of the page. Without a wish it is the usual one, or any free one.
async fn listen(wish: Option<&str>) -> Result<Option<Listening>, Failure> {
    match wish {
        Some("none") => Ok(None),
        Some(address) => http::listen(address).await.map(Some),
        None => match http::listen(PAGE_PORT).await {
            Ok(listening) => Ok(Some(listening)),
            Err(_) => http::listen("0").await.map(Some),
        },
    }
}

async fn stop_server(private: &Embedded) -> Result<(), Failure> {
    let private = private.clone();
    blocking(move || {
        for _ in 0..20 {
            if private.stop(true)? || !private.is_there()? {
                return Ok(());
            }
            // Connections of members that have just ended may still be counted.
            std::thread::sleep(Duration::from_millis(50));
        }
        printer::remark(
            "the private server keeps running: somebody else uses it (`artel embedded stop` stops it)",
        );
        Ok(())
    })
    .await
}

/// Where the fleet lives.
struct Home<'a> {
    place: &'a Place,
    private: &'a Embedded,
    /// The address that is passed to the members.
    url: String,
    /// A description of the server, to print.
    server: String,
    /// There is a generator, so a member will lead.
    generates: bool,
}

/// The fleet while it runs.
struct Up<'a> {
    place: &'a Place,
    private: &'a Embedded,
    /// The hold of a server that had to be started again.
    hold: Option<Hold>,
    before: Status,
    began: Instant,
    screen: Screen,
    children: Children,
    events: mpsc::Sender<Event>,
    /// The invitation to kill the generator was printed.
    invited: bool,
    /// A generator that died and has no successor yet.
    fallen: Option<Death>,
}

async fn supervise(
    global: &Global,
    args: &UpArgs,
    options: Vec<OsString>,
    home: &Home<'_>,
    page: Option<String>,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let Home { place, private, url, server, generates } = home;
    let before = place.open()?.status().await?;
    let (quiet, verbose) = (global.output.quiet, global.output.verbose > 0);
    let screen = Screen::new(printer::colour(global.output.color), quiet, verbose, args.members);
    if let Some(page) = page {
        screen.remark(&format!("the page is at {page}"));
    }
    let noun = if args.members == 1 { "member" } else { "members" };
    screen.remark(&format!("{} {noun} on a private server ({server})", args.members));
    screen.remark(&format!(
        "Ctrl-C ends all. In another terminal: {0} status · {0} send hello · {0} getErrors",
        screen::program(global, place)
    ));
    if !generates {
        screen.remark("a --handler and no --generator: nobody leads, all work on what is sent");
    }
    let (events, mut heard) = mpsc::channel(1024);
    let children = Children::start(args.members, place, url, options, events.clone())?;
    let began = Instant::now();
    let mut up = Up {
        place,
        private,
        hold: None,
        before,
        began,
        screen,
        children,
        events,
        invited: false,
        fallen: None,
    };
    let every = args.member.snapshot_every.unwrap_or(SNAPSHOT_EVERY);
    let mut snapshots = tokio::time::interval(every.max(Duration::from_millis(50)));
    snapshots.tick().await;
    let over = tokio::time::sleep(args.member.duration.unwrap_or(Duration::MAX / 4));
    let mut over = std::pin::pin!(over);
    while up.children.is_alive() {
        tokio::select! {
            _ = signals.next() => {
                up.screen.remark("stopping: members finish what they started");
                break;
            }
            () = &mut over, if args.member.duration.is_some() => break,
            _ = snapshots.tick() => up.snapshot().await,
            Some(event) = heard.recv() => up.hear(event).await,
        }
    }
    let all_gone = !up.children.is_alive();
    let leave_max = args.member.stop_grace + LEAVE_EXTRA;
    if let Some(code) = up.leave(&mut heard, signals, leave_max).await {
        return Ok(code);
    }
    signals.unless(up.farewell(all_gone)).await.unwrap_or_else(Ok)
}

impl Up<'_> {
    async fn snapshot(&mut self) {
        match self.screen.hidden() {
            0 => {}
            hidden => self.screen.remark(&format!("{hidden} more sent messages are done")),
        }
        if let Ok(status) = status_of(self.place).await {
            let seconds = self.began.elapsed().as_secs();
            return self.screen.remark(&format!("{seconds} s: {}", since(&self.before, &status)));
        }
        // The server may have been killed, too: start it again.
        let private = self.private.clone();
        let again = blocking(move || match private.is_there()? {
            true => Ok(None),
            false => private.ensure().map(Some),
        });
        if let Ok(Some(hold)) = again.await {
            self.hold = Some(hold);
            self.screen.remark("the private server was gone: started again, with its data");
        }
    }

    async fn hear(&mut self, event: Event) {
        match event {
            Event::Said(at, line) => {
                let leads = self.children.note(at, &line);
                self.screen.line(&self.children, at, &line);
                if leads {
                    self.elected(self.children.pid(at));
                }
            }
            Event::Printed(at, line) => self.screen.text(&self.children, at, &line),
            Event::Ended(at, status) => self.ended(at, status).await,
            Event::Answer(text, leads) => {
                self.screen.remark(&text);
                if let Some(pid) = leads {
                    self.screen.invite(pid);
                }
            }
        }
    }

    fn elected(&mut self, pid: u32) {
        match self.fallen.take() {
            Some(death) => {
                let leads = Some((pid, death.at.elapsed()));
                tokio::spawn(death.settle(self.place.clone(), leads, self.events.clone()));
            }
            None if !self.invited => self.screen.invite(pid),
            None => {}
        }
        self.invited = true;
    }

    async fn ended(&mut self, at: usize, status: ExitStatus) {
        let (led, pid) = (self.children.ended(at), self.children.pid(at));
        self.screen.remark(&format!("member-{} ({pid}) ended: {status}", at + 1));
        if status.code().is_some() {
            return; // it left by itself, and has logged why
        }
        let death = Death::of(self.place, pid, self.children.session(at), led).await;
        if led {
            self.fallen = Some(death);
        } else {
            tokio::spawn(death.settle(self.place.clone(), None, self.events.clone()));
        }
    }

    /// Closes the pipes, shows the last output of the members, and waits for their end. A second
    /// signal ends them at once, with their handlers; then its exit code is returned.
    async fn leave(
        &mut self,
        heard: &mut mpsc::Receiver<Event>,
        signals: &mut Signals,
        leave_max: Duration,
    ) -> Option<u8> {
        self.children.let_go();
        let mut deadline = tokio::time::Instant::now() + leave_max;
        let (mut forced, mut killed) = (None, false);
        let mut again = tokio::time::interval(AGAIN);
        while self.children.is_alive() {
            tokio::select! {
                Some(event) = heard.recv() => match event {
                    Event::Said(at, line) => self.screen.line(&self.children, at, &line),
                    Event::Printed(at, line) => self.screen.text(&self.children, at, &line),
                    Event::Ended(at, _) => { self.children.ended(at); }
                    Event::Answer(text, _) => self.screen.remark(&text),
                },
                // The members are leaving already, so this signal is the second for them, too: it
                // ends them with their handlers.
                code = signals.next() => {
                    forced = Some(code);
                    self.children.signal(Signal::TERM);
                    deadline = tokio::time::Instant::now() + LEAVE_EXTRA;
                }
                // A member that has not noticed the closed pipe yet takes it as the first signal,
                // so it is sent again.
                _ = again.tick(), if forced.is_some() => self.children.signal(Signal::TERM),
                () = tokio::time::sleep_until(deadline) => {
                    if std::mem::replace(&mut killed, true) {
                        break;
                    }
                    self.screen.remark("members that do not end are killed");
                    self.children.signal(Signal::KILL);
                    deadline = tokio::time::Instant::now() + LEAVE_EXTRA;
                }
            }
        }
        forced
    }

    /// Prints the books at the end.
    async fn farewell(&self, all_gone: bool) -> Result<u8, Failure> {
        let after = self.place.open()?.status().await?;
        let seconds = self.began.elapsed().as_secs();
        let mut text = format!("in {seconds} s: {}\n", since(&self.before, &after));
        if self.before.messages.generated + self.before.messages.sent > 0 {
            let mut books = commands::status::books(&after);
            books[0] = format!("the fleet in all: {}", books[0]);
            text.push_str(&printer::screen().flow(&books));
        }
        printer::data(&text)?;
        if after.messages.balance != 0 {
            let error = format!("the books do not balance: {}", after.messages.balance);
            return Err(Failure::new(FAILURE, error));
        }
        if all_gone {
            return Err(Failure::new(FAILURE, "all members are gone").hint(
                "their unfinished messages are kept: the next `artel up` continues with them",
            ));
        }
        Ok(OK)
    }
}

async fn status_of(place: &Place) -> Result<Status, artel::Error> {
    place.open()?.status().await
}

/// The changes of the books since the start.
fn since(before: &Status, now: &Status) -> String {
    let (b, n) = (&before.messages, &now.messages);
    let sent = n.sent.saturating_sub(b.sent);
    let sent = if sent > 0 { format!(" · sent {sent}") } else { String::new() };
    let scheduled = match n.scheduled {
        0 => String::new(),
        scheduled => format!(" · scheduled {scheduled}"),
    };
    format!(
        "generated {}{sent} · done {} · failed {} · waiting {}{scheduled} · claimed {} · balance {}",
        n.generated.saturating_sub(b.generated),
        n.done.saturating_sub(b.done),
        n.failed.saturating_sub(b.failed),
        n.waiting,
        n.claimed,
        n.balance
    )
}

/// A member that was killed.
struct Death {
    pid: u32,
    session: Option<String>,
    led: bool,
    at: Instant,
    /// The fleet's count of messages put back before this death. The increase is due to this death.
    returned: u64,
}

impl Death {
    async fn of(place: &Place, pid: u32, session: Option<String>, led: bool) -> Death {
        let at = Instant::now();
        let status = status_of(place).await;
        let returned = status.map_or(0, |status| status.messages.returned);
        Death { pid, session, led, at, returned }
    }

    /// Waits until the fleet has put everything back, and reports the result.
    async fn settle(
        self,
        place: Place,
        leads: Option<(u32, Duration)>,
        events: mpsc::Sender<Event>,
    ) {
        let what = if self.led { "generator" } else { "worker" };
        let leader = leads.map_or_else(String::new, |(pid, after)| {
            format!(" → {pid} leads after {} ms", after.as_millis())
        });
        let deadline = Instant::now() + SETTLE_MAX;
        let verdict = loop {
            if let Ok(status) = status_of(&place).await {
                let there =
                    |id: &String| status.members.iter().any(|member| member.id.as_str() == *id);
                if !self.session.as_ref().is_some_and(there) && status.orphans == 0 {
                    let balance = status.messages.balance;
                    break format!(
                        "{} lost · {} doubled · {} handed on",
                        balance.max(0),
                        (-balance).max(0),
                        status.messages.returned.saturating_sub(self.returned)
                    );
                }
            }
            if Instant::now() > deadline {
                break "its messages are still being put back".to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let text = format!("{what} {} died{leader} · {verdict}", self.pid);
        let _ = events.send(Event::Answer(text, leads.map(|(pid, _)| pid))).await;
    }
}
