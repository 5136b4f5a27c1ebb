//! The page: files in the program, which need nothing from elsewhere.
//!
//! **Invariant:** a browser runs nothing but these files and speaks to nobody but the port they come from. They hold no data.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

use super::answer::Problem;

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Name, type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("index.html", HTML, include_str!("index.html")),
    ("mark.svg", SVG, include_str!("mark.svg")),
    ("app.css", CSS, include_str!("app.css")),
    ("app.js", JS, include_str!("app.js")),
    ("api.js", JS, include_str!("api.js")),
    ("dom.js", JS, include_str!("dom.js")),
    ("format.js", JS, include_str!("format.js")),
    ("keys.js", JS, include_str!("keys.js")),
    ("live.js", JS, include_str!("live.js")),
    ("dialog.js", JS, include_str!("dialog.js")),
    ("view_fleet.js", JS, include_str!("view_fleet.js")),
    ("view_messages.js", JS, include_str!("view_messages.js")),
    ("view_errors.js", JS, include_str!("view_errors.js")),
    ("view_schedule.js", JS, include_str!("view_schedule.js")),
    ("view_hub.js", JS, include_str!("view_hub.js")),
    ("view_log.js", JS, include_str!("view_log.js")),
];

/// What a browser may do with these files. There is no inline script and no inline style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// By which a browser sees that a file has not changed: one for all, because they belong together.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let all = FILES.iter().fold(Sha256::new(), |hash, (_, _, text)| hash.chain_update(text));
    let hex: String = all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
});

pub(super) fn router() -> Router {
    Router::new()
        .route("/", get(|headers: HeaderMap| async move { file("index.html", &headers) }))
        .route(
            "/page/{name}",
            get(async |Path(name): Path<String>, headers: HeaderMap| file(&name, &headers)),
        )
}

fn file(name: &str, headers: &HeaderMap) -> Response {
    let Some((_, kind, text)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return Problem::missing("there is no such file").into_response();
    };
    let about = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // It is asked for each time, and answered with "not changed".
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let tag = HeaderValue::from_str(&TAG).map(|tag| [(header::ETAG, tag)]);
    let known =
        headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == TAG.as_bytes());
    let answer = match known {
        true => (StatusCode::NOT_MODIFIED, about).into_response(),
        false => (about, *text).into_response(),
    };
    match tag {
        Ok(tag) => (tag, answer).into_response(),
        Err(_) => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_needs_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes < 200_000, "{bytes} bytes");
        for (name, _, text) in FILES {
            let rest = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!rest.contains("http://") && !rest.contains("https://"), "{name}");
            for inline in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "style=\"",
                "<style",
                "onclick=",
            ] {
                assert!(!text.contains(inline), "{name}: {inline}");
            }
        }
    }

    /// Every import names a file that is served, and every file is asked for by another one.
    #[test]
    fn the_files_belong_together() {
        let named = |name: &str| {
            FILES.iter().any(|(other, _, text)| {
                *other != name
                    && (text.contains(&format!("\"./{name}\""))
                        || text.contains(&format!("\"page/{name}\"")))
            })
        };
        for (name, ..) in FILES.iter().filter(|(name, ..)| *name != "index.html") {
            assert!(named(name), "{name}");
        }
    }
}
