//! Alerts by HTTP.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use reqwest::Url;
use reqwest::blocking::Client;
use serde_json::{Value, json};
use sha2::Sha256;

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
    secret: Option<Vec<u8>>,
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
        Ok(Webhook { url, client: None, slack: false, secret: None })
    }

    /// Posts alerts in the format of Slack and compatible services.
    pub fn slack(url: &str) -> Result<Webhook, WebhookError> {
        Ok(Webhook { slack: true, ..Webhook::json(url)? })
    }

    /// Signs each request: the header `X-Artel-Signature` is `sha256=` and the HMAC-SHA256 of the body under this secret, in
    /// hexadecimal digits.
    ///
    /// ```
    /// use artel_hub::notify::Webhook;
    ///
    /// let webhook = Webhook::json("https://example.org/alerts")?.signed(b"a shared secret");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn signed(mut self, secret: &[u8]) -> Webhook {
        self.secret = Some(secret.to_vec());
        self
    }

    fn signature(&self, body: &[u8]) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_deref()?).ok()?;
        mac.update(body);
        let digest = mac.finalize().into_bytes();
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("sha256={digits}"))
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
        let body = serde_json::to_vec(&body).map_err(SendError::new)?;
        let mut request = client.post(self.url.clone()).header("content-type", "application/json");
        if let Some(signature) = self.signature(&body) {
            request = request.header("x-artel-signature", signature);
        }
        let answer = request.body(body).send();
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
