//! A web service that hands work to a fleet: `POST /` with a body sends it, once per `Idempotency-Key`.
//!
//! `cargo run --example send_from_http -- redis://127.0.0.1:6379 127.0.0.1:8080`; a real one has a framework, and
//! the same few lines in its handler.
#![allow(clippy::print_stderr)]

use artel::{Error, Fleet, Sender};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let redis = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let listener =
        TcpListener::bind(args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned())).await?;
    // Once, at the start. Clones share one connection, which comes back by itself.
    let sender = Fleet::connect(redis, "orders").await?.sender();
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let sender = sender.clone();
        tokio::spawn(async move { serve(stream, &sender).await });
    }
}

/// What a request comes to. Each takes five seconds at most, whatever Redis does, and none waits for another.
async fn accept(sender: &Sender, key: Option<String>, body: Vec<u8>) -> (&'static str, String) {
    let sent = match &key {
        // With a key the client may simply ask again: it is added once.
        Some(key) => sender.send_once(key, body).await,
        None => sender.send(body).await,
    };
    match sent {
        Ok(sent) => ("202 Accepted", format!("{}\n", sent.id)),
        // Nothing was added, or the key makes sure that it is added once.
        Err(error) if error.is_retryable() => {
            ("503 Service Unavailable", format!("try again: {error}\n"))
        }
        // Nobody knows: `artel show ID` does, once Redis is back.
        Err(error @ Error::InDoubt { .. }) => ("504 Gateway Timeout", format!("{error}\n")),
        Err(error) => ("400 Bad Request", format!("{error}\n")),
    }
}

async fn serve(stream: TcpStream, sender: &Sender) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut key, mut length) = (String::new(), None, 0);
    while stream.read_line(&mut line).await? > 2 {
        if let Some((name, value)) = line.split_once(':') {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0).min(1 << 20),
                "idempotency-key" => key = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let (status, text) = accept(sender, key, body).await;
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    stream.write_all(format!("{head}{text}").as_bytes()).await
}
