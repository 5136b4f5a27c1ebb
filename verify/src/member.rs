//! The processes under test: a member that leads or works. `taker.rs` and `sender.rs` have the others.
//!
//! **Invariant:** the director holds the other end of their stdin; when it is closed, they end.
//! Each writes its own history.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use artel::{
    Batch, BoxError, Config, Context, Durability, Effect, Error, Fleet, Kind, Ledger, Message,
    NewMessage, Notice, Outcome, Tick,
};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::io::AsyncBufReadExt;
use tokio::sync::Notify;

use crate::call_log::CallLog;
use crate::history::{Book, Entry, Id, id_of, now};
use crate::life::{
    AGAIN_AFTER, NOISE, has_effects, is_failed, is_followed, is_refused, retries, snoozes,
};
use crate::sender::send;
use crate::sent::{OF, THEN};
use crate::taker::take;
use artel_rig::Clock;

/// The fleet under test.
pub(crate) const FLEET: &str = "verify";
/// The event its members wait for.
pub(crate) const PULSE: &str = "pulse";
/// The hash in which effects count, two fields per term or sender.
pub(crate) const EFFECTS: &str = "effects";
/// A key that only refused effects would write.
pub(crate) const REFUSED: &str = "refused";
/// Messages a worker handles at once.
pub(crate) const CONCURRENCY: usize = 8;
/// If this file is in the folder of the history, nothing is generated or sent any more.
pub(crate) const REST: &str = "rest";
/// With this file it is not the members' choice whether there is a ledger.
pub(crate) const NO_CHOICE: &str = "no-choice";
/// When this many workers have died while they held a message, it is kept as an error.
pub(crate) const ATTEMPTS_MAX: u32 = 2;
/// Bytes of payload that a worker takes at once. A large message does not fit beside others: it is
/// put back, and taken alone.
const BLOCK_BYTES: usize = 16 << 10;
pub(crate) const LARGE_BYTES: usize = 32 << 10;
/// One tick of these makes this many messages: a batch that travels as a pack and is cut. Without a ledger packs are what
/// is looked at.
const BURST_EVERY: u64 = 64;
const BURST_EVERY_WITHOUT_LEDGER: u64 = 8;
const BURST: u64 = 100;

/// The order to leave.
pub(crate) const LEAVE: &str = "leave";
/// How long a member that leaves may take to finish its work.
const LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// Pause after Redis did not answer.
pub(crate) const RETRY: Duration = Duration::from_millis(50);
/// An event is set at a random time up to this after the order to set it.
const SET_WITHIN: Duration = Duration::from_millis(300);
const BETWEEN_WAITS: Duration = Duration::from_millis(100);
/// The longest possible time between two reads of an event.
const TIMER: Duration = Duration::from_secs(3600);

/// The settings of one process under test.
#[derive(Clone, Debug)]
pub struct Part {
    /// The address of Redis for this process: that of its proxy.
    pub url: String,
    /// Its name, `m3.12`: the third member in its twelfth life. The name decides its role.
    pub name: String,
    /// The folder it writes its history to.
    pub dir: PathBuf,
    /// Time between two ticks of the generator.
    pub interval: Duration,
    /// Messages per tick.
    pub batch: u64,
    /// How long a session lasts without a refresh.
    pub lease: Duration,
    /// When what it is told counts as done.
    pub durability: Durability,
}

/// The role that takes errors, and puts some of them back to work.
pub(crate) const TAKER: &str = "taker";
/// The role that sends messages.
pub(crate) const SENDER: &str = "sender";
/// The role of a fleet with the same name in the next database. No other process may notice it.
pub(crate) const NEXT_DOOR: &str = "next-door";

/// `m3`, in any of its lives.
pub(crate) fn role(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

impl Part {
    pub(crate) fn history(&self) -> PathBuf {
        self.dir.join(format!("{}.history", self.name))
    }

    /// The fleet, whose calls tell only what lasts.
    pub(crate) async fn connect(&self) -> Result<Fleet, Error> {
        Fleet::connect(self.url.as_str(), FLEET).await?.durable(self.durability).await
    }

    /// Runs the process until stdin ends.
    pub async fn play(self) -> Result<(), Error> {
        let Ok(book) = Book::open(&self.history()).map(Arc::new) else {
            std::process::exit(crate::history::NO_HISTORY);
        };
        // If it is frozen when its parent dies, it must continue, or it would stay forever.
        let _ = set_parent_process_death_signal(Some(Signal::CONT));
        if role(&self.name) != NEXT_DOOR {
            let _ = tracing::subscriber::set_global_default(CallLog(book.clone()));
        }
        let fleet = Fleet::open(self.url.as_str(), FLEET)?;
        let leave = Notify::new();
        tokio::select! {
            () = obey(&self, &fleet, &book, &leave) => {
                end_servers(&self.dir);
                Ok(())
            }
            result = async {
                match role(&self.name) {
                    TAKER => take(&self, &book).await,
                    SENDER => send(&self, &book).await,
                    NEXT_DOOR => live_next_door(&self, &book).await,
                    _ => work(&self, &fleet, &book, &leave).await,
                }
            } => result,
        }
    }
}

/// Obeys orders from stdin, to set events or to leave, until stdin ends.
async fn obey(part: &Part, fleet: &Fleet, book: &Arc<Book>, leave: &Notify) {
    let mut told = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = told.next_line().await {
        if line == LEAVE {
            leave.notify_one();
        }
        let Some(name) = line.strip_prefix("set ").map(str::to_owned) else { continue };
        let (fleet, book, durability) = (fleet.clone(), book.clone(), part.durability);
        tokio::spawn(async move {
            let fleet = loop {
                match fleet.durable(durability).await {
                    Ok(fleet) => break fleet,
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            };
            let Ok(event) = fleet.event(&name) else { return };
            // This may be before, while or after the waiter begins to wait.
            tokio::time::sleep(SET_WITHIN.mul_f64(rand::random())).await;
            while event.set().await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
            book.put(&Entry::Set(name));
        });
    }
}

/// Ends the servers when the director is gone: they would run forever.
fn end_servers(dir: &Path) {
    let folders = std::fs::read_dir(dir).into_iter().flatten().flatten();
    folders.for_each(|folder| end_server(&folder.path()));
}

fn end_server(dir: &Path) {
    let pid = std::fs::read_to_string(dir.join("server.pid")).ok();
    let pid = pid.and_then(|pid| pid.trim().parse().ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    // Another process may have the same process id by now.
    let place = std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero()));
    if place.is_ok_and(|place| std::fs::canonicalize(dir).is_ok_and(|dir| dir == place)) {
        let _ = kill_process(pid, Signal::KILL);
        Clock::clean(pid.as_raw_nonzero().get().unsigned_abs());
    }
}

fn config_of(part: &Part) -> Config {
    let mut config = Config::default();
    config.lease = Some(part.lease);
    config.durability = part.durability;
    config.interval = part.interval;
    config.ledger = (!part.dir.join(NO_CHOICE).exists()).then_some(Ledger::All);
    config.label = part.name.clone();
    config.concurrency = CONCURRENCY;
    config.stop_grace = LEAVES_WITHIN;
    config.block_bytes_max = BLOCK_BYTES;
    config.payload_bytes_max = LARGE_BYTES * 2;
    config.attempts_max = Some(ATTEMPTS_MAX);
    config
}

/// The messages of one tick. They are recorded in the history before anything is pushed. Missed
/// ticks are made up for, several in one push.
fn make(part: &Part, book: &Book, tick: &Tick) -> Batch {
    // Now and then a batch is large enough to travel as a pack.
    let without_ledger = part.dir.join(NO_CHOICE).exists();
    let every = if without_ledger { BURST_EVERY_WITHOUT_LEDGER } else { BURST_EVERY };
    let burst = if tick.count % every == 1 { BURST } else { 0 };
    let many = if part.dir.join(REST).exists() { 0 } else { part.batch.max(burst) };
    book.put(&match many {
        0 => Entry::Rests,
        many => Entry::Make { term: tick.term.get(), seq: tick.seq, many },
    });
    let payload = format!("{} {}", part.name, now());
    let before: Option<u64> =
        std::str::from_utf8(tick.state()).ok().and_then(|text| text.parse().ok());
    let after = before.unwrap_or(0) + many;
    let batch = Batch::new((0..many).map(|_| payload.as_str()));
    // Now and then the state is kept although no message is made.
    let keeps = many > 0 || tick.count.is_multiple_of(5);
    if keeps { batch.with_state(after.to_string()) } else { batch }
}

async fn work(part: &Part, fleet: &Fleet, book: &Arc<Book>, leave: &Notify) -> Result<(), Error> {
    let (maker, made) = (part.clone(), Arc::clone(book));
    let generate = move |tick: Tick| {
        let batch = make(&maker, &made, &tick);
        async move { Ok::<Batch, BoxError>(batch) }
    };
    let (worked, quick) = (Arc::clone(book), part.dir.join(NO_CHOICE).exists());
    let handle = move |message: Message, context: Context| {
        let book = worked.clone();
        async move { handle(&book, &message, &context, quick).await }
    };
    let noise = Kind::<Message>::new(NOISE).forget_failed();
    // With connections of its own: the calls of the member must not help the waiters.
    let own = Fleet::open(part.url.as_str(), FLEET)?;
    let mut member = loop {
        let joining = own.join().config(config_of(part));
        let joining = joining.on(noise.clone(), handle.clone()).handle(handle.clone());
        match joining.generate(generate.clone()).start().await {
            Ok(member) => break member,
            Err(_) => tokio::time::sleep(RETRY).await, // Redis may be down
        }
    };
    tokio::spawn(wait(fleet.clone(), book.clone()));
    tokio::spawn(wait_for_each(fleet.clone(), part.name.clone(), book.clone()));
    let mut notices = member.notices();
    loop {
        let notice = tokio::select! {
            notice = notices.next() => notice,
            () = leave.notified() => {
                member.shutdown().await;
                return Ok(());
            }
        };
        let Some(notice) = notice else { return Ok(()) };
        if let Some(entry) = entry_of(notice, member.id().is_some()) {
            book.put(&entry);
        }
    }
}

/// The entry of the history for a notice.
fn entry_of(notice: Notice, is_member: bool) -> Option<Entry> {
    Some(match notice {
        Notice::Joined { .. } => Entry::Joined,
        Notice::BecameGenerator { term, .. } => Entry::Leads(term.get()),
        Notice::LeaseLost { term, .. } => Entry::Deposed(term.get()),
        Notice::Fenced { term } => Entry::Fenced(term.get()),
        Notice::MemberDied { .. } => Entry::Died,
        Notice::Adopted { returned, .. } => Entry::Adopted { returned },
        Notice::ClaimLost { id } => Entry::ClaimLost(id_of(&id.to_string())?),
        Notice::SessionLost { .. } => Entry::SessionLost,
        Notice::DataLossSeen { what } => Entry::DataLoss(what.to_owned()),
        Notice::Full { .. } => Entry::Full,
        Notice::Disconnected { .. } => Entry::Disconnected,
        Notice::Reconnected { .. } => Entry::Reconnected,
        // The most important notice may be among the missed ones.
        Notice::Missed { .. } if is_member => Entry::Joined,
        _ => return None,
    })
}

/// With `quick`, half of the batches take no time: their packs are settled whole.
async fn handle(book: &Book, message: &Message, context: &Context, quick: bool) -> Outcome {
    let text = message.text();
    let mut words = text.split(' ');
    let (maker, made) = (words.next().unwrap_or("-"), words.next().unwrap_or("0"));
    let whole = words.next().is_none_or(|rest| rest.len() == LARGE_BYTES);
    let maker = match message.origin() {
        Some(failed) => format!("{OF}{failed}"),
        None => maker.to_owned(),
    };
    let Some(id) = id_of(&context.id.to_string()) else { return Outcome::failed("a strange name") };
    let (attempt, made) = (context.attempt, made.parse().unwrap_or(0));
    let again = (context.retry, context.snoozed);
    book.put(&Entry::Start { id, attempt, again, maker, made });
    // Some messages are always in work, and now and then a worker dies in the last attempt.
    let deaths = attempt.saturating_sub(context.retry).saturating_sub(context.snoozed);
    let last = deaths == ATTEMPTS_MAX;
    let long = if quick && made % 2 == 1 { 0 } else { 1 + u64::from(last) };
    tokio::time::sleep(Duration::from_millis(id.1 % 8 * 8 * long)).await;
    if context.snoozed < snoozes(id) {
        book.put(&Entry::Asks { id, attempt, again });
        return Outcome::snooze(AGAIN_AFTER);
    }
    if context.retry < retries(id) {
        book.put(&Entry::Asks { id, attempt, again });
        return Outcome::retry("not yet").after(AGAIN_AFTER);
    }
    let failed = is_failed(id);
    book.put(&Entry::End { id, attempt, failed });
    let outcome = outcome(id, whole);
    match is_followed(id) {
        true => outcome.then(format!("{THEN}{} {}", context.id, now())),
        false => outcome,
    }
}

/// How this message ends.
fn outcome(id: Id, whole: bool) -> Outcome {
    let failed = is_failed(id);
    if (failed && !is_refused(id)) || !whole {
        return Outcome::failed(if whole { "found in error" } else { "not as it was sent" });
    }
    if !failed && !has_effects(id) {
        return Outcome::done();
    }
    // Two fields per term or sender: the number of messages, and the sum of their numbers.
    let (source, seq) = (id.0, id.1 as i64);
    let done = Outcome::done().with(Effect::hincr_by(EFFECTS, format!("{source}:n"), 1));
    let done = done.with(Effect::hincr_by(EFFECTS, format!("{source}:sum"), seq));
    match failed {
        // A text is not a hash: Redis must refuse the last effect, and then none of them may
        // happen.
        true => done.with(Effect::set(REFUSED, "text")).with(Effect::hincr_by(REFUSED, "n", 1)),
        false => done,
    }
}

/// A fleet with one member, which is elected and generates in its own database. If it received
/// messages of the other fleet, or the other way round, a member would report that as lost data.
async fn live_next_door(part: &Part, book: &Book) -> Result<(), Error> {
    let mut config = Config::default();
    config.lease = Some(part.lease);
    let next_door = Fleet::open(format!("{}/1", part.url), FLEET)?;
    let mut member = loop {
        let joining = next_door.join().config(config.clone());
        match joining.generate(|_: Tick| async { Vec::<NewMessage>::new() }).start().await {
            Ok(member) => break member,
            Err(_) => tokio::time::sleep(RETRY).await, // Redis may be down
        }
    };
    let mut notices = member.notices();
    while let Some(notice) = notices.next().await {
        if let Notice::DataLossSeen { what } = notice {
            book.put(&Entry::DataLoss(what.to_owned()));
        }
    }
    Ok(())
}

/// Waits for the pulse, again and again.
async fn wait(fleet: Fleet, book: Arc<Book>) -> Result<(), Error> {
    let event = fleet.event(PULSE)?;
    let mut seen = 0;
    loop {
        match event.wait_past(seen).await {
            Ok(generation) if generation != seen => {
                seen = generation;
                book.put(&Entry::Woken(generation));
            }
            Ok(_) => {}
            Err(_) => {
                // After a loss of data the generation begins again.
                seen = 0;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Waits for one event after the other. Each is set once.
async fn wait_for_each(fleet: Fleet, who: String, book: Arc<Book>) -> Result<(), Error> {
    for number in 1_u64.. {
        let name = format!("{who}:{number}");
        // No timer may help the waiter.
        let event = fleet.event(&name)?.reread_every(TIMER)?;
        book.put(&Entry::Waits(name.clone()));
        while event.wait().await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
        book.put(&Entry::Woke(name));
        tokio::time::sleep(BETWEEN_WAITS).await;
    }
    Ok(())
}
