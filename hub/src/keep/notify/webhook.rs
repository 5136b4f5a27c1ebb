//! Alerts by HTTP.

use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use super::{Alert, Send, SendError};

/// How long one request may take.
const TIME_OUT: Duration = Duration::from_secs(5);

/// Why no webhook was made.
#[derive(Debug, thiserror::Error)]
#[error("no webhook: {reason}")]
pub struct WebhookError {
    reason: String,
}

/// Posts every alert to an address.
pub struct Webhook {
    url: Url,
    client: Option<Client>,
    slack: bool,
}

impl Webhook {
    /// Posts alerts as JSON: `severity`, `source`, `text`, `repeated`, `at_ms`.
    pub fn json(url: &str) -> Result<Webhook, WebhookError> {
        let failed = |reason: String| WebhookError { reason };
        let parsed = Url::parse(url);
        let url =
            parsed.map_err(|_| failed("the address must begin with http:// or https://".into()))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(failed("the address must begin with http:// or https://".into()));
        }
        Ok(Webhook { url, client: None, slack: false })
    }

    /// Posts alerts the way Slack and those like it read them.
    pub fn slack(url: &str) -> Result<Webhook, WebhookError> {
        Ok(Webhook { slack: true, ..Webhook::json(url)? })
    }

    fn body(&self, alert: &Alert) -> Result<Value, SendError> {
        match self.slack {
            true => {
                // Nobody is to be called by what a payload says.
                let text = alert.to_string();
                let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                Ok(json!({ "text": text }))
            }
            false => serde_json::to_value(alert).map_err(SendError::new),
        }
    }
}

impl Send for Webhook {
    fn send(&mut self, alert: &Alert) -> Result<(), SendError> {
        let body = self.body(alert)?;
        // Made here, on the notifier's thread: a blocking client must not be made in async code.
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                // Another part of the program may have chosen one; then that one it is.
                let _ = rustls::crypto::ring::default_provider().install_default();
                // Where it leads elsewhere, nobody has read it.
                let nowhere = reqwest::redirect::Policy::none();
                let client = Client::builder().timeout(TIME_OUT).redirect(nowhere).build();
                self.client.insert(client.map_err(|error| hidden(&error))?).clone()
            }
        };
        let answer = client.post(self.url.clone()).json(&body).send();
        let answer = answer.map_err(|error| hidden(&error))?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(SendError::new(format_args!("the answer was {}", answer.status()))),
        }
    }
}

/// The address may hold a token, so the error is told without it.
fn hidden(error: &reqwest::Error) -> SendError {
    let kind = match error {
        error if error.is_timeout() => "no answer in time",
        error if error.is_connect() => "no connection",
        error if error.is_builder() => "the request could not be made",
        _ => "the request failed",
    };
    let cause = std::error::Error::source(error);
    let cause = cause.map(|cause| format!(": {cause}")).filter(|text| !text.contains("://"));
    SendError::new(format_args!("{kind}{}", cause.unwrap_or_default()))
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}
