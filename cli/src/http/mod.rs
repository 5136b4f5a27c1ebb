//! What a process serves over HTTP: probes, numbers, the JSON API, and the page.
//!
//! **Invariant:** a request is answered in bounded time, whatever Redis and other clients do. These are bounded: the number
//! of connections, the life of a connection, the time a client takes to send its request, the time it leaves the answer
//! unread, the number of requests that wait for the fleet, and of pages that are open.

mod access; // which client may read which path, and who may change something
mod answer; // a document, or what is wrong
mod api; // the JSON API
mod connections; // the open connections, and which one is closed to make room
mod limits; // how often a peer may change something
mod page; // the page
mod router; // the answer of each path
mod source; // what is served
mod stream; // writes do not wait forever

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::args::HttpArgs;
use crate::exit::{FAILURE, Failure, USAGE};

use access::Access;
use access::Token;
use connections::{Connection, Connections, Endless};
use limits::Limits;
use router::Gate;
pub(crate) use source::Source;
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

/// Opens the port that is wished for, if one is.
pub(crate) async fn listen_if(wish: Option<&str>) -> Result<Option<Listening>, Failure> {
    match wish {
        Some(address) => listen(address).await.map(Some),
        None => Ok(None),
    }
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

/// The address of a client.
#[derive(Clone, Copy, Debug)]
struct Peer(IpAddr);

/// Who may do what.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    access: Access,
    base: Arc<str>,
}

impl Rules {
    /// The rules that the settings make.
    pub(crate) fn of(args: &HttpArgs) -> Result<Rules, Failure> {
        let base = args.http_base.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        if !base.is_empty() && (!base.starts_with('/') || !base.chars().all(is_plain)) {
            let error = format!("--http-base {} is no path", args.http_base);
            return Err(Failure::new(USAGE, error).hint("try `--http-base /artel`"));
        }
        let access = Access {
            token: Token::of_this_process(args.http_token_file.as_deref())?,
            reader: Token::for_readers(args.http_read_token_file.as_deref())?,
            read_only: args.http_read_only,
            loopback: false,
        };
        Ok(Rules { access, base: base.into() })
    }
}

impl Listening {
    /// Says where it is.
    pub(crate) fn say(&self) {
        tracing::info!("http: listening on http://{}", self.address);
    }

    /// Where the page is.
    pub(crate) fn url(&self, rules: &Rules) -> String {
        format!("http://{}{}/", self.address, rules.base)
    }
}

/// Serves until `over`; the task ends when the last answer is sent.
pub(crate) fn serve(
    listening: Listening,
    rules: Rules,
    source: Source,
    over: CancellationToken,
) -> JoinHandle<()> {
    let Listening { listener, address } = listening;
    let loopback = address.ip().is_loopback();
    if !loopback && rules.access.is_open() {
        tracing::warn!(
            "http: the page and /api/v1 are not served off loopback without a token: set ARTEL_HTTP_TOKEN"
        );
    }
    let access = Access { loopback, ..rules.access };
    let gate = Gate { access, limits: Limits::default(), base: rules.base };
    let router = router::router(source, gate, &over);
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
                let peer = Peer(peer.ip().to_canonical());
                all.spawn(answer(stream, peer, router.clone(), over.clone(), connection));
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
    peer: Peer,
    router: Router,
    over: CancellationToken,
    connection: Connection,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX);
    let (router, place, endless) = (TowerToHyperService::new(router), &connection, &Endless::new());
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        place.answering(true);
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(endless.clone());
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            place.answering(endless.is_kept());
            answer
        }
    });
    let too_old = async {
        tokio::time::sleep(LIFE.0).await;
        while endless.is_kept() {
            tokio::time::sleep(LIFE.1).await;
        }
    };
    let stream = TokioIo::new(Stream::new(stream));
    let mut served = std::pin::pin!(http.serve_connection(stream, service));
    tokio::select! {
        ended = served.as_mut() => return drop(ended),
        () = connection.over.cancelled() => return,
        () = over.cancelled() => {}
        () = too_old => {}
    }
    served.as_mut().graceful_shutdown();
    tokio::select! {
        ended = served => drop(ended),
        () = connection.over.cancelled() => {}
        () = tokio::time::sleep(LIFE.1) => {}
    }
}
