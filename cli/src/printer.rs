//! The only place that writes to stdout or stderr.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};
use crate::exit::Failure;

/// Starts the log on stderr. `ARTEL_LOG` overrules `-v` and `-q`.
pub(crate) fn start_log(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "artel=debug,info",
        (false, _) => "trace",
    };
    let filter = std::env::var("ARTEL_LOG").unwrap_or_else(|_| level.to_owned());
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match global.log_format {
        LogFormat::Pretty => log.compact().init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Data: a text to stdout. A reader that went away is not an error of ours.
pub(crate) fn data(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Data: lines to stdout, and how many of them are certainly out. Into a pipe a line counts only
/// once its reader has taken it, so that a reader that goes away leaves the rest to the next one.
pub(crate) fn lines(lines: &[Vec<u8>]) -> (usize, io::Result<()>) {
    let mut stdout = io::stdout().lock();
    let is_pipe = rustix::fs::fstat(&stdout)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo());
    if !is_pipe {
        let text = lines.concat();
        return match stdout.write_all(&text).and_then(|()| stdout.flush()) {
            Ok(()) => (lines.len(), Ok(())),
            Err(error) => (0, Err(error)),
        };
    }
    for (at, line) in lines.iter().enumerate() {
        let written = stdout.write_all(line).and_then(|()| stdout.flush());
        if let Err(error) = written.and_then(|()| taken(stdout.as_fd())) {
            return (at, Err(error));
        }
    }
    (lines.len(), Ok(()))
}

/// Waits until a pipe's reader has taken everything, or is gone.
fn taken(pipe: BorrowedFd<'_>) -> io::Result<()> {
    let mut pause = Duration::from_micros(5);
    loop {
        if rustix::io::ioctl_fionread(pipe)? == 0 {
            return Ok(());
        }
        let mut fds = [PollFd::from_borrowed_fd(pipe, PollFlags::empty())];
        poll(&mut fds, Some(&rustix::time::Timespec::default()))?;
        if fds[0].revents().contains(PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// A remark: a line to stderr.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// An error, then a hint, to stderr; the exit code.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "error: {}", failure.error);
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "\nhint: {hint}");
    }
    ExitCode::from(failure.code)
}
