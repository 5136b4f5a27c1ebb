//! The history: what every process did, one line per event. A line is written with one system call
//! before and after every step, so that `kill -9` loses nothing that happened.
//!
//! **Invariant:** the line for the begin of a step is in the file before the step begins; the line
//! for its end is written after it. A step without its second line has an unknown end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

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
    /// The sender got this id as the answer.
    Sent {
        number: u64,
        id: Id,
    },
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
            Entry::Sent { number, id } => format!("sent {number} {}", id_text(*id)),
            Entry::Joined => "joined".into(),
            Entry::SessionLost => "session-lost".into(),
            Entry::Leads(term) => format!("leads {term}"),
            Entry::Deposed(term) => format!("deposed {term}"),
            Entry::Fenced(term) => format!("fenced {term}"),
            Entry::Died => "died".into(),
            Entry::Adopted { returned } => format!("adopted {returned}"),
            Entry::DataLoss(what) => format!("data-loss {what}"),
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
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let verb = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let entry = match verb {
            "make" => Entry::Make { term: number()?, seq: number()?, many: number()? },
            "start" => {
                let (id, attempt) = (id_of(words.next()?)?, words.next()?.parse().ok()?);
                let again = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let (maker, made) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
                Entry::Start { id, attempt, again, maker, made }
            }
            "asks" => {
                let (id, attempt) = (id_of(words.next()?)?, words.next()?.parse().ok()?);
                let again = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Entry::Asks { id, attempt, again }
            }
            "again" => {
                let (id, attempt) = (id_of(words.next()?)?, words.next()?.parse().ok()?);
                Entry::Again { id, attempt }
            }
            "cancels" => Entry::Cancels(id_of(words.next()?)?),
            "cancelled" => Entry::Cancelled(id_of(words.next()?)?),
            "follows" => Entry::Follows { id: id_of(words.next()?)?, of: id_of(words.next()?)? },
            "declares" => Entry::Declares(words.next()?.parse().ok()?),
            "end" => {
                let (id, attempt) = (id_of(words.next()?)?, words.next()?.parse().ok()?);
                Entry::End { id, attempt, failed: words.next()? == "failed" }
            }
            "claim-lost" => Entry::ClaimLost(id_of(words.next()?)?),
            "recorded" => {
                let (id, attempt) = (id_of(words.next()?)?, words.next()?.parse().ok()?);
                Entry::Recorded { id, attempt }
            }
            "sends" => Entry::Sends(number()?),
            "sent" => Entry::Sent { number: number()?, id: id_of(words.next()?)? },
            "joined" => Entry::Joined,
            "session-lost" => Entry::SessionLost,
            "leads" => Entry::Leads(number()?),
            "deposed" => Entry::Deposed(number()?),
            "fenced" => Entry::Fenced(number()?),
            "died" => Entry::Died,
            "adopted" => Entry::Adopted { returned: number()? },
            "data-loss" => Entry::DataLoss(words.collect::<Vec<_>>().join(" ")),
            "full" => Entry::Full,
            "took" => Entry::Took(id_of(words.next()?)?),
            "removed" => Entry::Removed(id_of(words.next()?)?),
            "came" => Entry::Came { id: id_of(words.next()?)?, of: id_of(words.next()?)? },
            "rests" => Entry::Rests,
            "woken" => Entry::Woken(number()?),
            "waits" => Entry::Waits(words.next()?.to_owned()),
            "set" => Entry::Set(words.next()?.to_owned()),
            "woke" => Entry::Woke(words.next()?.to_owned()),
            "call" => Entry::Call { number: number()?, call: words.next()?.to_owned() },
            "answer" => Entry::Answer { number: number()?, tag: words.next()?.to_owned() },
            "unanswered" => Entry::Unanswered(number()?),
            "trusts" => Entry::Trusts(number()?),
            "fault" => {
                let (kind, whom) = (words.next()?.to_owned(), words.next()?.to_owned());
                Entry::Fault { kind, whom, ms: words.next()?.parse().ok()? }
            }
            "over" => Entry::Over(words.next()?.to_owned()),
            "disconnected" => Entry::Disconnected,
            "reconnected" => Entry::Reconnected,
            _ => return None,
        };
        Some((at, entry))
    }
}

/// The file to which one process writes its history.
#[derive(Debug)]
pub(crate) struct Book {
    file: File,
}

impl Book {
    pub(crate) fn open(path: &Path) -> io::Result<Book> {
        Ok(Book { file: File::options().create(true).append(true).open(path)? })
    }

    /// Writes one line. A process that cannot write its history must end: what it does without a
    /// line would look like a fault of the fleet.
    pub(crate) fn put(&self, entry: &Entry) {
        if self.write(entry).is_err() {
            std::process::exit(NO_HISTORY);
        }
    }

    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        let line = format!("{} {}\n", now(), entry.line());
        (&self.file).write_all(line.as_bytes())
    }
}

/// The exit code of a process that cannot write its history.
pub(crate) const NO_HISTORY: i32 = 74;

/// Reads the history of one life of a process, while it grows.
#[derive(Debug)]
pub(crate) struct Tail {
    /// `m3.12`: process 3 in its 12th life.
    pub(crate) who: String,
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(who: String, path: PathBuf) -> Tail {
        Tail { who, path, file: None, rest: Vec::new() }
    }

    /// The entries that were written since the last call.
    pub(crate) fn read(&mut self) -> Vec<(u64, Entry)> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return Vec::new() };
        let _ = file.read_to_end(&mut self.rest);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8_lossy(&lines).lines().filter_map(Entry::read).collect()
    }
}

/// The lines of all histories that contain one of these words, sorted by time; at most `most`.
pub(crate) fn excerpt(dir: &Path, words: &[String], most: usize) -> Vec<String> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some(who) = name.strip_suffix(".history") else { continue };
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        for line in text.lines() {
            if line.split(' ').skip(1).any(|word| words.iter().any(|wanted| wanted == word)) {
                let (at, rest) = line.split_once(' ').unwrap_or(("0", line));
                found.push((at.parse::<u64>().unwrap_or(0), format!("{who} {rest}")));
            }
        }
    }
    found.sort();
    let begun = found.first().map_or(0, |first| first.0);
    let seconds = |at: u64| (at - begun) as f64 / 1e6;
    let line = |(at, text): (u64, String)| format!("{:>10.6} s  {text}", seconds(at));
    found.into_iter().take(most).map(line).collect()
}

#[cfg(test)]
mod tests {
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
            Entry::Sent { number: 17, id: sent },
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
