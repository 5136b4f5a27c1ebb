//! [`Client`]: makes connections to one address.
//!
//! **Invariant:** whatever the other side says, no more than one reply of bounded size is kept of
//! it, and a connection that nobody uses any more is closed at once.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::gauge::Gauge;

/// An address that was understood.
#[derive(Clone)]
pub(crate) struct Client {
    info: ConnectionInfo,
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    pub(super) fn new(info: ConnectionInfo, tls: Option<ClientConfig>) -> Client {
        Client { info, tls: tls.map(Arc::new) }
    }

    /// Connects and says who we are, in this time.
    pub(super) async fn connect(
        &self,
        config: AsyncConnectionConfig,
        timeout: Duration,
    ) -> RedisResult<Connection> {
        let connecting = async {
            let stream = Bounded { inner: self.open().await?, gauge: Gauge::default() };
            let made =
                MultiplexedConnection::new_with_config(self.info.redis_settings(), stream, config);
            let (inner, driver) = made.await?;
            let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
            Ok(Connection { inner, _driver: driver })
        };
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connection) => connection,
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        match (self.info.addr(), &self.tls) {
            (ConnectionAddr::Tcp(host, port), _) => Ok(Box::new(tcp(host, *port).await?)),
            (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                Ok(Box::new(TlsConnector::from(tls.clone()).connect(name, stream).await?))
            }
            (ConnectionAddr::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Connects to whichever of its addresses answers first.
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

/// A connection. Clones share it; with the last of them it ends.
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
        match self.inner.send_packed_command(cmd).await? {
            error @ Value::ServerError(_) => error.extract_error(),
            value => Ok(value),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A stream that ends with a reply that is too large.
struct Bounded {
    inner: Box<dyn Stream>,
    gauge: Gauge,
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
            self.gauge.read(&buffer.filled()[before..])?;
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
