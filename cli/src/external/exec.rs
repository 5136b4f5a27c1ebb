//! A process per message: payload on stdin, exit code 0 is done, 75 asks for a retry, 65 is a verdict.
//!
//! A process that writes a JSON object to descriptor 3 says more: see `answer.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use artel::{Context, Handle, Message, Outcome};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::answer::{self, accident};
use super::process::{CommandLine, LINGER, Tail, reason};

/// Handles each message with a process of its own.
pub(crate) struct Exec {
    pub(crate) command: CommandLine,
}

/// Exit codes with a meaning, as in sysexits.h: try again later, and the data is wrong.
const EX_TEMPFAIL: i32 = 75;
const EX_DATAERR: i32 = 65;
/// Bytes that a process may write to descriptor 3.
const ANSWER_BYTES_MAX: usize = 1 << 20;

impl Handle for Exec {
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        match self.run(&message, &context).await {
            Ok(outcome) => outcome,
            Err(error) => accident(format!("the handler cannot start: {error}")),
        }
    }
}

impl Exec {
    async fn run(&self, message: &Message, context: &Context) -> io::Result<Outcome> {
        let env = environment(message, context);
        let (said, third) = io::pipe()?;
        let third = OwnedFd::from(third);
        let until = Some(context.deadline);
        let mut running = self.command.start(Stdio::inherit, &env, until, Some(&third)).await?;
        drop(third);
        let said = pipe::Receiver::from_owned_fd(OwnedFd::from(said))?;
        let mut answer = Vec::new();
        let stdin = running.child.stdin.take();
        let stderr = running.child.stderr.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A handler need not read its message.
                let _ = stdin.write_all(message.payload()).await;
            }
        };
        let mut feed = std::pin::pin!(feed);
        let (mut fed, mut tail, mut stderr) = (false, Tail::default(), stderr);
        let status = {
            let mut hear = std::pin::pin!(hear(said, &mut answer));
            let (mut heard, mut wait) = (false, std::pin::pin!(running.wait()));
            let status = loop {
                tokio::select! {
                    status = &mut wait => break status,
                    () = &mut feed, if !fed => fed = true,
                    () = &mut hear, if !heard => heard = true,
                    more = read(&mut tail, &mut stderr), if stderr.is_some() => {
                        if !more {
                            stderr = None;
                        }
                    }
                }
            };
            if !heard {
                let _ = tokio::time::timeout(LINGER, hear).await;
            }
            status
        };
        let rest = async { while stderr.is_some() && read(&mut tail, &mut stderr).await {} };
        let _ = tokio::time::timeout(LINGER, rest).await;
        let code = status.as_ref().ok().and_then(std::process::ExitStatus::code);
        if code == Some(0) && !tail.text().is_empty() {
            tracing::debug!(id = %context.id, said = tail.text(), "handler wrote to stderr");
        }
        Ok(outcome(code, &answer, || reason(&status, &tail.text())))
    }
}

/// Reads what a process says. What is too much is read on and thrown away: a process that waits for its reader would run into
/// its time-out.
async fn hear(mut said: pipe::Receiver, answer: &mut Vec<u8>) {
    let most = ANSWER_BYTES_MAX as u64 + 1;
    let _ = (&mut said).take(most).read_to_end(answer).await;
    let _ = tokio::io::copy(&mut said, &mut tokio::io::sink()).await;
}

/// What a process meant by its exit code and by what it wrote to descriptor 3.
fn outcome(code: Option<i32>, answer: &[u8], reason: impl Fn() -> String) -> Outcome {
    let wrong = |why: String| Outcome::failed(format!("the handler's answer is wrong: {why}"));
    if answer.iter().all(u8::is_ascii_whitespace) {
        return match code {
            Some(0) => Outcome::done(),
            Some(EX_TEMPFAIL) => Outcome::retry(reason()),
            Some(EX_DATAERR) => Outcome::failed(reason()),
            _ => accident(reason()),
        };
    }
    // As with a line: a process that does not speak our language may have crashed, and may do better next time.
    let nonsense = |why: String| accident(format!("the handler's answer is wrong: {why}"));
    if answer.len() > ANSWER_BYTES_MAX {
        return nonsense(format!("it has more than {ANSWER_BYTES_MAX} bytes"));
    }
    let mut fields = match serde_json::from_slice::<Value>(answer) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return nonsense("it is not an object".to_owned()),
        Err(error) => return nonsense(format!("it is not JSON ({error})")),
    };
    // The exit code still counts: a process that crashed after its answer is not done.
    match code {
        Some(0) => {}
        Some(EX_TEMPFAIL) => {
            if let None | Some(Value::Null | Value::Bool(false)) = fields.get("retry") {
                fields.insert("retry".to_owned(), true.into());
            }
        }
        Some(EX_DATAERR) => {
            for field in ["retry", "snooze"] {
                fields.remove(field);
            }
            fields.insert("failed".to_owned(), true.into());
        }
        // An accident, whatever it said of itself; what follows, follows when it finally fails.
        _ => {
            for field in ["failed", "retry", "snooze"] {
                fields.remove(field);
            }
            fields.insert("error".to_owned(), reason().into());
        }
    }
    if code != Some(0) && !fields.contains_key("error") {
        fields.insert("error".to_owned(), reason().into());
    }
    answer::outcome(&fields).unwrap_or_else(wrong)
}

async fn read(tail: &mut Tail, stderr: &mut Option<tokio::process::ChildStderr>) -> bool {
    match stderr {
        Some(stderr) => tail.read(stderr).await,
        None => false,
    }
}

fn environment(message: &Message, context: &Context) -> Vec<(&'static str, String)> {
    let mut env = vec![
        ("ARTEL_MESSAGE_ID", context.id.to_string()),
        ("ARTEL_ATTEMPT", context.attempt.to_string()),
        ("ARTEL_RETRY", context.retry.to_string()),
        ("ARTEL_RETRIES_LEFT", context.retries_left.to_string()),
        ("ARTEL_MESSAGE_LANE", message.lane().to_string()),
        ("ARTEL_TERM", context.term.map_or_else(String::new, |term| term.to_string())),
    ];
    let traceparent = artel::trace::traceparent().or(message.traceparent().map(str::to_owned));
    env.extend(traceparent.map(|traceparent| ("TRACEPARENT", traceparent)));
    env.extend(message.kind().map(|kind| ("ARTEL_MESSAGE_KIND", kind.to_owned())));
    env.extend(message.origin().map(|origin| ("ARTEL_MESSAGE_ORIGIN", origin.to_owned())));
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(code: Option<i32>, answer: &str) -> Outcome {
        outcome(code, answer.as_bytes(), || "why".to_owned())
    }

    #[test]
    fn an_exit_code_says_how_it_ended() {
        assert!(meant(Some(0), "").is_done());
        assert_eq!(meant(Some(75), " \n"), Outcome::retry("why"));
        assert_eq!(meant(Some(65), ""), Outcome::failed("why"));
        assert_eq!(meant(Some(1), ""), accident("why"));
        assert_eq!(meant(None, ""), accident("why"), "a signal");
    }

    #[test]
    fn descriptor_three_says_more_and_the_exit_code_still_counts() {
        assert_eq!(meant(Some(0), r#"{"then":[{"payload":"x"}]}"#), Outcome::done().then("x"));
        assert_eq!(meant(Some(75), r#"{"error":"busy"}"#), Outcome::retry("busy"));
        let after = std::time::Duration::from_secs(9);
        assert_eq!(meant(Some(75), r#"{"retry":9}"#), Outcome::retry("why").after(after));
        assert_eq!(meant(Some(65), r#"{"error":"bad"}"#), Outcome::failed("bad"));
        assert_eq!(meant(Some(65), r#"{"snooze":9}"#), Outcome::failed("why"));
        assert_eq!(meant(Some(65), r#"{"retry":true}"#), Outcome::failed("why"));
        assert_eq!(meant(Some(75), r#"{"retry":false}"#), Outcome::retry("why"));
        let crashed = meant(Some(1), r#"{"snooze":9,"then":[{"payload":"x"}]}"#);
        assert_eq!(crashed, accident("why").then("x"));
        for wrong in ["nonsense", "[]", r#"{"snooze":"x"}"#] {
            assert_eq!(meant(Some(0), wrong).cause(), Some(artel::Cause::Handler), "{wrong}");
        }
    }
}
