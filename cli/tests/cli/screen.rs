//! One run of the program, and what it must say, to the letter.

use std::io::Write;
use std::process::{Output, Stdio};

use artel_testkit::{Kind, Server, clean_command};

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
