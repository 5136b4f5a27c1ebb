//! `artel send`: puts messages into a lane.
//!
//! **Invariant:** exactly the first N lines of stdin are accepted, once each, in order. N is
//! reported whatever happens: a line that cannot be sent, Ctrl-C. Lines that Redis did not answer
//! for are reported as in doubt. A full lane holds up the reader.

mod lines;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use artel::{NewMessage, Sender};
use tokio::sync::mpsc;

use crate::args::{Empty, SendArgs};
use crate::exit::{FAILURE, Failure, OK, UNREACHABLE, USAGE};
use crate::printer;
use crate::settings::Place;
use crate::signals::Signals;

use lines::{Input, Reading, read};

/// Bytes of one line. A batch and a payload have the same limit.
const LINE_BYTES_MAX: usize = Sender::BATCH_BYTES_MAX;
const EMPTY_HINT: &str = "`--empty skip` leaves empty ones out, `--empty send` sends them, too";
/// How long listing all fleets may take, and how many of them are named.
const FLEETS_MAX: Duration = Duration::from_secs(1);
const FLEETS_NAMED: usize = 10;
/// Pause before a full lane is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// How long after a signal the batch on its way may still be answered.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long it may take to find out what is forgotten when nothing more is sent.
const FORGOTTEN_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn send(place: &Place, args: &SendArgs) -> Result<u8, Failure> {
    if args.dedup.is_some() && args.messages.len() != 1 {
        return Err(Failure::new(USAGE, "--dedup is for one message, given as an argument")
            .hint("`artel send --dedup order-7 'pay order 7'`"));
    }
    let empty = match (args.raw, args.empty) {
        (true, Empty::Refuse) => Empty::Send,
        (_, empty) => empty,
    };
    let blank = args.messages.iter().position(String::is_empty);
    if let Some(at) = blank.filter(|_| empty == Empty::Refuse) {
        let error = format!("message {} is empty", at + 1);
        return Err(Failure::new(USAGE, error).hint(EMPTY_HINT));
    }
    // Report a file that cannot be read before anything else is done.
    let input = match &args.file {
        Some(path) if path != Path::new("-") => Input::open(path)?,
        _ => Input::stdin(),
    };
    let fleet = place.connect().await?;
    let info = fleet.info().await?;
    if !info.was_joined {
        warn_of_fleet(place).await;
    }
    let sender =
        fleet.sender().lane(args.lane.into()).remember(args.dedup_for).timeout(args.timeout);
    let signals = Signals::catch()?;
    let batch_max = info.backlog_max.clamp(1, Sender::BATCH_MAX);
    let mut sending = Sending {
        sender,
        batch_max,
        signals,
        args,
        empty,
        accepted: 0,
        waited: false,
        forgotten: 0,
    };
    let ended = if args.messages.is_empty() {
        sending.lines(input).await
    } else {
        sending.arguments().await
    };
    match (ended, sending.forgotten) {
        (Ok(OK), forgotten) if forgotten > 0 => Err(Failure::new(
            FAILURE,
            format!("{forgotten} of {} messages are forgotten, at least", sending.accepted),
        )
        .hint(
            "another server became the primary without them: `--durability all` waits for replicas",
        )),
        (Err(failure), told) => {
            let more = sending.sender.clone().timeout(FORGOTTEN_MAX).forgotten().await;
            if told + more > 0 {
                printer::remark(&format!(
                    "warning: {} of {} messages that were sent are forgotten, at least",
                    told + more,
                    sending.accepted
                ));
            }
            Err(failure)
        }
        (ended, _) => ended,
    }
}

/// Warns that nobody ever joined this fleet. Its name may be wrong, so the existing fleets are
/// named.
async fn warn_of_fleet(place: &Place) {
    let names = async { place.open()?.fleets().await };
    let names = tokio::time::timeout(FLEETS_MAX, names).await.ok().and_then(Result::ok);
    let mut names = names.unwrap_or_default();
    names.retain(|name| *name != place.fleet);
    let more = names.len().saturating_sub(FLEETS_NAMED);
    names.truncate(FLEETS_NAMED);
    let others = match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; there are {}", names.join(", ")),
        (false, more) => format!("; there are {} and {more} more", names.join(", ")),
    };
    printer::remark(&format!(
        "warning: nobody has ever joined fleet {:?}: what is sent waits until somebody does{others}",
        place.fleet
    ));
}

/// A send command while it runs.
struct Sending<'a> {
    sender: Sender,
    /// Messages of one batch.
    batch_max: usize,
    signals: Signals,
    args: &'a SendArgs,
    /// What to do with an empty message.
    empty: Empty,
    accepted: u64,
    /// The remark that the lane is full was printed.
    waited: bool,
    /// Messages that were told as sent, and that Redis has forgotten since.
    forgotten: u64,
}

impl Sending<'_> {
    fn message(&self, payload: Vec<u8>) -> NewMessage {
        let SendArgs { kind, delay, at, expires, retries, .. } = self.args;
        let mut message = NewMessage::from(payload);
        if let Some(kind) = kind {
            message = message.with_kind(kind);
        }
        if let Some(retries) = retries {
            message = message.retries(*retries);
        }
        if let Some(expires) = expires {
            message = message.expires_in(*expires);
        }
        match (delay, at) {
            (Some(delay), _) => message.after(*delay),
            (None, Some(at)) => message.at(*at),
            (None, None) => message,
        }
    }

    async fn arguments(&mut self) -> Result<u8, Failure> {
        for text in &self.args.messages {
            if text.is_empty() && self.empty == Empty::Skip {
                continue;
            }
            let batch = [self.message(text.clone().into_bytes())];
            match self.batch(&batch).await? {
                Ended::Sent => {}
                Ended::Stopped(code) => return Ok(code),
                Ended::Doubt(failure) => return Err(failure),
            }
        }
        Ok(OK)
    }

    async fn lines(&mut self, input: Input) -> Result<u8, Failure> {
        if self.args.file.is_none() && io::stdin().is_terminal() {
            printer::remark("type messages, one per line; Ctrl-D ends");
        }
        let Input { from, source, bytes: total } = input;
        let progress = printer::progress(total);
        let reading = Reading {
            raw: self.args.raw,
            empty: self.empty,
            end: if self.args.null { 0 } else { b'\n' },
            batch_max: self.batch_max,
        };
        // Bounded: a full lane holds up the reader, and the reader holds up the process that writes
        // to us.
        let (batches, mut received) = mpsc::channel(4);
        let reader = tokio::task::spawn_blocking(move || read(source, &from, reading, &batches));
        loop {
            let lines = match self.signals.unless(received.recv()).await {
                Ok(Some(lines)) => lines,
                Ok(None) => break,
                Err(code) => {
                    progress.finish_and_clear();
                    printer::remark(&go_on(self.accepted, "stopped", self.args));
                    return Ok(code);
                }
            };
            let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
            let batch: Vec<NewMessage> = lines.into_iter().map(|line| self.message(line)).collect();
            let before = self.accepted;
            let ended = self.batch(&batch).await.map_err(|failure| {
                let n = self.accepted;
                let error = match n > before {
                    true => format!("lines {} to {n}: {}", before + 1, failure.error),
                    false => format!("line {}: {}", n + 1, failure.error),
                };
                let hint = failure.hint.unwrap_or_default();
                Failure { code: failure.code, error, hint: Some(go_on(n, &hint, self.args)) }
            })?;
            match ended {
                Ended::Sent => {}
                Ended::Stopped(code) => {
                    progress.finish_and_clear();
                    printer::remark(&go_on(self.accepted, "stopped", self.args));
                    return Ok(code);
                }
                Ended::Doubt(failure) => {
                    progress.finish_and_clear();
                    return Err(self.in_doubt(failure, batch.len() as u64));
                }
            }
            progress.inc(if total.is_some() { bytes as u64 } else { batch.len() as u64 });
        }
        progress.finish_and_clear();
        match reader.await {
            Ok(Ok(())) => {}
            Ok(Err(bad)) => {
                let error = format!("line {}: {}", self.accepted + 1, bad.error);
                return Err(Failure::new(FAILURE, error).hint(go_on(
                    self.accepted,
                    bad.hint,
                    self.args,
                )));
            }
            Err(error) => return Err(Failure::new(FAILURE, error.to_string())),
        }
        printer::remark(&format!("sent {}", self.accepted));
        Ok(OK)
    }

    /// The failure when `lines` lines after the accepted ones are in doubt.
    fn in_doubt(&self, failure: Failure, lines: u64) -> Failure {
        let (from, to) = (self.accepted + 1, self.accepted + lines);
        let error = format!("lines {from} to {to} are in doubt: {}", failure.error);
        let certain = match self.accepted {
            0 => "no line is certainly sent".to_owned(),
            1 => "line 1 is sent".to_owned(),
            n => format!("lines 1 to {n} are sent"),
        };
        let hint = format!("{}; {certain}", failure.hint.unwrap_or_default());
        Failure { code: failure.code, error, hint: Some(hint) }
    }

    /// Sends a batch; waits while the lane is full.
    async fn batch(&mut self, batch: &[NewMessage]) -> Result<Ended, Failure> {
        loop {
            let (sender, dedup) = (self.sender.clone(), self.args.dedup.clone());
            let sending = async move {
                match (dedup, batch) {
                    (Some(key), [message]) => {
                        let sent = sender.send_once(&key, message.clone()).await?;
                        Ok(vec![(sent.id, sent.is_new)])
                    }
                    _ => {
                        let ids = sender.send_all(batch).await?;
                        Ok(ids.into_iter().map(|id| (id, true)).collect())
                    }
                }
            };
            let mut sending = std::pin::pin!(sending);
            let (sent, signal) = match self.signals.unless(&mut sending).await {
                Ok(sent) => (sent, None),
                // The batch may have arrived already: wait a little for its answer.
                Err(code) => match tokio::time::timeout(LAST_WORD, sending).await {
                    Ok(sent) => (sent, Some(code)),
                    Err(_) => return Ok(Ended::Doubt(in_doubt(LAST_WORD, code))),
                },
            };
            match sent {
                Ok(sent) => {
                    self.accepted += sent.len() as u64;
                    self.print(&sent)?;
                    return Ok(signal.map_or(Ended::Sent, Ended::Stopped));
                }
                Err(artel::Error::Full { reason }) => {
                    if let Some(code) = signal {
                        return Ok(Ended::Stopped(code));
                    }
                    if !std::mem::replace(&mut self.waited, true) {
                        printer::remark(&format!("waiting for room: {reason}"));
                    }
                    let pause = self.signals.unless(tokio::time::sleep(FULL_PAUSE)).await;
                    if let Err(code) = pause {
                        return Ok(Ended::Stopped(code));
                    }
                }
                // This batch was not added: it is sent again.
                Err(artel::Error::Forgotten { messages }) => {
                    self.forgotten += messages;
                    printer::remark(&format!(
                        "warning: Redis has forgotten {messages} messages that were sent"
                    ));
                    if let Some(code) = signal {
                        return Ok(Ended::Stopped(code));
                    }
                }
                // They are there, and could yet be forgotten.
                Err(error @ artel::Error::Unreplicated { .. }) => {
                    self.accepted += batch.len() as u64;
                    return Err(error.into());
                }
                Err(artel::Error::InDoubt { after, .. }) => {
                    return Ok(Ended::Doubt(in_doubt(after, UNREACHABLE)));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn print(&self, sent: &[(artel::MessageId, bool)]) -> Result<(), Failure> {
        let mut text = String::new();
        for (id, is_new) in sent {
            if self.args.json {
                let document = serde_json::json!({"v": 1, "id": id.as_str(), "duplicate": !is_new});
                text.push_str(&document.to_string());
            } else if self.args.messages.is_empty() {
                continue;
            } else {
                text.push_str(id.as_str());
            }
            text.push('\n');
            if !is_new {
                printer::remark("not sent: this key was used before, by the message above");
            }
        }
        printer::data(&text).map_err(|error| {
            Failure::new(FAILURE, format!("sent, but its id cannot be written: {error}"))
        })
    }
}

/// How a batch ended.
enum Ended {
    Sent,
    /// A signal came. The messages in `accepted` are sent, the others are not.
    Stopped(u8),
    /// It is not known whether the batch was added.
    Doubt(Failure),
}

fn in_doubt(after: Duration, code: u8) -> Failure {
    let error = format!("there was no answer within {} s", after.as_secs());
    Failure::new(code, error)
        .hint("they were sent once or not at all: `artel status` shows how many were sent in all")
}

/// The lines that are certainly sent, and how to continue.
fn go_on(accepted: u64, hint: &str, args: &SendArgs) -> String {
    let hint = if hint.is_empty() { String::new() } else { format!("{hint}; ") };
    // Empty lines that were skipped are not counted.
    let tail = match (args.null, args.empty) {
        (false, Empty::Skip) => "sed '/^$/d' | tail -n",
        (false, _) => "tail -n",
        (true, _) => "tail -z -n",
    };
    match accepted {
        0 => format!("{hint}nothing was sent"),
        1 => format!("{hint}line 1 is sent: go on with `{tail} +2`"),
        n => format!("{hint}lines 1 to {n} are sent: go on with `{tail} +{}`", n + 1),
    }
}
