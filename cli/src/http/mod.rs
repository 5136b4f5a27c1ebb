//! What a member tells over HTTP.
//!
//! **Invariant:** `/livez`, `/readyz` and `/gather_stats` only read, carry no payloads and need no
//! token. Everything else is served off loopback only with one, and compares it in constant time.
//!
//! A request is answered in bounded time whatever Redis does; the connections, the time a client may
//! take to ask, and the number of requests that wait for the fleet are bounded.

mod router;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use artel::Fleet;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::exit::{FAILURE, Failure, USAGE};
use crate::settings::Place;

pub(crate) use router::Token;

/// Connections at the same time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 128;
/// How long a client may take to ask.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, for want of files perhaps.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A port that is ours, before anybody is served.
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

/// Takes the port: `8090`, `:8090` or `host:8090`. Without a host it is loopback.
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

/// Serves until `over`; ends when the last answer is out.
pub(crate) fn serve(
    listening: Listening,
    token: Option<Token>,
    place: &Place,
    fleet: &Fleet,
    over: CancellationToken,
) -> JoinHandle<()> {
    let Listening { listener, address } = listening;
    tracing::info!("http: listening on http://{address}");
    let open = address.ip().is_loopback() || token.is_some();
    if !open {
        tracing::warn!(
            "http: /api/v1 is not served off loopback without a token: set ARTEL_HTTP_TOKEN"
        );
    }
    let view = router::View::new(place, fleet);
    let router = router::router(view, open.then_some(token));
    tokio::spawn(accept(listener, router, over))
}

async fn accept(listener: TcpListener, router: Router, over: CancellationToken) {
    let (room, mut all) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), JoinSet::new());
    loop {
        let place = tokio::select! {
            place = room.clone().acquire_owned() => place,
            () = over.cancelled() => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "http");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
            () = over.cancelled() => break,
        };
        all.spawn(answer(stream, router.clone(), over.clone(), place));
        while all.try_join_next().is_some() {}
    }
    drop(listener);
    while all.join_next().await.is_some() {}
}

/// Answers one connection until it is closed, or until the answer that is being made is out.
async fn answer<P>(stream: TcpStream, router: Router, over: CancellationToken, _place: P) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return drop(ended),
        () = over.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
