//! A server that speaks just enough of the protocol to say something wrong.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// Starts one that answers every call after the first like this; its address.
pub fn serve(
    answer: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Copy + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a second handle");
                let mut reader = BufReader::new(stream);
                while let Some(words) = command(&mut reader) {
                    let answered = match words[0].to_uppercase().as_str() {
                        "HELLO" => writer.write_all(b"%1\r\n$5\r\nproto\r\n:3\r\n"),
                        call => answer(call, &mut writer),
                    };
                    if answered.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

/// One that claims to be a Redis of this version.
pub fn redis_of_version(version: &'static str) -> String {
    serve(move |call, writer| {
        let info = format!("# Server\r\nredis_version:{version}\r\n");
        match call {
            "INFO" => write!(writer, "${}\r\n{info}\r\n", info.len()),
            _ => writer.write_all(b"+OK\r\n"),
        }
    })
}
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
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
