//! The process that sends messages: at once and for later, under a key and without. It declares periodic entries, and
//! cancels, runs and moves what waits for a time.
//!
//! **Invariant:** what it is about to do is in its history before, and what Redis confirmed after. Its next life repeats only
//! what is safe to repeat.

use std::time::{Duration, Instant};

use artel::{CatchUp, Cron, Error, Fleet, Lane, NewMessage};

use crate::history::{self, Book, Entry, Tail, entry_name, entry_of, id_of, now};
use crate::life::{Later, NOISE, is_noise, later};
use crate::member::{LARGE_BYTES, Part, REST, RETRY, SENDER, role};
use crate::sent::{ENTRY, KEY};

/// How long a sender repeats a call that is not answered.
const SENDS_WITHIN: Duration = Duration::from_secs(60);
/// Every such message of a sender is large.
const LARGE_EVERY: u64 = 20;
const BETWEEN_SENDS: Duration = Duration::from_millis(25);
/// After this time without an answer, a message is sent under another name with the same key. The
/// library would repeat it for a minute, in vain if the clock of Redis is set meanwhile.
const SEND_MAX: Duration = Duration::from_secs(5);
/// How often new periodic entries replace the old ones. An entry whose time was in the future for a moment, because the clock
/// of Redis was wrong, does not fire before that time.
const ENTRIES_EVERY: Duration = Duration::from_secs(10);

/// Is this message of a sender sent under a key?
fn has_key(number: u64) -> bool {
    (number / 2).is_multiple_of(2)
}

/// What earlier lives have done.
#[derive(Default)]
struct Past {
    begun: u64,
    sent: u64,
    declared: u32,
}

impl Past {
    fn read(part: &Part) -> Past {
        let mut past = Past::default();
        for file in std::fs::read_dir(&part.dir).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".history") && role(&name) == SENDER {
                for (_, entry) in Tail::new(name, file.path()).read() {
                    match entry {
                        Entry::Sends(number) => past.begun = past.begun.max(number),
                        Entry::Sent { number, .. } => past.sent = past.sent.max(number),
                        Entry::Declares(number) => past.declared = past.declared.max(number),
                        _ => {}
                    }
                }
            }
        }
        past
    }
}

/// Sends one message after the other, two with keys and two without. If the answer never came, the
/// next life sends the message again with its key. Without a key nobody knows whether it was added,
/// so it is not sent again.
pub(crate) async fn send(part: &Part, book: &Book) -> Result<(), Error> {
    let Past { mut begun, sent, mut declared } = Past::read(part);
    let fleet = loop {
        match part.connect().await {
            Ok(fleet) => break fleet,
            Err(_) => tokio::time::sleep(RETRY).await, // Redis may be down
        }
    };
    let rest = part.dir.join(REST);
    let mut number = begun.max(sent + 1);
    if number <= begun && !has_key(number) {
        number += 1;
    }
    let mut next_entries = Instant::now();
    loop {
        let rests = rest.exists();
        if !rests && Instant::now() >= next_entries {
            declared += 1;
            book.put(&Entry::Declares(declared));
            if declare(&fleet, declared).await.is_ok() {
                next_entries = Instant::now() + ENTRIES_EVERY;
            }
        }
        if number <= begun || !rests {
            book.put(&Entry::Sends(number));
            begun = number;
            number = match send_one(&fleet, book, number).await {
                true => number + 1,
                false => number,
            };
        } else if remove_before(&fleet, u32::MAX).await.is_ok() {
            book.put(&Entry::Rests);
        }
        tokio::time::sleep(BETWEEN_SENDS).await;
    }
}

/// Sends one message. False if it is to be sent again.
async fn send_one(fleet: &Fleet, book: &Book, number: u64) -> bool {
    let mut payload = format!("{KEY}{number} {}", now());
    if number.is_multiple_of(LARGE_EVERY) {
        payload.push(' ');
        payload.extend(std::iter::repeat_n('x', LARGE_BYTES));
    }
    let mut message = NewMessage::from(payload);
    if is_noise(number) {
        message = message.with_kind(NOISE);
    }
    if let Some((delay, _)) = later(number) {
        message = message.after(delay);
    }
    let lane = [Lane::High, Lane::Normal, Lane::Low][number as usize % 3];
    // Long enough to be repeated after every fault.
    let (laned, key) = (fleet.sender().timeout(SENDS_WITHIN).lane(lane), number.to_string());
    let one = match has_key(number) {
        true => tokio::time::timeout(SEND_MAX, laned.send_once(&key, message)).await,
        false => Ok(laned.send(message).await),
    };
    match &one {
        Ok(Err(Error::InDoubt { .. })) if !has_key(number) => return true, // in doubt
        Ok(Err(Error::Forgotten { messages })) => book.put(&Entry::Forgot(*messages)),
        _ => {}
    }
    let Ok(Ok(sent)) = one else { return false };
    let Some(id) = id_of(sent.id.as_str()) else { return false };
    book.put(&Entry::Sent { number, id, is_new: sent.is_new });
    let schedule = fleet.schedule();
    match later(number) {
        Some((_, Later::Cancelled)) => {
            book.put(&Entry::Cancels(id));
            if schedule.cancel(&sent.id).await.is_ok_and(|done| done) {
                book.put(&Entry::Cancelled(id));
            }
        }
        Some((_, Later::RunNow)) => drop(schedule.run_now(&sent.id).await),
        Some((delay, Later::Moved)) => drop(schedule.move_by(&sent.id, delay * 2).await),
        Some((_, Later::Waits)) | None => {}
    }
    true
}

/// Declares an entry of each kind, and removes those of earlier numbers.
async fn declare(fleet: &Fleet, number: u32) -> Result<(), Error> {
    for kind in history::CatchUp::EACH {
        let name = entry_name(kind, number);
        let catch_up = match kind {
            history::CatchUp::Once => CatchUp::Once,
            history::CatchUp::Skip => CatchUp::Skip,
            history::CatchUp::All => CatchUp::All,
        };
        let cron = Cron::new("every 1s").catch_up(catch_up).message(format!("{ENTRY}{name} 0"));
        // One of them must not overlap.
        let cron = if kind == history::CatchUp::Once { cron.no_overlap() } else { cron };
        fleet.crons().set(&name, &cron).await?;
    }
    remove_before(fleet, number).await
}

/// Removes the entries of earlier numbers.
async fn remove_before(fleet: &Fleet, number: u32) -> Result<(), Error> {
    for entry in fleet.crons().list().await? {
        if entry_of(&entry.name).is_some_and(|(_, other)| other < number) {
            fleet.crons().remove(&entry.name).await?;
        }
    }
    Ok(())
}
