//! What a member tells over HTTP.
//!
//! **Invariant:** `/livez`, `/readyz` and `/gather_stats` only read, carry no payloads and need no
//! token. Everything else is served off loopback only with one, and compares it in constant time.
//!
//! A request is answered in bounded time whatever Redis does, and the number of those that wait for
//! the fleet is bounded.

mod router;

use std::net::SocketAddr;

use artel::Fleet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::{FAILURE, Failure, USAGE};
use crate::settings::Place;

pub(crate) use router::Token;

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
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
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

/// Serves until `over`.
pub(crate) fn serve(
    listening: Listening,
    token: Option<Token>,
    place: &Place,
    fleet: &Fleet,
    over: CancellationToken,
) -> tokio::task::JoinHandle<()> {
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
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(over.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!(%error, "http");
        }
    })
}
