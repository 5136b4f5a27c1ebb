//! Handlers and generators that are none.

use std::os::unix::fs::PermissionsExt;

use crate::screen::says;

#[test]
fn commands_that_cannot_be_run() {
    let dir = tempfile::tempdir().expect("a dir");
    let script = dir.path().join("handle.sh");
    std::fs::write(&script, "#!/bin/sh\n").expect("writes");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).expect("sets");
    let script = script.display().to_string();
    let there = "give its path, or put its folder on the PATH";
    let redis = ["--redis", "redis://127.0.0.1:1"];
    for (option, command, error, hint) in [
        ("--handler", "./no-such-thing", "./no-such-thing is not there", there),
        ("--handler", "no-such-thing -x", "no-such-thing is not there", there),
        ("--handler", "no-such-thing --x=1", "no-such-thing is not there", there),
        ("--handler", "no-such-thing | wc", "no-such-thing is not there", there),
        ("--generator", "no-such-thing", "no-such-thing is not there", there),
        (
            "--handler",
            &script,
            &format!("{script} is not executable"),
            &format!("`chmod +x {script}`"),
        ),
    ] {
        for verb in ["run", "up"] {
            let mut args = vec![verb, option, command];
            if verb == "run" {
                args.extend(redis);
            }
            says(&args, 2, &format!("error: {option}: {error}\n\nhint: {hint}"));
        }
    }
    says(
        &["run", "--handler", "  "],
        2,
        "error: --handler is empty\n\nhint: give a command such as `./handle.sh`",
    );
}

#[test]
fn up_has_a_server_of_its_own() {
    for (option, value) in [("--redis", "redis://h:1"), ("--host", "h"), ("--tls-ca", "x.pem")] {
        says(
            &["up", option, value],
            2,
            &format!(
                "error: {option} is not for `up`, which has a private server of its own\n\n\
                 hint: `artel run` takes it"
            ),
        );
    }
}
