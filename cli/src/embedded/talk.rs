//! One command, one answer: enough of the protocol to find, identify and stop a server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a probe waits: a server on this machine answers at once, or does not run.
const PROBE: Duration = Duration::from_secs(1);

/// Bytes that an answer may have; real answers are far smaller.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A connection to a server's socket. It is an error if the server belongs to another user.
pub(super) fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    #[cfg(target_os = "linux")]
    {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        if peer.uid != rustix::process::geteuid() {
            let reason = format!("user {} listens there", peer.uid.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    stream.set_read_timeout(Some(PROBE))?;
    stream.set_write_timeout(Some(PROBE))?;
    Ok(stream)
}

/// Does a Redis answer on localhost? A request for a password counts as an answer.
pub(crate) fn localhost_answers() -> bool {
    let connect = || -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], 6379).into(), PROBE)?;
        stream.set_read_timeout(Some(PROBE))?;
        stream.set_write_timeout(Some(PROBE))?;
        ask(stream, "PING")
    };
    let known = ["PONG", "NOAUTH", "LOADING", "DENIED", "MASTERDOWN"];
    connect().is_ok_and(|answer| known.iter().any(|word| answer.starts_with(word)))
}

/// Sends a command and reads its answer.
pub(super) fn ask(mut stream: impl Read + Write, command: &str) -> io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let head = answer.iter().position(|&byte| byte == b'\n');
        if let Some(head) = head {
            let line = String::from_utf8_lossy(&answer[..head]).trim_end().to_owned();
            let Some(length) = line.strip_prefix('$') else {
                return Ok(line.trim_start_matches(['+', '-', ':']).to_owned());
            };
            let length: usize = length.parse().map_err(|_| io::ErrorKind::InvalidData)?;
            if length > ANSWER_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if let Some(body) = answer.get(head + 1..head + 1 + length) {
                return Ok(String::from_utf8_lossy(body).into_owned());
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&chunk[..n]),
        }
        if answer.len() > ANSWER_BYTES_MAX + 64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(io::Cursor<Vec<u8>>);

    impl Read for Fake {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let one = buffer.len().min(3); // in small pieces, as a network may
            self.0.read(&mut buffer[..one])
        }
    }

    impl Write for Fake {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            Ok(buffer.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn answers_are_read_whole() {
        let answer = |bytes: &str| ask(Fake(io::Cursor::new(bytes.into())), "PING");
        assert_eq!(answer("+PONG\r\n").expect("whole"), "PONG");
        assert_eq!(answer("-NOAUTH no\r\n").expect("whole"), "NOAUTH no");
        assert_eq!(answer("$5\r\na\r\nbc\r\n").expect("whole"), "a\r\nbc");
        assert!(answer("$5\r\nab").is_err() && answer("HTTP/1.1").is_err());
        for length in ["18446744073709551615", "400000000", "-1", "99999999999999999999999"] {
            assert!(answer(&format!("${length}\r\nabc")).is_err(), "{length}");
        }
    }
}
