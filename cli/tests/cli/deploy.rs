//! The files for systemd, Kubernetes and monitoring, as far as they can be checked without those: they parse, what they run is
//! what the program understands, and what they name is there.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use artel_rig::{Program, Server, clean_command};
use yaml_rust2::{Yaml, YamlLoader};

use crate::screen::{artel, text};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).expect("a text")
}

fn words(list: &Yaml) -> Vec<String> {
    let word = |word: &Yaml| word.as_str().expect("a word").to_owned();
    list.as_vec().expect("a list").iter().map(word).collect()
}

/// The program understands this command line, up to the server that is not there.
fn is_understood(words: &[String]) {
    let mut args = vec!["--redis".to_owned(), "redis://127.0.0.1:1".to_owned()];
    args.extend(words.iter().map(|word| match word.as_str() {
        "0.0.0.0:8090" => "0".to_owned(),
        word => word.to_owned(),
    }));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = artel(&args);
    assert_eq!(output.status.code(), Some(3), "{args:?}: {}", text(&output.stderr));
}

#[test]
fn the_unit_is_valid_and_its_command_is_understood() {
    let unit = read("ops/systemd/artel@.service");
    // systemd wants the program to be there.
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("artel@.service");
    let program = env!("CARGO_BIN_EXE_artel");
    std::fs::write(&copy, unit.replace("/usr/local/bin/artel", program)).expect("written");
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(dir.path().join("artel@1.service"));
    std::fs::copy(&copy, dir.path().join("artel@1.service")).expect("copied");
    match verify.output() {
        Ok(output) => {
            let said = text(&output.stderr);
            assert!(output.status.success() && !said.contains("artel@1.service:"), "{said}");
        }
        Err(_) => println!("no systemd-analyze: the unit was only read"),
    }
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let config = dir.path().join("artel.toml");
    std::fs::write(&config, "interval = \"1s\"\n").expect("written");
    let line = line.replace("/etc/artel/artel.toml", &config.display().to_string());
    let line = line.replace("%H-%i", "host-1");
    is_understood(&line.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>());
    assert!(unit.contains("Type=notify") && unit.contains("WatchdogSec="), "{unit}");
}

/// What a supervisor hears: ready when it has joined, its role, signs of life, and the end.
#[test]
fn a_supervisor_is_told() {
    let server = Server::any();
    let dir = tempfile::tempdir().expect("a folder");
    let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
    socket.set_read_timeout(Some(artel_rig::DEADLINE)).expect("a time");
    let mut command =
        clean_command(env!("CARGO_BIN_EXE_artel"), &["run", "--redis", &server.url()]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).stdin(Stdio::null());
    command.env("WATCHDOG_USEC", "300000");
    let member = Program::spawn(command);
    let mut heard = Vec::new();
    let mut hears = |wanted: &str| {
        let mut bytes = [0; 1000];
        while !heard.iter().any(|line: &String| line.contains(wanted)) {
            let length = socket
                .recv(&mut bytes)
                .unwrap_or_else(|error| panic!("{wanted}: {error}, {heard:?}"));
            heard.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        heard.clone()
    };
    assert_eq!(hears("READY=1")[0].trim(), "READY=1", "the first thing");
    hears("STATUS=generator");
    hears("WATCHDOG=1");
    member.terminate();
    hears("STOPPING=1");
}

#[test]
fn the_manifest_has_probes_that_are_answered_and_a_command_that_is_understood() {
    let documents =
        YamlLoader::load_from_str(&read("ops/kubernetes/artel.yaml")).expect("it parses");
    let kinds: Vec<&str> =
        documents.iter().map(|one| one["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["Secret", "Deployment", "PodDisruptionBudget"]);
    let deployment = &documents[1];
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let selector = &deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(selector, &deployment["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(selector, &documents[2]["spec"]["selector"]["matchLabels"]);
    let dir = tempfile::tempdir().expect("a folder");
    for (name, value) in documents[0]["stringData"].as_hash().expect("secrets") {
        let (name, value) = (name.as_str().expect("a name"), value.as_str().expect("a value"));
        std::fs::write(dir.path().join(name), value).expect("written");
    }
    let server = Server::any();
    std::fs::write(dir.path().join("redis-url"), server.url()).expect("written");
    let here = dir.path().display().to_string();
    let args: Vec<String> = words(&container["args"])
        .iter()
        .map(|word| {
            word.replace("/run/secrets/artel", &here).replace("0.0.0.0:8090", "127.0.0.1:0")
        })
        .collect();
    let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &args);
    for variable in container["env"].as_vec().expect("a list") {
        command.env(variable["name"].as_str().expect("a name"), "pod-1");
    }
    let member = Program::spawn({
        command.stdin(Stdio::null());
        command
    });
    let line = member.says("http: listening on http://");
    let port = line.split("127.0.0.1:").nth(1).expect("a port");
    let port: u16 =
        port.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a port");
    member.says("joined the fleet");
    for probe in ["livenessProbe", "readinessProbe"] {
        let probe = container[probe]["httpGet"]["path"].as_str().expect("a path");
        artel_rig::eventually(probe, || {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
            let request =
                format!("GET {probe} HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n\r\n");
            std::io::Write::write_all(&mut stream, request.as_bytes()).expect("reads");
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer.starts_with("HTTP/1.1 200")
        });
    }
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("a number");
    assert!(grace > 10, "longer than --stop-grace");
}

#[test]
fn what_compose_mounts_is_there() {
    let documents = YamlLoader::load_from_str(&read("compose.yaml")).expect("it parses");
    for service in ["prometheus", "grafana"] {
        for volume in words(&documents[0]["services"][service]["volumes"]) {
            let from = volume.split(':').next().expect("a path");
            assert!(path(from).exists(), "{from}");
        }
    }
    let scraped =
        YamlLoader::load_from_str(&read("ops/prometheus/prometheus.yml")).expect("it parses");
    let names = &scraped[0]["scrape_configs"][0]["dns_sd_configs"][0]["names"];
    for name in words(names) {
        let command = words(&documents[0]["services"][name.as_str()]["command"]);
        assert!(command.contains(&"0.0.0.0:8090".to_owned()), "{name} serves no numbers");
        is_understood(&command);
    }
    let rules = scraped[0]["rule_files"][0].as_str().expect("a file");
    assert!(path("ops/prometheus").join(rules).exists());
}
