//! A server that speaks just enough of the protocol to say that it is an old Redis.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

/// Starts it; its address.
pub fn redis_of_version(version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a second handle");
                let mut reader = BufReader::new(stream);
                while let Some(words) = command(&mut reader) {
                    let info = format!("# Server\r\nredis_version:{version}\r\n");
                    let reply = match words[0].to_uppercase().as_str() {
                        "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
                        "INFO" => format!("${}\r\n{info}\r\n", info.len()),
                        _ => "+OK\r\n".to_owned(),
                    };
                    if writer.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

pub fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let count: usize = line.trim().strip_prefix('*')?.parse().ok()?;
    let mut words = Vec::new();
    for _ in 0..count {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim().strip_prefix('$')?.parse().ok()?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        words.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Some(words)
}
