//! The files for containers, as far as they can be checked without a container engine: they parse,
//! name what exists, and what they run is what the program understands.

use std::path::Path;

use yaml_rust2::{Yaml, YamlLoader};

use crate::screen::{artel, text};

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(name)).expect("a text")
}

/// With `<<` taken in, as compose does.
fn field<'a>(service: &'a Yaml, name: &str) -> &'a Yaml {
    match &service[name] {
        Yaml::BadValue => &service["<<"][name],
        found => found,
    }
}

fn words(list: &Yaml) -> Vec<&str> {
    list.as_vec().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect()
}

#[test]
fn the_compose_file_starts_a_fleet() {
    let documents = YamlLoader::load_from_str(&read("compose.yaml")).expect("it parses");
    let services = &documents[0]["services"];
    let valkey = &services["valkey"];
    assert!(words(&valkey["command"]).contains(&"--appendonly"), "what is accepted is kept");
    let mut members = 0;
    for name in ["member", "web"] {
        let service = &services[name];
        assert_eq!(field(service, "build").as_str(), Some("."));
        let url = field(service, "environment")["ARTEL_REDIS_URL"].as_str().expect("an address");
        assert_eq!(url, "redis://valkey:6379", "the name of the other service");
        let healthy = &field(service, "depends_on")["valkey"]["condition"];
        assert_eq!(healthy.as_str(), Some("service_healthy"));
        assert!(!valkey["healthcheck"]["test"].is_badvalue());
        members += field(service, "deploy")["replicas"].as_i64().expect("a number");
    }
    assert_eq!(members, 4, "three, and one with HTTP");
    let web = &services["web"];
    assert_eq!(words(&web["ports"]), ["8090:8090"]);
    let command = words(&web["command"]);
    assert!(command.contains(&"0.0.0.0:8090"), "reachable from outside its container");
    // The program knows the command, up to the server that is not here.
    let mut args = vec!["--redis", "redis://127.0.0.1:1"];
    args.extend(command.iter().map(|word| if *word == "0.0.0.0:8090" { "0" } else { word }));
    assert_eq!(artel(&args).status.code(), Some(3));
}

#[test]
fn the_image_is_built_in_two_stages_and_runs_without_root() {
    let file = read("Dockerfile");
    assert_eq!(file.lines().filter(|line| line.starts_with("FROM ")).count(), 2);
    let last = file.rsplit("FROM ").next().expect("a stage");
    let user = last.lines().find_map(|line| line.strip_prefix("USER ")).expect("a user");
    assert!(user != "root" && last.contains(&format!("useradd --system --uid 10001 {user}")));
    let binary =
        last.lines().find_map(|line| line.strip_prefix("COPY --from=build ")).expect("a copy");
    assert!(binary.starts_with("/artel/target/release/artel "));
    assert!(last.contains("ENTRYPOINT [\"artel\"]"));
    // Its setting is one that the program knows.
    assert!(last.contains("ENV ARTEL_EMBEDDED=never"));
    let output = crate::screen::with(&["status"], &[("ARTEL_EMBEDDED", "never")], b"");
    assert!(text(&output.stderr).contains("--embedded is never"), "{}", text(&output.stderr));
    // What is not needed to build it stays outside.
    for line in read(".dockerignore").lines() {
        assert!(["target", ".git", "bench"].contains(&line), "{line}");
    }
}
