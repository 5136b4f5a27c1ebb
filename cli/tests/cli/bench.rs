//! `artel bench`: what it prints, and that it leaves a server alone.

use artel_rig::{Program, Server};

use crate::screen::{artel, text};

/// The exit code, and all that is on the screen.
fn bench(args: &[&str]) -> (Option<i32>, String) {
    let output = artel(&[&["bench"], args].concat());
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

fn keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connect()).expect("answers")
}

/// Small enough for a test, and everything is measured.
#[test]
fn everything_is_measured_on_private_servers() {
    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("latency.svg");
    let plot = plot.to_str().expect("a path");
    let small = ["bench", "--rounds", "1", "--messages", "4000", "--for", "500ms", "--json"];
    let output = artel(&[&small[..], &["--plot", plot]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    let throughput = report["throughput"].as_array().expect("a list");
    let disks: Vec<&str> =
        throughput.iter().map(|row| row["append_only"].as_str().expect("a word")).collect();
    assert_eq!(disks, ["off", "off", "everysec", "everysec", "always", "always"]);
    for row in throughput {
        for way in ["sent", "handled"] {
            for figure in ["per_s", "server_cpu_us", "own_cpu_us", "commands"] {
                let figure = &row[way][figure]["median"];
                assert!(figure.as_f64().is_some_and(|figure| figure >= 0.0), "{row}");
            }
        }
    }
    let causes: Vec<&str> = report["failover"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| row["cause"].as_str().expect("a word"))
        .collect();
    assert_eq!(causes, ["killed", "stopped", "frozen"]);
    assert_eq!(report["failover"][0]["count"], 3);
    for latency in report["latency"].as_array().expect("a list") {
        let ms = |which: &str| latency[which].as_f64().expect("a time");
        assert!(ms("p50_ms") > 0.0 && ms("p50_ms") <= ms("p99_ms"));
        assert!(ms("p99_ms") <= ms("p999_ms") && ms("p999_ms") <= ms("max_ms"));
    }
    for times in ["recovery", "wake_up", "lock"] {
        assert!(report[times]["ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{times}");
    }
    assert!(report["memory"]["median"].is_number());
    let picture = std::fs::read_to_string(plot).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("5000 messages a second"));
}

#[test]
fn a_server_in_use_is_left_alone() {
    let server = Server::any();
    let () = redis::cmd("SET").arg("mine").arg("1").query(&mut server.connect()).expect("stored");
    let small = ["--only", "throughput,recovery", "--rounds", "1", "--messages", "4000"];
    let url = server.url();
    let (code, screen) = bench(&[&["--redis", &url][..], &small].concat());
    assert_eq!(code, Some(2), "{screen}");
    assert!(screen.contains("in use: it holds 1 keys") && screen.contains("--i-know"), "{screen}");
    assert_eq!(keys(&server), 1);
    // Nothing stays behind, also if somebody insists.
    let (code, screen) = bench(&[&["--redis", &url, "--i-know"][..], &small].concat());
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("worker killed, until its message starts elsewhere"), "{screen}");
    assert_eq!(keys(&server), 1, "only what was there before");
}

#[test]
fn wrong_options_are_refused() {
    for wrong in [["--only", "speed"], ["--rounds", "0"], ["--fleet", "f"], ["--plot", "/"]] {
        let (code, screen) = bench(&wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {screen}");
    }
}

/// Whoever ends it early leaves no server behind.
#[test]
fn ending_it_ends_its_servers() {
    let program = env!("CARGO_BIN_EXE_artel");
    let mut bench = Program::start(program, &["bench", "--only", "throughput"]);
    bench.says("measuring throughput");
    let children = || {
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        let parent = format!("PPid:\t{}\n", bench.id());
        all.filter(|entry| {
            std::fs::read_to_string(entry.path().join("status"))
                .is_ok_and(|status| status.contains(&parent))
        })
        .map(|entry| entry.path())
        .collect::<Vec<_>>()
    };
    let servers = children();
    assert_eq!(servers.len(), 3, "{servers:?}");
    bench.signal_interrupt();
    assert_eq!(bench.exit_code(), Some(1));
    artel_rig::eventually("its servers to end", || {
        servers.iter().all(|server| {
            // A process that ended may wait for its parent's look.
            let status = std::fs::read_to_string(server.join("status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tZ")
        })
    });
}
