//! `artel doctor`: nothing to say about a healthy server, and the right words about each sick one.

use artel_rig::Server;
use serde_json::Value as Json;

use crate::screen::{any_server, artel, on_terminal, text};

const HEALTHY: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// The findings, and the exit code.
#[track_caller]
fn doctor(url: &str) -> (Vec<Json>, Option<i32>) {
    let output = artel(&["doctor", "--json", "--redis", url]);
    let document: Json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    assert_eq!((&document["v"], &document["fleet"]), (&1.into(), &"artel".into()));
    (document["findings"].as_array().expect("findings").clone(), output.status.code())
}

/// What endangers a promise, as `check: what`.
fn dangers(findings: &[Json]) -> Vec<String> {
    let bad = findings.iter().filter(|finding| finding["level"] == "danger");
    let words = bad.map(|it| {
        let word = |name: &str| it[name].as_str().unwrap_or_else(|| panic!("{name} of {it}"));
        assert!(!word("consequence").is_empty() && !word("mend").is_empty(), "{it}");
        format!("{}: {}", word("check"), word("what"))
    });
    words.collect()
}

fn redis(server: &Server, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query(&mut server.connect()).expect("answers");
}

#[test]
fn a_healthy_server_is_left_alone() {
    let server = any_server(&HEALTHY);
    let url = server.url();
    let (findings, code) = doctor(&url);
    assert_eq!((dangers(&findings), code), (vec![], Some(0)));
    let screen = text(&artel(&["doctor", "--redis", &url]).stdout);
    assert!(screen.ends_with("nothing endangers a promise\n"), "{screen}");
    // Looking changes nothing.
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connect()).expect("answers");
    assert_eq!(keys, 0);
}

#[test]
fn each_sick_server_gets_its_own_words() {
    let healthy = |more: &[&str]| any_server(&[&HEALTHY[..], more].concat());
    let key = |name: &str| format!("artel:{{artel}}:{name}");
    let later = "99999999999999";
    let all: [(Server, &[&[&str]], &str); 10] = [
        (any_server(&["--appendonly", "no"]), &[], "persistence: there is no append-only file"),
        (
            any_server(&["--appendonly", "yes", "--appendfsync", "no"]),
            &[],
            "fsync: appendfsync is no",
        ),
        (
            healthy(&["--maxmemory-policy", "allkeys-lru"]),
            &[],
            "memory: maxmemory-policy is allkeys-lru",
        ),
        (
            healthy(&["--maxmemory-policy", "volatile-ttl", "--maxmemory", "100mb"]),
            &[],
            "memory: maxmemory-policy is volatile-ttl",
        ),
        (healthy(&["--replicaof", "127.0.0.1", "1"]), &[], "replicas: this is a replica"),
        (
            healthy(&["--min-replicas-to-write", "1"]),
            &[],
            "replicas: 0 replicas are up to date, min-replicas-to-write asks for 1",
        ),
        (
            healthy(&[]),
            &[&["SET", &key("errors"), "a text"]],
            "keys: artel:{artel}:errors holds a string, not a stream",
        ),
        (
            healthy(&[]),
            &[&["HSET", &key("counts"), "done", "5"]],
            "books: 0 waiting, 0 scheduled, 0 claimed, 0 failed and stored; difference -5",
        ),
        (
            healthy(&[]),
            &[
                &["HSET", &key("config"), "protocol", "3"],
                &["ZADD", &key("members"), later, "an-older-one"],
            ],
            "fleet: fleet \"artel\" runs with protocol 3, this program speaks 5",
        ),
        (
            healthy(&[]),
            &[&["SET", &key("term"), "9007199254740991"]],
            "clock: artel:{artel}:term can no longer grow: Redis's clock is, or was, past the year 2112",
        ),
    ];
    for (server, commands, words) in all {
        commands.iter().for_each(|words| redis(&server, words));
        let (findings, code) = doctor(&server.url());
        let found = dangers(&findings);
        assert!(found.iter().any(|it| it.starts_with(words)), "not {words:?}, but {found:?}");
        assert_eq!(code, Some(6), "{words}");
    }
}

/// It names the missing rights, and the command that grants them.
#[test]
fn missing_rights_are_named() {
    let server = any_server(&HEALTHY);
    redis(
        &server,
        &["ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+@all", "-rpush", "-hset"],
    );
    let url = server.url().replace("://", "://poor:secret@");
    let (findings, code) = doctor(&url);
    let rights = findings.iter().find(|it| it["check"] == "rights").expect("looked at");
    let what = rights["what"].as_str().expect("words");
    assert!(what.contains("RPUSH") && what.contains("HSET") && !what.contains("HGET"), "{what}");
    assert_eq!(rights["mend"], "`redis-cli ACL SETUSER <user> +hset +rpush`");
    assert_eq!(code, Some(6));
    assert!(!findings.iter().any(|it| it.to_string().contains("secret")), "{findings:?}");
}

/// A member that reconnects must find room.
#[test]
fn too_many_connections_are_found() {
    let server = any_server(&[&HEALTHY[..], &["--maxclients", "20"]].concat());
    let held: Vec<_> = (0..17).map(|_| server.connect()).collect();
    let (findings, code) = doctor(&server.url());
    assert!(dangers(&findings)[0].starts_with("connections: 1"), "{findings:?}");
    assert_eq!((code, held.len()), (Some(6), 17));
}

/// A server that is away is no finding, but the usual error.
#[test]
fn a_server_that_is_away_is_an_error() {
    let output = artel(&["doctor", "--redis", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("hint: "), "{}", text(&output.stderr));
}

/// No line is wider than the screen.
#[test]
fn findings_fit_on_the_screen() {
    let server = any_server(&["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]);
    let screen = on_terminal(&["doctor", "--redis", &server.url()], 80, false);
    let widest = screen.lines().map(|line| line.trim_end().chars().count()).max();
    assert!(widest <= Some(80), "{screen}");
    assert!(screen.contains("DANGER  persistence  there is no append-only file"), "{screen}");
    assert!(screen.contains("mend: `redis-cli CONFIG SET appendonly yes`"), "{screen}");
    assert!(screen.trim_end().ends_with("2 findings endanger a promise"), "{screen}");
}
