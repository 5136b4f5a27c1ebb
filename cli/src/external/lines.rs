//! A process per slot that reads a JSON line per message and answers with a JSON line.
//!
//! ```text
//! → {"v":1,"id":"1794710083943807-12","term":1794710083943807,"attempt":1,"payload":"hello"}
//! ← {"id":"1794710083943807-12"}                         done
//! ← {"id":"1794710083943807-12","error":"no customer"}   failed, or retried with `--retries`
//! ```
//!
//! `answer.rs` has all that an answer can say. A payload that is not UTF-8 is sent as `payload_b64`. If a process ends,
//! answers something else or takes too long, that is an accident, and the process is replaced.

use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use artel::{Context, Handle, Message, Outcome};
use base64::Engine;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};

use super::answer::{self, accident};
use super::pace::{Pace, Tell};
use super::process::{CommandLine, Running, Tail, reason};
use crate::harmless::harmless;

/// Bytes that an answer may have.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a line of stderr that are logged at a time.
const LINE_BYTES_MAX: u64 = 8 << 10;
/// How long processes have to end by themselves when there are no more messages.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Handles messages with processes that stay.
pub(crate) struct Lines {
    command: CommandLine,
    /// Processes that wait for a message. At most one per slot: each comes from a slot.
    idle: Mutex<Vec<Talker>>,
}

/// One process, between two messages.
struct Talker {
    running: Running,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    tail: Arc<Mutex<Tail>>,
}

impl Lines {
    pub(crate) fn new(command: CommandLine) -> Lines {
        Lines { command, idle: Mutex::default() }
    }

    fn pop(&self) -> Option<Talker> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// A process that waits, if there is one. A process that has ended, or that printed something
    /// without a message, is dropped: its output would be taken for the answer to the next message.
    async fn waiting(&self) -> Option<Talker> {
        while let Some(mut idle) = self.pop() {
            let silent = tokio::select! {
                biased;
                _ = idle.stdout.fill_buf() => false,
                () = std::future::ready(()) => true,
            };
            if silent && !idle.running.has_ended() {
                return Some(idle);
            }
        }
        None
    }

    async fn start(&self, until: Instant) -> io::Result<Talker> {
        let mut running = self.command.start(Stdio::piped, &[], Some(until), None).await?;
        let child = &mut running.child;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(io::Error::other("it has no streams"));
        };
        let tail = Arc::new(Mutex::new(Tail::default()));
        let heard = tail.clone();
        // This task ends with the stream: when the process and all processes that it started have
        // ended.
        tokio::spawn(async move {
            let (mut stderr, mut line) = (BufReader::new(stderr), Vec::new());
            let mut pace = Pace::new(Instant::now());
            // A line that does not end is logged in pieces.
            while let Ok(1..) =
                (&mut stderr).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await
            {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(&line);
                let Tell { left_out, this } = pace.next(Instant::now());
                if left_out > 0 {
                    tracing::warn!("handler: {left_out} lines were left out, it prints too much");
                }
                if this {
                    let said = String::from_utf8_lossy(&line);
                    tracing::info!("handler: {}", harmless(said.trim_end()));
                }
                line.clear();
            }
            if pace.left_out() > 0 {
                tracing::warn!("handler: {} lines were left out", pace.left_out());
            }
        });
        Ok(Talker { running, stdin, stdout: BufReader::new(stdout), tail })
    }

    /// Closes stdin of all processes that wait, and gives them a moment to end by themselves.
    pub(crate) async fn close(&self) {
        let mut all = Vec::new();
        while let Some(Talker { running, stdin, stdout, tail }) = self.pop() {
            drop((stdin, stdout, tail));
            all.push(running);
        }
        let ends = async {
            for running in &mut all {
                let _ = running.wait().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_MAX, ends).await;
    }
}

impl Handle for Lines {
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        let request = request(&message, &context);
        let mut reused = self.waiting().await;
        loop {
            let (mut talker, fresh) = match reused.take() {
                Some(talker) => (talker, false),
                None => match self.start(context.deadline).await {
                    Ok(talker) => (talker, true),
                    Err(error) => {
                        return accident(format!("the handler cannot start: {error}"));
                    }
                },
            };
            // Its earlier output is about other messages.
            *talker.tail.lock().unwrap_or_else(PoisonError::into_inner) = Tail::default();
            if talker.stdin.write_all(&request).await.is_err() {
                if fresh {
                    return talker.failed(&[]).await;
                }
                continue; // it ended while it waited: a new process gets the message
            }
            let mut answer = Vec::new();
            let mut stdout = (&mut talker.stdout).take(ANSWER_BYTES_MAX);
            let read = stdout.read_until(b'\n', &mut answer).await;
            if read.is_err() || answer.last() != Some(&b'\n') {
                return talker.failed(&answer).await;
            }
            return match outcome(&answer, context.id.as_str()) {
                Ok(outcome) => {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(talker);
                    outcome
                }
                // Its answers do not match its messages any more: it is ended and replaced.
                Err(reason) => accident(reason),
            };
        }
    }
}

impl Talker {
    /// The outcome of a process that ended, or printed too much, instead of answering.
    async fn failed(mut self, answer: &[u8]) -> Outcome {
        if answer.len() as u64 >= ANSWER_BYTES_MAX {
            return accident("the handler's answer is longer than 1 MiB");
        }
        let status = self.running.wait().await;
        // The end of its stderr may still be on its way.
        for _ in 0..20 {
            if Arc::strong_count(&self.tail) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner).text();
        accident(format!("the handler ended without an answer, {}", reason(&status, &tail)))
    }
}

fn request(message: &Message, context: &Context) -> Vec<u8> {
    let mut request = json!({"v": 1, "id": context.id.as_str(), "attempt": context.attempt,
                             "retry": context.retry, "retries_left": context.retries_left,
                             "lane": message.lane().name()});
    let traceparent = artel::trace::traceparent().or(message.traceparent().map(str::to_owned));
    let fields = [
        ("term", context.term.map(|term| json!(term.get()))),
        ("kind", message.kind().map(Value::from)),
        ("origin", message.origin().map(Value::from)),
        ("traceparent", traceparent.map(Value::from)),
        ("payload", std::str::from_utf8(message.payload()).ok().map(Value::from)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            request[name] = value;
        }
    }
    if request.get("payload").is_none() {
        request["payload_b64"] = base64::prelude::BASE64_STANDARD.encode(message.payload()).into();
    }
    let mut line = serde_json::to_vec(&request).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Parses an answer; an error says what is wrong with it, and that its process is to be replaced.
fn outcome(answer: &[u8], id: &str) -> Result<Outcome, String> {
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(200)]).trim().to_owned();
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|error| format!("the handler's answer is not JSON ({error}): {shown}"))?;
    let Value::Object(fields) = &answer else {
        return Err(format!("the handler's answer is not an object: {shown}"));
    };
    if answer["id"] != id {
        return Err(format!("the handler answered for another message: {shown}"));
    }
    // It speaks our language, so it stays; but what it asks for cannot be done.
    Ok(answer::outcome(fields)
        .unwrap_or_else(|why| Outcome::failed(format!("the handler's answer is wrong: {why}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_for_one_message_and_says_how_it_ended() {
        assert!(outcome(b"{\"id\":\"5-1\"}\n", "5-1").expect("an answer").is_done());
        assert!(!outcome(b"{\"id\":\"5-1\",\"error\":\"no\"}\n", "5-1").expect("one").is_done());
        let wrong = outcome(b"{\"id\":\"5-2\"}\n", "5-1").expect_err("another");
        assert!(wrong.contains("another message"), "{wrong}");
        let wrong = outcome(b"hello\n", "5-1").expect_err("not JSON");
        assert!(wrong.contains("not JSON") && wrong.ends_with("hello"), "{wrong}");
    }
}
