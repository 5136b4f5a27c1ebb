//! What a member serves over HTTP.
//!
//! **Invariant:** everything here only reads, and a request is answered in bounded time,
//! whatever Redis and other clients do. These are bounded: the number of connections, the life
//! of a connection, the time a client takes to send its request, the time it leaves the answer
//! unread, and the number of requests that wait for the fleet.

mod access; // which client may read which path
mod connections; // the open connections, and which one is closed to make room
mod router; // the answer of each path
mod stream; // writes do not wait forever

use std::net::SocketAddr;
use std::time::Duration;

use artel::Member;
use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::exit::{FAILURE, Failure, USAGE};

pub(crate) use access::Token;
use connections::{Connection, Connections};
use stream::Stream;

/// How long a client may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many bytes its request head may have.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// How long a connection may last, and how long the answer in progress may take after that.
const LIFE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));
/// Pause after a connection could not be accepted, for example because there are too many open
/// files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// After this many connections were closed to make room, there is a pause. So a new client has time
/// to send its request, however many others connect.
const FULL_PAUSE: (u32, Duration) = (8, Duration::from_millis(1));

/// An open port that does not serve yet.
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

/// Opens the port: `8090`, `:8090` or `host:8090`. Without a host it is on loopback.
pub(crate) async fn listen(text: &str) -> Result<Listening, Failure> {
    let text = text.trim();
    let address = match text.strip_prefix(':').unwrap_or(text) {
        port if port.parse::<u16>().is_ok() => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = !host.is_empty() && !host.contains([':', '/']);
        let v6 = host.starts_with('[') && host.ends_with(']');
        (plain || v6) && port.parse::<u16>().is_ok()
    });
    if !has_port {
        return Err(Failure::new(USAGE, format!("--http {text} is no address"))
            .hint("try `--http 8090`, or `--http 0.0.0.0:8090` for all networks"));
    }
    let refused = |error: std::io::Error| {
        Failure::new(FAILURE, format!("cannot listen on {address}: {error}"))
            .hint("is another program there? `--http 0` takes any free port")
    };
    let listener = TcpListener::bind(&address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok(Listening { listener, address })
}

/// Serves until `over`; the task ends when the last answer is sent.
pub(crate) fn serve(
    listening: Listening,
    token: Option<Token>,
    member: &Member,
    over: CancellationToken,
) -> JoinHandle<()> {
    let Listening { listener, address } = listening;
    tracing::info!("http: listening on http://{address}");
    let loopback = address.ip().is_loopback();
    if !loopback && token.is_none() {
        tracing::warn!(
            "http: /api/v1 is not served off loopback without a token: set ARTEL_HTTP_TOKEN"
        );
    }
    let router = router::router(router::View::new(member), access::Access { token, loopback });
    tokio::spawn(accept(listener, router, over))
}

async fn accept(listener: TcpListener, router: Router, over: CancellationToken) {
    let (connections, mut all, mut gone) = (Connections::default(), JoinSet::new(), 0u32);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = over.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (connection, full) = connections.enter(peer.ip().to_canonical());
                all.spawn(answer(stream, router.clone(), over.clone(), connection));
                gone += u32::from(full);
                if gone >= FULL_PAUSE.0 {
                    gone = 0;
                    tokio::time::sleep(FULL_PAUSE.1).await;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "http: cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
        while all.try_join_next().is_some() {}
    }
    drop(listener);
    while all.join_next().await.is_some() {}
}

/// Answers one connection until it is closed, its time is over or another one needs its place. When
/// the member stops, the answer in progress is still sent.
async fn answer(
    stream: TcpStream,
    router: Router,
    over: CancellationToken,
    connection: Connection,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX);
    let (router, place) = (TowerToHyperService::new(router), &connection);
    let service = service_fn(|request| {
        place.answering(true);
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            place.answering(false);
            answer
        }
    });
    let stream = TokioIo::new(Stream::new(stream));
    let mut served = std::pin::pin!(http.serve_connection(stream, service));
    tokio::select! {
        ended = served.as_mut() => return drop(ended),
        () = connection.over.cancelled() => return,
        () = over.cancelled() => {}
        () = tokio::time::sleep(LIFE.0) => {}
    }
    served.as_mut().graceful_shutdown();
    tokio::select! {
        ended = served => drop(ended),
        () = connection.over.cancelled() => {}
        () = tokio::time::sleep(LIFE.1) => {}
    }
}
