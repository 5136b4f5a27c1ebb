//! [`Access`]: which client may read which path.
//!
//! **Invariant:** probes are for everybody. With a token, everything else is for clients that know
//! the token, and it is compared in constant time. Without a token, `/` and `/api` are for this
//! machine alone. On a port of this machine alone, a request is answered only if its host name is a
//! name of this machine, so that no page in a browser can use it in the name of another site.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};

use crate::exit::Failure;
use crate::secret;
use crate::variables::HTTP_TOKEN;

/// The secret that a client needs for everything but probes.
#[derive(Clone)]
pub(crate) struct Token(Arc<str>);

impl Token {
    /// The token of this process: in `ARTEL_HTTP_TOKEN`, or in a file.
    pub(crate) fn of_this_process(file: Option<&Path>) -> Result<Option<Token>, Failure> {
        let token = secret::read("token", HTTP_TOKEN, "--http-token-file", file)?;
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
#[derive(Clone)]
pub(super) struct Access {
    pub(super) token: Option<Token>,
    /// Only this machine can reach the port.
    pub(super) loopback: bool,
}

/// The group of a path; each group has its own rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Probe,
    Numbers,
    Fleet,
    Nothing,
}

fn about(path: &str) -> About {
    match path {
        "/livez" | "/readyz" => About::Probe,
        "/gather_stats" | "/metrics" => About::Numbers,
        "/" | "/api" => About::Fleet,
        path if path.starts_with("/api/") => About::Fleet,
        _ => About::Nothing,
    }
}

impl Access {
    /// Allows a request, or returns why it is refused.
    pub(super) fn lets(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, &'static str)> {
        let about = about(uri.path());
        if let Some(token) = &self.token {
            let open = matches!(about, About::Probe | About::Nothing) || token.is_in(headers);
            let why = "send the header `Authorization: Bearer <token>`";
            return if open { Ok(()) } else { Err((StatusCode::UNAUTHORIZED, why)) };
        }
        if self.loopback && !is_asked_here(uri, headers) {
            let why = "this port is for this machine: ask for it as localhost";
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        if !self.loopback && about == About::Fleet {
            let why = "this is not served off loopback without a token: set ARTEL_HTTP_TOKEN";
            return Err((StatusCode::FORBIDDEN, why));
        }
        Ok(())
    }
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
                let access = Access { token: token.clone(), loopback };
                let uri = path.parse().expect("a path");
                access.lets(&uri, &headers(with)).map_or_else(|(code, _)| code.as_u16(), |()| 200)
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
        for path in ["/", "/api/v1/status", "/gather_stats", "/metrics"] {
            assert_eq!(lets(&token, true, path, std::slice::from_ref(&here)), 401, "{path}");
            assert_eq!(lets(&token, false, path, &[there.clone(), bearer.clone()]), 200, "{path}");
        }
    }
}
