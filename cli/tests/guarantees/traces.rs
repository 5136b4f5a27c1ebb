//! Traces: the sending and the handling of a message in two processes belong together.

use std::process::Output;
use std::time::Instant;

use artel_rig::{Catcher, Program, Server, clean_command, eventually, wait_for};
use serde_json::Value;

use crate::fleet::{FLEET, artel, on_each_server};

/// All spans that a receiver got, each with the process it came from.
fn spans(receiver: &Catcher) -> Vec<(i64, Value)> {
    let mut all = Vec::new();
    for caught in receiver.taken() {
        assert!(caught.head.starts_with("POST /v1/traces "), "{}", caught.head);
        let document: Value = serde_json::from_str(&caught.body).expect("JSON");
        for resource in document["resourceSpans"].as_array().expect("a list") {
            let pid = attribute(&resource["resource"], "process.pid");
            let pid = pid["intValue"].as_str().and_then(|pid| pid.parse().ok());
            let pid = pid.or(attribute(&resource["resource"], "process.pid")["intValue"].as_i64());
            assert_eq!(attribute(&resource["resource"], "artel.fleet")["stringValue"], FLEET);
            for scope in resource["scopeSpans"].as_array().expect("a list") {
                let spans = scope["spans"].as_array().expect("a list");
                all.extend(spans.iter().map(|span| (pid.expect("a process"), span.clone())));
            }
        }
    }
    all
}

fn attribute<'a>(of: &'a Value, name: &str) -> &'a Value {
    let all = of["attributes"].as_array().expect("attributes");
    all.iter().find(|one| one["key"] == name).map_or(&Value::Null, |one| &one["value"])
}

fn named(spans: &[(i64, Value)], name: &str, id: &str) -> Option<(i64, Value)> {
    let of = |span: &Value| attribute(span, "messaging.message.id")["stringValue"] == id;
    spans.iter().find(|(_, span)| span["name"] == name && of(span)).cloned()
}

fn send(server: &Server, otlp: &str, payload: &str) -> Output {
    let url = server.url();
    let args =
        ["send", "--fleet", FLEET, "--redis", &url, "--otlp", otlp, "--otlp-share", "1", payload];
    clean_command(artel(), &args).output().expect("it runs")
}

fn worker(server: &Server, options: &[&str]) -> Program {
    let url = server.url();
    let args = [&["work", "--fleet", FLEET, "--redis", &url][..], options].concat();
    let worker = Program::start(artel(), &args);
    worker.says("joined");
    worker
}

on_each_server! {
    /// The span of the handler, in another process, follows and links to the span that sent the message. It ends with the
    /// outcome. A command that handles a message learns the context of its own span.
    fn a_trace_goes_from_the_sending_to_the_outcome(kind) {
        let server = Server::start(kind);
        let receiver = Catcher::http(|_| "200 OK".to_owned());
        let otlp = format!("http://{}", receiver.address());
        let handler = r#"test "$(cat)" = good || { echo "$TRACEPARENT" >&2; exit 65; }"#;
        // Its own share is 0: it traces what the sender traced.
        let mut worker = worker(&server, &["--handler", handler, "--otlp", &otlp, "--otlp-share", "0"]);
        let mut sent = Vec::new();
        for payload in ["good", "bad"] {
            let output = send(&server, &otlp, payload);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            sent.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        for (id, outcome) in sent.iter().zip(["done", "failed"]) {
            let (sender, send) = wait_for("the span of the sender", || named(&spans(&receiver), "send", id));
            let (handler, process) =
                wait_for("the span of the handler", || named(&spans(&receiver), "process", id));
            assert_ne!(sender, handler, "two processes");
            assert_eq!(handler, i64::from(worker.id()));
            assert_eq!(process["traceId"], send["traceId"]);
            assert_eq!(process["parentSpanId"], send["spanId"]);
            let link = &process["links"][0];
            assert_eq!((&link["traceId"], &link["spanId"]), (&send["traceId"], &send["spanId"]));
            assert_eq!((&send["kind"], &process["kind"]), (&4.into(), &5.into()), "producer, consumer");
            assert_eq!(attribute(&process, "artel.outcome")["stringValue"], outcome);
            assert_eq!(attribute(&process, "messaging.system")["stringValue"], "redis");
            if outcome == "failed" {
                let url = server.url();
                let args = ["errors", "list", "--json", "--fleet", FLEET, "--redis", &url];
                let errors = clean_command(artel(), &args).output().expect("it runs");
                let errors = String::from_utf8_lossy(&errors.stdout).into_owned();
                let own = format!("{}-{}-01", send["traceId"].as_str().expect("an id"), process["spanId"].as_str().expect("an id"));
                assert!(errors.contains(&own), "{own}: {errors}");
            }
        }
        worker.terminate();
        assert_eq!(worker.exit_code(), Some(0));
    }
}

/// A receiver that is away, or never answers, holds up nobody: messages are handled, and the program ends.
#[test]
fn a_receiver_that_is_away_or_hangs_holds_up_nobody() {
    let server = Server::any();
    let hangs = Catcher::http(|_| {
        loop {
            std::thread::park(); // the fault itself
        }
    });
    let gone = artel_rig::free_port();
    for otlp in [format!("http://127.0.0.1:{gone}"), format!("http://{}", hangs.address())] {
        let url = server.url();
        let args = [
            "run",
            "--fleet",
            FLEET,
            "--redis",
            &url,
            "--interval",
            "5ms",
            "--otlp",
            &otlp,
            "--otlp-share",
            "1",
            "--leader-works",
            "always",
        ];
        let mut member = Program::start(artel(), &args);
        let done = || -> i64 {
            let key = format!("artel:{{{FLEET}}}:counts");
            let done: Option<i64> = redis::cmd("HGET")
                .arg(key)
                .arg("done")
                .query(&mut server.connect())
                .expect("asked");
            done.unwrap_or(0)
        };
        let before = done();
        eventually("messages to be handled", || done() > before + 200);
        member.terminate();
        let asked = Instant::now();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        println!("it ended after {:?}", asked.elapsed());
        let said = member.stderr();
        assert!(said.matches("traces are not sent").count() <= 1, "told once: {said}");
        assert!(said.contains("spans were not sent spans="), "{said}");
        let output = send(&server, &otlp, "x");
        assert!(output.status.success());
    }
}

/// A user and a password are sent, a redirect is not followed, and the log says that spans are not sent, at each level.
#[test]
fn spans_go_to_their_receiver_alone() {
    let server = Server::any();
    let away = Catcher::http(|_| "200 OK".to_owned());
    let target = away.address();
    let redirects = Catcher::http(move |_| {
        format!("307 Temporary Redirect\r\nlocation: http://{target}/v1/traces")
    });
    let otlp = format!("http://me:p%40ss@{}/?key=hush", redirects.address());
    for level in [&[][..], &["-v"], &["-vv"]] {
        let mut options = vec!["--otlp", &otlp, "--otlp-share", "1", "--label", "traced"];
        options.extend(level);
        let mut worker = worker(&server, &options);
        assert!(send(&server, &otlp, "x").status.success());
        eventually("a warning", || worker.stderr().contains("traces are not sent"));
        worker.terminate();
        assert_eq!(worker.exit_code(), Some(0));
        assert!(!worker.stderr().contains("hush"), "{}", worker.stderr());
    }
    assert!(away.taken().is_empty());
    let head = redirects.taken()[0].head.to_lowercase();
    assert!(
        head.contains("authorization: basic bwu6cebzcw==") && !head.contains("referer"),
        "{head}"
    );
}

/// A message whose context is nonsense is handled like any other.
#[test]
fn a_context_that_is_none_stops_no_message() {
    let server = Server::any();
    let receiver = Catcher::http(|_| "200 OK".to_owned());
    let otlp = format!("http://{}", receiver.address());
    let _worker = worker(&server, &["--otlp", &otlp, "--otlp-share", "1"]);
    let contexts =
        ["nonsense", "00-0-0-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "é"];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let fleet = artel::Fleet::connect(server.url(), FLEET).await.expect("connected");
        for context in contexts {
            let message = artel::NewMessage::from("x").with_traceparent(context);
            fleet.send(message).await.expect("sent");
        }
    });
    eventually("all to be done", || {
        let key = format!("artel:{{{FLEET}}}:counts");
        let count = |name: &str| -> usize {
            let n: Option<usize> =
                redis::cmd("HGET").arg(&key).arg(name).query(&mut server.connect()).expect("asked");
            n.unwrap_or(0)
        };
        count("done") + count("failed") == contexts.len()
    });
}

/// Without `--otlp` messages carry nothing, and a wrong receiver is refused.
#[test]
fn nothing_is_traced_unless_it_is_asked_for() {
    let server = Server::any();
    let output = send(&server, "localhost:4318", "x");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--otlp") && said.contains("http://localhost:4318"), "{said}");
    let url = server.url();
    let args = ["send", "--fleet", FLEET, "--redis", &url, "plain"];
    assert!(clean_command(artel(), &args).output().expect("it runs").status.success());
    let lane = format!("artel:{{{FLEET}}}:lane:normal");
    let waiting: Vec<String> =
        redis::cmd("LRANGE").arg(lane).arg(0).arg(-1).query(&mut server.connect()).expect("a list");
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].ends_with("|plain") && !waiting[0].contains("traceparent"), "{waiting:?}");
}
