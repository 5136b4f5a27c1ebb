//! A process per tick: each line it prints is a message.

use std::process::Stdio;

use artel::{BoxError, Generate, NewMessage, Tick};
use tokio::io::AsyncReadExt;

use super::process::{CommandLine, LINGER, Tail, reason};

/// What a tick may print.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Makes messages by a command. All lines of a tick are taken, or, if the command fails, none.
pub(crate) struct Source {
    pub(crate) command: CommandLine,
}

impl Generate for Source {
    async fn generate(&mut self, tick: Tick) -> Result<Vec<NewMessage>, BoxError> {
        let env = [("ARTEL_TERM", tick.term.to_string()), ("ARTEL_SEQ", tick.seq.to_string())];
        let mut running = self.command.start(Stdio::piped, &env, None).await?;
        drop(running.child.stdin.take());
        let (stdout, stderr) = (running.child.stdout.take(), running.child.stderr.take());
        let (Some(stdout), Some(mut stderr)) = (stdout, stderr) else {
            return Err("its output cannot be read".into());
        };
        // Heard beside waiting, so that a command that says much is not held up by it.
        let mut printed = tokio::spawn(async move {
            let mut output = Vec::new();
            let read = stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut output).await;
            read.map(|_| output)
        });
        let said = tokio::spawn(async move {
            let mut tail = Tail::default();
            while tail.read(&mut stderr).await {}
            tail.text()
        });
        // It is over when the command has ended, even if something it started holds its output.
        let (status, output) = tokio::select! {
            output = &mut printed => {
                let output = output??;
                // One that prints without end is not waited for.
                too_much(&output)?;
                (running.wait().await, output)
            }
            status = running.wait() => {
                let Ok(output) = tokio::time::timeout(LINGER, printed).await else {
                    return Err("it ended, and something it started holds its output open: \
                                redirect the output of what runs in the background".into());
                };
                (status, output??)
            }
        };
        too_much(&output)?;
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let tail = tokio::time::timeout(LINGER, said).await;
            let tail = tail.ok().and_then(Result::ok).unwrap_or_default();
            return Err(reason(&status, &tail).into());
        }
        Ok(messages(&output))
    }
}

fn too_much(output: &[u8]) -> Result<(), BoxError> {
    match output.len() as u64 > OUTPUT_BYTES_MAX {
        true => Err(format!("the command prints more than {OUTPUT_BYTES_MAX} bytes").into()),
        false => Ok(()),
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
