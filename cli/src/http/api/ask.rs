//! [`Ask`]: what a request asks for: a fleet, and parameters. [`Body`]: the JSON document that a change brings.
//!
//! **Invariant:** what is not understood is refused with its name. A body is JSON and says so, which a form of another site
//! cannot.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use artel::Fleet;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::super::Peer;
use super::super::answer::Problem;
use super::{Api, Served};
use crate::file::nearest;

/// How long a body may take: whoever sends it has a place meanwhile.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// The parameter that every operation has.
const FLEET: &str = "fleet";

/// A request for a fleet.
pub(super) struct Ask {
    api: Api,
    fleet: usize,
    who: String,
    pub(super) params: Params,
}

impl Ask {
    pub(super) fn served(&self) -> &Served {
        &self.api.fleets[self.fleet]
    }

    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    /// The fleet, to read.
    pub(super) fn fleet(&self) -> &Fleet {
        &self.served().fleet
    }

    /// The fleet, to change something: in the name of who asked.
    pub(super) fn acting(&self) -> Fleet {
        self.fleet().acting_as(&self.who)
    }
}

impl FromRequestParts<Api> for Ask {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Ask, Problem> {
        let mut params = Params::read(parts.uri.query().unwrap_or_default())?;
        let fleet = match params.all.remove(FLEET) {
            None => 0,
            Some(name) => {
                let named = api.fleets.iter().position(|served| served.fleet.name() == name);
                named.ok_or_else(|| {
                    Problem::missing(format!("the fleet {name:?} is not served here"))
                        .hint("GET /api/v1/about names those that are")
                })?
            }
        };
        let peer =
            parts.extensions.get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
        let who = format!("{peer} over HTTP of {}", api.source_name());
        Ok(Ask { api: api.clone(), fleet, who, params })
    }
}

impl Api {
    /// This process, for the common log.
    fn source_name(&self) -> String {
        let host = rustix::system::uname();
        format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
    }
}

/// The parameters of a query.
#[derive(Debug, Default)]
pub(super) struct Params {
    all: BTreeMap<String, String>,
}

impl Params {
    fn read(query: &str) -> Result<Params, Problem> {
        let mut all = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if all.insert(name.to_string(), value.into_owned()).is_some() {
                return Err(Problem::bad(format!("the parameter `{name}` is given twice")));
            }
        }
        // As a form sends what is not filled in.
        all.retain(|_, value| !value.is_empty());
        Ok(Params { all })
    }

    /// Refuses parameters that the operation does not have.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Problem> {
        let Some(name) = self.all.keys().find(|name| !known.contains(&&***name)) else {
            return Ok(());
        };
        let mut names: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        names.push(FLEET.to_owned());
        let problem = Problem::bad(format!("there is no parameter `{name}` here"));
        Err(match nearest(name, &names) {
            Some(right) => problem.hint(format!("did you mean `{right}`?")),
            None => problem.hint(format!("there are {}", names.join(", "))),
        })
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all.get(name).map(String::as_str)
    }

    /// The value of a parameter, read.
    pub(super) fn get<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, Problem> {
        let read = |text: &str| {
            text.parse().map_err(|why| Problem::bad(format!("the parameter `{name}`: {why}")))
        };
        self.text(name).map(read).transpose()
    }

    /// How many rows are wanted.
    pub(super) fn limit(&self, usual: usize, most: usize) -> Result<usize, Problem> {
        match self.get::<usize>("limit")? {
            None => Ok(usual),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => Err(Problem::bad(format!("the parameter `limit` must be from 1 to {most}"))),
        }
    }
}

/// The document that a change brings. Without a body it is empty.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Body<T>, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).cloned();
        let read_it = tokio::time::timeout(BODY_WITHIN, Bytes::from_request(request, api)).await;
        let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        let bytes = read_it.map_err(late)?.map_err(|rejection| {
            let code = rejection.status();
            let why = match code {
                StatusCode::PAYLOAD_TOO_LARGE => "the body is too large",
                _ => "the body could not be read",
            };
            Problem::new(code, why)
        })?;
        if bytes.is_empty() {
            return read(b"{}");
        }
        let is_json = kind.is_some_and(|kind| {
            let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
        });
        if !is_json {
            let what = "the body must be JSON";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)
                .hint("send the header `Content-Type: application/json`"));
        }
        read(&bytes)
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<Body<T>, Problem> {
    let wrong = |error: serde_json::Error| Problem::bad(format!("the body is wrong: {error}"));
    serde_json::from_slice(bytes).map(Body).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_parameters_are_named() {
        let said = |query: &str| match Params::read(query).and_then(|params| {
            params.only(&["limit", "cursor"])?;
            params.limit(20, 100)
        }) {
            Ok(limit) => limit.to_string(),
            Err(problem) => format!("{problem:?}"),
        };
        assert_eq!(
            (said(""), said("limit=7&cursor="), said("limit=100")),
            ("20".to_owned(), "7".to_owned(), "100".to_owned())
        );
        assert!(said("limt=7").contains("did you mean `limit`?"));
        assert!(said("limit=7&limit=8").contains("twice"));
        for wrong in ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=99999999999999999999"] {
            assert!(said(wrong).contains("`limit`"), "{wrong}");
        }
    }
}
