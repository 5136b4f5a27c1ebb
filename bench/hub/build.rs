//! Remembers which compiler built this: figures without it cannot be compared later.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo:rustc-env=PEERS_RUSTC={}", version.as_deref().unwrap_or("unknown").trim());
    println!("cargo:rerun-if-changed=build.rs");
}
