use artel_rig::Program;

use crate::fake;
use crate::screen::{any_server, artel, says, text};

#[test]
fn an_unreachable_redis() {
    let screen = "error: cannot reach Redis at redis://127.0.0.1:1: connection refused\n\n\
                  hint: start Redis, or pass `--redis <URL>`";
    for command in
        [&["run"][..], &["status"], &["getErrors"], &["--getErrors"], &["--cleanTemp"], &[]]
    {
        let mut args = vec!["--redis", "redis://127.0.0.1:1"];
        args.extend(command);
        says(&args, 3, screen);
    }
    says(&["--host", "127.0.0.1", "--port", "1"], 3, screen);
}

#[test]
fn an_address_that_is_none() {
    says(
        &["run", "--redis", "what is this"],
        2,
        "error: --redis is not a Redis address such as redis://host:port/db\n\n\
         hint: try `--redis redis://127.0.0.1:6379`",
    );
}

#[test]
fn a_wrong_password_is_not_shown() {
    let server = any_server(&[]);
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("right")
        .query(&mut server.connect())
        .expect("answers");
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    for command in ["run", "status", "getErrors"] {
        let output = artel(&[command, "--redis", &url]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("denies access") && stderr.contains("hint: put user and password"));
        assert!(!stderr.contains("hunter2"), "{stderr}");
    }
    let output = artel(&["run", "--redis", &server.url()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("denies access"), "{stderr}");
}

#[test]
fn missing_rights_are_named() {
    let server = any_server(&[]);
    let rights = ["on", ">secret", "~*", "&*", "+@all", "-spublish", "-zadd"];
    let mut setup = redis::cmd("ACL");
    setup.arg("SETUSER").arg("limited");
    for right in rights {
        setup.arg(right);
    }
    let () = setup.query(&mut server.connect()).expect("answers");
    let url = format!("redis://limited:secret@127.0.0.1:{}", server.port());
    let screen = format!(
        "error: Redis at {} denies access: this user lacks the right to ZADD artel:{{artel}}:counts, \
         SPUBLISH artel:{{artel}}:@0:ctl\n\nhint: put user and password into the address, \
         redis://user:password@host:port, and give that user the rights that docs/operations.md names",
        server.url()
    );
    says(&["run", "--redis", &url], 1, &screen);
}

#[test]
fn a_redis_older_than_7() {
    let url = fake::redis_of_version("6.2.14");
    let screen = format!(
        "error: Redis at {url} cannot be used: version 6.2.14 is older than 7.0\n\n\
         hint: Artel needs Redis 7.0 or Valkey 7.2, or later"
    );
    says(&["run", "--redis", &url], 1, &screen);
}

#[test]
fn a_redis_that_may_drop_messages() {
    let server = any_server(&["--maxmemory-policy", "allkeys-lru"]);
    let screen = format!(
        "error: Redis at {} cannot be used: maxmemory-policy allkeys-lru lets it drop messages, or \
         that they were sent, silently; set noeviction\n\n\
         hint: `redis-cli config set maxmemory-policy noeviction`",
        server.url()
    );
    says(&["run", "--redis", &server.url()], 1, &screen);
    let server = any_server(&["--maxmemory-policy", "volatile-lru", "--maxmemory", "100mb"]);
    let screen = screen.replace("allkeys", "volatile");
    let (start, end) = screen.split_once(" cannot be used").expect("an address, and the rest");
    assert!(start.starts_with("error: Redis at redis://"));
    let screen = format!("error: Redis at {} cannot be used{end}", server.url());
    says(&["send", "--redis", &server.url(), "x"], 1, &screen);
}

#[test]
fn a_key_of_ours_that_holds_something_else() {
    let server = any_server(&[]);
    let () = redis::cmd("SET")
        .arg("artel:{artel}:lane:generated")
        .arg("x")
        .query(&mut server.connect())
        .expect("answers");
    let screen = format!(
        "error: Redis at {} cannot be used: key artel:{{artel}}:lane:generated holds a string, Artel \
         needs a list\n\nhint: use another `--fleet` name or another `--db`",
        server.url()
    );
    for command in ["run", "getErrors"] {
        says(&[command, "--redis", &server.url()], 1, &screen);
    }
}

#[test]
fn fleet_names_that_are_none() {
    let long = "x".repeat(300);
    for (name, problem) in [
        ("a{b}", "must consist of letters, digits, `.`, `_` and `-`, and has '{'"),
        ("a b", "must consist of letters, digits, `.`, `_` and `-`, and has ' '"),
        ("", "must have 1 to 100 characters"),
        (&long, "must have 1 to 100 characters"),
    ] {
        for command in ["run", "status", "getErrors"] {
            let args = [command, "--fleet", name, "--redis", "redis://127.0.0.1:1"];
            says(&args, 2, &format!("error: --fleet {problem}\n\nhint: try `--fleet orders`"));
        }
    }
}

#[test]
fn values_out_of_range() {
    let hint = "hint: `artel run --help` shows the defaults";
    for (flag, value, problem) in [
        ("--interval", "0", "must be between 1ms and 86400s, not 0ns"),
        ("--lease", "10ms", "must be between 500ms and 3600s, not 10ms"),
        ("--takeover-timeout", "0", "must be between 1ms and 10s, not 0ns"),
        ("--concurrency", "0", "must be between 1 and 10000, not 0"),
        ("--label", "a\u{1b}[31m", "must have at most 200 bytes and no control characters"),
    ] {
        let args = ["run", flag, value, "--redis", "redis://127.0.0.1:1"];
        says(&args, 2, &format!("error: {flag} {problem}\n\n{hint}"));
    }
}

/// What the argument parser itself refuses: its words may change with it, ours may not.
#[test]
fn usage_errors() {
    for (args, words) in [
        (&["--error-rate", "2"][..], "must be between 0 and 1, such as 0.05 for 5 %"),
        (&["--error-rate", "many"], "invalid float literal"),
        (&["--interval", "5"], "a time needs a unit: try `5ms` or `5s`"),
        (&["--interval", "soon"], "invalid value 'soon'"),
        (&["--redis", "redis://127.0.0.1", "--port", "6379"], "cannot be used with"),
        (&["--redis", "redis://127.0.0.1", "--host", "localhost"], "cannot be used with"),
        (&["--port", "70000"], "invalid value '70000'"),
        (&["--ledger", "some"], "must be off, all, or a number of entries"),
        (&["--work-time", "fast"], "invalid value 'fast'"),
        (&["--getErrors", "maybe"], "must be yes, no, true, false, 1 or 0"),
        (&["statistics"], "unrecognized subcommand 'statistics'"),
        (&["clean"], "--temp"),
        (&["--interval", "50ms", "run"], "--interval is an option of `run`"),
        (&["--concurrency", "0", "status"], "--concurrency is an option of `run`"),
        (&["--for", "1s", "--getErrors"], "--for is an option of `run`"),
        (&["run", "--interval", "abc"], "not a time"),
        (&["--getErrors", "--cleanTemp"], "more than one command in one line"),
        (&["--getErrors=yes", "status"], "more than one command in one line"),
        (&["-q", "-v"], "cannot be used with"),
    ] {
        let output = artel(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn another_lease_than_the_fleet_s() {
    let server = any_server(&[]);
    let url = server.url();
    let member =
        Program::start(env!("CARGO_BIN_EXE_artel"), &["run", "--redis", &url, "--lease", "2s"]);
    member.says("joined the fleet");
    says(
        &["run", "--redis", &url, "--lease", "4s"],
        1,
        "error: fleet \"artel\" runs with lease_ms = 2000, not 4000\n\n\
         hint: leave out `--lease` to take the fleet's 2000, or stop all members first (`artel clean \
         --temp` ends those that are dead)",
    );
}

#[test]
fn a_fleet_of_another_protocol() {
    let server = any_server(&[]);
    let (url, mut connection) = (server.url(), server.connect());
    let () = redis::pipe()
        .cmd("HSET")
        .arg("artel:{artel}:config")
        .arg(&["protocol", "6", "lease_ms", "3000"])
        .ignore()
        .cmd("ZADD")
        .arg("artel:{artel}:members")
        .arg(9_000_000_000_000_u64)
        .arg("somebody")
        .ignore()
        .query(&mut connection)
        .expect("answers");
    for args in [
        &["run"][..],
        &["send", "x"],
        &["status"],
        &["getErrors"],
        &["errors", "list"],
        &["event", "set", "e"],
        &["event", "wait", "e", "--timeout", "1s"],
        &["lock", "status", "l"],
        &["stats"],
    ] {
        let mut args = args.to_vec();
        args.extend(["--redis", &url]);
        says(
            &args,
            1,
            "error: fleet \"artel\" runs with protocol 6, this program speaks 5\n\n\
             hint: this program is older than the fleet: use the newer version",
        );
    }
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("answers");
    assert_eq!(keys, 2, "nothing was written");
}

/// Whatever cannot grow is named, by the status and by every member.
#[test]
fn a_term_that_cannot_grow() {
    let server = any_server(&[]);
    let (url, mut connection) = (server.url(), server.connect());
    let () = redis::cmd("SET")
        .arg("artel:{artel}:term")
        .arg("9007199254740993")
        .query(&mut connection)
        .expect("answers");
    let member = Program::start(env!("CARGO_BIN_EXE_artel"), &["run", "--redis", &url]);
    member.says("no larger term or token can be granted");
    let status = artel(&["status", "--redis", &url]);
    let screen = text(&status.stdout);
    assert_eq!(status.status.code(), Some(6), "{screen}");
    assert!(screen.contains("artel:{artel}:term cannot grow"), "{screen}");
    let status = artel(&["status", "--json", "--redis", &url]);
    let json: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(json["exhausted"], serde_json::json!(["artel:{artel}:term"]));
    let term: String =
        redis::cmd("GET").arg("artel:{artel}:term").query(&mut connection).expect("answers");
    assert_eq!(term, "9007199254740993", "never lowered by itself");
}
