//! A process per tick: each line it prints is a message. The state that was kept last is its stdin; what
//! it writes to descriptor 3 is the new one.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use artel::{Batch, BoxError, Generate, NewMessage, Tick};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use super::process::{CommandLine, LINGER, Tail, reason};
use crate::times::since_1970_ms;

/// What a tick may print.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Makes messages by a command. All lines of a tick are taken, with the new state, or, if the command fails,
/// nothing.
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
            return Err("its output cannot be read".into());
        };
        if let Some(mut stdin) = running.child.stdin.take() {
            let state = tick.state().to_vec();
            // A command need not read it.
            tokio::spawn(async move { drop(stdin.write_all(&state).await) });
        }
        // Heard beside waiting, so that a command that says much is not held up by it.
        let new_state = pipe::Receiver::from_owned_fd(OwnedFd::from(new_state))?;
        let mut kept = tokio::spawn(read(new_state, Batch::STATE_BYTES_MAX));
        let mut printed = tokio::spawn(read(stdout, OUTPUT_BYTES_MAX));
        let said = tokio::spawn(async move {
            let mut tail = Tail::default();
            while tail.read(&mut stderr).await {}
            tail.text()
        });
        // It is over when the command has ended, even if something it started holds its output. One that
        // prints without end is not waited for.
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
        // Nothing written leaves it as it is.
        Ok(if state.is_empty() { batch } else { batch.with_state(state) })
    }
}

/// All of a stream, and one byte more than allowed if it has more.
async fn read(stream: impl AsyncRead + Unpin, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(bytes_max as u64 + 1).read_to_end(&mut bytes).await.map(|_| bytes)
}

/// What is still to be read once the command has ended.
async fn rest(reading: JoinHandle<std::io::Result<Vec<u8>>>) -> Result<Vec<u8>, BoxError> {
    match tokio::time::timeout(LINGER, reading).await {
        Ok(read) => Ok(read??),
        Err(_) => {
            Err("it ended, and something it started holds its output open: redirect the output \
                       of what runs in the background"
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
