//! Remembers which remarks a terminal session has seen, so that each is printed once.
//!
//! **Invariant:** if anything goes wrong here, the remark is printed.

use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::folder::{self, SAID};
use super::started::began;

/// How many remarks are remembered.
const LINES_MAX: usize = 50;

/// Was this remark printed in this terminal session before? If not, it counts as printed from now
/// on. Without a terminal there is no session: in a log the remark is printed every time.
pub(super) fn before(dir: &Path, remark: &str) -> bool {
    io::stderr().is_terminal() && remember(dir, remark).unwrap_or(false)
}

fn remember(dir: &Path, remark: &str) -> io::Result<bool> {
    let session = session().ok_or(io::ErrorKind::NotFound)?;
    let began = began(session).ok_or(io::ErrorKind::NotFound)?;
    let line = format!("{session} {began} {remark}");
    folder::check(dir).map_err(|(problem, _)| io::Error::other(problem))?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = dir.join(SAID);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    if text.lines().any(|said| said == line) {
        return Ok(true);
    }
    let kept = text.lines().count().saturating_sub(LINES_MAX - 1);
    let mut lines: Vec<&str> = text.lines().skip(kept).collect();
    lines.push(&line);
    let mut file = folder::open(&path)?;
    file.set_len(0)?;
    file.write_all((lines.join("\n") + "\n").as_bytes())?;
    Ok(false)
}

/// The terminal session of this process. `None` if the first process of the session is not visible,
/// as in some containers: then the system gives no number for it.
fn session() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    session_in(&stat)
}

fn session_in(stat: &str) -> Option<i32> {
    // The name of the process is in parentheses and may contain any characters.
    let fields = stat.rsplit_once(')')?.1;
    let session = fields.split_whitespace().nth(3)?.parse().ok()?;
    (session > 0).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_not_visible_has_no_number() {
        assert_eq!(session_in("7 (a) b) S 1 7 5 34816 7"), Some(5));
        assert_eq!(session_in("7 (sh) S 0 0 0 34816 7"), None);
        assert_eq!(session_in(""), None);
        let _ = session();
    }
}
