//! The scripts of the library, in the form in which Redis gets them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[path = "../../src/store/prelude.rs"]
mod prelude;

/// Files that are put before scripts, and are not scripts themselves.
const SHARED: [&str; 3] = ["prelude", "control", "jobs"];

/// Every script by its name. A script of two forms is here twice: its second form as `<name>_jobs`.
pub fn scripts() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src")) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.extension().is_some_and(|ending| ending == "lua") && !SHARED.contains(&&*name) {
            let source = std::fs::read_to_string(&path).expect("a text");
            found.extend(prelude::with_jobs(&source).map(|jobs| (format!("{name}_jobs"), jobs)));
            let before = found.insert(name, prelude::with_prelude(&source));
            assert!(before.is_none(), "two scripts have the name of {}", path.display());
        }
    }
    found
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The bytes that a call of this script contains: for
/// [`Fault::DropReplyTo`](crate::Fault::DropReplyTo).
///
/// # Panics
///
/// If there is no such script.
pub fn script_hash(name: &str) -> Vec<u8> {
    let scripts = scripts();
    let source = scripts.get(name).unwrap_or_else(|| panic!("there is no script {name:?}"));
    redis::Script::new(source).get_hash().as_bytes().to_vec()
}
