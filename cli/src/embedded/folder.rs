//! Checks that a data folder belongs to this user alone.
//!
//! **Invariant:** a private server is looked for, started and stopped only in a folder that nobody
//! else can change, and nothing in it leads elsewhere.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The files in the folder: ours and the server's.
pub(super) const LOCK: &str = "lock";
pub(super) const LIFE: &str = "server.lock";
pub(super) const PID: &str = "server.pid";
pub(super) const LOG: &str = "server.log";
pub(super) const SOCKET: &str = "server.sock";
pub(super) const STARTED: &str = "server.started";
pub(super) const SAID: &str = "said";
const ALL: [&str; 9] =
    [LOCK, LIFE, PID, LOG, SOCKET, STARTED, SAID, "appendonlydir", "appendonly.aof"];

const OTHERS_WRITE: u32 = 0o022;
const EVERYBODY_WRITES: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// What is wrong with it, and what to try.
pub(super) type Wrong = (String, String);

/// Is this folder ours alone? If it does not exist yet, only the folders above it are checked.
pub(super) fn check(dir: &Path) -> Result<(), Wrong> {
    let me = rustix::process::geteuid().as_raw();
    if let Some(there) = look(dir)? {
        ours(dir, &there, me)?;
        if !there.is_dir() {
            return Err((format!("{} is no folder", dir.display()), another()));
        }
    }
    let parents = dir.ancestors().skip(1).find_map(|parent| parent.canonicalize().ok());
    for parent in parents.iter().flat_map(|parent| parent.ancestors()) {
        if let Some(there) = look(parent)? {
            above(parent, &there, me)?;
        }
    }
    close(dir, me);
    for file in ALL.map(|name| dir.join(name)) {
        if let Some(there) = look(&file)? {
            ours(&file, &there, me)?;
        }
    }
    Ok(())
}

/// Removes the group's right to write from files that an older version made. At this point the
/// folder is ours alone, so nobody else can reach them meanwhile.
fn close(dir: &Path, me: u32) {
    for file in ALL.map(|name| dir.join(name)) {
        let Ok(there) = std::fs::symlink_metadata(&file) else { continue };
        if there.is_file() && there.uid() == me && there.mode() & OTHERS_WRITE != 0 {
            let mode = Permissions::from_mode(there.mode() & !OTHERS_WRITE);
            let _ = std::fs::set_permissions(&file, mode);
        }
    }
}

fn look(path: &Path) -> Result<Option<Metadata>, Wrong> {
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok(Some(there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err((format!("{}: {error}", path.display()), another())),
    }
}

/// Checks the folder, or a file in it.
fn ours(path: &Path, there: &Metadata, me: u32) -> Result<(), Wrong> {
    let (shown, owner) = (path.display(), there.uid());
    if there.is_symlink() {
        return Err((format!("{shown} is a link"), another()));
    }
    if owner != me {
        return Err((format!("{shown} belongs to user {owner}, and this is user {me}"), another()));
    }
    if there.mode() & OTHERS_WRITE != 0 {
        return Err((format!("others may write to {shown}"), format!("`chmod go-w {shown}`")));
    }
    Ok(())
}

/// Checks a folder above it: a user who can rename its entries could replace the data folder.
fn above(path: &Path, there: &Metadata, me: u32) -> Result<(), Wrong> {
    let (shown, owner, mode) = (path.display(), there.uid(), there.mode());
    if owner != me && owner != 0 {
        return Err((format!("{shown} above it belongs to user {owner}"), another()));
    }
    if mode & EVERYBODY_WRITES != 0 && mode & STICKY == 0 {
        return Err((format!("everybody may write to {shown} above it"), another()));
    }
    Ok(())
}

fn another() -> String {
    "try another `--data-dir`, or give the address of a Redis: `--redis <URL>`".to_owned()
}

/// Opens a file for writing, and creates it if it does not exist; does not follow links.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(no_link)
        .open(path)
}

/// The user's default data folder; `None` if the environment does not tell where it is.
pub(super) fn usual() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let data = data.or_else(|| {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty())?;
        Some(home.join(".local/share"))
    });
    data.map(|data| data.join("artel"))
}
