//! The data folder of the private server: ours alone, and nothing in it leads elsewhere.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use artel_rig::{Program, clean_command};
use tempfile::TempDir;

use crate::fleet::artel;

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("artel-folder-").tempdir().expect("a folder")
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
}

/// Every command that would use this folder refuses it, with these words.
#[track_caller]
fn refused(dir: &Path, words: &str) {
    let dir = dir.display().to_string();
    for command in
        [&["run"][..], &["status"], &["embedded", "status"], &["embedded", "stop"], &["up"]]
    {
        let mut args = command.to_vec();
        args.extend(["--data-dir", &dir]);
        let mut spawned = clean_command(artel(), &args);
        spawned.stdin(std::process::Stdio::null());
        let mut program = Program::spawn(spawned);
        assert_eq!(program.exit_code(), Some(1), "{args:?}: {}", program.stderr());
        let screen = program.stderr();
        assert!(screen.contains("the data folder") && screen.contains("is not used"), "{screen}");
        assert!(screen.contains(words) && screen.contains("hint: "), "{words:?}: {screen}");
    }
}

/// A folder that somebody else has prepared is not ours to use.
#[test]
fn a_planted_folder_is_refused() {
    let home = folder();
    let real = home.path().join("real");
    std::fs::create_dir(&real).expect("made");
    let link = home.path().join("link");
    symlink(&real, &link).expect("made");
    refused(&link, "is a link");

    let open = home.path().join("open");
    std::fs::create_dir(&open).expect("made");
    for others in [0o770, 0o707, 0o1777] {
        mode(&open, others);
        refused(&open, "others may write");
    }
    let file = home.path().join("file");
    std::fs::write(&file, "").expect("written");
    mode(&file, 0o600);
    refused(&file, "is no folder");

    let shared = home.path().join("shared");
    std::fs::create_dir_all(shared.join("mine")).expect("made");
    mode(&shared.join("mine"), 0o700);
    mode(&shared, 0o777);
    refused(&shared.join("mine"), "everybody may write to");
    refused(&shared.join("not-there-yet"), "everybody may write to");
    assert!(!shared.join("not-there-yet").exists(), "nothing is made before it is refused");

    // Of another user: we give one away if we may, else there is one of root's.
    match rustix::process::geteuid().is_root() {
        true => {
            let theirs = home.path().join("theirs");
            std::fs::create_dir(&theirs).expect("made");
            mode(&theirs, 0o700);
            std::os::unix::fs::chown(&theirs, Some(65534), None).expect("root may");
            refused(&theirs, "belongs to user 65534");
            refused(&theirs.join("below"), "belongs to user 65534");
        }
        false => refused(Path::new("/usr"), "belongs to user 0"),
    }
}

/// Nothing is written, signalled or asked through a link.
#[test]
fn no_link_in_the_folder_is_followed() {
    let home = folder();
    for name in ["lock", "server.lock", "server.pid", "server.log", "server.sock", "server.started"]
    {
        let (dir, victim) = (home.path().join("data"), home.path().join("victim"));
        std::fs::create_dir(&dir).expect("made");
        mode(&dir, 0o700);
        std::fs::write(&victim, "precious").expect("written");
        symlink(&victim, dir.join(name)).expect("made");
        refused(&dir, "is a link");
        assert_eq!(std::fs::read(&victim).expect("there"), b"precious", "{name}");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}

/// What an older version left under another umask does not keep anybody out.
#[test]
fn files_of_an_older_version_are_closed() {
    let home = folder();
    let dir = home.path().join("data");
    std::fs::create_dir(&dir).expect("made");
    mode(&dir, 0o700);
    std::fs::write(dir.join("lock"), "").expect("written");
    mode(&dir.join("lock"), 0o664);
    let data = dir.display().to_string();
    let mut status = Program::start(artel(), &["embedded", "status", "--data-dir", &data]);
    assert_eq!(status.exit_code(), Some(5), "{}", status.stderr());
    let left = std::fs::metadata(dir.join("lock")).expect("there").permissions().mode();
    assert_eq!(left & 0o777, 0o644);
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        if entry.path().is_dir() {
            found.extend(all_files(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

/// What a private server writes is for its user alone; and only that server is ever signalled.
#[test]
fn the_files_are_ours_alone_and_so_is_what_is_ended() {
    let home = folder();
    let dir = home.path().join("data");
    let data = dir.display().to_string();
    let start = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--data-dir", &data]);
        let mut command = clean_command(artel(), &all);
        command.stdin(std::process::Stdio::null()).env("XDG_DATA_HOME", home.path());
        Program::spawn(command)
    };
    let mut first = start(&["up", "-n", "1", "--interval", "50ms"]);
    first.says("this process leads");
    let files = all_files(&dir);
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let mode = std::fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", file.display());
    }
    // A bystander has the lock open, as a backup might.
    let hold = format!("exec 9<>'{data}/server.lock'; echo held >&2; exec sleep 600");
    let mut bystander = Program::spawn({
        let mut command = clean_command("sh", &["-c", &hold]);
        command.stdin(std::process::Stdio::null());
        command
    });
    bystander.says("held");
    first.kill();
    std::fs::remove_file(dir.join("server.sock")).expect("it is there");
    let mut second = start(&["up", "-n", "1", "--for", "60s"]);
    second.says("this process leads");
    assert!(bystander.is_alive(), "it was not ours to end");
    bystander.kill();
    second.terminate();
    assert_eq!(second.exit_code(), Some(0), "{}", second.stderr());
    assert_eq!(start(&["embedded", "stop"]).exit_code(), Some(0));
}

/// A server of another user behind our socket is not ours to talk to. Only root can stage that.
#[test]
fn the_peer_of_the_socket_is_checked() {
    if !rustix::process::geteuid().is_root() {
        return println!("not root: no other user can be put behind a socket in our own folder");
    }
    let home = folder();
    let dir = home.path().join("data");
    std::fs::create_dir(&dir).expect("made");
    mode(&dir, 0o700);
    // The system remembers who listens, not who owns the file.
    let script = "import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])\n\
        os.setegid(65534); os.seteuid(65534); s.listen(); print('listens', file=sys.stderr, flush=True)\n\
        while True:\n c, _ = s.accept(); c.recv(99); c.sendall(b'+PONG\\r\\n')\n";
    let socket = dir.join("server.sock").display().to_string();
    let mut fake = Program::spawn({
        let mut command = clean_command("python3", &["-c", script, &socket]);
        command.stdin(std::process::Stdio::null());
        command
    });
    fake.says("listens");
    let data = dir.display().to_string();
    let mut status = Program::start(artel(), &["embedded", "status", "--data-dir", &data]);
    assert_eq!(status.exit_code(), Some(3), "{}{}", status.stdout(), status.stderr());
    assert!(status.stdout().contains("not answering"), "{}", status.stdout());
    fake.kill();
}
