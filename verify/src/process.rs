//! [`Process`]: a process of the fleet: a member, the taker or the sender. When it is killed, a new one is started in its place.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use artel_rig::{Clock, Fault, Proxy, own_variables};
use rustix::process::{Pid, Signal, kill_process};

use crate::history::{Entry, NO_HISTORY, Tail, now};
use crate::member::{LEAVE, Part};

/// A process, the proxy between it and Redis, and its history.
pub(crate) struct Process {
    /// `m3`, `taker` or `sender`.
    role: String,
    program: PathBuf,
    part: Part,
    proxy: Proxy,
    life: u32,
    child: Option<Child>,
    /// Its wall clock, if that can be set.
    pub(crate) clock: Option<Clock>,
    tail: Tail,
    /// Histories of earlier lives that may have unread lines.
    old: Vec<Tail>,
    /// It has a fault now.
    pub(crate) hurt: bool,
    /// When a fault of it last began or ended.
    pub(crate) touched: u64,
    /// Messages that its present life has begun and not finished.
    pub(crate) busy: u64,
    /// It was asked to leave.
    leaving: bool,
    /// Its present life has reported that it joined.
    pub(crate) joined: bool,
    /// The last generation of the event that its present life has seen.
    pub(crate) woken: u64,
}

/// The address with the port of the proxy instead.
fn through(url: &str, port: u16, proxy: u16) -> String {
    match url.rsplit_once(&format!(":{port}")) {
        Some((before, after)) => format!("{before}:{proxy}{after}"),
        None => url.to_owned(),
    }
}

/// How a process ended that nobody killed.
pub(crate) enum Ended {
    NoHistory,
    /// It was asked to leave.
    Left,
    Otherwise(String),
}

impl Process {
    pub(crate) fn new(
        role: String,
        program: &Path,
        mut part: Part,
        port: u16,
        clock: Option<Clock>,
    ) -> io::Result<Process> {
        let proxy = Proxy::start(port)?;
        // Several servers are found by the process itself.
        if port > 0 {
            part.url = through(&part.url, port, proxy.port());
        }
        let tail = Tail::new(String::new(), PathBuf::new());
        let (program, old) = (program.to_owned(), Vec::new());
        let mut process = Process {
            role,
            program,
            part,
            proxy,
            life: 0,
            child: None,
            clock,
            tail,
            old,
            hurt: false,
            touched: now(),
            busy: 0,
            leaving: false,
            joined: false,
            woken: 0,
        };
        process.begin()?;
        Ok(process)
    }

    /// The name of its present life.
    pub(crate) fn name(&self) -> &str {
        &self.tail.who
    }

    /// Starts a new life.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.life += 1;
        (self.joined, self.woken, self.leaving, self.busy) = (false, 0, false, 0);
        self.touched = now();
        self.part.name = format!("{}.{}", self.role, self.life);
        let part = &self.part;
        let log = std::fs::File::create(part.dir.join(format!("{}.log", part.name)))?;
        let mut command = Command::new(&self.program);
        own_variables().into_iter().for_each(|name| _ = command.env_remove(name));
        // Not as an argument, which every user can see: the address may contain a password.
        command.env("ARTEL_REDIS_URL", &part.url);
        command.env("ARTEL_DURABILITY", part.durability.to_string());
        command.arg("verify-part").args(["--name", &part.name]);
        command.arg("--dir").arg(&part.dir);
        command.args(["--interval-us", &part.interval.as_micros().to_string()]);
        command.args(["--batch", &part.batch.to_string()]);
        command.args(["--lease-ms", &part.lease.as_millis().to_string()]);
        if let Some(clock) = &self.clock {
            clock.give(&mut command);
        }
        command.process_group(0); // signals from our terminal must not reach it
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.child = Some(child);
        let next = Tail::new(part.name.clone(), part.history());
        self.old.push(std::mem::replace(&mut self.tail, next));
        Ok(())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.child.is_some()
    }

    /// `kill -9`, and waits for its end.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            self.clean(child.id());
        }
    }

    fn clean(&self, pid: u32) {
        if self.clock.is_some() {
            Clock::clean(pid);
        }
    }

    /// Asks it to finish its work and to leave.
    pub(crate) fn leave(&mut self) {
        (self.leaving, self.hurt) = (true, true);
        self.tell(LEAVE);
    }

    /// Sends it an order over its stdin.
    pub(crate) fn tell(&mut self, what: &str) {
        let stdin = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        if let Some(stdin) = stdin {
            let _ = stdin.write_all(format!("{what}\n").as_bytes());
        }
    }

    /// How it ended, if it ended by itself.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        let child = self.child.as_mut()?;
        let (status, pid) = (child.try_wait().ok().flatten()?, child.id());
        self.child = None;
        self.clean(pid);
        Some(match status.code() {
            Some(NO_HISTORY) => Ended::NoHistory,
            Some(0) if self.leaving => Ended::Left,
            _ => Ended::Otherwise(format!("{} ended by itself: {status}", self.name())),
        })
    }

    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    pub(crate) fn network(&self, fault: Fault) {
        self.proxy.set(fault);
    }

    /// How many requests took effect, but their answer was swallowed.
    pub(crate) fn swallowed(&self) -> u64 {
        self.proxy.swallowed()
    }

    /// The new entries of it and its earlier lives, each with the name of the life.
    pub(crate) fn read(&mut self) -> Vec<(String, u64, Entry)> {
        let mut lines = Vec::new();
        for mut tail in self.old.drain(..) {
            let who = tail.who.clone();
            lines.extend(tail.read().into_iter().map(|(at, entry)| (who.clone(), at, entry)));
        }
        let who = self.tail.who.clone();
        for (at, entry) in self.tail.read() {
            match entry {
                Entry::Woken(generation) => self.woken = self.woken.max(generation),
                Entry::Joined => self.joined = true,
                Entry::SessionLost => self.joined = false,
                Entry::Start { .. } => self.busy += 1,
                Entry::End { .. } => self.busy = self.busy.saturating_sub(1),
                _ => {}
            }
            lines.push((who.clone(), at, entry));
        }
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_goes_by_way_of_a_proxy_with_all_it_says() {
        assert_eq!(through("redis://127.0.0.1:6379", 6379, 7), "redis://127.0.0.1:7");
        let url = "redis://me:6379:6379@localhost:6379/2";
        assert_eq!(through(url, 6379, 7), "redis://me:6379:6379@localhost:7/2");
    }
}
