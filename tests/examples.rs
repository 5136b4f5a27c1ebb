//! Proves that the examples do what they say.
#![allow(missing_docs)]

use std::path::PathBuf;

use artel_rig::{Program, Server, Snapshot, eventually};

/// Examples are built beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.ancestors().nth(2).expect("the build folder").join("examples").join(name)
}

#[test]
fn orders_are_generated_and_handled() {
    let server = Server::any();
    let run = || Program::start(example("generate_and_handle"), &[server.url()]);
    let mut members = [run(), run()];
    let mut connection = server.connect();
    eventually("three orders to be done", || {
        Snapshot::read(&mut connection, "orders").count("done") >= 3
    });
    for member in &members {
        member.signal_interrupt();
    }
    for member in &mut members {
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
    }
}

#[test]
fn a_graceful_stop_leaves_balanced_books() {
    let server = Server::any();
    let mut run = Program::start(example("graceful_stop"), &[server.url()]);
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
}

/// A request to the example's HTTP server; the status line and the body.
fn post(port: u16, key: &str, body: &str) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Redis goes away and comes back: requests fail side by side meanwhile, and whoever asks again under the same key
/// has its message added once.
#[test]
fn a_web_service_survives_without_redis() {
    let mut server = Server::any();
    let port = artel_rig::free_port();
    let args = [server.url(), format!("127.0.0.1:{port}")];
    let service = Program::start(example("send_from_http"), &args);
    service.says("listening on");
    assert!(post(port, "order 1", "pay 1").expect("an answer").starts_with("HTTP/1.1 202"));
    server.kill();
    let began = std::time::Instant::now();
    let requests: Vec<_> = (2..32)
        .map(|n| std::thread::spawn(move || post(port, &format!("order {n}"), &format!("pay {n}"))))
        .collect();
    for request in requests {
        let answer = request.join().expect("no panic").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "side by side");
    server.restart();
    for n in 1..32 {
        eventually("it to be accepted", || {
            let answer = post(port, &format!("order {n}"), &format!("pay {n}"));
            answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 202"))
        });
    }
    let key = "artel:{orders}:lane:normal";
    let length: u64 = redis::cmd("LLEN").arg(key).query(&mut server.connect()).expect("answers");
    assert_eq!(length, 31, "each once");
}

/// Sets an event of the fleet `artel`, as any program may.
fn set(server: &Server, event: &str) {
    let key = format!("artel:{{artel}}:event:{event}");
    let mut connection = server.connect();
    let () = redis::pipe()
        .atomic()
        .hincr(&key, "gen", 1)
        .hset(&key, "flag", "0")
        .cmd("SPUBLISH")
        .arg(format!("artel:{{artel}}:@0:event:{event}"))
        .arg("set")
        .ignore()
        .query(&mut connection)
        .expect("sets");
}

#[test]
fn servers_start_a_job_together() {
    let server = Server::any();
    let mut servers: Vec<Program> =
        (0..4).map(|_| Program::start(example("start_together"), &[server.url()])).collect();
    for one in &servers {
        one.says("ready");
    }
    let mut sign = Program::start(example("start_together"), &[server.url(), "go".to_owned()]);
    assert_eq!(sign.exit_code(), Some(0), "{}", sign.stderr());
    for one in &mut servers {
        assert_eq!(one.exit_code(), Some(0), "{}", one.stderr());
        one.says("started at");
    }
}

#[test]
fn consumers_miss_no_new_data() {
    let server = Server::any();
    let file = server.dir().join("data").display().to_string();
    std::fs::write(&file, "the beginning").expect("writes");
    let mut consumers: Vec<Program> = (0..3)
        .map(|_| Program::start(example("new_data"), &[server.url(), file.clone()]))
        .collect();
    for consumer in &consumers {
        consumer.says("consumed the beginning");
    }
    for data in ["one", "two", "the end"] {
        std::fs::write(&file, data).expect("writes");
        set(&server, "new-data");
        for consumer in &consumers {
            consumer.says(&format!("consumed {data}"));
        }
    }
    for consumer in &mut consumers {
        assert_eq!(consumer.exit_code(), Some(0), "{}", consumer.stderr());
    }
}

#[test]
fn a_reload_reaches_every_node() {
    let server = Server::any();
    let mut nodes: Vec<Program> =
        (0..3).map(|_| Program::start(example("reload"), &[server.url()])).collect();
    for node in &nodes {
        node.says("running");
    }
    for round in 1..4 {
        set(&server, "reload");
        for node in &nodes {
            eventually("the reload", || {
                let reloads = node.stderr().lines().filter(|line| *line == "reloaded").count();
                assert!(reloads <= round, "reloaded once too often");
                reloads == round
            });
        }
    }
    let told = |node: &Program| node.stderr().matches("told everybody else").count();
    assert!(nodes.iter().map(told).sum::<usize>() >= 1);
    for node in &nodes {
        node.signal_interrupt();
    }
    for node in &mut nodes {
        assert_eq!(node.exit_code(), Some(0), "{}", node.stderr());
    }
}

/// What the pages show is a part of these two; `cli/tests/cli/shown.rs` compares.
#[test]
fn the_programs_of_the_pages_run() {
    let server = Server::any();
    for program in [example("readme"), example("pages"), example("jobs")] {
        let mut run = Program::start(program, &[server.url()]);
        assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
    }
}
