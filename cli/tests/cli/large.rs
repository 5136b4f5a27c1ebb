//! A server that says more than anybody asked for.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel_rig::{DEADLINE, clean_command};

use crate::fake::serve;

/// A server that answers with this, and then with bytes without end.
fn says(head: &'static str) -> String {
    serve(move |_, writer| {
        let noise = vec![b'1'; 1 << 20];
        writer.write_all(head.as_bytes())?;
        (0..400).try_for_each(|_| writer.write_all(&noise))
    })
}

/// The most memory a process had, in MiB.
fn peak_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? / 1024)
}

#[test]
fn a_reply_without_end_is_refused() {
    for head in [
        "$400000000\r\n",
        "*400000000\r\n",
        "$18446744073709551615\r\n",
        "*9223372036854775807\r\n",
        "+",
        "*1\r\n*1\r\n$399999999\r\n",
        "=400000000\r\ntxt:",
    ] {
        let url = says(head);
        let mut command = clean_command(env!("CARGO_BIN_EXE_artel"), &["status", "--redis", &url]);
        command.env("XDG_DATA_HOME", "/nonexistent").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let (begun, mut peak) = (Instant::now(), 0);
        while child.try_wait().expect("asked").is_none() {
            peak = peak.max(peak_mib(child.id()).unwrap_or(0));
            assert!(begun.elapsed() < DEADLINE, "{head:?} never ends");
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().expect("its end");
        let screen = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{head:?}: {peak} MiB, {:?}: {screen}", begun.elapsed());
        assert!(matches!(output.status.code(), Some(1 | 3)), "{head:?}: {screen}");
        assert!(
            screen.starts_with("error: ") && !screen.contains("panicked"),
            "{head:?}: {screen}"
        );
        // The whole of a reply may have 64 MiB, and is read into a buffer that grows.
        assert!(peak < 300, "{head:?}: {peak} MiB");
        assert!(screen.len() < 1000, "{head:?}: {screen}");
    }
}
