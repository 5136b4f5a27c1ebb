//! Flag > environment > file > default, for every option alike.

use artel_rig::{Program, clean_command};

use crate::screen::{artel, text};

/// Runs in a folder with this artel.toml.
fn in_folder(content: Option<&str>, args: &[&str], variables: &[(&str, &str)]) -> Program {
    let dir = tempfile::tempdir().expect("a dir");
    if let Some(content) = content {
        std::fs::write(dir.path().join("artel.toml"), content).expect("writes");
    }
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), args);
    command.current_dir(dir.path()).envs(variables.iter().copied());
    command.stdin(std::process::Stdio::null());
    let mut program = Program::spawn(command);
    program.exit_code();
    program
}

fn value_of(program: &Program, name: &str) -> (String, String) {
    let stdout = program.stdout();
    let line = stdout.lines().find(|line| line.starts_with(&format!("{name} = ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {stdout}{}", program.stderr()));
    let (value, origin) = line.split_once(" # ").unwrap_or((line, ""));
    let value = value.split_once(" = ").expect("a value").1;
    (value.trim().trim_matches('"').to_owned(), origin.to_owned())
}

#[test]
fn the_nearest_place_decides() {
    let file = "interval = \"3s\"\nerror_rate = 0.3\nconcurrency = 3\nfleet = \"filed\"\n";
    let variables = [("ARTEL_INTERVAL", "2s"), ("ARTEL_CONCURRENCY", "2")];
    let show = in_folder(Some(file), &["config", "show", "--origin"], &variables);
    for (name, value, origin) in [
        ("interval", "2s", "ARTEL_INTERVAL"),
        ("concurrency", "2", "ARTEL_CONCURRENCY"),
        ("error-rate", "0.3", "artel.toml:2"),
        ("fleet", "filed", "artel.toml:4"),
        ("replicas", "0", "default"),
    ] {
        assert_eq!(value_of(&show, name), (value.to_owned(), origin.to_owned()));
    }
    // An empty variable counts as none.
    let show = in_folder(Some(file), &["config", "show"], &[("ARTEL_INTERVAL", "")]);
    assert_eq!(value_of(&show, "interval").0, "3s");
}

/// An address of any spelling at a nearer place hides every spelling at a farther one.
#[test]
fn an_address_is_one_setting() {
    let file = "redis = \"redis://filed:1\"\n";
    let variables = [("ARTEL_HOST", "named"), ("REDIS_URL", "redis://shared:1")];
    let show = in_folder(Some(file), &["config", "show"], &variables);
    assert_eq!(value_of(&show, "host").0, "named");
    assert!(show.stdout().contains("# redis is not set"), "{}", show.stdout());
    let show = in_folder(Some(file), &["config", "show", "--origin"], &variables[1..]);
    assert_eq!(value_of(&show, "redis"), ("redis://shared:1".to_owned(), "REDIS_URL".to_owned()));
}

#[test]
fn a_password_is_not_shown() {
    for (url, shown) in [
        ("redis://me:hunter2@h:1/3", "redis = \"redis://h:1\""),
        ("rediss://:hunter2@h:1", "redis = \"rediss://h:1\""),
        ("unix:/x.sock?pass=hunter2", "redis = \"unix:/x.sock\""),
        ("me:hunter2@h:1", "redis = \"an unreadable address\""),
    ] {
        let show = in_folder(None, &["config", "show"], &[("ARTEL_REDIS_URL", url)]);
        let screen = show.stdout();
        assert!(!screen.contains("hunter2") && screen.contains(shown), "{url}: {screen}");
    }
}

/// What is shown is TOML that means the same, flags included.
#[test]
fn what_is_shown_can_be_read_again() {
    let args = ["config", "show", "--fleet", "named", "--redis", "redis://h:1/3"];
    let file = "label = \"007\"\nerror-rate = 0.5\nseed = 7\n";
    let show = in_folder(Some(file), &args, &[]);
    assert_eq!(value_of(&show, "fleet").0, "named");
    assert_eq!(value_of(&show, "redis").0, "redis://h:1/3");
    for line in ["label = \"007\"", "error-rate = 0.5", "seed = 7", "quiet = false"] {
        assert!(show.stdout().lines().any(|shown| shown == line), "{line}: {}", show.stdout());
    }
    let again = in_folder(Some(&show.stdout()), &["config", "check"], &[]);
    assert_eq!(again.stderr(), "artel.toml is fine\n");
    let again = in_folder(Some(&show.stdout()), &["config", "show"], &[]);
    assert_eq!(again.stdout(), show.stdout());
}

/// A broken file or variable breaks what needs it, and nothing else.
#[test]
fn a_broken_setting_breaks_only_what_needs_it() {
    let broken = Some("no such key = 1\n");
    for args in [&["completions", "bash"][..], &["man"], &["config", "show"], &["--help"]] {
        let program = in_folder(broken, args, &[]);
        let fine = !program.stdout().is_empty() || args[0] == "config";
        assert!(fine, "{args:?}: {}", program.stderr());
    }
    let address = ("ARTEL_REDIS_URL", "redis://127.0.0.1:1");
    for args in [&["--getErrors"][..], &["--cleanTemp"], &["status"]] {
        let program = in_folder(None, args, &[("ARTEL_INTERVAL", "soon"), address]);
        assert!(program.stderr().contains("cannot reach Redis"), "{args:?}: {}", program.stderr());
    }
    // Where a service is called `artel`, Kubernetes sets this.
    let variables = [("ARTEL_PORT", "tcp://10.96.0.12:8080"), address];
    let program = in_folder(None, &["status"], &variables);
    assert!(program.stderr().contains("cannot reach Redis"), "{}", program.stderr());
}

/// The file that `init` writes is right, and has every setting of a member.
#[test]
fn init_writes_a_file_with_every_setting() {
    let dir = tempfile::tempdir().expect("a dir");
    let run = |args: &[&str]| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), args);
        let output = command.current_dir(dir.path()).output().expect("runs");
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(run(&["config", "init"]), (Some(0), "wrote artel.toml\n".to_owned()));
    let content = std::fs::read_to_string(dir.path().join("artel.toml")).expect("written");
    for name in ["interval", "handler", "lane-weights", "redis", "tls-ca", "data-dir", "quiet"] {
        assert!(content.contains(&format!("\n# {name} =")), "{name}");
    }
    // With every default uncommented it is still right.
    let lines = content.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting)
            if setting
                .split_once(" = ")
                .is_some_and(|(name, value)| !name.contains(' ') && !value.is_empty()) =>
        {
            format!("{setting}\n")
        }
        _ => format!("{line}\n"),
    });
    std::fs::write(dir.path().join("artel.toml"), lines.collect::<String>()).expect("writes");
    assert_eq!(run(&["config", "check"]), (Some(0), "artel.toml is fine\n".to_owned()));
    let (code, screen) = run(&["config", "init"]);
    assert_eq!(code, Some(1));
    assert!(screen.contains("it is there already"), "{screen}");
}

#[test]
fn completions_and_manual_pages_are_there() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = artel(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("getErrors"), "{shell}");
    }
    for (words, title) in [(&["man"][..], "artel"), (&["man", "send"], "artel-send")] {
        let output = artel(words);
        assert!(output.status.success() && text(&output.stdout).contains(title), "{words:?}");
    }
    assert!(artel(&["man", "errors", "take"]).status.success());
    let output = artel(&["man", "nothing"]);
    assert_eq!(output.status.code(), Some(5));
}
