//! A process per tick: each line it prints is a message.

use std::process::Stdio;
use std::time::Duration;

use artel::{BoxError, Generate, NewMessage, Tick};
use tokio::io::AsyncReadExt;

use super::process::{CommandLine, Tail, reason};

/// How long stderr may stay open after the process ended: what it started may hold it.
const LINGER: Duration = Duration::from_millis(200);
/// What a tick may print.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Makes messages by a command. All lines of a tick are taken, or, if the command fails, none.
pub(crate) struct Source {
    pub(crate) command: CommandLine,
}

impl Generate for Source {
    async fn generate(&mut self, tick: Tick) -> Result<Vec<NewMessage>, BoxError> {
        let env = [("ARTEL_TERM", tick.term.to_string()), ("ARTEL_SEQ", tick.seq.to_string())];
        let mut running = self.command.start(Stdio::piped, &env).await;
        drop(running.child.stdin.take());
        let (stdout, stderr) = (running.child.stdout.take(), running.child.stderr.take());
        let (Some(stdout), Some(mut stderr)) = (stdout, stderr) else {
            return Err("its output cannot be read".into());
        };
        let mut output = Vec::new();
        let mut stdout = stdout.take(OUTPUT_BYTES_MAX + 1);
        // Heard beside reading, so that a command that says much is not held up by it.
        let heard = tokio::spawn(async move {
            let mut tail = Tail::default();
            while tail.read(&mut stderr).await {}
            tail.text()
        });
        stdout.read_to_end(&mut output).await?;
        if output.len() as u64 > OUTPUT_BYTES_MAX {
            return Err(format!("the command prints more than {OUTPUT_BYTES_MAX} bytes").into());
        }
        let status = running.wait().await;
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let tail = tokio::time::timeout(LINGER, heard).await;
            let tail = tail.ok().and_then(Result::ok).unwrap_or_default();
            return Err(reason(&status, &tail).into());
        }
        Ok(messages(&output))
    }
}

/// One message per line; a blank line is none.
fn messages(output: &[u8]) -> Vec<NewMessage> {
    let lines = output.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| NewMessage::from(line.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_message() {
        let made = messages(b"one\n\ntwo words\nlast");
        let payloads: Vec<&[u8]> = made.iter().map(NewMessage::payload).collect();
        assert_eq!(payloads, [&b"one"[..], b"two words", b"last"]);
        assert!(messages(b"").is_empty() && messages(b"\n").is_empty());
    }
}
