//! `artel top` on a real terminal: what it shows, what keys do, and that the terminal is given back.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use artel_rig::{clean_command, eventually, wait_for};
use nix::sys::termios::{LocalFlags, tcgetattr};

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

/// A program on a terminal of its own.
struct Seat {
    child: Child,
    screen: Arc<Mutex<vt100::Parser>>,
    keyboard: std::fs::File,
    terminal: std::os::fd::OwnedFd,
}

impl Seat {
    fn start(mut command: Command, (rows, columns): (u16, u16)) -> Seat {
        let size = nix::pty::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(Some(&size), None).expect("a terminal");
        let side = || Stdio::from(pty.slave.try_clone().expect("another handle"));
        command.env("TERM", "xterm-256color").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().expect("it runs");
        let screen = vt100::Parser::new(
            rows.try_into().expect("rows"),
            columns.try_into().expect("columns"),
            0,
        );
        let screen = Arc::new(Mutex::new(screen));
        let keyboard = std::fs::File::from(pty.master);
        let mut output = keyboard.try_clone().expect("another handle");
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut chunk) {
                shown.lock().unwrap_or_else(PoisonError::into_inner).process(&chunk[..bytes]);
            }
        });
        Seat { child, screen, keyboard, terminal: pty.slave }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    /// Does a full-screen program have the terminal?
    fn is_taken(&self) -> bool {
        let shown = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        shown.screen().alternate_screen()
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        eventually(&format!("{text:?} on the screen"), || self.text().contains(text));
    }

    /// The exit code, and whether the terminal is as it was.
    fn end(&mut self) -> Option<i32> {
        let status = wait_for("its end", || self.child.try_wait().expect("its end"));
        eventually("the screen to be given back", || !self.is_taken());
        let modes = tcgetattr(self.terminal.as_fd()).expect("a terminal").local_flags;
        assert!(modes.contains(LocalFlags::ECHO | LocalFlags::ICANON), "{modes:?}");
        status.code()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seat(fleet: &TestFleet, size: (u16, u16)) -> Seat {
    let url = fleet.server.url();
    let args = ["top", "--fleet", FLEET, "--redis", &url, "--every", "100ms"];
    Seat::start(clean_command(artel(), &args), size)
}

fn label_of(fleet: &mut TestFleet, member: &str) -> String {
    let key = fleet.key(&format!("member:{member}"));
    redis::cmd("HGET").arg(key).arg("label").query(fleet.connection()).expect("a label")
}

on_each_server! {
    /// The generator is killed: the screen shows who leads now, and says why. A failed message is opened and put back to work.
    fn the_screen_follows_the_fleet(kind) {
        let options = ["--interval", "20ms", "--lease", "1s", "--error-rate", "0.5"];
        let mut fleet = TestFleet::start(kind, 3, &options);
        let mut seat = seat(&fleet, (24, 80));
        let (leader, process) = fleet.leader();
        let label = label_of(&mut fleet, &leader);
        seat.shows(&format!("generator {label} "));
        seat.shows("members: 3, by label");
        eventually("failed messages", || fleet.count("failed") > 10);
        fleet.members[process].kill();
        let next = wait_for("another generator", || {
            let (next, _) = fleet.leader();
            (next != leader).then_some(next)
        });
        let next = label_of(&mut fleet, &next);
        seat.shows(&format!("generator {next} "));
        seat.shows("elected: leads under term");
        seat.shows("members: 2, by label");

        seat.press("s");
        seat.shows("members: 2, by done");
        seat.press(&format!("/{next}\r"));
        seat.shows(&format!("members: 1 of 2, with \"{next}\""));
        seat.press("\u{1b}");
        seat.shows("members: 2, by done");
        seat.press("\t\r");
        seat.shows("payload");
        seat.press("r");
        seat.shows("back to work? y/n");
        assert_eq!(fleet.count("requeued"), 0);
        seat.press("y");
        eventually("one message to be put back", || fleet.count("requeued") == 1);
        seat.press("p");
        seat.shows("PAUSED");
        seat.press("q");
        assert_eq!(seat.end(), Some(0));
    }
}

/// A signal, and a terminal of another size.
#[test]
fn the_terminal_is_given_back_on_a_signal() {
    let mut fleet = TestFleet::start(any(), 1, &["--interval", "50ms"]);
    fleet.leader();
    for (size, signal, code) in [
        ((24, 80), nix::sys::signal::Signal::SIGTERM, Some(143)),
        ((50, 200), nix::sys::signal::Signal::SIGINT, Some(0)),
        ((24, 80), nix::sys::signal::Signal::SIGQUIT, Some(131)),
    ] {
        let mut seat = seat(&fleet, size);
        seat.shows("members: 1");
        assert!(seat.is_taken());
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(seat.child.id() as i32), signal)
            .expect("sent");
        assert_eq!(seat.end(), code);
    }
}

/// Redis goes away: the screen says so, keys work, and it goes on when Redis is back.
#[test]
fn keys_are_answered_while_redis_is_not() {
    let mut fleet = TestFleet::start(any(), 1, &["--interval", "50ms"]);
    let mut seat = seat(&fleet, (24, 80));
    seat.shows("members: 1");
    fleet.server.kill();
    seat.shows("NO ANSWER");
    seat.press("?");
    seat.shows("this help");
    seat.press("x");
    fleet.server.restart();
    seat.shows("Redis answers again");
    fleet.server.kill();
    seat.shows("NO ANSWER");
    seat.press("\u{3}");
    assert_eq!(seat.end(), Some(0));
}

#[test]
fn one_frame_needs_no_terminal() {
    let mut fleet = TestFleet::start(any(), 2, &["--interval", "20ms"]);
    let (leader, _) = fleet.leader();
    let label = label_of(&mut fleet, &leader);
    let url = fleet.server.url();
    let run = |more: &[&str]| {
        let args = [&["top", "--fleet", FLEET, "--redis", &url][..], more].concat();
        clean_command(artel(), &args).stdin(Stdio::null()).output().expect("it runs")
    };
    let output = run(&["--once"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert_eq!(text.lines().count(), 24, "{text}");
    assert!(text.contains(&format!("generator {label} ")) && text.contains("/s"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("top needs a terminal"));
}

fn any() -> artel_rig::Kind {
    use artel_rig::Kind;
    if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey }
}
