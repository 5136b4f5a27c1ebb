//! The members of `up`: real processes, their output, and the pipe that ties them to us.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::commands::notice_log::{DEPOSED, JOINED, LEADS};
use crate::exit::{FAILURE, Failure};
use crate::layers;
use crate::settings::Place;
use crate::variables;

/// Bytes of a line that are shown at a time.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a member printed, or what happened to it.
pub(super) enum Event {
    /// A line of its log.
    Said(usize, String),
    /// A line that its handler printed.
    Printed(usize, String),
    Ended(usize, ExitStatus),
    /// The result of a death, and the process id of the member that leads now.
    Answer(String, Option<u32>),
}

struct Member {
    pid: u32,
    /// When this pipe is closed, the member leaves.
    tether: Option<ChildStdin>,
    alive: bool,
    leads: bool,
    session: Option<String>,
}

pub(super) struct Children {
    members: Vec<Member>,
}

impl Children {
    /// Starts `count` members.
    pub(super) fn start(
        count: u16,
        place: &Place,
        url: &str,
        options: Vec<OsString>,
        events: mpsc::Sender<Event>,
    ) -> Result<Children, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(FAILURE, format!("cannot find the artel program: {error}"))
        })?;
        let mut members = Vec::new();
        for at in 0..usize::from(count) {
            let mut command = Command::new(&program);
            // Members get their settings as flags. Settings from the environment are removed. All
            // other variables are kept: their handlers may need them.
            for name in variables::all(&layers::names()) {
                command.env_remove(name);
            }
            let mut child = command
                .args(["run", "--config", "/dev/null"])
                .args(&options)
                .args(["--tethered", "--log-format", "json", "--color", "never"])
                .args(["--fleet", &place.fleet, "--redis", url])
                .args(["--label", &format!("member-{}", at + 1)])
                // Ctrl-C in the terminal goes to this process alone, which then closes the pipes.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|error| {
                    Failure::new(FAILURE, format!("cannot start a member: {error}"))
                })?;
            let tether = child.stdin.take();
            let pid = child.id().unwrap_or(0);
            members.push(Member { pid, tether, alive: true, leads: false, session: None });
            tokio::spawn(listen(at, child, events.clone()));
        }
        Ok(Children { members })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.members.iter().any(|member| member.alive)
    }

    pub(super) fn pid(&self, at: usize) -> u32 {
        self.members[at].pid
    }

    pub(super) fn leads(&self, at: usize) -> bool {
        self.members[at].leads
    }

    pub(super) fn session(&self, at: usize) -> Option<String> {
        self.members[at].session.clone()
    }

    /// Reads a log line of a member and updates what is known of it. Does the line say that it
    /// leads?
    pub(super) fn note(&mut self, at: usize, line: &str) -> bool {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        let message = line["message"].as_str().unwrap_or_default();
        match message {
            JOINED => self.members[at].session = line["member"].as_str().map(str::to_owned),
            LEADS => {
                for (other, member) in self.members.iter_mut().enumerate() {
                    member.leads = other == at;
                }
            }
            DEPOSED => self.members[at].leads = false,
            _ => {}
        }
        message == LEADS
    }

    /// Records that a member has ended. Did it lead?
    pub(super) fn ended(&mut self, at: usize) -> bool {
        self.members[at].alive = false;
        std::mem::take(&mut self.members[at].leads)
    }

    /// Closes the pipes: all members leave, gracefully.
    pub(super) fn let_go(&mut self) {
        for member in &mut self.members {
            member.tether = None;
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        for member in self.members.iter().filter(|member| member.alive) {
            if let Some(pid) = Pid::from_raw(member.pid as i32) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Passes on the output of a member, and after that how it ended.
async fn listen(at: usize, mut child: Child, events: mpsc::Sender<Event>) {
    let said = pass_on(child.stderr.take(), |line| Event::Said(at, line), &events);
    let printed = pass_on(child.stdout.take(), |line| Event::Printed(at, line), &events);
    let ended = child.wait();
    // Handlers may hold its streams open. Only the end of the member itself counts.
    let (mut said, mut printed) = (std::pin::pin!(said), std::pin::pin!(printed));
    let (mut over, mut ended) = ((false, false), std::pin::pin!(ended));
    let status = loop {
        tokio::select! {
            () = &mut said, if !over.0 => over.0 = true,
            () = &mut printed, if !over.1 => over.1 = true,
            status = &mut ended => break status,
        }
    };
    let linger = std::time::Duration::from_millis(200);
    let rest = async {
        if !over.0 {
            said.await;
        }
        if !over.1 {
            printed.await;
        }
    };
    let _ = tokio::time::timeout(linger, rest).await;
    if let Ok(status) = status {
        let _ = events.send(Event::Ended(at, status)).await;
    }
}

async fn pass_on(
    stream: Option<impl AsyncRead + Unpin>,
    event: impl Fn(String) -> Event,
    events: &mpsc::Sender<Event>,
) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    // A line that does not end is shown in pieces.
    while matches!((&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await, Ok(n) if n > 0)
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if events.send(event(text)).await.is_err() {
            return;
        }
    }
}
