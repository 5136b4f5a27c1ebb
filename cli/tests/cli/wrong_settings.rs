//! Settings that are wrong, wherever they come from.

use crate::screen::{artel, output_says, says, text, with};

const OVERRULE: &str = "on the command line overrules it";

#[test]
fn a_file_with_a_wrong_key_names_file_line_key_and_the_right_key() {
    let dir = tempfile::tempdir().expect("a dir");
    let file = dir.path().join("artel.toml");
    let path = file.display().to_string();
    for (content, error, hint) in [
        (
            "# ours\ninterval = \"1s\"\nerror-rat = 0.1\n",
            ":3: unknown key `error-rat`",
            "hint: did you mean `error-rate`?",
        ),
        ("concurency = 4\n", ":1: unknown key `concurency`", "hint: did you mean `concurrency`?"),
        (
            "[zoo]\nbears = 4\n",
            ":1: unknown key `zoo`",
            "hint: `artel config init` writes a file with all of them",
        ),
        (
            "interval = 1s\n",
            ":1: not TOML: ",
            "hint: a setting is a line such as `interval = \"500ms\"`",
        ),
        (
            "interval = [1, 2]\n",
            ":1: interval must be a text, a number, or true or false",
            "hint: a setting is a line such as `interval = \"500ms\"`",
        ),
        ("\ninterval = \"soon\"\n", ":2: interval: \"soon\": not a time", OVERRULE),
        ("error-rate = 7\n", ":1: error-rate: \"7\": must be between 0 and 1", OVERRULE),
        (
            "log-format = \"xml\"\n",
            ":1: log-format: must be one of pretty, json, not \"xml\"",
            OVERRULE,
        ),
        ("quiet = 3\n", ":1: quiet must be true or false, not \"3\"", "hint: a flag is on"),
        (
            "handler-mode = \"lines\"\n",
            "--handler-mode lines is for a --handler",
            "hint: `--handler ./handle.py --handler-mode lines`",
        ),
    ] {
        std::fs::write(&file, content).expect("writes");
        for args in [&["config", "check", &path][..], &["run", "--config", &path]] {
            let output = artel(args);
            let screen = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{content:?}: {screen}");
            let said = screen.lines().find(|line| !line.contains("settings are read from"));
            let said = said.unwrap_or_default();
            assert!(said.starts_with("error: ") && said.contains(error), "{content:?}: {screen}");
            assert!(screen.contains(hint), "{content:?}: {screen}");
            let named = error.starts_with(':');
            assert!(!named || screen.contains(&format!("{path}:")), "{content:?}: {screen}");
        }
    }
}

#[test]
fn a_value_out_of_range_is_found_by_check() {
    let dir = tempfile::tempdir().expect("a dir");
    let path = dir.path().join("artel.toml").display().to_string();
    std::fs::write(&path, "interval = \"0\"\n").expect("writes");
    says(
        &["config", "check", &path],
        2,
        &format!(
            "error: {path}:1: interval must be between 1ms and 86400s, not 0ns\n\n\
             hint: `artel run --help` shows the defaults"
        ),
    );
    for (content, problem) in [
        ("fleet = \"bad name\"\n", "fleet must consist of letters"),
        ("redis = \"nonsense://x\"\n", "redis is not a Redis address"),
        ("handler = \"no-such-command\"\n", "handler: no-such-command is not there"),
        ("interval = \"garbage\"\n", "interval: \"garbage\": not a time"),
    ] {
        std::fs::write(&path, content).expect("writes");
        let output = with(&["config", "check", &path], &[("ARTEL_INTERVAL", "1s")], b"");
        let (screen, start) = (text(&output.stderr), format!("error: {path}:1: {problem}"));
        assert!(output.status.code() == Some(2) && screen.starts_with(&start), "{screen}");
    }
    std::fs::write(&path, "interval = \"20ms\"\nverbose = true\n").expect("writes");
    says(&["config", "check", &path], 0, &format!("{path} is fine"));
}

#[test]
fn files_that_cannot_be_read() {
    says(
        &["run", "--config", "/nonexistent/artel.toml"],
        1,
        "error: cannot read /nonexistent/artel.toml: No such file or directory (os error 2)\n\n\
         hint: `artel config init` writes a file to begin with",
    );
    says(
        &["status", "--redis-url-file", "/nonexistent/url"],
        1,
        "error: cannot read /nonexistent/url: No such file or directory (os error 2)\n\n\
         hint: is the path right, and may this user read it?",
    );
    let dir = tempfile::tempdir().expect("a dir");
    let path = dir.path().join("url").display().to_string();
    std::fs::write(&path, "\n").expect("writes");
    says(
        &["status", "--redis-url-file", &path],
        2,
        &format!(
            "error: {path} holds no address\n\n\
             hint: it should hold one line such as redis://:password@host:6379"
        ),
    );
}

/// A wrong variable is named by its own name, and only by commands that need it.
#[test]
fn a_wrong_variable_is_named() {
    let variables = [("ARTEL_INTERVAL", "soon"), ("ARTEL_REDIS_URL", "redis://127.0.0.1:1")];
    let args = ["run"];
    output_says(
        &with(&args, &variables, b""),
        &args,
        2,
        &format!(
            "error: ARTEL_INTERVAL: interval: \"soon\": not a time (expected number at 0): try \
             `500ms` or `2s`\n\nhint: `--interval` {OVERRULE}"
        ),
    );
    let args = ["run"];
    output_says(
        &with(&args, &[("ARTEL_CONCURRENCY", "0"), ("ARTEL_REDIS_URL", "redis://h:1")], b""),
        &args,
        2,
        "error: ARTEL_CONCURRENCY: concurrency must be between 1 and 10000, not 0\n\n\
         hint: `artel run --help` shows the defaults",
    );
    let args = ["status"];
    output_says(
        &with(&args, &variables, b""),
        &args,
        3,
        "error: cannot reach Redis at redis://127.0.0.1:1: connection refused\n\n\
         hint: start Redis, or pass `--redis <URL>`",
    );
    let args = ["run"];
    output_says(
        &with(&args, &[("ARTEL_REDIS_URL", "redis://h:1"), ("ARTEL_PORT", "1")], b""),
        &args,
        2,
        &format!(
            "error: ARTEL_REDIS_URL: redis: cannot be used together with ARTEL_PORT (port)\n\nhint: \
             `--redis` {OVERRULE}"
        ),
    );
}

/// A file that was found and not named says which commands are run: it must be ours.
#[test]
fn a_file_of_somebody_else_is_not_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a dir");
    let file = dir.path().join("artel.toml");
    std::fs::write(&file, "interval = \"7s\"\nredis = \"redis://127.0.0.1:1\"\n").expect("writes");
    let run = |args: &[&str]| {
        let mut command = artel_rig::clean_command(env!("CARGO_BIN_EXE_artel"), args);
        command.current_dir(dir.path()).stdin(std::process::Stdio::null());
        command.output().expect("it runs")
    };
    let mode = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("ours");
    };
    for others in [0o666, 0o664, 0o606] {
        mode(others);
        for args in [&["run"][..], &["status"], &["config", "show"], &["config", "check"]] {
            let output = run(args);
            let screen = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {screen}");
            assert!(
                screen.contains("artel.toml is here and is not read: others may write"),
                "{screen}"
            );
            assert!(screen.contains("hint: `chmod go-w artel.toml`"), "{screen}");
        }
        // Whoever names it means it.
        let output = run(&["config", "show", "--config", "artel.toml"]);
        assert!(text(&output.stdout).contains("interval = \"7s\""), "{}", text(&output.stderr));
    }
    mode(0o644);
    let output = run(&["status"]);
    let screen = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{screen}");
    assert!(screen.contains("settings are read from artel.toml"), "{screen}");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65534), None).expect("root may");
        let screen = text(&run(&["status"]).stderr);
        assert!(screen.contains("is not read: it belongs to user 65534"), "{screen}");
        // Nor through a link of somebody else to a file of ours.
        std::fs::rename(&file, dir.path().join("ours.toml")).expect("moved");
        std::os::unix::fs::chown(dir.path().join("ours.toml"), Some(0), None).expect("root may");
        std::os::unix::fs::symlink("ours.toml", &file).expect("made");
        assert!(text(&run(&["status"]).stderr).contains("settings are read from artel.toml"));
        std::os::unix::fs::lchown(&file, Some(65534), None).expect("root may");
        let screen = text(&run(&["status"]).stderr);
        assert!(screen.contains("is not read: it belongs to user 65534"), "{screen}");
    }
    // What it writes itself is for us alone.
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(run(&["config", "init"]).status.code(), Some(0));
    let made = std::fs::metadata(&file).expect("there").permissions().mode();
    assert_eq!(made & 0o777, 0o600);
}

/// However it is written, a password is not shown.
#[test]
fn no_form_of_a_password_is_shown() {
    for url in [
        "redis://me:hunter2@h:1/2",
        "redis://:hunter2@h",
        "rediss://me:hunter2@h:1",
        "unix:/tmp/x.sock?pass=hunter2",
        "redis+unix:///tmp/x.sock?db=1&user=me&pass=hunter2",
        "redis://h:1?password=hunter2",
        "hunter2",
        "redis:hunter2",
        "redis://h:1/0#hunter2",
        "hunter2@h:6379",
    ] {
        for output in [
            with(&["config", "show"], &[("ARTEL_REDIS_URL", url)], b""),
            artel(&["config", "show", "--origin", "--redis", url]),
            with(&["status"], &[("REDIS_URL", url)], b""),
        ] {
            let all = text(&output.stdout) + &text(&output.stderr);
            assert!(!all.contains("hunter2"), "{url}: {all}");
        }
    }
    let shown = text(&artel(&["config", "show", "--redis", "redis://h:1/2"]).stdout);
    assert!(shown.contains("redis = \"redis://h:1/2\""), "{shown}");
}

/// A file of secrets that never ends, or never begins, is an error and not a hang.
#[test]
fn a_file_without_an_end_is_refused() {
    let dir = tempfile::tempdir().expect("a dir");
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let pipe = pipe.display().to_string();
    for (path, words) in [("/dev/zero", "more than 1 MiB"), (pipe.as_str(), "")] {
        for option in ["--http-token-file", "--redis-url-file", "--config"] {
            // An empty file of settings says nothing, and a pipe that nobody fills is empty.
            let never = ["--embedded", "never"];
            let output = artel(&["run", "--http", "0", option, path, never[0], never[1]]);
            let screen = text(&output.stderr);
            assert!(matches!(output.status.code(), Some(1 | 2)), "{option} {path}: {screen}");
            assert!(
                screen.contains(words) && screen.contains("error: "),
                "{option} {path}: {screen}"
            );
        }
    }
}
