//! Handlers that are commands: the program against the same command fed directly, without Redis.

use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel::{Fleet, NewMessage};
use artel_rig::{Program, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::report::Series;
use artel_bench::load::Result;

const PYTHON: &str = "import json, sys
for line in sys.stdin:
    print(json.dumps({'id': json.loads(line)['id']}), flush=True)
";

/// A handler, how it is run, and how many messages make a measurement.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    words: Vec<String>,
    lines: bool,
    messages: usize,
    pub(crate) raw: Series,
    pub(crate) artel: Series,
}

/// Every kind of handler that can be had here.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let case = |name, words: &[&str], lines, messages| Case {
        name,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        lines,
        messages,
        raw: Series::default(),
        artel: Series::default(),
    };
    let own = std::env::current_exe()?.display().to_string();
    let mut cases = vec![
        case("handler lines, compiled, /s", &[&own, "--as-handler"], true, 40_000),
        case("handler exec, true, /s", &["true"], false, 400),
    ];
    let python = std::process::Command::new("python3").arg("--version").output();
    if python.is_ok_and(|output| output.status.success()) {
        let file = std::env::temp_dir().join(format!("artel-bench-{}.py", std::process::id()));
        std::fs::write(&file, PYTHON)?;
        let file = file.display().to_string();
        cases.push(case("handler lines, Python, /s", &["python3", &file], true, 20_000));
    }
    Ok(cases)
}

/// Answers every line at once: the fastest handler there is.
pub(crate) fn be_handler() {
    let (stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    for line in stdin.lines().map_while(std::result::Result::ok) {
        let id = line.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let answer = format!("{{\"id\":\"{}\"}}\n", id.unwrap_or_default());
        if stdout.write_all(answer.as_bytes()).and_then(|()| stdout.flush()).is_err() {
            return;
        }
    }
}

impl Case {
    /// One round: the command alone, then behind the program.
    pub(crate) async fn measure(&mut self, program: &str, server: &Server) -> Result<()> {
        let raw = if self.lines { self.raw_lines().await? } else { self.raw_exec().await? };
        self.raw.push(self.messages as f64 / raw.as_secs_f64());
        let took = self.through_artel(program, server).await?;
        self.artel.push(self.messages as f64 / took.as_secs_f64());
        Ok(())
    }

    fn slots() -> usize {
        std::thread::available_parallelism().map_or(2, usize::from)
    }

    async fn raw_lines(&self) -> Result<Duration> {
        let mut children = Vec::new();
        for _ in 0..Self::slots() {
            let mut command = Command::new(&self.words[0]);
            command.args(&self.words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
            children.push(command.kill_on_drop(true).spawn()?);
        }
        let each = self.messages / children.len();
        let talks: Vec<_> =
            children.into_iter().map(|child| tokio::spawn(talk(child, each))).collect();
        let start = Instant::now();
        for talk in talks {
            talk.await??;
        }
        Ok(start.elapsed())
    }

    async fn raw_exec(&self) -> Result<Duration> {
        let start = Instant::now();
        let each = self.messages / Self::slots();
        let mut slots = Vec::new();
        for _ in 0..Self::slots() {
            let words = self.words.clone();
            slots.push(tokio::spawn(async move {
                for _ in 0..each {
                    let mut command = Command::new(&words[0]);
                    command.args(&words[1..]).stdin(Stdio::piped()).stderr(Stdio::piped());
                    let mut child = command.spawn()?;
                    drop(child.stdin.take());
                    child.wait().await?;
                }
                Ok::<(), std::io::Error>(())
            }));
        }
        for slot in slots {
            slot.await??;
        }
        Ok(start.elapsed())
    }

    async fn through_artel(&self, program: &str, server: &Server) -> Result<Duration> {
        let (url, fleet) = (server.url(), "handlers");
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connect())?;
        let sender = Fleet::connect(&url, fleet).await?.sender();
        let messages: Vec<NewMessage> =
            (0..self.messages).map(|n| format!("{n:0100}").into()).collect();
        for batch in messages.chunks(1000) {
            sender.send_all(batch).await?;
        }
        let mode = if self.lines { "lines" } else { "exec" };
        let handler = self.words.join(" ");
        let args = [
            "run",
            "-q",
            "--redis",
            &url,
            "--fleet",
            fleet,
            "--generator",
            "true",
            "--handler",
            &handler,
            "--handler-mode",
            mode,
        ];
        let start = Instant::now();
        let mut first = None;
        let _members = [Program::start(program, &args), Program::start(program, &args)];
        let mut connection = server.connect();
        // From the first outcome on: joining is not a matter of messages.
        loop {
            let done: Option<usize> = redis::cmd("HGET")
                .arg(format!("artel:{{{fleet}}}:counts"))
                .arg("done")
                .query(&mut connection)?;
            let done = done.unwrap_or(0);
            if done > 0 && first.is_none() {
                first = Some((Instant::now(), done));
            }
            if let Some((since, before)) = first
                && done >= self.messages
            {
                let part = (done - before).max(1) as f64 / self.messages as f64;
                return Ok(since.elapsed().div_f64(part));
            }
            if start.elapsed() > Duration::from_secs(120) {
                return Err(format!("{}: only {done} after two minutes", self.name).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn talk(mut child: tokio::process::Child, messages: usize) -> std::io::Result<()> {
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Ok(());
    };
    let (mut stdout, mut answer) = (BufReader::new(stdout), String::new());
    for n in 0..messages {
        let request =
            format!("{{\"v\":1,\"id\":\"1794710083943807-{n}\",\"payload\":\"{n:0100}\"}}\n");
        stdin.write_all(request.as_bytes()).await?;
        answer.clear();
        stdout.read_line(&mut answer).await?;
    }
    Ok(())
}
