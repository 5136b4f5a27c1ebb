//! A payload as it is shown in a list: text or Base64, and no more of it than a page needs.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use serde_json::Value;

/// Bytes of a payload that a list shows. All of it can be asked for.
const BYTES_MAX: usize = 2048;

/// Puts the beginning of a payload into a row, and says how long it is.
pub(super) fn show(row: &mut Value, payload: &[u8], bytes: usize) {
    let beginning = &payload[..payload.len().min(BYTES_MAX)];
    // A character may be cut at the end.
    let text = match std::str::from_utf8(beginning) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && beginning.len() < bytes => {
            std::str::from_utf8(&beginning[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text {
        Some(text) => row["payload"] = text.into(),
        None => row["payload_b64"] = base64::prelude::BASE64_STANDARD.encode(beginning).into(),
    }
    row["payload_bytes"] = bytes.into();
    row["payload_cut"] = (beginning.len() < bytes).into();
}

/// A whole payload, to be kept as a file: a browser must neither show it nor guess what it is.
pub(super) fn download(id: &str, payload: Vec<u8>) -> Response {
    let name: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.txt\"")),
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, payload).into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_payload_is_cut_between_characters() {
        let shown = |payload: &[u8]| {
            let mut row = json!({});
            show(&mut row, payload, payload.len());
            row
        };
        assert_eq!(
            shown(b"order 7"),
            json!({ "payload": "order 7", "payload_bytes": 7, "payload_cut": false })
        );
        let long = "x".to_owned() + &"ä".repeat(BYTES_MAX);
        let row = shown(long.as_bytes());
        assert_eq!(row["payload"].as_str().map(str::len), Some(BYTES_MAX - 1));
        assert_eq!((&row["payload_bytes"], &row["payload_cut"]), (&4097.into(), &true.into()));
        assert_eq!(shown(b"a\xff")["payload_b64"], "Yf8=");
        assert_eq!(shown("ä".as_bytes().split_at(1).0)["payload_b64"], "ww==");
    }
}
