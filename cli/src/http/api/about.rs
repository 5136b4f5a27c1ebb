//! What is known of a fleet as a whole, and of this process.

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::super::access::Level;
use super::super::answer::{Answer, Problem, document};
use super::Api;
use super::ask::Ask;

const OPENAPI: &str = include_str!("openapi.json");

/// What is served here, and what this client may do.
pub(super) async fn about(
    State(api): State<Api>,
    Extension(level): Extension<Level>,
    ask: Ask,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let fleets: Vec<&str> = api.fleets.iter().map(|served| served.fleet.name()).collect();
    Ok(document(&json!({
        "v": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "fleets": fleets,
        "may_change": level == Level::Operator,
        "is_member": api.source.readiness.is_some(),
    })))
}

pub(super) async fn openapi() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, OPENAPI).into_response()
}

/// Never an old one: whoever changed something asks what became of it.
pub(super) async fn status(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    Ok(document(&ask.fleet().status().await?))
}

pub(super) async fn stats(ask: Ask) -> Result<Answer, Problem> {
    ask.params.only(&[])?;
    let fleet = ask.fleet().clone();
    let stats = async move { Answer::of(fleet.gather_stats().await.map_err(Problem::from)) };
    Ok(ask.served().stats.get(stats).await)
}

/// What endangers the promise, as `artel doctor` finds it.
pub(super) async fn findings(ask: Ask) -> Result<Answer, Problem> {
    ask.params.only(&[])?;
    let fleet = ask.fleet().clone();
    let findings = async move {
        let findings = fleet.examine().await.map_err(Problem::from);
        Answer::of(
            findings.map(|findings| json!({ "v": 1, "fleet": fleet.name(), "findings": findings })),
        )
    };
    Ok(ask.served().findings.get(findings).await)
}

/// The hub of this process; `null` if it is no member.
pub(super) async fn hub(State(api): State<Api>, ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    Ok(document(&json!({ "v": 1, "hub": api.source.hub.as_ref().map(|hub| hub.stats()) })))
}
