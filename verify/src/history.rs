//! The history: what every process did, one line per event. A line is written with one system call
//! before and after every step, so that `kill -9` loses nothing that happened.
//!
//! **Invariant:** the line for the begin of a step is in the file before the step begins; the line
//! for its end is written after it. A step without its second line has an unknown end.

mod file;

pub(crate) use file::{Book, NO_HISTORY, Tail, excerpt};
use rustix::time::{ClockId, clock_gettime};

/// Who numbered a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// A generator, in its term.
    Term(u64),
    /// A sender, or a process that put it back to work, under this name.
    Sender(u64),
    /// An outcome that this session recorded: the message follows it.
    Outcome(u128),
    /// A periodic entry: what it makes up for, and which of its kind it is.
    Entry(CatchUp, u32),
}

/// What a periodic entry makes up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CatchUp {
    Once,
    Skip,
    All,
}

impl CatchUp {
    pub(crate) const EACH: [CatchUp; 3] = [CatchUp::Once, CatchUp::Skip, CatchUp::All];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CatchUp::Once => "once",
            CatchUp::Skip => "skip",
            CatchUp::All => "all",
        }
    }
}

/// The name of a periodic entry.
pub(crate) fn entry_name(catch_up: CatchUp, number: u32) -> String {
    format!("{}-{number}", catch_up.name())
}

/// Reads the name of a periodic entry.
pub(crate) fn entry_of(name: &str) -> Option<(CatchUp, u32)> {
    let (kind, number) = name.split_once('-')?;
    let kind = CatchUp::EACH.into_iter().find(|one| one.name() == kind)?;
    Some((kind, number.parse().ok()?))
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Term(term) => write!(f, "{term}"),
            Source::Sender(name) => write!(f, "s{name:016x}"),
            Source::Outcome(member) => write!(f, "f{member:024x}"),
            Source::Entry(catch_up, number) => write!(f, "c{}", entry_name(*catch_up, *number)),
        }
    }
}

impl Source {
    pub(crate) fn read(text: &str) -> Option<Source> {
        let rest = text.get(1..).unwrap_or_default();
        match text.chars().next()? {
            's' => u64::from_str_radix(rest, 16).ok().map(Source::Sender),
            'f' => u128::from_str_radix(rest, 16).ok().map(Source::Outcome),
            'c' => entry_of(rest).map(|(catch_up, number)| Source::Entry(catch_up, number)),
            _ => text.parse().ok().map(Source::Term),
        }
    }
}

/// The id of a message: who numbered it, and the number. A message that follows an outcome has its block, position and
/// place as one number; a message of an entry has the second for which it fired.
pub(crate) type Id = (Source, u64);

/// Bits of the position in a block, and of the place among the messages that follow one outcome.
const POSITION_BITS: u32 = 10;
const PLACE_BITS: u32 = 7;

/// One event of the history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// A generator is about to push messages of its term, numbered from `seq`.
    Make {
        term: u64,
        seq: u64,
        many: u64,
    },
    /// A worker begins with a message. `maker` is a process, `key:17` if the message was sent, or
    /// `of:7-3` if message 7-3 was put back to work. `made` is when.
    Start {
        id: Id,
        attempt: u32,
        /// How often it was retried and snoozed before.
        again: (u32, u32),
        maker: String,
        made: u64,
    },
    /// Its handler wants another run.
    Asks {
        id: Id,
        attempt: u32,
        again: (u32, u32),
    },
    /// Redis confirmed to a worker that the message runs again.
    Again {
        id: Id,
        attempt: u32,
    },
    /// Its handler returned.
    End {
        id: Id,
        attempt: u32,
        failed: bool,
    },
    /// The outcome of a worker was not recorded, because it had lost the message.
    ClaimLost(Id),
    /// Redis confirmed to a worker that this outcome is recorded.
    Recorded {
        id: Id,
        attempt: u32,
    },
    /// A sender is about to send its message with this number, for the first time or again.
    Sends(u64),
    /// The sender got this id as the answer. It is new, or a message with the same key was there already.
    Sent {
        number: u64,
        id: Id,
        is_new: bool,
    },
    /// The sender was told that Redis has forgotten this many of its messages.
    Forgot(u64),
    /// A sender is about to cancel this message, which waits for a time.
    Cancels(Id),
    /// Redis confirmed that it is cancelled.
    Cancelled(Id),
    /// The taker has seen that `id` follows the outcome of `of`.
    Follows {
        id: Id,
        of: Id,
    },
    /// A sender is about to declare the periodic entries with this number.
    Declares(u32),
    Joined,
    SessionLost,
    Leads(u64),
    Deposed(u64),
    Fenced(u64),
    Died,
    Adopted {
        returned: u64,
    },
    DataLoss(String),
    /// A heartbeat of a member was answered by this server process. If it is another one than before, so many steps are
    /// forgotten.
    Reached {
        server: String,
        forgotten: u64,
    },
    Full,
    /// A taker has printed this error.
    Took(Id),
    /// Redis confirmed to the taker that this error is removed.
    Removed(Id),
    /// The taker has seen that `id` was made when `of` was put back to work.
    Came {
        id: Id,
        of: Id,
    },
    /// This process has seen that it is time to rest: it makes or sends nothing any more.
    Rests,
    /// A waiter returned: the event has this generation.
    Woken(u64),
    /// A member is about to wait for the event with this name, which is set once.
    Waits(String),
    /// A process has set that event.
    Set(String),
    /// The wait for it returned.
    Woke(String),
    /// A process is about to make this call to Redis, a script or a command. Each call has its own
    /// number.
    Call {
        number: u64,
        call: String,
    },
    /// Redis answered the call. For one of our scripts, `tag` is its answer.
    Answer {
        number: u64,
        tag: String,
    },
    /// The call got no answer: nobody knows whether it took effect.
    Unanswered(u64),
    /// A process trusts its session until this time.
    Trusts(u64),
    /// A fault of a process or of Redis begins, and lasts this long.
    Fault {
        kind: String,
        whom: String,
        ms: u64,
    },
    /// A fault of this process, or of Redis, is over.
    Over(String),
    Disconnected,
    Reconnected,
}

/// Microseconds on a clock that all processes of this machine share and that nobody can set.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

pub(crate) fn id_text((source, seq): Id) -> String {
    match source {
        Source::Term(_) | Source::Sender(_) => format!("{source}-{seq}"),
        Source::Entry(..) => format!("{source}-{}", seq * 1000),
        Source::Outcome(_) => {
            let place = seq & ((1 << PLACE_BITS) - 1);
            let position = (seq >> PLACE_BITS) & ((1 << POSITION_BITS) - 1);
            format!("{source}-{}-{position}-{place}", seq >> (PLACE_BITS + POSITION_BITS))
        }
    }
}

pub(crate) fn id_of(text: &str) -> Option<Id> {
    if text.starts_with('f') {
        let mut parts = text.split('-');
        let source = Source::read(parts.next()?)?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (block, position, place) = (number()?, number()?, number()?);
        return Some((source, (((block << POSITION_BITS) | position) << PLACE_BITS) | place));
    }
    let (source, seq) = text.rsplit_once('-')?;
    let (source, seq) = (Source::read(source)?, seq.parse::<u64>().ok()?);
    Some((source, if matches!(source, Source::Entry(..)) { seq / 1000 } else { seq }))
}

impl Entry {
    fn line(&self) -> String {
        match self {
            Entry::Make { term, seq, many } => format!("make {term} {seq} {many}"),
            Entry::Start { id, attempt, again: (retries, snoozes), maker, made } => {
                format!("start {} {attempt} {retries} {snoozes} {maker} {made}", id_text(*id))
            }
            Entry::Asks { id, attempt, again: (retries, snoozes) } => {
                format!("asks {} {attempt} {retries} {snoozes}", id_text(*id))
            }
            Entry::Again { id, attempt } => format!("again {} {attempt}", id_text(*id)),
            Entry::Cancels(id) => format!("cancels {}", id_text(*id)),
            Entry::Cancelled(id) => format!("cancelled {}", id_text(*id)),
            Entry::Follows { id, of } => format!("follows {} {}", id_text(*id), id_text(*of)),
            Entry::Declares(number) => format!("declares {number}"),
            Entry::End { id, attempt, failed } => {
                format!(
                    "end {} {attempt} {}",
                    id_text(*id),
                    if *failed { "failed" } else { "done" }
                )
            }
            Entry::ClaimLost(id) => format!("claim-lost {}", id_text(*id)),
            Entry::Recorded { id, attempt } => format!("recorded {} {attempt}", id_text(*id)),
            Entry::Sends(number) => format!("sends {number}"),
            Entry::Sent { number, id, is_new } => {
                format!("sent {number} {} {}", id_text(*id), if *is_new { "new" } else { "old" })
            }
            Entry::Forgot(messages) => format!("forgot {messages}"),
            Entry::Joined => "joined".into(),
            Entry::SessionLost => "session-lost".into(),
            Entry::Leads(term) => format!("leads {term}"),
            Entry::Deposed(term) => format!("deposed {term}"),
            Entry::Fenced(term) => format!("fenced {term}"),
            Entry::Died => "died".into(),
            Entry::Adopted { returned } => format!("adopted {returned}"),
            Entry::DataLoss(what) => format!("data-loss {what}"),
            Entry::Reached { server, forgotten } => format!("reached {server} {forgotten}"),
            Entry::Full => "full".into(),
            Entry::Took(id) => format!("took {}", id_text(*id)),
            Entry::Removed(id) => format!("removed {}", id_text(*id)),
            Entry::Came { id, of } => format!("came {} {}", id_text(*id), id_text(*of)),
            Entry::Rests => "rests".into(),
            Entry::Woken(generation) => format!("woken {generation}"),
            Entry::Waits(name) => format!("waits {name}"),
            Entry::Set(name) => format!("set {name}"),
            Entry::Woke(name) => format!("woke {name}"),
            Entry::Call { number, call } => format!("call {number} {call}"),
            Entry::Answer { number, tag } => format!("answer {number} {tag}"),
            Entry::Unanswered(number) => format!("unanswered {number}"),
            Entry::Trusts(until) => format!("trusts {until}"),
            Entry::Fault { kind, whom, ms } => format!("fault {kind} {whom} {ms}"),
            Entry::Over(whom) => format!("over {whom}"),
            Entry::Disconnected => "disconnected".into(),
            Entry::Reconnected => "reconnected".into(),
        }
    }

    fn read(line: &str) -> Option<(u64, Entry)> {
        let mut words = Words(line.split(' '));
        let (at, verb) = (words.number()?, words.text()?);
        let entry = match verb.as_str() {
            "make" => {
                Entry::Make { term: words.number()?, seq: words.number()?, many: words.number()? }
            }
            "start" => {
                let (id, attempt, again) = words.attempt()?;
                let (maker, made) = (words.text()?, words.number()?);
                Entry::Start { id, attempt, again, maker, made }
            }
            "asks" => {
                let (id, attempt, again) = words.attempt()?;
                Entry::Asks { id, attempt, again }
            }
            "again" => Entry::Again { id: words.id()?, attempt: words.number()? },
            "cancels" => Entry::Cancels(words.id()?),
            "cancelled" => Entry::Cancelled(words.id()?),
            "follows" => Entry::Follows { id: words.id()?, of: words.id()? },
            "declares" => Entry::Declares(words.number()?),
            "end" => {
                let (id, attempt) = (words.id()?, words.number()?);
                Entry::End { id, attempt, failed: words.text()? == "failed" }
            }
            "claim-lost" => Entry::ClaimLost(words.id()?),
            "recorded" => Entry::Recorded { id: words.id()?, attempt: words.number()? },
            "sends" => Entry::Sends(words.number()?),
            "sent" => {
                let (number, id) = (words.number()?, words.id()?);
                Entry::Sent { number, id, is_new: words.text()? == "new" }
            }
            "forgot" => Entry::Forgot(words.number()?),
            "joined" => Entry::Joined,
            "session-lost" => Entry::SessionLost,
            "leads" => Entry::Leads(words.number()?),
            "deposed" => Entry::Deposed(words.number()?),
            "fenced" => Entry::Fenced(words.number()?),
            "died" => Entry::Died,
            "adopted" => Entry::Adopted { returned: words.number()? },
            "data-loss" => Entry::DataLoss(words.0.collect::<Vec<_>>().join(" ")),
            "reached" => Entry::Reached { server: words.text()?, forgotten: words.number()? },
            "full" => Entry::Full,
            "took" => Entry::Took(words.id()?),
            "removed" => Entry::Removed(words.id()?),
            "came" => Entry::Came { id: words.id()?, of: words.id()? },
            "rests" => Entry::Rests,
            "woken" => Entry::Woken(words.number()?),
            "waits" => Entry::Waits(words.text()?),
            "set" => Entry::Set(words.text()?),
            "woke" => Entry::Woke(words.text()?),
            "call" => Entry::Call { number: words.number()?, call: words.text()? },
            "answer" => Entry::Answer { number: words.number()?, tag: words.text()? },
            "unanswered" => Entry::Unanswered(words.number()?),
            "trusts" => Entry::Trusts(words.number()?),
            "fault" => {
                Entry::Fault { kind: words.text()?, whom: words.text()?, ms: words.number()? }
            }
            "over" => Entry::Over(words.text()?),
            "disconnected" => Entry::Disconnected,
            "reconnected" => Entry::Reconnected,
            _ => return None,
        };
        Some((at, entry))
    }
}

/// The words of a line that were not read yet.
struct Words<'a>(std::str::Split<'a, char>);

impl Words<'_> {
    fn text(&mut self) -> Option<String> {
        self.0.next().map(str::to_owned)
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn id(&mut self) -> Option<Id> {
        id_of(self.0.next()?)
    }

    /// A message, the attempt, and how often it was retried and snoozed before.
    fn attempt(&mut self) -> Option<(Id, u32, (u32, u32))> {
        Some((self.id()?, self.number()?, (self.number()?, self.number()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m1.1.history");
        let (third, sent) = ((Source::Term(7), 3), (Source::Sender(0xab), 1));
        let next = id_of("fa2b81f06c90b51470e65416b-12-1000-1").expect("an id");
        assert_eq!(id_text(next), "fa2b81f06c90b51470e65416b-12-1000-1");
        let entries = [
            Entry::Make { term: 7, seq: 1, many: 10 },
            Entry::Start { id: third, attempt: 4, again: (1, 1), maker: "m2.4".into(), made: 99 },
            Entry::Asks { id: next, attempt: 1, again: (0, 0) },
            Entry::Again { id: next, attempt: 1 },
            Entry::Cancels(sent),
            Entry::Cancelled(sent),
            Entry::Follows { id: next, of: third },
            Entry::ClaimLost((Source::Entry(CatchUp::All, 3), 1_794_710_083)),
            Entry::Declares(3),
            Entry::End { id: third, attempt: 2, failed: true },
            Entry::ClaimLost(third),
            Entry::Recorded { id: third, attempt: 2 },
            Entry::Sends(17),
            Entry::Sent { number: 17, id: sent, is_new: true },
            Entry::Forgot(3),
            Entry::Reached { server: "a1".into(), forgotten: 7 },
            Entry::ClaimLost(sent),
            Entry::Leads(7),
            Entry::DataLoss("two words".into()),
            Entry::Took(third),
            Entry::Removed(sent),
            Entry::Came { id: sent, of: third },
            Entry::Rests,
            Entry::Woken(12),
            Entry::Waits("m1.1:4".into()),
            Entry::Set("m1.1:4".into()),
            Entry::Woke("m1.1:4".into()),
            Entry::Call { number: 9, call: "push".into() },
            Entry::Answer { number: 9, tag: String::new() },
            Entry::Unanswered(10),
            Entry::Trusts(99),
            Entry::Fault { kind: "cut".into(), whom: "m1.1".into(), ms: 7 },
            Entry::Over("m1.1".into()),
        ];
        let book = Book::open(&path).expect("a file");
        let mut tail = Tail::new("m1.1".into(), path.clone());
        entries.iter().for_each(|entry| book.put(entry));
        let read: Vec<Entry> = tail.read().into_iter().map(|(_, entry)| entry).collect();
        assert_eq!(read, entries);
        // A line that is still being written is read when it is complete.
        let mut file = File::options().append(true).open(&path).expect("a file");
        file.write_all(b"5 lea").expect("written");
        assert_eq!(tail.read(), []);
        file.write_all(b"ds 8\n").expect("written");
        assert_eq!(tail.read(), [(5, Entry::Leads(8))]);
        let shown = excerpt(dir.path(), &["7-3".into()], 10);
        assert_eq!(shown.len(), 7, "{shown:?}");
        assert!(shown[0].contains("m1.1 start 7-3 4 1 1"), "{shown:?}");
    }
}
