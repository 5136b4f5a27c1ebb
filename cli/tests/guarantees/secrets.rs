//! No secret is ever shown: each goes in wherever it can, and comes out nowhere.

use std::process::Stdio;

use artel_rig::{Catcher, Program, Server, clean_command, eventually};

use crate::fleet::{FLEET, artel};
use crate::http::{get, port_of};

/// Each is a word that occurs nowhere else.
const PASSWORD: &str = "hush-redis-password";
const TOKEN: &str = "hush-token-of-http-0123456789";
const SIGNATURE: &str = "hush-secret-of-webhooks-0123456789";
const HOOK: &str = "hush-path-of-webhook";
const SLACK: &str = "hush-path-of-slack";
const MAIL: &str = "hush-mail-password";
const OTLP: &str = "hush-otlp-password";

#[track_caller]
fn keeps_quiet(place: &str, text: &str) {
    assert!(!text.contains("hush-"), "{place}: {text}");
}

/// A member that has every secret there is, with the log at its loudest, through failures and outages.
#[test]
fn every_secret_goes_in_and_none_comes_out() {
    let mut server = Server::any();
    server.say(&["CONFIG", "SET", "requirepass", PASSWORD]);
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port());
    let hook = Catcher::http(|_| "500 No".to_owned());
    let away = artel_rig::free_port();
    let dir = tempfile::tempdir().expect("a folder");
    let (log, archive) = (dir.path().join("log"), dir.path().join("archive.db"));
    let settings = format!(
        "redis = \"{url}\"\n\
         alert = [\"error_ratio > 0.5 over 5s\", \"redis_down > 500ms\"]\n\
         alert-to = [\"webhook:http://{}/{HOOK}\", \"slack:http://127.0.0.1:{away}/{SLACK}\",\n\
           \"mail:smtps://me:{MAIL}@127.0.0.1:{away}?from=a@example.org&to=b@example.org\"]\n\
         otlp = \"http://me:{OTLP}@127.0.0.1:{away}\"\notlp-share = 1\nfleet = \"{FLEET}\"\n",
        hook.address()
    );
    std::fs::write(dir.path().join("artel.toml"), settings).expect("written");
    let command = |args: &[&str]| {
        let mut command = clean_command(artel(), args);
        command.current_dir(dir.path()).stdin(Stdio::null());
        command.env("ARTEL_HTTP_TOKEN", TOKEN).env("ARTEL_ALERT_SECRET", SIGNATURE);
        command
    };
    let (path, place) = (log.display().to_string(), format!("sqlite:{}", archive.display()));
    let common =
        ["run", "-vv", "--http", "0", "--error-rate", "1", "--interval", "20ms", "--lease", "1s"];
    let to_file = ["--log-file", &path, "--log-format", "json", "--archive", &place];
    let one = Program::spawn(command(&common));
    let port = port_of(&one);
    let mut two = Program::spawn(command(&[&common[..], &to_file].concat()));
    eventually("a webhook to be tried", || !hook.taken().is_empty());
    eventually("a failure of each sink", || {
        let said = one.stderr() + &std::fs::read_to_string(&log).unwrap_or_default();
        ["webhook", "slack", "mail"].iter().all(|sink| {
            said.contains(&format!("sink=\"{sink}\""))
                || said.contains(&format!("\"sink\":\"{sink}\""))
        })
    });

    let with_token = format!("authorization: Bearer {TOKEN}\r\n");
    for path in ["/metrics", "/gather_stats", "/api/v1/status", "/livez", "/readyz", "/nothing"] {
        for headers in ["", with_token.as_str()] {
            let (_, head, body) = get(port, path, headers);
            keeps_quiet(path, &(head + &body));
        }
    }
    for args in [
        &["config", "show", "--origin"][..],
        &["config", "check"],
        &["status", "--json"],
        &["stats", "--json"],
        &["history", "--json"],
        &["doctor", "--json"],
        &["errors", "list"],
        &["top", "--once"],
        &["notify", "test"],
        &["fleets"],
        &["history", "--archive", &place, "--json"],
        &["run", "--alert-to", &format!("webhook:nowhere-{HOOK}")],
        &["run", "--otlp", &format!("nowhere:{OTLP}")],
        &["lock", "run", "env", "--", "sh", "-c", "env | grep -v ARTEL_REDIS"],
        &["status", "--redis", &format!("redis://:{PASSWORD}-wrong@127.0.0.1:{}", server.port())],
        &["status", "--redis", &format!("rediss://:{PASSWORD}@127.0.0.1:{away}")],
    ] {
        let output = command(args).output().expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        keeps_quiet(args[0], &String::from_utf8_lossy(&said));
    }
    server.kill();
    eventually("the outage to be told", || {
        hook.taken().iter().any(|it| it.body.contains("Redis does not answer"))
    });
    two.terminate();
    two.exit_code();
    keeps_quiet("stderr", &one.stderr());
    keeps_quiet("stderr with a log file", &two.stderr());
    for entry in std::fs::read_dir(dir.path()).expect("a folder").flatten() {
        if entry.file_name() != "artel.toml" {
            let bytes = std::fs::read(entry.path()).expect("a file");
            keeps_quiet(&entry.path().display().to_string(), &String::from_utf8_lossy(&bytes));
        }
    }
    for caught in hook.taken() {
        let own = caught.head.replace(HOOK, "");
        keeps_quiet("a webhook", &(own + &caught.body));
    }
}
