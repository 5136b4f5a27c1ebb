//! Proves that the examples do what they say, and that the README shows one of them as it is.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use artel_testkit::{Program, Server, Snapshot, eventually};

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

#[test]
fn the_readme_shows_a_program_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a text");
    let program = read("examples/readme.rs");
    let (_, code) = program.split_once("\n\n").expect("a head, then the program");
    assert!(
        read("README.md").contains(&format!("```rust\n{code}```")),
        "README.md shows examples/readme.rs"
    );
    for handler in ["handle.sh", "handle.py", "generate.sh"] {
        let code = read(&format!("examples/handlers/{handler}"));
        assert!(read("README.md").contains(&format!("\n{code}```")), "README.md shows {handler}");
    }
    let server = Server::any();
    let mut run = Program::start(example("readme"), &[server.url()]);
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr());
}
