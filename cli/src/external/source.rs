//! A process per tick: each line it prints is a message. It reads the last state from stdin, and
//! writes the new state to descriptor 3.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use artel::{Batch, BoxError, Generate, NewMessage, Tick};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use super::process::{CommandLine, LINGER, Tail, reason};
use crate::times::since_1970_ms;

/// Bytes that one tick may print.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Makes messages with a command. All lines of a tick are used, together with the new state. If the
/// command fails, nothing is used.
pub(crate) struct Source {
    pub(crate) command: CommandLine,
}

impl Generate for Source {
    async fn generate(&mut self, tick: Tick) -> Result<Batch, BoxError> {
        let env = [
            ("ARTEL_TERM", tick.term.to_string()),
            ("ARTEL_SEQ", tick.seq.to_string()),
            ("ARTEL_TICK", tick.count.to_string()),
            ("ARTEL_TIME_MS", since_1970_ms(tick.time).to_string()),
        ];
        let (new_state, third) = std::io::pipe()?;
        let third = OwnedFd::from(third);
        let mut running = self.command.start(Stdio::piped, &env, None, Some(&third)).await?;
        drop(third);
        let streams = (running.child.stdout.take(), running.child.stderr.take());
        let (Some(stdout), Some(mut stderr)) = streams else {
            return Err("the output of the command cannot be read".into());
        };
        if let Some(mut stdin) = running.child.stdin.take() {
            let state = tick.state().to_vec();
            // A command need not read its stdin.
            tokio::spawn(async move { drop(stdin.write_all(&state).await) });
        }
        // Read the output while the command runs, so that a command with much output is not
        // blocked.
        let new_state = pipe::Receiver::from_owned_fd(OwnedFd::from(new_state))?;
        let mut kept = tokio::spawn(read(new_state, Batch::STATE_BYTES_MAX));
        let mut printed = tokio::spawn(read(stdout, OUTPUT_BYTES_MAX));
        let said = tokio::spawn(async move {
            let mut tail = Tail::default();
            while tail.read(&mut stderr).await {}
            tail.text()
        });
        // The tick is over when the command has ended, even if a process it started holds its
        // output open. A command that prints too much is not waited for.
        let (mut output, mut state) = (None, None);
        let status = loop {
            tokio::select! {
                read = &mut printed, if output.is_none() => {
                    output = Some(bounded("prints", read??, OUTPUT_BYTES_MAX)?);
                }
                read = &mut kept, if state.is_none() => {
                    state = Some(bounded("keeps a state of", read??, Batch::STATE_BYTES_MAX)?);
                }
                status = running.wait() => break status,
            }
        };
        let output = match output {
            Some(output) => output,
            None => bounded("prints", rest(printed).await?, OUTPUT_BYTES_MAX)?,
        };
        let state = match state {
            Some(state) => state,
            None => bounded("keeps a state of", rest(kept).await?, Batch::STATE_BYTES_MAX)?,
        };
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let tail = tokio::time::timeout(LINGER, said).await;
            let tail = tail.ok().and_then(Result::ok).unwrap_or_default();
            return Err(reason(&status, &tail).into());
        }
        let batch = Batch::new(messages(&output));
        // If no new state was written, the last one stays.
        Ok(if state.is_empty() { batch } else { batch.with_state(state) })
    }
}

/// Reads a whole stream, but at most one byte more than allowed.
async fn read(stream: impl AsyncRead + Unpin, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(bytes_max as u64 + 1).read_to_end(&mut bytes).await.map(|_| bytes)
}

/// The rest of a stream after the command has ended.
async fn rest(reading: JoinHandle<std::io::Result<Vec<u8>>>) -> Result<Vec<u8>, BoxError> {
    match tokio::time::timeout(LINGER, reading).await {
        Ok(read) => Ok(read??),
        Err(_) => {
            Err("the command ended, but a process it started holds its output open: redirect the \
                       output of background processes"
                .into())
        }
    }
}

fn bounded(verb: &str, bytes: Vec<u8>, max: usize) -> Result<Vec<u8>, BoxError> {
    match bytes.len() > max {
        true => Err(format!("the command {verb} more than {max} bytes").into()),
        false => Ok(bytes),
    }
}

/// One message per line; empty lines are left out.
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
