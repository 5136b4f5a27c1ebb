//! A command that is run once, with bytes on its stdin.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use super::process::{CommandLine, LINGER, Tail, reason};

impl CommandLine {
    /// Runs the command with these bytes on its stdin. An error says how it ended, and the end of its stderr. If it takes
    /// longer than this, it is ended with everything it started.
    pub(crate) async fn run_once(&self, input: &[u8], within: Duration) -> Result<(), String> {
        let running = self.run_to_end(input, Instant::now() + within);
        match tokio::time::timeout(within, running).await {
            Ok(result) => result,
            Err(_) => Err(format!("it ran longer than {} s", within.as_secs())),
        }
    }

    async fn run_to_end(&self, input: &[u8], until: Instant) -> Result<(), String> {
        let started = self.start(Stdio::null, &[], Some(until), None).await;
        let mut running = started.map_err(|error| format!("it cannot start: {error}"))?;
        let (stdin, stderr) = (running.child.stdin.take(), running.child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command need not read its input.
                let _ = stdin.write_all(input).await;
            }
        };
        let mut tail = Tail::default();
        let hear = async {
            if let Some(mut stderr) = stderr {
                while tail.read(&mut stderr).await {}
            }
        };
        let status = {
            let mut talk = std::pin::pin!(async { tokio::join!(feed, hear) });
            let mut talked = false;
            let status = {
                let mut wait = std::pin::pin!(running.wait());
                loop {
                    tokio::select! {
                        status = &mut wait => break status,
                        _ = &mut talk, if !talked => talked = true,
                    }
                }
            };
            if !talked {
                let _ = tokio::time::timeout(LINGER, talk).await;
            }
            status
        };
        match &status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(reason(&status, &tail.text())),
        }
    }
}
