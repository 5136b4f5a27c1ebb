//! [`Dialer`]: makes connections to servers.
//!
//! **Invariant:** whatever the other side sends, at most one reply of bounded size is kept in memory,
//! and a connection that is no longer used is closed at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult, Value};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::place::Spot;
use super::reply_limit::ReplyLimit;
use super::script::{Call, With};

/// Makes connections to any server of one address.
#[derive(Clone)]
pub(super) struct Dialer {
    tls: Option<Arc<ClientConfig>>,
    /// A connection was made before, so TLS is as the address says. It is not probed again.
    connected: Arc<AtomicBool>,
}

impl Dialer {
    pub(super) fn new(tls: Option<ClientConfig>) -> Dialer {
        Dialer { tls: tls.map(Arc::new), connected: Arc::default() }
    }

    /// Connects to this server and logs in.
    pub(super) async fn dial(
        &self,
        spot: &Spot,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> RedisResult<Connection> {
        let (inner, heard) = (self.open(spot).await?, Arc::new(AtomicBool::new(false)));
        let stream =
            Bounded { inner, begun: false, heard: heard.clone(), limit: ReplyLimit::default() };
        let made = MultiplexedConnection::new_with_config(settings, stream, config);
        let (inner, driver) = match made.await {
            Err(_) if !heard.load(Ordering::Relaxed) && self.speaks_tls(spot).await => {
                return Err(io::Error::other(TLS).into());
            }
            made => made?,
        };
        self.connected.store(true, Ordering::Relaxed);
        let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
        Ok(Connection { inner, _driver: driver })
    }

    /// For other servers than those of the address: what is known of these says nothing about them.
    pub(super) fn apart(&self, connected: &Arc<AtomicBool>) -> Dialer {
        Dialer { tls: self.tls.clone(), connected: connected.clone() }
    }

    fn was_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Does the server expect TLS? It closed the connection without an answer. Any TLS answer proves
    /// it, whatever its certificate is.
    async fn speaks_tls(&self, spot: &Spot) -> bool {
        let Spot::Tcp { host, port } = spot else { return false };
        let Ok(name) = ServerName::try_from(host.clone()) else { return false };
        if self.was_connected() || self.tls.is_some() {
            return false;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let Ok(config) = config else { return false };
        let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let handshake = async {
            let stream = tcp(host, *port).await?;
            TlsConnector::from(Arc::new(config)).connect(name, stream).await
        };
        match tokio::time::timeout(PROBE, handshake).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error
                .get_ref()
                .and_then(|error| error.downcast_ref::<rustls::Error>())
                .is_some_and(|error| {
                    use rustls::Error::{AlertReceived, InvalidCertificate};
                    matches!(error, InvalidCertificate(_) | AlertReceived(_))
                }),
            Err(_) => false,
        }
    }

    async fn open(&self, spot: &Spot) -> io::Result<Box<dyn Stream>> {
        match (spot, &self.tls) {
            (Spot::Tcp { host, port }, None) => Ok(Box::new(tcp(host, *port).await?)),
            (Spot::Tcp { host, port }, Some(tls)) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                let handshake = TlsConnector::from(tls.clone()).connect(name, stream);
                tokio::select! {
                    made = handshake => Ok(Box::new(made.map_err(explain)?)),
                    () = speaks_plainly(host, *port), if !self.was_connected() => {
                        Err(io::Error::other(PLAIN))
                    }
                }
            }
            (Spot::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }
}

/// Connects to the address of this host that answers first.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no address found for host"));
    }
    let attempts = addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
    let (stream, _others) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection. Clones share it. It ends with the last clone.
#[derive(Clone)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    _driver: Arc<Driver>,
}

struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    pub(super) async fn send(&mut self, cmd: &redis::Cmd) -> RedisResult<Value> {
        extract(self.inner.send_packed_command(cmd).await?)
    }

    /// Sends these commands, `count` of them, in one write. An answer may be an error.
    pub(super) async fn send_all(
        &mut self,
        pipe: &redis::Pipeline,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.inner.send_packed_commands(pipe, 0, count).await
    }

    /// Sends a call. A server that does not know its script, because it was restarted, gets it first, if its answer is that of
    /// this call.
    pub(super) async fn write<R>(
        &mut self,
        call: &Call<R>,
        is_own: impl Fn() -> bool,
    ) -> RedisResult<Value> {
        let answer = self.send_with(&call.cmd, &call.with).await;
        match (&answer, &call.source) {
            (Err(error), Some(source)) if error.code() == Some("NOSCRIPT") && is_own() => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(&**source);
                self.send(&load).await?;
                self.send_with(&call.cmd, &call.with).await
            }
            _ => answer,
        }
    }

    /// Sends a command with those that are written together with it.
    async fn send_with(&mut self, cmd: &redis::Cmd, with: &With) -> RedisResult<Value> {
        match with {
            With::Nothing => self.send(cmd).await,
            With::Get(keys) => {
                let mut pipe = redis::pipe();
                pipe.add_command(cmd.clone());
                for key in &**keys {
                    pipe.get(key);
                }
                let answers = self.inner.send_packed_commands(&pipe, 0, 1 + keys.len()).await?;
                let mut answers = answers.into_iter();
                let mut answer = extract(answers.next().unwrap_or(Value::Nil))?;
                if let Value::Array(parts) = &mut answer {
                    for got in answers {
                        parts.push(extract(got).map_err(behind)?);
                    }
                }
                Ok(answer)
            }
            With::Then(commands) => {
                let mut pipe = redis::pipe();
                pipe.add_command(cmd.clone());
                for command in &**commands {
                    pipe.add_command(command.clone());
                }
                let answers = self.inner.send_packed_commands(&pipe, 0, 1 + commands.len()).await?;
                let mut answers = answers.into_iter();
                extract(answers.next().unwrap_or(Value::Nil))?;
                answers.map(extract).collect::<RedisResult<_>>().map(Value::Array)
            }
            With::Stage(staged) => {
                let mut pipe = redis::pipe();
                pipe.cmd("MULTI").set(&staged.key, &staged.value[..]).add_command(cmd.clone());
                pipe.del(&staged.key).cmd("EXEC");
                executed(self.inner.send_packed_commands(&pipe, 0, 5).await?)
            }
        }
    }
}

/// The error of a command behind a script that ran: the slot may have been moved between them. That is no proof that
/// nothing was done, so it counts as no answer.
fn behind(error: redis::RedisError) -> redis::RedisError {
    match error.code() {
        Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN") => {
            io::Error::other("the slot was moved meanwhile").into()
        }
        _ => error,
    }
}

/// Makes a server's error an error.
pub(super) fn extract(value: Value) -> RedisResult<Value> {
    match value {
        error @ Value::ServerError(_) => error.extract_error(),
        value => Ok(value),
    }
}

/// The answer of the script inside `MULTI`, `SET`, script, `DEL`, `EXEC`. If nothing was executed, the reason is the
/// error of the command that could not be queued: `EXEC` itself only says that there was one.
fn executed(mut answers: Vec<Value>) -> RedisResult<Value> {
    let executed = answers.pop();
    // A `MULTI` that was refused: the commands behind it ran, each by itself.
    if let (Some(Value::ServerError(_)), Some(answer)) = (answers.first(), answers.get(2))
        && !matches!(answer, Value::ServerError(_))
    {
        return Ok(answers.swap_remove(2));
    }
    for answer in answers {
        extract(answer)?;
    }
    match executed.map(extract).transpose()? {
        Some(Value::Array(parts)) => {
            let mut parts = parts.into_iter();
            extract(parts.next().unwrap_or(Value::Nil))?;
            extract(parts.next().unwrap_or(Value::Nil))
        }
        _ => Ok(Value::Nil),
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The errors when one side speaks TLS and the other does not.
const PLAIN: &str = "what answers there does not speak TLS";
const TLS: &str = "what answers there speaks TLS";
/// How long a TLS handshake may take before the server is probed for a plain answer, and how long a probe may
/// take.
const HANDSHAKE: Duration = Duration::from_millis(400);
const PROBE: Duration = Duration::from_millis(400);

/// The error of a failed handshake. A server without TLS gets an error of its own.
fn explain(error: io::Error) -> io::Error {
    match error.to_string().to_lowercase().contains("corrupt message") {
        true => io::Error::other(PLAIN),
        false => error,
    }
}

/// Probes the server a moment after a handshake has begun. Ends if a Redis without TLS answers;
/// otherwise it never ends. Such a Redis does not answer the handshake: it waits for the end of a line,
/// which may never come.
async fn speaks_plainly(host: &str, port: u16) {
    tokio::time::sleep(HANDSHAKE).await;
    let probe = async {
        let mut stream = tcp(host, port).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    match tokio::time::timeout(PROBE, probe).await {
        Ok(Ok(b'+' | b'-')) => {}
        _ => std::future::pending().await,
    }
}

/// The error if the first bytes received are not from a Redis.
fn not_redis(bytes: &[u8]) -> Option<io::Error> {
    match bytes.first()? {
        // A TLS alert, or a TLS handshake.
        0x15 | 0x16 => Some(io::Error::other(TLS)),
        first if b"+-:$*%~_,#!=(>|".contains(first) => None,
        _ => {
            let line = bytes.split(|byte| b"\r\n".contains(byte)).next().unwrap_or_default();
            let said = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
            Some(io::Error::other(format!("what answers there is not Redis, it says {said:?}")))
        }
    }
}

/// A stream that fails when a reply is too large.
struct Bounded {
    inner: Box<dyn Stream>,
    /// Something was received. `heard` tells this to the function that made the stream.
    begun: bool,
    heard: Arc<AtomicBool>,
    limit: ReplyLimit,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = read {
            // Zero bytes mean that the connection was closed.
            if !self.begun && buffer.filled().len() > before {
                self.begun = true;
                self.heard.store(true, Ordering::Relaxed);
                if let Some(error) = not_redis(&buffer.filled()[before..]) {
                    return Poll::Ready(Err(error));
                }
            }
            self.limit.read(&buffer.filled()[before..])?;
        }
        read
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).expect("an answer")
    }

    /// What Redis answers to `MULTI`, `SET`, a script, `DEL` and `EXEC`, and what becomes of it.
    fn answer(answers: [&str; 5]) -> Result<Value, super::super::StoreError> {
        executed(answers.map(parse).to_vec()).map_err(Into::into)
    }

    fn code(answers: [&str; 5]) -> String {
        match answer(answers) {
            Err(super::super::StoreError::Server { code, .. }) => code,
            other => panic!("{other:?}"),
        }
    }

    const QUEUED: &str = "+QUEUED\r\n";

    #[test]
    fn the_answer_of_a_transaction_is_that_of_its_script() {
        let done = "*3\r\n+OK\r\n$2\r\nok\r\n:0\r\n";
        let ok = answer(["+OK\r\n", QUEUED, QUEUED, QUEUED, done]).expect("executed");
        assert_eq!(ok, Value::BulkString(b"ok".to_vec()));
        let unknown = "*3\r\n+OK\r\n-NOSCRIPT No matching script.\r\n:1\r\n";
        assert_eq!(code(["+OK\r\n", QUEUED, QUEUED, QUEUED, unknown]), "NOSCRIPT");
    }

    #[test]
    fn a_transaction_that_was_not_executed_says_why() {
        let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        let full = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert_eq!(code(["+OK\r\n", full, QUEUED, QUEUED, abort]), "OOM");
        let later = "-EXECABORT Transaction discarded because of: READONLY You can't write\r\n";
        assert_eq!(code(["+OK\r\n", QUEUED, QUEUED, QUEUED, later]), "READONLY");
    }

    /// Without `MULTI` the commands run one by one: that it was refused says nothing about them.
    #[test]
    fn a_transaction_that_was_not_begun_is_no_refusal() {
        let denied = "-NOPERM this user has no permissions to run the 'multi' command\r\n";
        let none = "-ERR EXEC without MULTI\r\n";
        let ok = answer([denied, "+OK\r\n", "$2\r\nok\r\n", ":0\r\n", none]).expect("it ran");
        assert_eq!(ok, Value::BulkString(b"ok".to_vec()));
        assert_eq!(code([denied, "+OK\r\n", "-OOM x\r\n", ":0\r\n", none]), "NOPERM");
    }
}
