//! No server, a server that is not ours to start, a folder that cannot be used.

use std::os::unix::fs::PermissionsExt;

use crate::screen::{artel, says, text};

/// Nothing on localhost, or these have nothing to show.
fn nothing_on_localhost() -> bool {
    std::net::TcpStream::connect("127.0.0.1:6379").is_err()
}

#[test]
fn a_configured_but_dead_redis_is_never_replaced() {
    let dir = tempfile::tempdir().expect("a dir");
    let data = dir.path().display().to_string();
    says(
        &["run", "--data-dir", &data, "--redis", "redis://127.0.0.1:1"],
        3,
        "error: cannot reach Redis at redis://127.0.0.1:1: connection refused\n\n\
         hint: start Redis, or pass `--redis <URL>`",
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("a list").count(), 0, "nothing was started");
}

#[test]
fn commands_that_only_look_start_no_server() {
    if !nothing_on_localhost() {
        return;
    }
    let dir = tempfile::tempdir().expect("a dir");
    let data = dir.path().join("data").display().to_string();
    for command in
        [&["status"][..], &["getErrors"], &["send", "x"], &["clean", "--temp"], &["errors", "list"]]
    {
        let mut args = command.to_vec();
        args.extend(["--data-dir", &data]);
        says(
            &args,
            3,
            "error: no Redis is configured, none answers on localhost, and no private server \
             runs\n\nhint: pass `--redis <URL>`, or start a fleet first: `artel up`, `artel run`",
        );
    }
    assert!(!dir.path().join("data").exists());
    says(
        &["run", "--embedded", "never"],
        2,
        "error: no Redis is configured, and --embedded is never\n\n\
         hint: pass `--redis <URL>`, or set ARTEL_REDIS_URL",
    );
}

#[test]
fn a_socket_path_that_is_too_long() {
    let dir = tempfile::tempdir().expect("a dir");
    let data = dir.path().join("x".repeat(100)).display().to_string();
    let socket = format!("{data}/server.sock");
    says(
        &["up", "--data-dir", &data],
        2,
        &format!(
            "error: the private server's socket {socket} has a path of {} bytes, and 107 are \
             allowed\n\nhint: try a shorter `--data-dir`",
            socket.len()
        ),
    );
}

#[test]
fn a_data_folder_that_cannot_be_written() {
    // Root may write anywhere but where the kernel says no.
    let dir = tempfile::tempdir().expect("a dir");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).expect("sets");
    let ours = dir.path().join("data").display().to_string();
    let root = std::fs::create_dir(dir.path().join("probe")).is_ok();
    let data = if root { "/proc/artel" } else { &ours };
    let output = artel(&["up", "--data-dir", data]);
    let screen = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{screen}");
    let start = format!("error: cannot use the data folder {data}: ");
    assert!(screen.starts_with(&start), "{screen}");
    let hint = "hint: try another `--data-dir`, or give the address of a Redis: `--redis <URL>`";
    assert!(screen.trim_end().ends_with(hint), "{screen}");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("sets");
}

#[test]
fn a_server_program_that_is_none() {
    let dir = tempfile::tempdir().expect("a dir");
    let data = dir.path().join("data").display().to_string();
    let hint = "hint: is it a redis-server or valkey-server? See `--server`";
    says(
        &["up", "--data-dir", &data, "--server", "/nonexistent/server"],
        1,
        &format!(
            "error: the private server /nonexistent/server did not start: No such file or directory \
             (os error 2)\n\n{hint}"
        ),
    );
    let false_one =
        ["/bin/false", "/usr/bin/false"].iter().find(|p| std::fs::exists(p).is_ok_and(|x| x));
    let false_one = false_one.expect("a program that fails");
    says(
        &["up", "--data-dir", &data, "--server", false_one],
        1,
        &format!("error: the private server {false_one} did not start: exit status: 1\n\n{hint}"),
    );
}
