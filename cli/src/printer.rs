//! The only place that writes to stdout or stderr.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::{Color, LogFileArgs, LogFormat, OutputArgs};
use crate::exit::Failure;
use crate::harmless::{harmless, harmless_json, harmless_lines};
use crate::log_file::LogFile;
use crate::otlp::Traces;
use crate::table::Screen;

/// Starts the log on stderr. `ARTEL_LOG` overrules `-v` and `-q`. A member of `up` also logs each
/// sent message that is done.
pub(crate) fn start_log(
    output: &OutputArgs,
    file: Option<&LogFileArgs>,
    of_up: bool,
    traces: Option<Traces>,
) -> Result<(), Failure> {
    let _ = COLOUR.set(output.color);
    let level = match (output.quiet, output.verbose) {
        (true, _) => "warn",
        (false, 0) if of_up => "info,artel::sent=debug",
        (false, 0) => "info",
        (false, 1) => "artel=debug,info,artel::trace=off",
        // Not the crates below us: they log addresses, which may be secrets.
        (false, _) => "artel=trace,artel_hub=trace,info,artel::trace=off",
    };
    let filter = std::env::var("ARTEL_LOG").unwrap_or_else(|_| level.to_owned());
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt::layer().with_target(false);
    let file = file.map(LogFile::start).transpose()?.flatten();
    if let Some(file) = &file {
        let _ = LOG_FILE.set(file.clone());
    }
    let pretty = || debug_fn(field).delimited(" ");
    let log = match (output.log_format, file) {
        (LogFormat::Pretty, None) => {
            let log = log.with_ansi(colour(output.color)).with_writer(io::stderr);
            log.compact().fmt_fields(pretty()).boxed()
        }
        (LogFormat::Pretty, Some(file)) => {
            let log = log.with_ansi(false).with_writer(move || file.clone());
            log.compact().fmt_fields(pretty()).boxed()
        }
        (LogFormat::Json, file) => {
            log.json().flatten_event(true).with_writer(move || JsonLog(file.clone())).boxed()
        }
    };
    // The filter is for the log alone: traces have their own.
    let registry = tracing_subscriber::registry();
    match traces {
        None => registry.with(log).with(filter).init(),
        Some(traces) => registry.with(log.with_filter(filter)).with(traces).init(),
    }
    Ok(())
}

/// The file that the log is written to.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

/// Waits for the log to be written. The process is about to end.
pub(crate) fn end_log() {
    if let Some(mut file) = LOG_FILE.get().cloned() {
        let _ = file.flush();
    }
}

/// The log as JSON: each write is a whole line.
struct JsonLog(Option<LogFile>);

impl Write for JsonLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = harmless_json(&String::from_utf8_lossy(line));
        match &mut self.0 {
            Some(file) => file.write_all(text.as_bytes())?,
            None => io::stderr().lock().write_all(text.as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// One field of a log line: the message without a name, every other field with its name.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = harmless(&format!("{value:?}"));
    match (field.name(), writer.has_ansi_escapes()) {
        ("message", _) => write!(writer, "{value}"),
        (name, true) => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        (name, false) => write!(writer, "{name}={value}"),
    }
}

/// May stderr be coloured? Colour is never the only carrier of meaning.
pub(crate) fn colour(when: Color) -> bool {
    may_colour(when, io::stderr().is_terminal())
}

fn may_colour(when: Color, is_terminal: bool) -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    match when {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none() && !dumb,
    }
}

/// The value of `--color`.
static COLOUR: OnceLock<Color> = OnceLock::new();

/// The screen that shows the data, if stdout is a terminal.
pub(crate) fn screen() -> Screen {
    let stdout = io::stdout();
    let when = COLOUR.get().copied().unwrap_or(Color::Never);
    let size = Some(&stdout).filter(|stdout| stdout.is_terminal());
    let size = size.and_then(|stdout| rustix::termios::tcgetwinsize(stdout).ok());
    let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    Screen { width, coloured: may_colour(when, stdout.is_terminal()) }
}

/// The size of the terminal that shows the data: columns and rows.
pub(crate) fn size() -> Option<(u16, u16)> {
    let stdout = io::stdout();
    let size = Some(&stdout).filter(|stdout| stdout.is_terminal());
    let size = size.and_then(|stdout| rustix::termios::tcgetwinsize(stdout).ok())?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Is there a terminal to draw on and to type at?
pub(crate) fn has_terminal() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}

/// The whole screen, until this is dropped; then the terminal is as it was.
pub(crate) struct FullScreen(ratatui::DefaultTerminal);

/// Takes the whole screen.
pub(crate) fn full_screen() -> io::Result<FullScreen> {
    ratatui::try_init().map(FullScreen)
}

impl FullScreen {
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(|_| ())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What is typed; `None` if the terminal has another size. Ends when the terminal is gone.
pub(crate) fn keys() -> mpsc::Receiver<Option<KeyEvent>> {
    use ratatui::crossterm::event::{Event, KeyEventKind, read};
    let (tell, keys) = mpsc::channel(64);
    // Nobody waits for this thread: it ends with the process.
    std::thread::spawn(move || {
        while let Ok(event) = read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => Some(key),
                Event::Resize(..) => None,
                _ => continue,
            };
            if tell.blocking_send(key).is_err() {
                return;
            }
        }
    });
    keys
}

/// Prints data for a screen. It is harmless already, and may contain our colours.
pub(crate) fn shown(text: &str) -> io::Result<()> {
    write(text).map(|_| ())
}

/// Prints data to stdout. If the reader went away, that is not an error.
pub(crate) fn data(text: &str) -> io::Result<()> {
    data_to_reader(text).map(|_| ())
}

/// Prints data to stdout; false if the reader went away, which is not an error.
pub(crate) fn data_to_reader(text: &str) -> io::Result<bool> {
    write(&harmless_lines(text))
}

fn write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prints lines to stdout; `out` counts the lines that are certainly written. In a pipe, a line
/// counts only when the reader has read it: if the reader goes away, the other lines are left for
/// the next reader. On a terminal, the lines are made harmless first.
pub(crate) fn lines(lines: &[Vec<u8>], out: &AtomicUsize) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        let text = String::from_utf8_lossy(&lines.concat()).into_owned();
        stdout.write_all(harmless_lines(&text).as_bytes()).and_then(|()| stdout.flush())?;
        out.store(lines.len(), Ordering::Release);
        return Ok(());
    }
    let is_pipe = rustix::fs::fstat(&stdout)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo());
    if !is_pipe {
        let text = lines.concat();
        stdout.write_all(&text).and_then(|()| stdout.flush())?;
        out.store(lines.len(), Ordering::Release);
        return Ok(());
    }
    for line in lines {
        stdout.write_all(line).and_then(|()| stdout.flush())?;
        taken(stdout.as_fd())?;
        out.fetch_add(1, Ordering::AcqRel);
    }
    Ok(())
}

/// Waits until the reader of a pipe has read everything, or is gone.
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

/// Prints a question to stderr. True if the answer from stdin is yes; `None` if nobody answers.
pub(crate) fn confirm(question: &str) -> Option<bool> {
    let _ = write!(io::stderr().lock(), "{} [y/N] ", harmless_lines(question));
    let mut answer = String::new();
    if !io::stdin().read_line(&mut answer).is_ok_and(|bytes| bytes > 0) {
        let _ = writeln!(io::stderr().lock());
        return None;
    }
    Some(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Prints a line to stderr.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", harmless_lines(text));
}

/// Prints a line to stderr that is harmless already and may contain our colours.
pub(crate) fn painted(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints the error and its hint to stderr; returns the exit code.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "error: {}", harmless_lines(&failure.error));
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "\nhint: {}", harmless_lines(hint));
    }
    ExitCode::from(failure.code)
}

/// A progress bar if the number of bytes is known, else a counter; only on a terminal.
pub(crate) fn progress(total_bytes: Option<u64>) -> indicatif::ProgressBar {
    use indicatif::{ProgressBar, ProgressStyle};
    let bar = match total_bytes {
        Some(bytes) => ProgressBar::new(bytes),
        None => ProgressBar::new_spinner(),
    };
    let template = match total_bytes {
        Some(_) => "{wide_bar} {bytes}/{total_bytes}, {eta} left",
        None => "{spinner} {human_pos} sent, {per_sec}",
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints data for a screen. On a terminal it replaces the page shown before. False if the reader
/// went away.
pub(crate) fn page(text: &str) -> io::Result<bool> {
    match io::stdout().is_terminal() {
        // Cursor to the top left; clear the rest of each line; clear everything below.
        true => write(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))),
        false => write(&format!("{text}\n")),
    }
}
