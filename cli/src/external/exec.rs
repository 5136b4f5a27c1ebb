//! A process per message: payload on stdin, exit code 0 is done.

use std::process::Stdio;

use artel::{Context, Handle, Message, Outcome};
use tokio::io::AsyncWriteExt;

use super::process::{CommandLine, LINGER, Tail, reason};

/// Handles each message with a process of its own.
pub(crate) struct Exec {
    pub(crate) command: CommandLine,
}

impl Handle for Exec {
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        let env = environment(&message, &context);
        let mut running =
            match self.command.start(Stdio::inherit, &env, Some(context.deadline), None).await {
                Ok(running) => running,
                Err(error) => return Outcome::failed(format!("the handler cannot start: {error}")),
            };
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
        let mut wait = std::pin::pin!(running.wait());
        let status = loop {
            tokio::select! {
                status = &mut wait => break status,
                () = &mut feed, if !fed => fed = true,
                more = read(&mut tail, &mut stderr), if stderr.is_some() => {
                    if !more {
                        stderr = None;
                    }
                }
            }
        };
        let rest = async { while stderr.is_some() && read(&mut tail, &mut stderr).await {} };
        let _ = tokio::time::timeout(LINGER, rest).await;
        match &status {
            Ok(status) if status.success() => {
                let said = tail.text();
                if !said.is_empty() {
                    tracing::debug!(id = %context.id, said, "handler wrote to stderr");
                }
                Outcome::done()
            }
            _ => Outcome::failed(reason(&status, &tail.text())),
        }
    }
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
        ("ARTEL_MESSAGE_LANE", message.lane().to_string()),
        ("ARTEL_TERM", context.term.map_or_else(String::new, |term| term.to_string())),
    ];
    env.extend(message.kind().map(|kind| ("ARTEL_MESSAGE_KIND", kind.to_owned())));
    env.extend(message.origin().map(|origin| ("ARTEL_MESSAGE_ORIGIN", origin.to_owned())));
    env
}
