//! Alerts by HTTP.

use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use super::{Alert, Send, SendError};

/// The time-out for one request.
const TIME_OUT: Duration = Duration::from_secs(5);

/// Why a [`Webhook`] was not created.
///
/// ```
/// use artel_hub::notify::Webhook;
///
/// let error = Webhook::json("ftp://example.org/alerts").unwrap_err();
/// assert!(error.to_string().ends_with("the address must begin with http:// or https://"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the webhook is not set up: {reason}")]
pub struct WebhookError {
    reason: String,
}

/// Posts every alert to an HTTP address. Give it to [`Notifier::to`](super::Notifier::to).
///
/// ```
/// use artel_hub::EventHub;
/// use artel_hub::notify::{Notifier, Webhook};
///
/// let webhook = Webhook::slack("https://hooks.example.org/services/secret")?;
/// assert!(!format!("{webhook:?}").contains("secret")); // the address may contain a token
/// let hub = EventHub::new();
/// let alerts = Notifier::new().to(webhook).start(&hub)?; // connects when there is an alert
/// assert_eq!(alerts.name(), "artel-hub/notifier");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Webhook {
    url: Url,
    client: Option<Client>,
    slack: bool,
}

impl Webhook {
    /// Posts alerts as JSON with the fields `severity`, `source`, `text`, `repeated` and `at_ms`.
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

    /// Posts alerts in the format of Slack and compatible services.
    pub fn slack(url: &str) -> Result<Webhook, WebhookError> {
        Ok(Webhook { slack: true, ..Webhook::json(url)? })
    }

    fn body(&self, alert: &Alert) -> Result<Value, SendError> {
        match self.slack {
            true => {
                // Escaped, so that the text of a payload cannot mention anybody.
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
        // Created here, on the notifier's thread: a blocking client must not be created in async
        // code.
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                // Another part of the program may have installed a provider. Then that one is used.
                let _ = rustls::crypto::ring::default_provider().install_default();
                // A redirect counts as a failure: the alert was not read there.
                let nowhere = reqwest::redirect::Policy::none();
                let client = Client::builder().timeout(TIME_OUT).redirect(nowhere).build();
                self.client.insert(client.map_err(|error| hidden(&error))?).clone()
            }
        };
        let answer = client.post(self.url.clone()).json(&body).send();
        let answer = answer.map_err(|error| hidden(&error))?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(SendError::new(format_args!("the server answered {}", answer.status()))),
        }
    }
}

/// The address may contain a token, so the error does not contain it.
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
