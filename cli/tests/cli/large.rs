//! A server that says more than anybody asked for.

use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use artel_testkit::{DEADLINE, clean_command};

use crate::fake::command;

/// Answers every call but the first with this, and then with bytes without end.
fn says(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a second handle");
                let mut reader = std::io::BufReader::new(stream);
                let noise = vec![b'1'; 1 << 20];
                while let Some(words) = command(&mut reader) {
                    if words[0].eq_ignore_ascii_case("HELLO") {
                        let _ = writer.write_all(b"%1\r\n$5\r\nproto\r\n:3\r\n");
                        continue;
                    }
                    let _ = writer.write_all(head.as_bytes());
                    for _ in 0..400 {
                        if writer.write_all(&noise).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    format!("redis://{address}")
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
