//! Queues in other languages. Each has a script in `external/` that adds messages, handles them, or measures latency, and
//! prints what it saw as JSON. `./dev bench peers` installs them; one that is not there is named and left out.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use artel_bench::load::{Result, SAMPLES, WARM_UP};
use tokio::process::Command;

use crate::load::Ran;

/// Where they are installed.
const FOLDER: &str = "ARTEL_PEERS";

/// A queue in another language.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct External {
    pub(crate) name: &'static str,
    /// Messages per round.
    pub(crate) count: usize,
    /// The program that runs the script, and the script; in the folder.
    program: &'static str,
    script: &'static str,
}

const PYTHON: &str = "python/bin/python";

pub(crate) static CELERY: External =
    External { name: "celery", count: 3_000, program: PYTHON, script: "celery_peer.py" };
pub(crate) static DRAMATIQ: External =
    External { name: "dramatiq", count: 5_000, program: PYTHON, script: "dramatiq_peer.py" };
pub(crate) static RQ: External =
    External { name: "rq", count: 1_000, program: PYTHON, script: "rq_peer.py" };
pub(crate) static BULLMQ_NODE: External =
    External { name: "bullmq-node", count: 20_000, program: "node", script: "bullmq_peer.mjs" };

/// What a script prints.
#[derive(serde::Deserialize)]
struct Said {
    messages: usize,
    #[serde(default)]
    seconds: f64,
    /// CPU seconds of its processes.
    #[serde(default)]
    cpu: f64,
    #[serde(default)]
    p50_ms: f64,
    #[serde(default)]
    p99_ms: f64,
}

impl External {
    /// The program and the script, if both are installed.
    fn installed(&self) -> Option<(PathBuf, PathBuf)> {
        let folder = PathBuf::from(std::env::var_os(FOLDER)?);
        let script = folder.join(self.script);
        // Node is the machine's own.
        let program = match self.program {
            "node" => PathBuf::from("node"),
            inside => Some(folder.join(inside)).filter(|program| program.exists())?,
        };
        script.exists().then_some((program, script))
    }

    pub(crate) fn is_installed(&self) -> bool {
        self.installed().is_some()
    }

    async fn say(&self, command: &str, url: &str, count: usize) -> Result<Said> {
        let (program, script) = self.installed().ok_or("it is not installed")?;
        let output = Command::new(program)
            .arg(script)
            .args([command, url, &count.to_string()])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| {
            let told = String::from_utf8_lossy(&output.stderr);
            let told = told.trim().lines().last().unwrap_or("nothing");
            format!("{} ended with {}: {told}", self.script, output.status).into()
        })
    }

    /// Adds messages (`fill`), or handles them (`work`).
    pub(crate) async fn run(&self, command: &str, url: &str, count: usize) -> Result<Ran> {
        let Said { messages, seconds, cpu, .. } = self.say(command, url, count).await?;
        let time = |seconds| Duration::try_from_secs_f64(seconds);
        Ok(Ran { took: time(seconds)?, messages, cpu: Some(time(cpu)?) })
    }

    /// p50 and p99, in milliseconds.
    pub(crate) async fn latency(&self, url: &str) -> Result<(f64, f64)> {
        let said = self.say("latency", url, WARM_UP + SAMPLES).await?;
        Ok((said.p50_ms, said.p99_ms))
    }
}
