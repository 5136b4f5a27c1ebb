//! The JSON API: as it is described, once under a key, only for whom it is.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use artel_rig::{DEADLINE, Fault, Program, Proxy, Server, clean_command, eventually, wait_for};
use serde_json::{Value, json};

use crate::fleet::artel;
use crate::http::port_of;

const FLEET: &str = "fleet";

/// Somebody who asks a port.
pub struct Client {
    port: u16,
    headers: String,
}

/// An answer: its status, its head and its body.
#[derive(Debug)]
pub struct Answer(pub u16, pub String, pub String);

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.2).unwrap_or_else(|_| panic!("no document: {self:?}"))
    }
}

impl Client {
    pub fn new(port: u16) -> Client {
        Client { port, headers: String::new() }
    }

    pub fn with(port: u16, header: &str) -> Client {
        Client { port, headers: format!("{header}\r\n") }
    }

    pub fn ask(&self, method: &str, path: &str, body: Option<&str>, more: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time");
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{}", self.headers);
        if !more.contains("Host:") {
            request += &format!("Host: localhost:{}\r\n", self.port);
        }
        if let Some(body) = body {
            if !more.contains("Content-Type") {
                request += "Content-Type: application/json\r\n";
            }
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        request += &format!("{more}\r\n{}", body.unwrap_or_default());
        // A refusal may come before everything is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = match head.contains("transfer-encoding: chunked") {
            true => unchunked(body),
            false => body.to_owned(),
        };
        Answer(status, head.to_owned(), body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/api/v1/{path}"), None, "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", &format!("/api/v1/{path}"), Some(&body.to_string()), "")
    }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        body.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    body
}

/// A member of this fleet that serves.
fn member(server: &Server, args: &[&str]) -> (Program, u16) {
    let url = server.url();
    let mut all = vec![args[0], "--redis", &url, "--fleet", FLEET, "--http", "0"];
    all.extend(&args[1..]);
    let member = Program::start(artel(), &all);
    let port = port_of(&member);
    member.says("joined the fleet");
    (member, port)
}

/// The document that describes the API, and which of its operations were called.
struct Described {
    document: Value,
    called: BTreeSet<String>,
    client: Client,
}

impl Described {
    /// Calls an operation and checks that its answer is as described.
    #[track_caller]
    fn call(&mut self, method: &str, template: &str, path: &str, body: Option<Value>) -> Answer {
        self.call_with(method, template, path, body.map(|body| body.to_string()).as_deref(), "")
    }

    #[track_caller]
    fn call_with(
        &mut self,
        method: &str,
        template: &str,
        path: &str,
        body: Option<&str>,
        more: &str,
    ) -> Answer {
        let answer = self.client.ask(method, &format!("/api/v1{path}"), body, more);
        let pointer = template.replace('/', "~1");
        let operation = format!("/paths/{pointer}/{}", method.to_lowercase());
        let known = self
            .document
            .pointer(&operation)
            .unwrap_or_else(|| panic!("not described: {operation}"));
        self.called.insert(known["operationId"].as_str().expect("an id").to_owned());
        let response = &known["responses"][answer.0.to_string()];
        assert!(!response.is_null(), "{method} {path}: {} is not described: {answer:?}", answer.0);
        let response = match response["$ref"].as_str() {
            Some(name) => self.document.pointer(name.trim_start_matches('#')).expect("it exists"),
            None => response,
        };
        if let Some(schema) = response.pointer("/content/application~1json/schema") {
            let whole = json!({ "allOf": [schema], "components": self.document["components"] });
            let validator = jsonschema::validator_for(&whole).expect("a schema");
            let document = answer.json();
            let wrong: Vec<String> = validator
                .iter_errors(&document)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(wrong.is_empty(), "{method} {path}: {wrong:#?}\n{document}");
        }
        answer
    }

    #[track_caller]
    fn done(&mut self, method: &str, template: &str, path: &str, body: Option<Value>) -> Value {
        let answer = self.call(method, template, path, body);
        assert_eq!(answer.0, 200, "{method} {path}: {answer:?}");
        match answer.1.contains("application/json") {
            true => answer.json(),
            false => Value::String(answer.2),
        }
    }

    #[track_caller]
    fn refused(
        &mut self,
        code: u16,
        words: &str,
        method: &str,
        template: &str,
        path: &str,
        body: Option<Value>,
    ) {
        let answer = self.call(method, template, path, body);
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.0 == code && error.contains(words), "{method} {path}: {answer:?}");
    }
}

/// Every operation is called, well and badly, and every answer is validated against the document that is served.
#[test]
fn every_operation_is_as_described() {
    let server = Server::any();
    let (mut one, port) =
        member(&server, &["work", "--label", "one", "--error-rate", "1", "--ledger", "all"]);
    let client = Client::new(port);
    let document = client.get("openapi.json").json();
    let mut api = Described { document, called: BTreeSet::new(), client };
    let elsewhere = api.call_with("GET", "/status", "/status", None, "Host: evil.example\r\n");
    assert_eq!(elsewhere.0, 421, "{elsewhere:?}");
    reads(&mut api);
    failed(&mut api);
    paused(&mut api, &one);
    later(&mut api, &server);
    signals(&mut api);
    wrong(&mut api);
    let all: BTreeSet<String> = api.document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .flat_map(|path| path.as_object().expect("operations").values())
        .map(|operation| operation["operationId"].as_str().expect("an id").to_owned())
        .filter(|id| id != "stream") // `a_stream_goes_on_in_another_process`
        .collect();
    assert_eq!(api.called, all, "every operation is called");
    let log = api
        .client
        .get("log?kind=ordered,acted,errors-requeued,errors-dropped,scheduled-cancelled")
        .json();
    let entries = log["entries"].as_array().expect("entries");
    assert!(entries.len() >= 8, "{log:#}");
    for entry in entries {
        let text = entry["text"].as_str().expect("a text");
        assert!(text.contains("by 127.0.0.1 over HTTP of "), "{text}");
    }
    one.terminate();
    assert_eq!(one.exit_code(), Some(0), "{}", one.stderr());
}

fn reads(api: &mut Described) {
    api.done("GET", "/openapi.json", "/openapi.json", None);
    let about = api.done("GET", "/about", "/about", None);
    assert_eq!((&about["fleets"], &about["may_change"]), (&json!([FLEET]), &true.into()));
    for path in
        ["/status", "/stats", "/trends", "/findings", "/hub", "/log", "/crons", "/events", "/locks"]
    {
        api.done("GET", path, path, None);
        api.refused(400, "no parameter `limt`", "GET", path, &format!("{path}?limt=1"), None);
        api.refused(404, "is not served here", "GET", path, &format!("{path}?fleet=other"), None);
    }
}

/// Exactly the selected ones, or all up to one.
fn export_of_some(api: &mut Described, all: &[Value]) {
    let text = |row: &Value, field: &str| row[field].as_str().expect("a text").to_owned();
    let exported = |api: &mut Described, query: &str| {
        let lines = api.done("GET", "/errors/export", &format!("/errors/export?{query}"), None);
        let lines = lines.as_str().expect("lines").lines();
        let id = |line: &str| text(&serde_json::from_str(line).expect("a record"), "id");
        lines.map(id).collect::<Vec<String>>()
    };
    // The newest comes first in a list, and last in an export.
    let (newer, older) = (&all[1], &all[4]);
    let positions = [newer, older, newer].map(|row| text(row, "position")).join(",");
    assert_eq!(
        exported(api, &format!("positions={positions}")),
        [text(older, "id"), text(newer, "id")]
    );
    let until = format!("until={}", text(older, "position"));
    assert_eq!(exported(api, &until).len(), all.len() - 4);
    let many = vec!["1-1"; 501].join(",");
    for (query, words) in [
        ("positions=x", "position"),
        ("until=x", "position"),
        (&*format!("{until}&positions=1-1"), "either `positions` or `until`"),
        ("positions=1-1&q=fifth", "either `positions` or `q`"),
        (&*format!("positions={many}"), "at most 500"),
    ] {
        let path = format!("/errors/export?{query}");
        api.refused(400, words, "GET", "/errors/export", &path, None);
    }
}

fn failed(api: &mut Described) {
    let sent = api.done("POST", "/messages", "/messages", Some(json!({ "messages": [
        { "payload": "<img src=x onerror=alert(1)>" }, { "payload": { "n": 7 }, "kind": "mail" },
        { "payload_b64": "/w==" }, { "payload": "x".repeat(5000) }, { "payload": "fifth" }, { "payload": "sixth" },
    ] })));
    let ids: Vec<&str> =
        sent["ids"].as_array().expect("ids").iter().filter_map(Value::as_str).collect();
    let count = |api: &mut Described, query: &str| {
        api.done("GET", "/errors/count", &format!("/errors/count{query}"), None)["count"].as_u64()
    };
    eventually("all to fail", || count(api, "") == Some(6));
    let list = api.done("GET", "/errors", "/errors?limit=4", None);
    let rows = list["errors"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 4);
    let rest = format!("/errors?cursor={}", list["cursor"].as_str().expect("more"));
    let rest = api.done("GET", "/errors", &rest, None)["errors"].as_array().expect("rows").clone();
    let all: Vec<Value> = rows.into_iter().chain(rest).collect();
    let by_id = |id: &str| all.iter().find(|row| row["id"] == id).expect("it failed").clone();
    assert_eq!(by_id(ids[0])["payload"], "<img src=x onerror=alert(1)>");
    assert_eq!(
        (&by_id(ids[1])["payload"], &by_id(ids[1])["kind"]),
        (&"{\"n\":7}".into(), &"mail".into())
    );
    assert_eq!(by_id(ids[2])["payload_b64"], "/w==");
    let long = by_id(ids[3]);
    assert_eq!((&long["payload_cut"], &long["payload_bytes"]), (&true.into(), &5000.into()));
    let position = long["position"].as_str().expect("a position").to_owned();
    let template = "/errors/{position}/payload";
    let whole = api.done("GET", template, &format!("/errors/{position}/payload"), None);
    assert_eq!(whole.as_str().map(str::len), Some(5000));
    api.refused(404, "no longer stored", "GET", template, "/errors/1-1/payload", None);
    api.refused(400, "position", "GET", template, "/errors/nonsense/payload", None);
    for (query, wanted) in [
        ("?kind=mail", 1),
        ("?q=ONERROR", 1),
        ("?q=nothing-like-it", 0),
        ("?cause=handler", 6),
        ("?cause=timeout", 0),
        ("?member=one", 6),
        ("?since_ms=1", 6),
    ] {
        assert_eq!(count(api, query), Some(wanted), "{query}");
        let list = api.done("GET", "/errors", &format!("/errors{query}"), None);
        assert_eq!(list["errors"].as_array().map(Vec::len), Some(wanted as usize), "{query}");
    }
    api.refused(400, "`cause`", "GET", "/errors", "/errors?cause=bad-luck", None);
    let lines = api.done("GET", "/errors/export", "/errors/export?q=fifth", None);
    assert_eq!(lines.as_str().map(|lines| lines.lines().count()), Some(1), "{lines}");
    export_of_some(api, &all);
    let found = api.done("GET", "/messages/{id}", &format!("/messages/{}", ids[0]), None);
    assert_eq!(found["state"], "failed");

    // Taken: shown, and removed when it is confirmed; put back when it is not.
    let until = api.done("GET", "/errors/count", "/errors/count", None)["until"].clone();
    for (end, left) in [("release", 6), ("confirm", 4)] {
        let selected = selected_now(api, &ids[..2]);
        let taking = api.done("POST", "/errors/take", "/errors/take", Some(selected));
        assert_eq!(taking["errors"].as_array().map(Vec::len), Some(2), "{taking}");
        let name = taking["taking"].as_str().expect("a name").to_owned();
        let template = format!("/errors/takings/{{taking}}/{end}");
        let path = format!("/errors/takings/{name}/{end}");
        let ended = api.done("POST", &template, &path, None);
        assert_eq!(ended["removed"].as_u64(), Some(6 - left));
        // Whoever did not get the answer asks again, and gets the same.
        assert_eq!(api.done("POST", &template, &path, None), ended);
        let (other, says) = match end {
            "confirm" => ("release", "2 were removed before"),
            _ => ("confirm", "put back before this: nothing was removed"),
        };
        let path = format!("/errors/takings/{name}/{other}");
        let template = format!("/errors/takings/{{taking}}/{other}");
        api.refused(409, says, "POST", &template, &path, None);
        assert_eq!(count(api, ""), Some(left));
    }
    let (template, nobody) = ("/errors/takings/{taking}/confirm", "/errors/takings/0123/confirm");
    api.refused(404, "no such taking", "POST", template, nobody, None);
    let none = api.done(
        "POST",
        "/errors/take",
        "/errors/take",
        Some(json!({ "filter": { "q": "nothing" }, "until": until })),
    );
    assert!(none["taking"].is_null());
    let by_position = |row: Value| json!({ "positions": [row["position"]] });
    let dropped =
        api.done("POST", "/errors/drop", "/errors/drop", Some(by_position(by_id(ids[2]))));
    assert_eq!(dropped["changed"], 1);
    let again = api.done("POST", "/errors/drop", "/errors/drop", Some(by_position(by_id(ids[2]))));
    assert_eq!(again["changed"], 0);
    let done = json!({ "filter": { "q": "fifth" }, "until": until });
    assert_eq!(
        api.done("POST", "/errors/requeue", "/errors/requeue", Some(done.clone()))["changed"],
        1
    );
    eventually("it to fail again", || count(api, "?q=fifth") == Some(1));
    let later_ones =
        api.done("POST", "/errors/requeue", "/errors/requeue", Some(done))["changed"].clone();
    assert_eq!(later_ones, 0, "only what had failed when it was counted");
    for (body, words) in [
        (json!({}), "either `positions` or `filter`"),
        (json!({ "filter": {} }), "up to which one"),
        (json!({ "filter": {}, "until": "x" }), "position"),
        (json!({ "positions": ["1-1"], "filter": {} }), "either `positions` or `filter`"),
        (json!({ "positions": vec!["1-1"; 501] }), "at most 500"),
        (json!({ "positions": 7 }), "the body is wrong"),
        (json!({ "position": ["1-1"] }), "unknown field `position`"),
    ] {
        for path in ["/errors/requeue", "/errors/drop", "/errors/take"] {
            api.refused(400, words, "POST", path, path, Some(body.clone()));
        }
    }
    api.refused(
        400,
        "must be",
        "POST",
        "/errors/requeue",
        "/errors/requeue",
        Some(json!({ "positions": ["1-1"], "lane": "fast" })),
    );
}

/// What a stranger broke: guesses where no token is asked for, others who guess, large numbers, a log that readers fill.
#[test]
fn what_a_stranger_broke() {
    let server = Server::any();
    let url = server.url();
    let token = "0123456789abcdef0123";
    let mut command = clean_command(
        artel(),
        &["work", "--redis", &url, "--fleet", FLEET, "--http", "0", "--error-rate", "1"],
    );
    command.env("ARTEL_HTTP_TOKEN", token).stdin(Stdio::null());
    let mut one = Program::spawn(command);
    let port = port_of(&one);
    one.says("joined the fleet");
    let operator = Client::with(port, &format!("Authorization: Bearer {token}"));
    let guess = Client::with(port, "Authorization: Bearer wrong-wrong-wrong-wrong");
    let codes: BTreeSet<u16> = (0..60).map(|_| guess.ask("POST", "/nope", None, "").0).collect();
    assert_eq!(codes, BTreeSet::from([401, 429]), "a guess is a guess, whatever it asks for");
    assert_eq!(operator.get("status").0, 200, "others who guess lock nobody out");
    // JSON is passed on as it is written.
    let exact = "{\"messages\":[{\"payload\":{\"b\":12345678901234567890123,\"a\":1.10,\"a\":2}}]}";
    assert_eq!(operator.ask("POST", "/api/v1/messages", Some(exact), "").0, 200);
    let errors = || operator.get("errors").json()["errors"].as_array().expect("rows").clone();
    eventually("it to fail", || errors().len() == 1);
    assert_eq!(errors()[0]["payload"], "{\"b\":12345678901234567890123,\"a\":1.10,\"a\":2}");
    // A payload whose beginning is text and whose end is not.
    let mut bytes = vec![b'a'; 2048];
    bytes.extend(b"\xffTAIL");
    let base64 = |bytes: &[u8]| {
        use base64::Engine;
        base64::prelude::BASE64_STANDARD.encode(bytes)
    };
    let mixed = json!({ "messages": [{ "payload_b64": base64(&bytes) }] });
    assert_eq!(operator.post("messages", &mixed).0, 200);
    eventually("it to fail", || errors().len() == 2);
    let until = operator.get("errors/count").json()["until"].clone();
    let taking =
        operator.post("errors/take", &json!({ "filter": { "q": "aaaa" }, "until": until })).json();
    let row = &taking["errors"][0];
    assert!(row.get("payload").is_none() && row["payload_b64"] == base64(&bytes), "{row}");
    // Looking leaves no trace; an export does, and another site cannot ask for it.
    let exports =
        || operator.get("log?kind=acted&q=exported").json()["entries"].as_array().map(Vec::len);
    let export =
        |method: &str, more: &str| operator.ask(method, "/api/v1/errors/export", None, more).0;
    assert_eq!((export("HEAD", ""), exports()), (200, Some(0)));
    assert_eq!((export("GET", "Sec-Fetch-Site: cross-site\r\n"), exports()), (403, Some(0)));
    assert_eq!((export("GET", ""), exports()), (200, Some(1)));
    let huge = operator.get("errors?cursor=99999999999999999999-0");
    assert_eq!(huge.0, 400, "{huge:?}");
    assert!(!operator.get("findings").2.contains(&server.port().to_string()), "no addresses");
    let many = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(3_000_000));
    assert_eq!(operator.ask("POST", "/api/v1/messages", Some(&many), "").0, 413);
    let more = json!({ "positions": vec!["1-1"; 60_000] });
    assert_eq!(operator.post("errors/drop", &more).0, 413, "only messages may be large");
    // From the future: as if nothing had been named.
    let mut stream = Stream::open_as(port, Some("18446744073709551615-0"), token);
    stream.next("status");
    operator.post("pause", &json!({}));
    assert_eq!(stream.next("log")["kind"], "ordered");
    one.kill();
}

/// What was put back has new positions.
fn selected_now(api: &mut Described, ids: &[&str]) -> Value {
    let list = api.done("GET", "/errors", "/errors", None);
    let rows = list["errors"].as_array().expect("rows").iter();
    let positions: Vec<&Value> = rows
        .filter(|row| ids.iter().any(|id| row["id"] == *id))
        .map(|row| &row["position"])
        .collect();
    assert_eq!(positions.len(), ids.len());
    json!({ "positions": positions })
}

fn paused(api: &mut Described, member: &Program) {
    api.done("POST", "/pause", "/pause", None);
    api.refused(409, "paused already", "POST", "/pause", "/pause", None);
    assert_eq!(api.done("GET", "/status", "/status", None)["paused"], json!(["all"]));
    member.says("paused");
    let messages: Vec<Value> = (0..150).map(|n| json!({ "payload": format!("wait {n}"), "kind": if n < 3 { "few" } else { "many" } })).collect();
    let sent = api.done(
        "POST",
        "/messages",
        "/messages",
        Some(json!({ "lane": "high", "messages": messages })),
    );
    let ids: Vec<Value> = sent["ids"].as_array().expect("ids").clone();
    // A member that had asked already may take some of the first.
    let list = |query: &str| format!("/messages?state=waiting&lane=high{query}");
    let (mut seen, mut path) = (Vec::new(), list("&limit=40"));
    loop {
        let page = api.done("GET", "/messages", &path, None);
        seen.extend(page["messages"].as_array().expect("rows").clone());
        let Some(cursor) = page["cursor"].as_str() else { break };
        path = list(&format!("&limit=40&cursor={cursor}"));
    }
    let listed: Vec<&Value> = seen.iter().map(|row| &row["id"]).collect();
    assert_eq!(listed, ids.iter().skip(ids.len() - listed.len()).collect::<Vec<_>>());
    assert!(listed.len() > 100, "{}", listed.len());
    let found = api.done("GET", "/messages", &list("&q=WAIT%20149"), None);
    assert_eq!(found["messages"].as_array().map(Vec::len), Some(1), "{found}");
    let many = api.done("GET", "/messages", &list("&kind=many&limit=7"), None);
    assert_eq!(many["messages"].as_array().map(Vec::len), Some(7));
    let next =
        list(&format!("&kind=many&limit=7&cursor={}", many["cursor"].as_str().expect("more")));
    let next = api.done("GET", "/messages", &next, None);
    let last = many["messages"][6]["id"].clone();
    let after = ids.iter().position(|id| *id == last).expect("known") + 1;
    assert_eq!(next["messages"][0]["id"], ids[after], "nothing is passed over");
    let row = seen.last().expect("one");
    let (id, at) = (row["id"].as_str().expect("an id"), row["at"].as_str().expect("a place"));
    let template = "/messages/{id}/payload";
    let payload = |at: &str| format!("/messages/{id}/payload?state=waiting&lane=high&at={at}");
    assert_eq!(api.done("GET", template, &payload(at), None), "wait 149");
    api.refused(404, "has moved on", "GET", template, &payload("0.0"), None);
    api.refused(400, "cursor", "GET", template, &payload("x"), None);
    api.refused(400, "Add the `at`", "GET", template, &payload(""), None);
    let state = api.done("GET", "/messages/{id}", &format!("/messages/{id}"), None);
    assert_eq!((&state["state"], &state["lane"]), (&"waiting".into(), &"high".into()));
    api.done("GET", "/messages", "/messages?state=claimed", None);
    for (query, words) in [
        ("", "`state`"),
        ("?state=lost", "`state`"),
        ("?state=waiting", "which lane"),
        ("?state=waiting&lane=fast", "name a lane"),
        ("?state=claimed&lane=high", "leave out `lane`"),
        ("?state=claimed&limit=0", "`limit`"),
        ("?state=claimed&limit=1e9", "`limit`"),
        ("?state=claimed&cursor=%00", "cursor"),
        ("?state=claimed&state=claimed", "twice"),
    ] {
        api.refused(400, words, "GET", "/messages", &format!("/messages{query}"), None);
    }
    api.done("POST", "/resume", "/resume", None);
    api.refused(409, "no order", "POST", "/resume", "/resume", None);
    eventually("all to fail", || {
        api.done("GET", "/status", "/status", None)["messages"]["waiting"] == 0
    });
    let lane = |act: &str| format!("/lanes/low/{act}");
    let template = "/lanes/{lane}/{act}";
    api.refused(409, "not paused", "POST", template, &lane("resume"), None);
    api.done("POST", template, &lane("pause"), None);
    api.refused(409, "paused already", "POST", template, &lane("pause"), None);
    api.done("POST", template, &lane("resume"), None);
    api.refused(404, "pause or resume", "POST", template, &lane("stop"), None);
    api.refused(404, "must be", "POST", template, "/lanes/fast/pause", None);
    let status = api.done("GET", "/status", "/status", None);
    let member = status["members"][0]["id"].as_str().expect("a member").to_owned();
    let template = "/members/{member}/{act}";
    api.done("POST", template, &format!("/members/{member}/drain"), None);
    api.refused(
        409,
        "drained already",
        "POST",
        template,
        &format!("/members/{member}/drain"),
        None,
    );
    api.done("POST", template, &format!("/members/{member}/resume"), None);
    api.refused(409, "not drained", "POST", template, &format!("/members/{member}/resume"), None);
    api.refused(404, "is not a member", "POST", template, "/members/nobody/drain", None);
    api.refused(409, "nobody leads", "POST", "/step-down", "/step-down", None);
}

fn later(api: &mut Described, server: &Server) {
    let messages: Vec<Value> = (0..5)
        .map(|n| json!({ "payload": format!("later {n}"), "in_ms": 3_600_000 + n }))
        .collect();
    let sent = api.done("POST", "/messages", "/messages", Some(json!({ "messages": messages })));
    let ids: Vec<String> = sent["ids"]
        .as_array()
        .expect("ids")
        .iter()
        .filter_map(|id| id.as_str().map(str::to_owned))
        .collect();
    let page = api.done("GET", "/scheduled", "/scheduled?limit=2", None);
    let next = format!("/scheduled?limit=9&cursor={}", page["cursor"].as_str().expect("more"));
    let rest = api.done("GET", "/scheduled", &next, None);
    let listed: Vec<&Value> = page["messages"]
        .as_array()
        .into_iter()
        .chain(rest["messages"].as_array())
        .flatten()
        .map(|row| &row["id"])
        .collect();
    assert_eq!(listed, ids.iter().collect::<Vec<_>>());
    let one = api.done("GET", "/scheduled", "/scheduled?q=LATER%203&retried=false", None);
    assert_eq!(one["messages"][0]["id"], ids[3].as_str());
    let none = api.done("GET", "/scheduled", "/scheduled?retried=true", None);
    assert_eq!(none["messages"], json!([]));
    let template = "/scheduled/{id}/payload";
    assert_eq!(
        api.done("GET", template, &format!("/scheduled/{}/payload", ids[4]), None),
        "later 4"
    );
    api.refused(404, "does not wait", "GET", template, "/scheduled/s1-1/payload", None);
    let template = "/scheduled/{id}/{act}";
    let act = |at: usize, act: &str| format!("/scheduled/{}/{act}", ids[at]);
    api.done("POST", template, &act(0, "run"), None);
    api.done("POST", template, &act(1, "cancel"), None);
    api.refused(404, "does not wait", "POST", template, &act(1, "cancel"), None);
    api.done("POST", template, &act(2, "move"), Some(json!({ "in_ms": 60_000 })));
    api.done("POST", template, &act(3, "move"), Some(json!({ "in_ms": 120_000 })));
    let first = api.done("GET", "/scheduled", "/scheduled?limit=1", None);
    assert_eq!(first["messages"][0]["id"], ids[2].as_str());
    api.refused(
        400,
        "either `at_ms` or `in_ms`",
        "POST",
        template,
        &act(2, "move"),
        Some(json!({})),
    );
    api.refused(
        400,
        "366 days",
        "POST",
        template,
        &act(2, "move"),
        Some(json!({ "in_ms": 40_000_000_000_u64 })),
    );
    api.refused(
        400,
        "366 days",
        "POST",
        template,
        &act(2, "move"),
        Some(json!({ "at_ms": 9_000_000_000_000_u64 })),
    );
    api.refused(
        400,
        "for `move` alone",
        "POST",
        template,
        &act(2, "run"),
        Some(json!({ "in_ms": 1 })),
    );
    api.refused(404, "run, cancel or move", "POST", template, &act(2, "eat"), None);
    api.refused(400, "the id", "POST", template, "/scheduled/%20/run", None);

    let url = server.url();
    let mut set = Program::start(
        artel(),
        &["cron", "set", "nightly", "0 2 * * *", "all", "--redis", &url, "--fleet", FLEET],
    );
    assert_eq!(set.exit_code(), Some(0), "{}", set.stderr());
    let entries = api.done("GET", "/crons", "/crons", None);
    assert_eq!(
        (&entries["entries"][0]["entry"], &entries["entries"][0]["payload"]),
        (&"nightly".into(), &"all".into())
    );
    let template = "/crons/{name}/{act}";
    api.done("POST", template, "/crons/nightly/run", None);
    api.refused(409, "not paused", "POST", template, "/crons/nightly/resume", None);
    api.done("POST", template, "/crons/nightly/pause", None);
    api.refused(409, "paused already", "POST", template, "/crons/nightly/pause", None);
    api.done("POST", template, "/crons/nightly/resume", None);
    api.refused(404, "no periodic entry", "POST", template, "/crons/daily/run", None);
    api.refused(404, "run, pause or resume", "POST", template, "/crons/nightly/stop", None);
}

fn signals(api: &mut Described) {
    let template = "/events/{name}/{act}";
    api.done("POST", template, "/events/open/set", None);
    let events = api.done("GET", "/events", "/events", None);
    assert_eq!(
        (&events["events"][0]["event"], &events["events"][0]["set"]),
        (&"open".into(), &true.into())
    );
    api.done("POST", template, "/events/open/clear", None);
    api.refused(404, "set or clear", "POST", template, "/events/open/wave", None);
    api.refused(400, "event", "POST", template, &format!("/events/{}/set", "x".repeat(300)), None);
    api.refused(404, "is not found", "GET", "/messages/{id}", "/messages/s1-1", None);
    api.refused(400, "id", "GET", "/messages/{id}", "/messages/%2e%2e", None);
}

/// Requests that are no request.
fn wrong(api: &mut Described) {
    let send = |api: &mut Described, code: u16, words: &str, body: &str, more: &str| {
        let answer = api.call_with("POST", "/messages", "/messages", Some(body), more);
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.0 == code && error.contains(words), "{body:.100}: {answer:?}");
    };
    for (body, words) in [
        ("", "missing field `messages`"),
        ("{", "the body is wrong: EOF"),
        ("[]", "the body is wrong"),
        ("nul", "the body is wrong"),
        ("{\"messages\":[]}", "no message"),
        ("{\"messages\":[{}]}", "message 1: either `payload`"),
        (
            "{\"messages\":[{\"payload\":\"a\"},{\"payload\":\"a\",\"payload_b64\":\"YQ==\"}]}",
            "message 2",
        ),
        ("{\"messages\":[{\"payload_b64\":\"?\"}]}", "Base64"),
        ("{\"messages\":[{\"payload\":\"a\",\"in_ms\":1,\"at_ms\":1}]}", "together"),
        ("{\"messages\":[{\"payload\":\"a\",\"in_ms\":-1}]}", "the body is wrong"),
        ("{\"messages\":[{\"payload\":\"a\",\"retries\":1001}]}", "retries"),
        ("{\"messages\":[{\"payload\":\"a\",\"in_ms\":40000000000}]}", "366 days"),
        ("{\"messages\":[{\"payload\":\"a\",\"kind\":\"a\\u0000b\"}]}", "kind"),
        ("{\"lane\":\"fast\",\"messages\":[{\"payload\":\"a\"}]}", "fast"),
        ("{\"lane\":\"generated\",\"messages\":[{\"payload\":\"a\"}]}", "lane"),
    ] {
        send(api, 400, words, body, "");
    }
    // The door of the second column is shut.
    for name in ["key", "unique", "parent", "children", "result"] {
        let body = format!("{{\"messages\":[{{\"payload\":\"a\",\"{name}\":\"x\"}}]}}");
        send(api, 400, &format!("unknown field `{name}`"), &body, "");
    }
    let many = json!({ "messages": vec![json!({ "payload": "a" }); 1001] }).to_string();
    send(api, 413, "too large", &many, "");
    let large = json!({ "messages": [{ "payload": "x".repeat(17 << 20) }] }).to_string();
    send(api, 413, "the body is too large", &large, "");
    send(
        api,
        415,
        "must be JSON",
        "messages=1",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    );
    send(
        api,
        415,
        "must be JSON",
        "{\"messages\":[{\"payload\":\"a\"}]}",
        "Content-Type: text/plain\r\n",
    );
    let one = "{\"messages\":[{\"payload\":\"a\"}]}";
    send(api, 422, "Idempotency-Key", one, &format!("Idempotency-Key: {}\r\n", "k".repeat(201)));
    for (method, path, code) in [
        ("DELETE", "/api/v1/errors", 405),
        ("POST", "/api/v1/status", 405),
        ("GET", "/api/v1/pause", 405),
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v1", 404),
        ("GET", "/page/nothing.js", 404),
        ("GET", "/page/%2e%2e%2fapp.js", 404),
    ] {
        let answer = api.client.ask(method, path, None, "");
        assert_eq!(answer.0, code, "{method} {path}: {answer:?}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
}

/// A program in another language is killed before it reads the answer, and sends the same again, elsewhere.
#[test]
fn a_request_under_a_key_is_carried_out_once() {
    let server = Server::any();
    let (mut one, first) = member(&server, &["run", "--label", "one", "--interval", "1h"]);
    let (mut two, second) = member(&server, &["run", "--label", "two", "--interval", "1h"]);
    let client = Client::new(second);
    client.post("pause", &json!({}));
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("batch.json");
    let messages: Vec<Value> =
        (0..1000).map(|n| json!({ "payload": format!("order {n}") })).collect();
    std::fs::write(&file, json!({ "messages": messages }).to_string()).expect("written");
    let curl = |port: u16| {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "-X",
            "POST",
            "-H",
            "Content-Type: application/json",
            "-H",
            "Idempotency-Key: import-7",
        ]);
        curl.arg("--data-binary").arg(format!("@{}", file.display()));
        curl.arg(format!("http://127.0.0.1:{port}/api/v1/messages"));
        curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        curl.spawn().expect("curl is there")
    };
    let sent = || client.get("status").json()["messages"]["sent"].as_u64().expect("a count");
    let deaf = Proxy::start(first).expect("a free port");
    for _ in 0..3 {
        deaf.set(Fault::DropReplies);
        let mut killed = curl(deaf.port());
        eventually("the batch to be added", || sent() == 1000);
        killed.kill().expect("it still waits for its answer");
        killed.wait().expect("it ends");
    }
    let ids = |port: u16| {
        let output = curl(port).wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("no document: {text}"));
        answer["ids"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    };
    let known = ids(first);
    assert_eq!(known.len(), 1000);
    assert_eq!(ids(second), known, "another process answers the same");
    assert_eq!(sent(), 1000);
    let other = json!({ "messages": [{ "payload": "another request" }] }).to_string();
    let refused =
        client.ask("POST", "/api/v1/messages", Some(&other), "Idempotency-Key: import-7\r\n");
    assert!(refused.0 == 422 && refused.2.contains("was used for another request"), "{refused:?}");
    for member in [&mut one, &mut two] {
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
    }
}

/// The examples on the page about it: curl, Python, Node.
#[test]
fn other_languages_send_as_the_examples_show() {
    let server = Server::any();
    let (mut one, port) = member(&server, &["run", "--interval", "1h"]);
    let client = Client::new(port);
    client.post("pause", &json!({}));
    let sent = || client.get("status").json()["messages"]["sent"].as_u64().expect("a count");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/http");
    // The first has a fixed key, so its repeat adds nothing.
    for (program, file, after) in [
        ("sh", "send.sh", 2),
        ("sh", "send.sh", 2),
        ("python3", "send.py", 4),
        ("node", "send.mjs", 6),
    ] {
        let mut command = Command::new(program);
        command.arg(format!("{examples}/{file}"));
        let output = command.env("ARTEL_HTTP", format!("http://localhost:{port}")).output();
        let output = match output {
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && std::env::var_os("CI").is_none() =>
            {
                println!("no {program}: {file} was not run");
                return;
            }
            output => output.expect("it is there"),
        };
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let words = said.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let numbers: Vec<u64> = words
            .filter_map(|word| word.strip_prefix('s')?.split_once('-')?.1.parse().ok())
            .collect();
        assert!(output.status.success() && numbers.len() == 2, "{said}");
        assert_eq!(numbers[0] + 1, numbers[1], "{said}");
        assert_eq!(sent(), after, "{file}: {said}");
    }
    one.kill();
}

/// The events of a stream, read one after the other.
struct Stream {
    lines: std::io::Lines<BufReader<TcpStream>>,
    /// The entries of the log that came, whatever was waited for.
    log: Vec<String>,
}

impl Stream {
    fn open(port: u16, last: Option<&str>) -> Stream {
        Stream::open_as(port, last, "")
    }

    fn open_as(port: u16, last: Option<&str>, token: &str) -> Stream {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time");
        let last = last.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!(
            "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).expect("reads");
        Stream { lines: BufReader::new(stream).lines(), log: Vec::new() }
    }

    /// The next event of this kind.
    #[track_caller]
    fn next(&mut self, kind: &str) -> Value {
        let mut is_it = false;
        loop {
            let line = self.lines.next().expect("it goes on").expect("it can be read");
            if let Some(text) = line.strip_prefix("id: ") {
                self.log.push(text.to_owned());
            } else if let Some(text) = line.strip_prefix("event: ") {
                is_it = text == kind;
            } else if let Some(text) = line.strip_prefix("data: ").filter(|_| is_it) {
                return serde_json::from_str(text).expect("a document");
            }
        }
    }
}

/// A page that was open at a process that died goes on at another one, and gets every entry of the log once and in order.
#[test]
fn a_stream_goes_on_in_another_process() {
    let server = Server::any();
    let (mut one, first) = member(&server, &["run", "--label", "one", "--interval", "1h"]);
    let (mut two, second) = member(&server, &["run", "--label", "two", "--interval", "1h"]);
    let client = Client::new(second);
    let mut stream = Stream::open(first, Some("0-0"));
    assert_eq!(stream.next("status")["fleet"], FLEET);
    let lane = |act: &str| assert_eq!(client.post(&format!("lanes/low/{act}"), &json!({})).0, 200);
    lane("pause");
    while stream.next("log")["kind"] != "ordered" {}
    one.kill();
    for _ in 0..3 {
        lane("resume");
        lane("pause");
    }
    eventually("the death to be in the log", || {
        let log = client.get("log?kind=died").json();
        log["entries"].as_array().is_some_and(|died| !died.is_empty())
    });
    let log = client.get("log?limit=500").json();
    let mut known: Vec<String> = log["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .filter_map(|entry| entry["id"].as_str().map(str::to_owned))
        .collect();
    known.reverse();
    let mut again = Stream::open(second, stream.log.last().map(String::as_str));
    while again.log.last() != known.last() {
        again.next("log");
    }
    let all = [stream.log, again.log].concat();
    assert_eq!(all, known, "every entry, once, in order");
    // What happens from now on comes, too, also to somebody who names nothing.
    let mut new = Stream::open(second, None);
    new.next("status");
    lane("resume");
    assert_eq!(new.next("log")["kind"], "order-ended");
    let refused = client.ask("GET", "/api/v1/stream", None, "Last-Event-ID: x\r\n");
    assert_eq!(refused.0, 400, "{refused:?}");
    two.terminate();
    assert_eq!(two.exit_code(), Some(0), "{}", two.stderr());
}

/// Fifty pages are told what one is told: Redis is asked for one.
#[test]
fn many_pages_cost_redis_no_more_than_one() {
    let server = Server::any();
    let (mut one, port) = member(&server, &["run", "--interval", "1h"]);
    let mut pages: Vec<Stream> = (0..50).map(|_| Stream::open(port, None)).collect();
    // Every status that any page gets, by its time.
    let mut times: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); pages.len()];
    for _ in 0..3 {
        for (page, times) in pages.iter_mut().zip(&mut times) {
            times.insert(page.next("status")["time_ms"].as_u64().expect("a time"));
        }
    }
    let all: BTreeSet<u64> = times.iter().flatten().copied().collect();
    // They were opened one after the other, so the first may have got one or more before the last.
    let most = times.iter().map(BTreeSet::len).max().unwrap_or(0);
    println!("{} different readings for {} pages, {most} for one", all.len(), pages.len());
    assert!(all.len() < pages.len() / 2, "{}: a reading is shared", all.len());
    let mut full: Vec<Stream> = (0..14).map(|_| Stream::open(port, None)).collect();
    full.iter_mut().for_each(|page| drop(page.next("status")));
    let refused = Client::new(port).get("stream");
    assert!(refused.0 == 503 && refused.2.contains("too many pages"), "{refused:?}");
    assert_eq!(Client::new(port).ask("GET", "/livez", None, "").0, 200);
    drop((pages, full));
    eventually("there to be room again", || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.write_all(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("reads");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("answers");
        line.contains(" 200 ")
    });
    one.terminate();
    assert_eq!(one.exit_code(), Some(0), "{}", one.stderr());
}

/// Operators may change things, readers may not; another site may not, whoever looks at it.
#[test]
fn a_change_needs_the_right_token_and_the_right_site() {
    let server = Server::any();
    let url = server.url();
    let (token, reader) = ("0123456789abcdef0123", "fedcba9876543210fedc");
    let start = |args: &[&str]| {
        let mut all = vec!["run", "--redis", &url, "--fleet", FLEET, "--interval", "1h"];
        all.extend(args);
        let mut command = clean_command(artel(), &all);
        command
            .env("ARTEL_HTTP_TOKEN", token)
            .env("ARTEL_HTTP_READ_TOKEN", reader)
            .stdin(Stdio::null());
        let member = Program::spawn(command);
        let port = port_of(&member);
        member.says("joined the fleet");
        (member, port)
    };
    let (mut open, port) = start(&["--http", "0.0.0.0:0", "--http-base", "/artel/"]);
    let (mut shut, shut_port) = start(&["--http", "0", "--http-read-only"]);
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let (operator, reads, nobody) = (
        Client::with(port, &bearer(token)),
        Client::with(port, &bearer(reader)),
        Client::new(port),
    );
    let pause =
        |client: &Client, more: &str| client.ask("POST", "/api/v1/pause", Some("{}"), more).0;
    let resume = || assert_eq!(operator.post("resume", &json!({})).0, 200);
    assert_eq!((pause(&nobody, ""), pause(&reads, "")), (401, 403));
    // What is refused is as described, too.
    let document = operator.get("openapi.json").json();
    let described =
        |client: Client| Described { document: document.clone(), called: BTreeSet::new(), client };
    for client in [Client::new(port), Client::with(port, &bearer("fedcba98765432100000"))] {
        described(client).refused(401, "token", "GET", "/status", "/status", None);
    }
    let mut reading = described(Client::with(port, &bearer(reader)));
    reading.refused(403, "for reading", "POST", "/pause", "/pause", Some(json!({})));
    assert_eq!(pause(&operator, ""), 200);
    resume();
    for site in ["cross-site", "same-site"] {
        assert_eq!(pause(&operator, &format!("Sec-Fetch-Site: {site}\r\n")), 403);
    }
    assert_eq!(pause(&operator, "Origin: http://evil.example\r\n"), 403);
    assert_eq!(pause(&operator, "Origin: null\r\n"), 403);
    assert_eq!(operator.get("status").json()["paused"], json!([]), "nothing was changed");
    assert_eq!(pause(&operator, &format!("Origin: http://localhost:{port}\r\n")), 200);
    resume();
    for (client, may) in [(&operator, true), (&reads, false)] {
        assert_eq!(client.get("about").json()["may_change"], may);
        assert_eq!(client.get("status").0, 200);
    }
    // The page has no data; under the path of a proxy everything is there, too.
    for path in ["/", "/artel/", "/artel/page/app.js"] {
        assert_eq!(nobody.ask("GET", path, None, "").0, 200, "{path}");
    }
    let to_slash = nobody.ask("GET", "/artel", None, "");
    assert!(to_slash.0 == 308 && to_slash.1.contains("location: /artel/"), "{to_slash:?}");
    assert_eq!(
        (
            nobody.ask("GET", "/artel/api/v1/status", None, "").0,
            operator.ask("GET", "/artel/api/v1/status", None, "").0
        ),
        (401, 200)
    );
    // Read-only: for operators, too.
    let (operator, reads) =
        (Client::with(shut_port, &bearer(token)), Client::with(shut_port, &bearer(reader)));
    for client in [&operator, &reads] {
        let refused = client.ask("POST", "/api/v1/pause", Some("{}"), "");
        assert!(refused.0 == 403 && refused.2.contains("read-only"), "{refused:?}");
        assert_eq!(client.get("about").json()["may_change"], false);
    }
    // Guessing takes long.
    let wrong = Client::with(shut_port, &bearer("wrong-wrong-wrong-wrong"));
    let codes: Vec<u16> = (0..60).map(|_| wrong.get("status").0).collect();
    assert!(
        codes.contains(&429) && codes.iter().all(|code| [401, 429].contains(code)),
        "{codes:?}"
    );
    wait_for("who knows it to be let in again", || (operator.get("status").0 == 200).then_some(()));
    for member in [&mut open, &mut shut] {
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        assert!(!member.stderr().contains(token) && !member.stderr().contains(reader));
    }
}

/// One process serves several fleets, without joining them, and goes on when Redis was away.
#[test]
fn fleets_are_served_without_joining_them() {
    let mut server = Server::any();
    let url = server.url();
    let serve = |args: &[&str]| {
        let mut all = vec!["serve", "--redis", &url, "--http", "0"];
        all.extend(args);
        Program::start(artel(), &all)
    };
    let (mut worker, _) = member(&server, &["work", "--label", "one"]);
    let mut serving = serve(&["--fleet", FLEET, "--fleet", "other"]);
    serving.says("the page is at http://127.0.0.1:");
    let client = Client::new(port_of(&serving));
    assert_eq!(client.get("about").json()["fleets"], json!([FLEET, "other"]));
    assert_eq!(client.get("status").json()["members"][0]["label"], "one");
    assert_eq!(client.get("status?fleet=other").json()["members"], json!([]));
    assert!(client.get("hub").json()["hub"].is_null());
    let metrics = client.ask("GET", "/metrics", None, "").2;
    for fleet in [FLEET, "other"] {
        assert!(
            metrics.contains(&format!("artel_books_balance{{fleet=\"{fleet}\"}} 0")),
            "{metrics}"
        );
    }
    assert_eq!(metrics.matches("# TYPE artel_books_balance ").count(), 1);
    let sent = client.ask(
        "POST",
        "/api/v1/messages?fleet=other",
        Some("{\"messages\":[{\"payload\":\"a\"}]}"),
        "",
    );
    assert_eq!(sent.0, 200, "{sent:?}");
    let waiting = |fleet: &str| {
        client.get(&format!("status?fleet={fleet}")).json()["messages"]["waiting"].clone()
    };
    eventually("it to wait in the other fleet alone", || {
        (waiting(FLEET), waiting("other")) == (0.into(), 1.into())
    });
    server.kill();
    eventually("it to say that Redis is away", || client.get("status").0 == 503);
    assert!(!client.get("status").2.contains(&server.port().to_string()), "no addresses");
    for path in ["/", "/livez", "/metrics", "/api/v1/about", "/api/v1/openapi.json"] {
        assert_eq!(client.ask("GET", path, None, "").0, 200, "{path}");
    }
    server.restart();
    eventually("it to answer again", || client.get("status").0 == 200);
    serving.terminate();
    assert_eq!(serving.exit_code(), Some(0), "{}", serving.stderr());
    for (args, words) in [
        (&["--fleet", "a", "--fleet", "a"][..], "names a fleet twice"),
        (&["--fleet", "a b"], "fleet"),
        (&["--http-base", "artel"], "is no path"),
    ] {
        let mut wrong = serve(args);
        assert_eq!(wrong.exit_code(), Some(2), "{args:?}: {}", wrong.stderr());
        assert!(
            wrong.stderr().contains(words) && wrong.stderr().contains("hint: "),
            "{}",
            wrong.stderr()
        );
    }
    let mut wrong =
        Program::start(artel(), &["status", "--redis", &url, "--fleet", "a", "--fleet", "b"]);
    assert_eq!(wrong.exit_code(), Some(2));
    assert!(wrong.stderr().contains("only `artel serve` takes several"), "{}", wrong.stderr());
    worker.kill();
}
