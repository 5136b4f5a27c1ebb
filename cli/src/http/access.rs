//! [`Access`]: which client may read which path, and who may change something.
//!
//! **Invariant:** probes are for everybody. With a token, everything else is for clients that know it, and it is compared in
//! constant time; only the page itself is not, which has no data and asks for the token. Without a token, the page and
//! `/api` are for this machine alone. On a port of this machine alone, a request is answered only if its host name is a
//! name of this machine, so that no page in a browser can use it in the name of another site. Nothing is changed for a
//! reader, nor for a page of another site.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use crate::exit::Failure;
use crate::secret;
use crate::variables::{HTTP_READ_TOKEN, HTTP_TOKEN};

/// Which site a request comes from, as browsers tell it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A secret that a client needs for everything but probes.
#[derive(Clone)]
pub(super) struct Token(Arc<str>);

impl Token {
    /// The token of this process: in `ARTEL_HTTP_TOKEN`, or in a file.
    pub(super) fn of_this_process(file: Option<&Path>) -> Result<Option<Token>, Failure> {
        let token = secret::read("token", HTTP_TOKEN, "--http-token-file", file)?;
        Ok(token.map(|token| Token(token.into())))
    }

    /// The token for readers: in `ARTEL_HTTP_READ_TOKEN`, or in a file.
    pub(super) fn for_readers(file: Option<&Path>) -> Result<Option<Token>, Failure> {
        let token = secret::read("token", HTTP_READ_TOKEN, "--http-read-token-file", file)?;
        Ok(token.map(|token| Token(token.into())))
    }

    /// Do these headers carry the token? The comparison takes as long for a wrong token as for the
    /// right one.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let header = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let scheme =
            |header: &&[u8]| header.get(..7).is_some_and(|s| s.eq_ignore_ascii_case(b"bearer "));
        let given = header.filter(scheme).map_or(&[][..], |header| &header[7..]);
        let (own, mut differ) = (self.0.as_bytes(), self.0.len() ^ given.len());
        for (at, byte) in own.iter().enumerate() {
            differ |= usize::from(byte ^ given.get(at).copied().unwrap_or(0));
        }
        differ == 0
    }
}

/// The rules of one port.
#[derive(Clone, Default)]
pub(super) struct Access {
    /// Who knows it may change things.
    pub(super) token: Option<Token>,
    /// Who knows it may read.
    pub(super) reader: Option<Token>,
    /// Nobody may change anything.
    pub(super) read_only: bool,
    /// Only this machine can reach the port.
    pub(super) loopback: bool,
}

/// What a client may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Level {
    Reader,
    Operator,
}

/// Why a request is refused.
pub(super) type Refusal = (StatusCode, &'static str);

/// The group of a path; each group has its own rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Probe,
    Numbers,
    Page,
    Fleet,
    Nothing,
}

/// It only reads, and is written to the common log.
pub(super) fn leaves_a_trace(path: &str) -> bool {
    path.ends_with("/errors/export")
}

fn about(path: &str) -> About {
    match path {
        "/livez" | "/readyz" => About::Probe,
        "/gather_stats" | "/metrics" => About::Numbers,
        "/" => About::Page,
        "/api" => About::Fleet,
        path if path.starts_with("/page/") => About::Page,
        path if path.starts_with("/api/") => About::Fleet,
        _ => About::Nothing,
    }
}

/// What a request says about who sends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Known {
    Operator,
    Reader,
    /// It carries something that is no token of ours.
    Wrong,
    Nobody,
}

impl Access {
    /// Who sends this, as far as tokens say.
    pub(super) fn knows(&self, headers: &HeaderMap) -> Known {
        let knows = |token: &Option<Token>| token.as_ref().is_some_and(|it| it.is_in(headers));
        match (knows(&self.token), knows(&self.reader)) {
            (true, _) => Known::Operator,
            (false, true) => Known::Reader,
            (false, false) if !self.is_open() && headers.contains_key(header::AUTHORIZATION) => {
                Known::Wrong
            }
            (false, false) => Known::Nobody,
        }
    }

    /// There is no token.
    pub(super) fn is_open(&self) -> bool {
        self.token.is_none() && self.reader.is_none()
    }

    /// Allows a request, or returns why it is refused.
    pub(super) fn lets(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Level, Refusal> {
        let about = about(uri.path());
        let level = self.level(about, uri, headers)?;
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        // What leaves no trace may be asked for from anywhere.
        if !reads || leaves_a_trace(uri.path()) {
            from_this_site(headers)?;
        }
        if reads {
            return Ok(level);
        }
        match level {
            Level::Operator => Ok(level),
            Level::Reader if self.read_only => Err((
                StatusCode::FORBIDDEN,
                "this process is read-only: nothing can be changed here",
            )),
            Level::Reader => {
                Err((StatusCode::FORBIDDEN, "this token is for reading: nothing was changed"))
            }
        }
    }

    fn level(&self, about: About, uri: &Uri, headers: &HeaderMap) -> Result<Level, Refusal> {
        let operator = if self.read_only { Level::Reader } else { Level::Operator };
        if !self.is_open() {
            let open = matches!(about, About::Probe | About::Page | About::Nothing);
            let why = "send the header `Authorization: Bearer <token>`";
            return match self.knows(headers) {
                Known::Operator => Ok(operator),
                Known::Reader => Ok(Level::Reader),
                Known::Nobody if open => Ok(Level::Reader),
                Known::Nobody | Known::Wrong => Err((StatusCode::UNAUTHORIZED, why)),
            };
        }
        if self.loopback && !is_asked_here(uri, headers) {
            let why = "this port is for this machine: ask for it as localhost";
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        if !self.loopback && matches!(about, About::Fleet | About::Page) {
            let why = "this is not served off loopback without a token: set ARTEL_HTTP_TOKEN";
            return Err((StatusCode::FORBIDDEN, why));
        }
        Ok(operator)
    }
}

/// Refuses what a page of another site asks for. Browsers say which site that is; other clients say nothing.
fn from_this_site(headers: &HeaderMap) -> Result<(), Refusal> {
    let foreign = Err((StatusCode::FORBIDDEN, "a page of another site may change nothing here"));
    let words = |name: &HeaderName| headers.get_all(name).iter().map(|word| word.as_bytes());
    let mut sites = words(&SEC_FETCH_SITE).peekable();
    if sites.peek().is_some() {
        return match sites.all(|site| matches!(site, b"same-origin" | b"none")) {
            true => Ok(()),
            false => foreign,
        };
    }
    let hosts: Vec<&[u8]> = words(&header::HOST).collect();
    let is_ours = |origin: &[u8]| {
        let rest = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        rest.is_some_and(|authority| hosts == [authority])
    };
    if words(&header::ORIGIN).all(is_ours) { Ok(()) } else { foreign }
}

/// Do all host names of the request mean this machine?
fn is_asked_here(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let named = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().is_ok_and(is_this_machine),
        _ => false,
    };
    named && uri.authority().is_none_or(|authority| is_this_machine(authority.as_str()))
}

/// Is this `localhost` or a loopback address, with or without a port?
fn is_this_machine(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn only_the_whole_token_is_let_through() {
        let token = Token("0123456789abcdef".into());
        let is_in = |value: &str| token.is_in(&headers(&[(header::AUTHORIZATION, value)]));
        assert!(is_in("Bearer 0123456789abcdef") && is_in("bearer 0123456789abcdef"));
        for wrong in ["", "Bearer ", "Bearer 0123456789abcdeX", "0123456789abcdef"] {
            assert!(!is_in(wrong), "{wrong:?}");
        }
        for wrong in ["Bearer 0123456789abcdef0", "Bearer 0123456789abcde"] {
            assert!(!is_in(wrong), "{wrong:?}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn a_port_of_this_machine_answers_to_its_own_names_only() {
        for ours in ["localhost", "LOCALHOST:8090", "127.0.0.1", "127.9.9.9:1", "[::1]:8090"] {
            assert!(is_this_machine(ours), "{ours}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "2130706433",
            "localhost:80@evil.example",
            "evil@localhost",
            "[::]",
            "",
            "localhost/",
            "10.0.0.1:8090",
        ] {
            assert!(!is_this_machine(other), "{other}");
        }
    }

    #[test]
    fn each_path_is_for_whom_it_is_for() {
        let token = Some(Token("0123456789abcdef".into()));
        let bearer = (header::AUTHORIZATION, "Bearer 0123456789abcdef");
        let (here, there) = ((header::HOST, "localhost:1"), (header::HOST, "pod.example"));
        let lets =
            |token: &Option<Token>, loopback, path: &str, with: &[(header::HeaderName, &str)]| {
                let access = Access { token: token.clone(), loopback, ..Access::default() };
                let uri = path.parse().expect("a path");
                let lets = access.lets(&Method::GET, &uri, &headers(with));
                lets.map_or_else(|(code, _)| code.as_u16(), |_| 200)
            };
        for path in ["/livez", "/readyz"] {
            assert_eq!(lets(&None, false, path, std::slice::from_ref(&there)), 200);
            assert_eq!(lets(&token, true, path, std::slice::from_ref(&there)), 200);
        }
        for path in ["/livez", "/gather_stats", "/api/v1/status", "/", "/nope"] {
            assert_eq!(lets(&None, true, path, std::slice::from_ref(&there)), 421, "{path}");
            assert_eq!(lets(&None, true, path, &[]), 421, "{path}");
            assert_eq!(lets(&None, true, path, &[here.clone(), there.clone()]), 421, "{path}");
            assert_eq!(lets(&None, true, path, std::slice::from_ref(&here)), 200, "{path}");
        }
        let absolute = "http://evil.example/livez";
        assert_eq!(lets(&None, true, absolute, std::slice::from_ref(&here)), 421);
        assert_eq!(lets(&None, false, "/gather_stats", std::slice::from_ref(&there)), 200);
        for path in ["/", "/api/v1/status", "/api/v1/nope"] {
            assert_eq!(lets(&None, false, path, &[here.clone(), bearer.clone()]), 403, "{path}");
        }
        // The page has no data: it asks for the token.
        assert_eq!(lets(&token, false, "/", std::slice::from_ref(&there)), 200);
        assert_eq!(lets(&token, false, "/page/app.js", std::slice::from_ref(&there)), 200);
        for path in ["/api/v1/status", "/gather_stats", "/metrics"] {
            assert_eq!(lets(&token, true, path, std::slice::from_ref(&here)), 401, "{path}");
            assert_eq!(lets(&token, false, path, &[there.clone(), bearer.clone()]), 200, "{path}");
        }
    }

    #[test]
    fn a_reader_and_another_site_change_nothing() {
        let (all, some) = ("Bearer 0123456789abcdef", "Bearer fedcba9876543210");
        let access = |read_only| Access {
            token: Some(Token("0123456789abcdef".into())),
            reader: Some(Token("fedcba9876543210".into())),
            read_only,
            loopback: true,
        };
        let lets = |read_only, method: Method, more: &[(HeaderName, &str)]| {
            let uri = "/api/v1/pause".parse().expect("a path");
            let mut with = vec![(header::HOST, "localhost:8090")];
            with.extend_from_slice(more);
            let lets = access(read_only).lets(&method, &uri, &headers(&with));
            lets.map_or_else(|(code, _)| code.as_u16(), |_| 200)
        };
        let (operator, reader) = ((header::AUTHORIZATION, all), (header::AUTHORIZATION, some));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(lets(false, method.clone(), std::slice::from_ref(&operator)), 200);
            assert_eq!(lets(false, method.clone(), std::slice::from_ref(&reader)), 403);
            assert_eq!(lets(true, method.clone(), std::slice::from_ref(&operator)), 403);
            assert_eq!(lets(false, method, &[]), 401);
        }
        assert_eq!(lets(true, Method::GET, std::slice::from_ref(&reader)), 200);
        let from =
            |name: HeaderName, value| lets(false, Method::POST, &[operator.clone(), (name, value)]);
        for (site, code) in
            [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)]
        {
            assert_eq!(from(SEC_FETCH_SITE, site), code, "{site}");
        }
        for (origin, code) in [
            ("http://localhost:8090", 200),
            ("https://localhost:8090", 200),
            ("http://localhost:8091", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("http://localhost:8090.evil.example", 403),
        ] {
            assert_eq!(from(header::ORIGIN, origin), code, "{origin}");
        }
    }
}
