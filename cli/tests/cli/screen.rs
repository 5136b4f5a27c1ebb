//! One run of the program, and what it must say, to the letter.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use artel_rig::{Kind, Server, clean_command};

pub fn artel(args: &[&str]) -> Output {
    with(args, &[], b"")
}

/// With these variables, and this on stdin.
pub fn with(args: &[&str], variables: &[(&str, &str)], stdin: &[u8]) -> Output {
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), args);
    command.env("XDG_DATA_HOME", "/nonexistent").envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program runs");
    let mut pipe = child.stdin.take().expect("piped");
    let stdin = stdin.to_vec();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
    let output = child.wait_with_output().expect("its end");
    writer.join().expect("never panics");
    output
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit code, and everything on stderr, exactly. Nothing may be on stdout.
#[track_caller]
pub fn says(args: &[&str], code: i32, screen: &str) {
    output_says(&artel(args), args, code, screen);
}

#[track_caller]
pub fn output_says(output: &Output, args: &[&str], code: i32, screen: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(stderr.trim_end(), screen.trim(), "{args:?}");
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
}

pub fn any_server(args: &[&str]) -> Server {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    Server::with(kind, args)
}

/// Runs it on a terminal of so many columns, with colour or without; all that is on the screen then.
pub fn on_terminal(args: &[&str], columns: u16, coloured: bool) -> String {
    screen_of(clean_command(env!("CARGO_BIN_EXE_artel"), args), columns, coloured)
}

/// What a command leaves on a terminal.
pub fn screen_of(mut command: Command, columns: u16, coloured: bool) -> String {
    let size = nix::pty::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = nix::pty::openpty(Some(&size), None).expect("a terminal");
    command
        .env("XDG_DATA_HOME", "/nonexistent")
        .env("TERM", "xterm")
        .env("LESSHISTFILE", "-")
        .stdin(Stdio::null());
    match coloured {
        true => command.env_remove("NO_COLOR"),
        false => command.env("NO_COLOR", "1"),
    };
    let side = || terminal.slave.try_clone().expect("another handle");
    command.stdout(Stdio::from(side())).stderr(Stdio::from(side()));
    let mut child = command.spawn().expect("it runs");
    let mut master = std::fs::File::from(terminal.master);
    let reader = std::thread::spawn(move || {
        let (mut screen, mut chunk) = (Vec::new(), [0; 4096]);
        while !screen.ends_with(END) {
            let bytes = master.read(&mut chunk).expect("this process has it open, too");
            screen.extend_from_slice(&chunk[..bytes]);
        }
        screen.truncate(screen.len() - END.len());
        screen
    });
    child.wait().expect("its end");
    std::fs::File::from(side()).write_all(END).expect("written");
    let screen = reader.join().expect("the screen");
    String::from_utf8_lossy(&screen).into_owned()
}

/// Ends a screen. Whether a terminal still shows what was written after its last user left differs by system.
const END: &[u8] = b"\0the end of the screen\0";

/// A server with a fleet that somebody has joined once.
pub fn joined_server() -> Server {
    let server = any_server(&[]);
    let mut set = redis::cmd("HSET");
    set.arg("artel:{artel}:config").arg("protocol").arg("3").arg("born").arg("somebody");
    let () = set.query(&mut server.connect()).expect("answers");
    server
}
